package dev.lockward;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Runs tasks at instants of the monotonic clock, in one thread. No task may block, because that would delay the ends of leases. */
final class Timer extends ScheduledThreadPoolExecutor {
    private static final long TICK = 100;

    Timer() {
        super(1, task -> Clock.daemon(task, "lockward-timer"), new DiscardPolicy());
        setRemoveOnCancelPolicy(true);
        // A new task wakes the timer's thread only if the new task is due before all other tasks. Most tasks of
        // acquisitions are soon cancelled, so they should not wake the thread. The task below does nothing, but it is
        // due within 100 ms, and so before most of these tasks.
        scheduleWithFixedDelay(() -> {}, TICK, TICK, TimeUnit.MILLISECONDS);
    }

    /** Runs an action at an instant. If the timer has ended, runs the action at once in this thread, so that no call hangs. */
    Future<?> at(long due, Runnable action) {
        Runnable once = new FutureTask<>(action, null);
        Future<?> task = schedule(once, Clock.left(due), TimeUnit.MILLISECONDS);
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
