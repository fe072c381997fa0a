package dev.lockward;

import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Runs tasks at instants of the monotonic clock, in one thread. No task may block, because that would delay the ends of leases. */
final class Timer extends ScheduledThreadPoolExecutor {
    private static final long TICK = 100;

    Timer() {
        // After the shutdown a new task runs at once, in the thread that adds it. The task finds the client closed, so
        // no call hangs.
        super(1, task -> Clock.daemon(task, "lockward-timer"), (task, closed) -> task.run());
        setRemoveOnCancelPolicy(true);
        // A new task wakes the thread if the task is due first. The tasks of an acquisition are soon cancelled, so they
        // would cost several context switches for nothing. This task is due before them, and prevents that.
        scheduleWithFixedDelay(() -> {}, TICK, TICK, TimeUnit.MILLISECONDS);
    }

    ScheduledFuture<?> at(long due, Runnable action) {
        return schedule(action, Clock.left(due), TimeUnit.NANOSECONDS);
    }
}
