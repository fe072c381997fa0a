package dev.lockward;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Instants and spans of the monotonic clock, in nanoseconds; spans short enough to be added to an instant. */
final class Clock {
    /** As good as for ever: 146 years. */
    static final long FOREVER = Long.MAX_VALUE / 2;

    private Clock() {}

    static long now() {
        return System.nanoTime();
    }

    static long left(long until) {
        return until - System.nanoTime();
    }

    static long span(long time, TimeUnit unit) {
        return Math.max(0, Math.min(FOREVER, unit.toNanos(time)));
    }

    static long span(Duration duration) {
        return span(TimeUnit.NANOSECONDS.convert(duration), TimeUnit.NANOSECONDS);
    }

    /** A lease in milliseconds, rounded up. */
    static long lease(Duration lease) {
        if (lease.isZero() || lease.isNegative()) {
            throw new IllegalArgumentException("a lease is more than 0: " + lease);
        }
        return millis(TimeUnit.NANOSECONDS.convert(lease));
    }

    /** Whole milliseconds, rounded up: what is asked of a server is never 0, which may stand for no limit. */
    static long millis(long span) {
        return Math.max(1, span / 1_000_000 + (span % 1_000_000 == 0 ? 0 : 1));
    }

    /**
     * The end of a lease of so many milliseconds that was asked for at {@code sent}. The server has begun to count later than
     * that; what its clock may be faster than ours, a thousandth and a millisecond, is left out.
     */
    static long end(long sent, long lease) {
        return sent + Math.min(FOREVER, TimeUnit.MILLISECONDS.toNanos(Math.max(0, lease - lease / 1000 - 1)));
    }

    /** Before the next attempt: nothing at first, as a connection may have been cut while it was idle; then 50 ms, doubling to a second, with jitter. */
    static long backOff(int failures) {
        long most = failures == 0 ? 0 : Math.min(1_000, 25L << Math.min(failures, 6));
        return TimeUnit.MICROSECONDS.toNanos(most * ThreadLocalRandom.current().nextLong(500, 1_001));
    }

    /** Waits for it; if not interruptibly, the interrupt is kept for later. */
    static <T> T await(CompletableFuture<T> future, long span, boolean interruptible)
            throws InterruptedException, ExecutionException, TimeoutException {
        if (interruptible) {
            return future.get(span, TimeUnit.NANOSECONDS);
        }
        long until = now() + span;
        boolean interrupted = false;
        try {
            for (; ; ) {
                try {
                    return future.get(left(until), TimeUnit.NANOSECONDS);
                } catch (InterruptedException kept) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
