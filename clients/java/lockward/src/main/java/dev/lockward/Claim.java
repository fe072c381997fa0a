package dev.lockward;

import dev.lockward.LockwardClient.Replicas;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Whose lock it is about, and what its requests are. Leases are in milliseconds. */
record Claim(String name, String owner) {
    /** Does not wait. */
    static final long NO_WAIT = -1;

    /** Waits without limit. */
    static final long NO_LIMIT = 0;

    /**
     * The hold that leads to {@code holds}, and what is to be known of it.
     *
     * @param lease null: the server's own, and how long that is
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
        List<Request> requests = new ArrayList<>(List.of(new Request("LOCK.ACQUIRE", arguments)));
        if (lease == null) {
            requests.add(Request.of("LOCK.INFO", name));
        }
        if (replicas != null) {
            requests.add(Request.of("WAIT", replicas.count(), replicas.within()));
        }
        return requests;
    }

    Request renew(long lease, long token, int holds) {
        return Request.of("LOCK.RENEW", name, owner, "PX", lease, "TOKEN", token, "HOLDS", holds);
    }

    /** Gives back, so that {@code left} holds are left, 1 or more. */
    Request release(int left, long token) {
        return Request.of("LOCK.RELEASE", name, owner, "HOLDS", left, "TOKEN", token);
    }

    /** Ends a tenure. {@code HOLDS 0} would be answered alike whether the lock was held or had been lost. */
    Request end(long token) {
        return Request.of("LOCK.RELEASE", name, owner, "ALL", "TOKEN", token);
    }

    /** Gives back what the owner may have got since it had so many holds. */
    Request withdraw(int holds) {
        return Request.of("LOCK.RELEASE", name, owner, "HOLDS", holds);
    }

    /** Gives back all that the owner has. */
    Request clear() {
        return Request.of("LOCK.RELEASE", name, owner, "ALL");
    }
}
