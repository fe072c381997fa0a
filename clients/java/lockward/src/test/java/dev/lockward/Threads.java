package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertFalse;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Threads for tests. */
final class Threads {
    private Threads() {}

    interface Action {
        void run() throws Exception;
    }

    /** A thread and its result. */
    static final class Running<T> {
        private final CompletableFuture<T> outcome = new CompletableFuture<>();
        private final Thread thread;

        private Running(Callable<T> action) {
            thread = new Thread(() -> {
                try {
                    outcome.complete(action.call());
                } catch (Throwable error) {
                    outcome.completeExceptionally(error);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        void interrupt() {
            thread.interrupt();
        }

        boolean isDone() {
            return outcome.isDone();
        }

        Thread thread() {
            return thread;
        }

        /** The result of the thread. Throws its exception. */
        T join() throws Exception {
            try {
                return outcome.get(30, TimeUnit.SECONDS);
            } catch (ExecutionException error) {
                if (error.getCause() instanceof Exception cause) {
                    throw cause;
                }
                throw error;
            } catch (TimeoutException late) {
                throw new AssertionError("the thread still runs", late);
            } finally {
                thread.join(1_000);
                assertFalse(outcome.isDone() && thread.isAlive());
            }
        }
    }

    /** Keeps this thread busy for a moment. */
    static void spin(int times) {
        for (int i = 0; i < times; i++) {
            Thread.onSpinWait();
        }
    }

    static <T> Running<T> start(Callable<T> action) {
        return new Running<>(action);
    }

    static Running<Boolean> run(Action action) {
        return new Running<>(() -> {
            action.run();
            return true;
        });
    }

    /** The result of an action in another thread. */
    static <T> T inOtherThread(Callable<T> action) throws Exception {
        return start(action).join();
    }

    static void awaitOpen(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
