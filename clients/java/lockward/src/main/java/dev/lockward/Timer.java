package dev.lockward;

import java.util.Objects;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * Runs tasks at instants of the monotonic clock, in one thread. No task may block: the ends of leases are among them.
 *
 * <p>Adding or cancelling a task does not wake the thread, unless the task is the first one. So an acquisition that adds a task and
 * cancels it soon costs no switch of threads.
 */
final class Timer {
    private static final System.Logger LOGGER = System.getLogger(Timer.class.getName());

    private final ConcurrentSkipListSet<Task> tasks = new ConcurrentSkipListSet<>();
    private final AtomicLong numbers = new AtomicLong();
    private final Thread thread = new Thread(this::run, "lockward-timer");

    /** When the thread wakes up at the latest. */
    private volatile long wake = Clock.now();

    private volatile boolean closed;

    record Task(long due, long number, Runnable action) implements Comparable<Task> {
        @Override
        public int compareTo(Task other) {
            // The clock may overflow.
            return due == other.due ? Long.compare(number, other.number) : Long.compare(due - other.due, 0);
        }
    }

    Timer() {
        thread.setDaemon(true);
        thread.start();
    }

    Task at(long due, Runnable action) {
        Task task = new Task(due, numbers.incrementAndGet(), action);
        tasks.add(task);
        if (closed) {
            run(task);
        } else if (due - wake < 0) {
            LockSupport.unpark(thread);
        }
        return task;
    }

    void cancel(@Nullable Task task) {
        if (task != null) {
            tasks.remove(task);
        }
    }

    /** Runs all tasks at once, and later ones in the thread that adds them. They find the client closed, so no call hangs. */
    void close() {
        closed = true;
        LockSupport.unpark(thread);
    }

    private void run() {
        for (; ; ) {
            Task first = first();
            if (first != null && (closed || Clock.left(first.due) <= 0)) {
                run(first);
                continue;
            }
            if (closed) {
                return;
            }
            wake = first == null ? Clock.now() + Clock.FOREVER : first.due;
            // Look again: a task that was added before the line above has not woken this thread.
            if (Objects.equals(first(), first) && !closed) {
                LockSupport.parkNanos(this, Clock.left(wake));
            }
        }
    }

    private void run(Task task) {
        if (!tasks.remove(task)) {
            return;
        }
        try {
            task.action.run();
        } catch (RuntimeException | Error error) { // this thread must live on
            LOGGER.log(System.Logger.Level.ERROR, "a task of the timer has failed", error);
        }
    }

    private @Nullable Task first() {
        var each = tasks.iterator();
        return each.hasNext() ? each.next() : null;
    }
}
