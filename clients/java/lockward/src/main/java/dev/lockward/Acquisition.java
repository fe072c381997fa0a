package dev.lockward;

import dev.lockward.LockwardClient.Replicas;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/** The way to a grant, from a first try through the server's queue. */
final class Acquisition {
    private final Claim claim;
    private final @Nullable Long lease;
    private final @Nullable Replicas replicas;
    private final Attempts attempts;
    private final long began = Clock.now();

    Acquisition(Claim claim, @Nullable Long lease, @Nullable Replicas replicas, Attempts attempts) {
        this.claim = claim;
        this.lease = lease;
        this.replicas = replicas;
        this.attempts = attempts;
        if (replicas != null) {
            attempts.grace += TimeUnit.MILLISECONDS.toNanos(replicas.within());
        }
    }

    /** Null when it is busy for longer. */
    @Nullable
    Grant within(long wait, long patience, Semaphore waiting) throws InterruptedException {
        long until = Clock.now() + wait;
        long late = Clock.now() + patience;
        attempts.within(wait == 0 || wait == Clock.FOREVER ? patience : wait);
        boolean isPlaced = false;
        try {
            List<Object> replies = attempt();
            for (int turns = 0; ; turns++) {
                Grant grant = grant(replies, patience);
                if (grant != null) {
                    return grant;
                }
                if (Clock.left(until) <= 0) {
                    if (!isGrant(replies) || Clock.left(late) <= 0) {
                        return null;
                    }
                    // It was not busy, but too late: the first one had to connect, say.
                    attempts.within(Clock.left(late));
                    replies = attempt();
                    continue;
                }
                attempts.within(Clock.left(until));
                isPlaced = isPlaced || waiting.tryAcquire();
                if (isPlaced) {
                    LongSupplier block =
                            () -> wait == Clock.FOREVER ? Claim.NO_LIMIT : Clock.millis(Math.max(0, Clock.left(until)));
                    replies = attempts.askInLine(
                            () -> claim.acquire(1, lease, block.getAsLong(), replicas), this::confirmation);
                } else {
                    attempts.pause(Math.min(Clock.left(until), Clock.backOff(turns + 1)));
                    replies = attempt();
                }
            }
        } finally {
            if (isPlaced) {
                waiting.release();
            }
        }
    }

    /** Does not wait for the lock. */
    private List<Object> attempt() throws InterruptedException {
        List<Object> replies = once();
        if (isLeft(replies)) {
            // This is left of a tenure that this owner has lost, as nobody else has its name.
            attempts.ask(claim.clear());
            return once();
        }
        return replies;
    }

    /** Whether the owner has had the lock since before: for which lease, nobody knows. */
    private boolean isLeft(List<Object> replies) {
        if (replies.get(0) instanceof Refusal refusal) {
            return refusal.code().equals("HOLDS");
        }
        if (lease != null || !isGrant(replies)) {
            return false;
        }
        Long held = told(replies.get(1), "held-for", token(replies));
        return held != null && Clock.now() - began < TimeUnit.MILLISECONDS.toNanos(held - held / 1000 - 1);
    }

    private List<Object> once() throws InterruptedException {
        List<Request> requests = claim.acquire(1, lease, Claim.NO_WAIT, replicas);
        // It may wait for replicas, which others should not have to.
        return replicas == null ? attempts.ask(requests) : attempts.askInLine(() -> requests, this::confirmation);
    }

    private static boolean isGrant(List<Object> replies) {
        return replies.get(0) instanceof List<?> reply && !reply.isEmpty() && reply.get(0) instanceof Long;
    }

    private static Long token(List<Object> grant) {
        return (Long) ((List<?>) grant.get(0)).get(0);
    }

    /** Null when it is busy, or is over by now. */
    private @Nullable Grant grant(List<Object> replies, long patience) throws InterruptedException {
        if (replies.get(0) instanceof Refusal refusal) {
            throw new LockRefusedException(refusal.words());
        }
        if (!isGrant(replies)) {
            return null;
        }
        Long token = token(replies);
        Long granted = lease == null ? told(replies.get(1), "lease-left", token) : lease;
        if (granted == null) {
            return null; // lost already
        }
        int asked = claim.acquire(1, lease, Claim.NO_WAIT, replicas).size();
        if (replicas != null) {
            replicated(replies.get(asked - 1), replicas);
        }
        Object renewed = replies.size() > asked ? replies.get(asked) : null;
        if (renewed == null ? confirmation(replies) != null : renewed instanceof Refusal said && !said.denies()) {
            attempts.within(patience);
            renewed = attempts.ask(claim.renew(granted, token, 1));
        }
        if (renewed instanceof Refusal refusal) {
            if (refusal.denies()) {
                return null;
            }
            throw new LockRefusedException(refusal.words());
        }
        return new Grant(token, granted, Clock.end(attempts.sent, granted));
    }

    /**
     * By our clock the lease of a grant that was long in coming may be over: nobody relies on it before it has a new one. Null
     * if it was not.
     */
    private @Nullable Request confirmation(List<Object> replies) {
        if (!isGrant(replies)) {
            return null;
        }
        Long token = token(replies);
        Long granted = lease == null ? told(replies.get(1), "lease-left", token) : lease;
        return granted == null || Clock.now() - attempts.sent <= TimeUnit.MILLISECONDS.toNanos(granted) / 3
                ? null
                : claim.renew(granted, token, 1);
    }

    private static void replicated(Object reply, Replicas wanted) {
        if (reply instanceof Refusal refusal) {
            throw new LockRefusedException(refusal.words());
        }
        long reached = (Long) ((List<?>) reply).get(0);
        if (reached < wanted.count()) {
            throw new LockUnreplicatedException(
                    reached + " of " + wanted.count() + " replicas have heard of the grant in time");
        }
    }

    /** Of this owner's tenure, as LOCK.INFO tells. */
    private @Nullable Long told(Object info, String what, Long token) {
        if (info instanceof Refusal refusal) {
            throw new LockRefusedException(refusal.words());
        }
        if (field((List<?>) info, "holders") instanceof List<?> holders) {
            for (Object holder : holders) {
                List<?> fields = (List<?>) holder;
                if (claim.owner().equals(field(fields, "owner")) && token.equals(field(fields, "token"))) {
                    return (Long) field(fields, what);
                }
            }
        }
        return null;
    }

    private static @Nullable Object field(List<?> map, String name) {
        for (Iterator<?> each = map.iterator(); each.hasNext(); ) {
            Object key = each.next();
            Object value = each.hasNext() ? each.next() : null;
            if (name.equals(key)) {
                return value;
            }
        }
        return null;
    }
}
