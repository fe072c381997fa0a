package dev.lockward;

import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Runs tasks at instants of the monotonic clock, in one thread. No task may block, because that would delay the ends of leases. */
final class Timer extends ScheduledThreadPoolExecutor {
    private static final long TICK = 100;

    Timer() {
        super(1, task -> Clock.daemon(task, "lockward-timer"), new DiscardPolicy());
        setRemoveOnCancelPolicy(true);
        // A new task wakes the thread if the task is due first. The tasks of an acquisition are soon cancelled, so they
        // would cost several context switches for nothing. This task is due before them, and prevents that.
        scheduleWithFixedDelay(() -> {}, TICK, TICK, TimeUnit.MILLISECONDS);
    }

    /** After the end of the timer the action runs at once, in this thread. It finds the client closed, so no call hangs. */
    Future<?> at(long due, Runnable action) {
        Runnable once = new FutureTask<>(action, null);
        Future<?> task = schedule(once, Clock.left(due), TimeUnit.NANOSECONDS);
        if (isShutdown()) { // and so the thread may not run it
            task.cancel(false);
            once.run();
        }
        return task;
    }

    /** Ends the timer. What it was to do is done now, in this thread. */
    void end() {
        shutdown();
        for (Runnable task : getQueue().toArray(Runnable[]::new)) {
            task.run();
            remove(task);
        }
    }
}
