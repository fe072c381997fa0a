package dev.lockward;

import dev.lockward.LockwardClient.Replicas;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/** An acquisition under way: it tries first, and then waits in the server's queue. */
final class PendingAcquire {
    private final OwnedKey ownedKey;
    private final @Nullable Long lease;
    private final @Nullable Replicas replicas;
    private final Attempts attempts;
    private final Semaphore waitPermits;
    private final long patience;
    private final boolean isLimited;
    private final long began = Clock.now();
    private final long deadline;
    private boolean hasPermit;

    PendingAcquire(
            OwnedKey ownedKey,
            @Nullable Long lease,
            @Nullable Replicas replicas,
            Attempts attempts,
            Semaphore waitPermits,
            long waitLimit,
            long patience) {
        this.ownedKey = ownedKey;
        this.lease = lease;
        this.replicas = replicas;
        this.attempts = attempts;
        this.waitPermits = waitPermits;
        this.patience = patience;
        isLimited = waitLimit != Clock.FOREVER;
        deadline = began + waitLimit;
        attempts.limit(waitLimit > 0 && isLimited ? waitLimit : patience);
        if (replicas != null) {
            attempts.replyMargin += TimeUnit.MILLISECONDS.toNanos(replicas.within());
        }
    }

    /**
     * Acquires the lock; null when it is busy for longer than the wait limit.
     *
     * @param isLeftover whether the owner may hold the lock, from an earlier tenure that this thread has lost or could not release
     */
    @Nullable
    Grant run(boolean isLeftover) throws InterruptedException {
        try {
            if (isLeftover) {
                attempts.ask(ownedKey.releaseAll());
            }
            List<Object> replies = tryOnce();
            for (int tries = 1; ; tries++) {
                Grant grant = confirm(replies);
                if (grant != null) {
                    return grant;
                }
                if (Clock.left(deadline) > 0) {
                    attempts.limit(Clock.left(deadline));
                    replies = waitOrTry(tries);
                } else if (isGrant(replies) && Clock.left(began + patience) > 0) {
                    // The lock was not busy. The grant came too late, perhaps because the client had to connect.
                    attempts.limit(Clock.left(began + patience));
                    replies = tryOnce();
                } else {
                    return null;
                }
            }
        } finally {
            if (hasPermit) {
                waitPermits.release();
            }
        }
    }

    /** Waits in the server's queue; or pauses and tries again, while other threads use all waiting connections. */
    private List<Object> waitOrTry(int tries) throws InterruptedException {
        hasPermit = hasPermit || waitPermits.tryAcquire();
        if (hasPermit) {
            return attempts.askDedicated(() -> ownedKey.acquire(1, lease, block(), replicas), this::confirmation);
        }
        attempts.pause(Math.min(Clock.left(deadline), Clock.backOff(tries)));
        return tryOnce();
    }

    private long block() {
        return isLimited ? Clock.millis(Math.max(0, Clock.left(deadline))) : OwnedKey.NO_LIMIT;
    }

    /** Acquires the lock if it is free. */
    private List<Object> tryOnce() throws InterruptedException {
        List<Request> requests = ownedKey.acquire(1, lease, OwnedKey.NO_WAIT, replicas);
        // WAIT would hold up other requests on the shared connection.
        return replicas == null ? attempts.ask(requests) : attempts.askDedicated(() -> requests, this::confirmation);
    }

    /** The grant that the client can rely on. Null when the lock is busy, or the grant's lease is over. */
    private @Nullable Grant confirm(List<Object> replies) throws InterruptedException {
        ServerError.throwIfError(replies.get(0));
        if (!isGrant(replies)) {
            return null;
        }
        long token = token(replies);
        long granted = grantedLease(replies);
        if (replicas != null) {
            checkReplicas(replies.get(1), replicas);
        }
        int asked = replicas == null ? 1 : 2;
        Object renewed = replies.size() > asked ? replies.get(asked) : null;
        boolean needsRenewal = renewed == null
                ? confirmation(replies) != null
                : renewed instanceof ServerError error && !error.deniesTenure();
        if (needsRenewal) {
            attempts.limit(patience);
            renewed = attempts.ask(ownedKey.renew(granted, token, 1));
        }
        if (renewed instanceof ServerError error && error.deniesTenure()) {
            return null;
        }
        ServerError.throwIfError(renewed);
        return new Grant(token, granted, Clock.leaseEnd(attempts.sent, granted));
    }

    /**
     * The request that renews a grant, or null if that is not needed. The lease counts from before its request was sent, so
     * after a long wait it may be over by this clock.
     */
    private @Nullable Request confirmation(List<Object> replies) {
        if (!isGrant(replies)) {
            return null;
        }
        long granted = grantedLease(replies);
        return Clock.now() - attempts.sent <= TimeUnit.MILLISECONDS.toNanos(granted) / 3
                ? null
                : ownedKey.renew(granted, token(replies), 1);
    }

    private static boolean isGrant(List<Object> replies) {
        return replies.get(0) instanceof List<?> reply && !reply.isEmpty() && reply.get(0) instanceof Long;
    }

    private static long token(List<Object> grant) {
        return (Long) ((List<?>) grant.get(0)).get(0);
    }

    /** In milliseconds. */
    private long grantedLease(List<Object> grant) {
        return lease == null ? (Long) ((List<?>) grant.get(0)).get(2) : lease;
    }

    private static void checkReplicas(Object reply, Replicas wanted) {
        ServerError.throwIfError(reply);
        long reached = (Long) ((List<?>) reply).get(0);
        if (reached < wanted.count()) {
            throw new LockUnreplicatedException(
                    reached + " of " + wanted.count() + " replicas have confirmed the grant in time");
        }
    }
}
