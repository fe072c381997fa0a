package dev.lockward;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Instants and spans of the monotonic clock, in nanoseconds. A span plus an instant does not overflow. */
final class Clock {
    /** 146 years. */
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
            throw new IllegalArgumentException("a lease must be more than 0: " + lease);
        }
        return millis(TimeUnit.NANOSECONDS.convert(lease));
    }

    /** Whole milliseconds, rounded up and at least 1: the server takes 0 for no limit. */
    static long millis(long span) {
        return Math.max(1, span / 1_000_000 + (span % 1_000_000 == 0 ? 0 : 1));
    }

    /**
     * When a lease in milliseconds ends whose request was sent at {@code sent}. The server starts counting later. A thousandth
     * and a millisecond are subtracted, because its clock may be faster.
     */
    static long leaseEnd(long sent, long lease) {
        return sent + Math.min(FOREVER, TimeUnit.MILLISECONDS.toNanos(Math.max(0, lease - lease / 1000 - 1)));
    }

    /**
     * The pause before the next attempt: none after the first failure, because the connection may have been cut while it was
     * idle; then 50 ms, doubling to a second, with jitter.
     */
    static long backOff(int failures) {
        long most = failures == 0 ? 0 : Math.min(1_000, 25L << Math.min(failures, 6));
        return TimeUnit.MICROSECONDS.toNanos(most * ThreadLocalRandom.current().nextLong(500, 1_001));
    }

    /** Waits for a future. If not interruptible, an interrupt is set again afterwards. */
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
