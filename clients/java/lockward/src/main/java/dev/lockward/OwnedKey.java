package dev.lockward;

import dev.lockward.LockwardClient.Replicas;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** A lock's key, the owner that requests are sent for, and with whom it shares the lock. Leases are in milliseconds. */
record OwnedKey(String name, String owner, Mode mode) {
    /** The value of {@code block} that does not wait. */
    static final long NO_WAIT = -1;

    /** The value of {@code block} that waits without limit. */
    static final long NO_LIMIT = 0;

    /**
     * Acquires the lock so that the owner has {@code holds} holds, and waits for replicas.
     *
     * @param lease null: the server's default
     * @param block how many milliseconds to wait
     */
    List<Request> acquire(int holds, @Nullable Long lease, long block, @Nullable Replicas replicas) {
        List<Object> arguments = new ArrayList<>(List.of(name, owner, "HOLDS", holds));
        if (lease != null) {
            arguments.addAll(List.of("PX", lease));
        }
        if (block != NO_WAIT) {
            arguments.addAll(List.of("BLOCK", block));
        }
        arguments.addAll(mode.arguments());
        Request acquire = new Request("LOCK.ACQUIRE", arguments);
        return replicas == null
                ? List.of(acquire)
                : List.of(acquire, Request.of("WAIT", replicas.count(), replicas.within()));
    }

    /** Sets a lease. In quarantine this restores a tenure that the server has forgotten. */
    Request renew(long lease, long token, int holds) {
        List<Object> arguments = new ArrayList<>(List.of(name, owner, "PX", lease, "TOKEN", token, "HOLDS", holds));
        arguments.addAll(mode.arguments());
        return new Request("LOCK.RENEW", arguments);
    }

    /** Runs a command if the token is that of a present holder. */
    Request guard(long token, Object[] command) {
        List<Object> arguments = new ArrayList<>(List.of(name, token));
        arguments.addAll(List.of(command));
        return new Request("LOCK.GUARD", arguments, true);
    }

    /** Gives holds back, so that {@code left} holds are left, at least 1. */
    Request release(int left, long token) {
        return Request.of("LOCK.RELEASE", name, owner, "HOLDS", left, "TOKEN", token);
    }

    /** Ends a tenure. The reply to {@code HOLDS 0} would not tell whether the lock was lost. */
    Request end(long token) {
        return Request.of("LOCK.RELEASE", name, owner, "ALL", "TOKEN", token);
    }

    /** Gives back what may have been granted since the owner had so many holds. */
    Request withdraw(int holds) {
        return Request.of("LOCK.RELEASE", name, owner, "HOLDS", holds);
    }

    /** Gives back all holds of the owner, with any token. */
    Request releaseAll() {
        return Request.of("LOCK.RELEASE", name, owner, "ALL");
    }
}
