package dev.lockward;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/** The monotonic clock, and methods for futures. All instants and spans of the client are in milliseconds. */
final class Clock {
    /** The longest span of time: 146 years. */
    static final long FOREVER = Long.MAX_VALUE / 2_000_000;

    /** The shortest lease: {@link #leaseEnd} subtracts a millisecond, so a lease of 1 ms would be over at once. */
    static final long SHORTEST_LEASE = 2;

    private Clock() {}

    static long now() {
        return Math.floorDiv(System.nanoTime(), 1_000_000);
    }

    static long left(long until) {
        return until - now();
    }

    /** Converts a time to milliseconds, rounded up. A negative time becomes 0. The result is less than {@link #FOREVER}. */
    static long span(long time, TimeUnit unit) {
        long nanos = unit.toNanos(time);
        return Math.max(0, Math.min(FOREVER - 1, nanos / 1_000_000 + (nanos % 1_000_000 > 0 ? 1 : 0)));
    }

    /** Converts a duration to milliseconds, rounded up. Throws if the result is less than {@code least}. */
    static long span(Duration duration, long least, String what) {
        Objects.requireNonNull(duration, what);
        long millis = span(TimeUnit.NANOSECONDS.convert(duration), TimeUnit.NANOSECONDS);
        if (millis < least) {
            throw new IllegalArgumentException("the " + what + " must be " + least + " ms or more: " + duration);
        }
        return millis;
    }

    /**
     * When a lease ends by this process's clock. The client sent the request at {@code sent}, and the server started the lease later. This
     * method subtracts a thousandth and a millisecond, because the server's clock may be faster.
     */
    static long leaseEnd(long sent, long lease) {
        return sent + Math.max(0, lease - lease / 1000 - 1);
    }

    /**
     * The pause before the next attempt. After the first failure there is no pause, because the server may have closed the connection
     * while it was idle. After the second failure the pause is at most 50 ms. Each further pause is twice as long, up to a second. The
     * pause is random: at least half of this time.
     */
    static long backOff(int failures) {
        long most = failures == 0 ? 0 : Math.min(1_000, 25L << Math.min(failures, 6));
        return ThreadLocalRandom.current().nextLong(most / 2, most + 1);
    }

    static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    /** Completes a future with the value. If there is an error, completes the future exceptionally with the cause of the error. */
    static <T> void complete(CompletableFuture<T> future, @Nullable T value, @Nullable Throwable error) {
        if (error == null) {
            future.complete(value);
        } else {
            future.completeExceptionally(cause(error));
        }
    }

    /** Returns a future that completes when all these futures have completed. */
    static CompletableFuture<Void> all(Stream<? extends CompletableFuture<?>> futures) {
        return CompletableFuture.allOf(futures.toArray(CompletableFuture[]::new));
    }

    /**
     * Waits for a future. If the future fails, the thrown exception has the stack trace of this thread. An interrupt does not end the
     * wait. It only sets the thread's interrupt status.
     */
    static <T> T await(CompletableFuture<T> future) {
        try {
            return future.join();
        } catch (CompletionException failure) {
            if (cause(failure) instanceof RuntimeException exception) {
                exception.fillInStackTrace();
                throw exception;
            }
            throw new IllegalStateException(failure);
        }
    }

    /** Waits for a future. An interrupt ends the wait. A failure has the same effect as in {@link #await}. */
    static <T> T awaitInterruptibly(CompletableFuture<T> future) throws InterruptedException {
        try {
            return future.get();
        } catch (ExecutionException failure) {
            return await(future);
        }
    }

    /** The exception with which a future has failed, without the exceptions that wrap it. */
    static Throwable cause(Throwable failure) {
        Throwable cause = failure instanceof CompletionException ? failure.getCause() : null;
        return cause == null ? failure : cause;
    }

    /** Runs tasks at instants of the monotonic clock, in one thread. No task may block, because that would delay the ends of leases. */
    static final class Timer extends ScheduledThreadPoolExecutor {
        private static final long TICK = 100;

        Timer() {
            super(1, task -> daemon(task, "lockward-timer"), new DiscardPolicy());
            setRemoveOnCancelPolicy(true);
            // A new task wakes the timer's thread only if the new task is due before all other tasks. Most tasks of
            // acquisitions are soon cancelled, so they should not wake the thread. The task below does nothing, but it
            // is
            // due within 100 ms, and so before most of these tasks.
            scheduleWithFixedDelay(() -> {}, TICK, TICK, TimeUnit.MILLISECONDS);
        }

        /** Runs an action at an instant. If the timer has ended, runs the action at once in this thread, so that no call hangs. */
        Future<?> at(long due, Runnable action) {
            Runnable once = new FutureTask<>(action, null);
            Future<?> task = schedule(once, left(due), TimeUnit.MILLISECONDS);
            if (isShutdown()) { // the timer's thread may never run the task
                task.cancel(false);
                once.run();
            }
            return task;
        }

        /** Makes a future fail with a TimeoutException if it has not completed before the instant {@code due}. */
        <T> CompletableFuture<T> limit(long due, CompletableFuture<T> future) {
            Future<?> alarm = at(due, () -> future.completeExceptionally(new TimeoutException("no reply in time")));
            return future.whenComplete((value, error) -> alarm.cancel(false));
        }

        /** Ends the timer, and runs its remaining tasks now, in this thread. */
        void end() {
            shutdown();
            for (Runnable task : getQueue().toArray(Runnable[]::new)) {
                task.run();
                remove(task);
            }
        }
    }
}
