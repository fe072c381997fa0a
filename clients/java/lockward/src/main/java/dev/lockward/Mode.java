package dev.lockward;

import java.util.ArrayList;
import java.util.List;

/** With whom a lock is shared: how much of it may be held at once, and how much of that one owner takes. */
public final class Mode {
    /** One owner holds the lock. */
    public static final Mode EXCLUSIVE = new Mode(List.of());

    /** All owners that ask for this mode may hold the lock together: a read lock. */
    public static final Mode SHARED = new Mode(List.of("SHARED"));

    private final List<Object> arguments;

    private Mode(List<Object> arguments) {
        this.arguments = arguments;
    }

    /**
     * Each owner takes one slot: a semaphore.
     *
     * @param slots how many there are, 1 to 1,000,000. It should be the same for all
     */
    public static Mode slots(int slots) {
        return new Mode(List.of("SLOTS", slots));
    }

    /** Takes so many of the slots, and not one. */
    public Mode weight(int weight) {
        List<Object> weighted = new ArrayList<>(arguments);
        weighted.addAll(List.of("WEIGHT", weight));
        return new Mode(weighted);
    }

    /** Those of LOCK.ACQUIRE and LOCK.RENEW. The server checks them. */
    List<Object> arguments() {
        return arguments;
    }
}
