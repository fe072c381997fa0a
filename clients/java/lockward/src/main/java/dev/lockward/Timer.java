package dev.lockward;

import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Runs tasks at instants of the monotonic clock, in one thread. No task may block: the ends of leases are among them. */
final class Timer extends ScheduledThreadPoolExecutor {
    private static final long TICK = 100;

    Timer() {
        // After the shutdown a task runs at once, in the thread that adds it. It finds the client closed, so no call
        // hangs.
        super(1, task -> Clock.daemon(task, "lockward-timer"), (task, closed) -> task.run());
        setRemoveOnCancelPolicy(true);
        // Adding a task wakes the thread if it is the first one. So an acquisition, whose tasks are soon cancelled,
        // would cost several switches of threads. There is a task before them.
        scheduleWithFixedDelay(() -> {}, TICK, TICK, TimeUnit.MILLISECONDS);
    }

    ScheduledFuture<?> at(long due, Runnable action) {
        return schedule(action, Clock.left(due), TimeUnit.NANOSECONDS);
    }
}
