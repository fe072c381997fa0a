package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import java.time.Duration;
import java.util.Arrays;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;

/** Threads that are interrupted. If the server answers late, the client gives up in the background, after the call has ended. */
class InterruptTest {
    private static final Server SERVER = new Server();
    private static final LockwardClient CLIENT = SERVER.client();

    private final String name = "interrupt:" + UUID.randomUUID();
    private final LockwardLock lock = CLIENT.getLock(name);

    @AfterAll
    static void close() {
        CLIENT.close();
        SERVER.close();
    }

    /** Waits until nobody holds these locks or waits for them. No lease may end, because that would hide a hold that was left behind. */
    private static void assertNothingIsLeft(String... names) {
        eventually(() -> Arrays.stream(names).noneMatch(SERVER::isLocked));
        assertEquals(0, SERVER.count("lock_leases_ended"));
    }

    @Test
    void anInterruptedWaiterLeavesTheQueueAtOnce() throws Exception {
        lock.lock();
        for (Threads.Action wait : new Threads.Action[] {
            lock::lockInterruptibly,
            () -> lock.lockInterruptibly(1, TimeUnit.HOURS),
            () -> lock.tryLock(1, TimeUnit.HOURS),
            () -> lock.tryLock(1, 1, TimeUnit.HOURS),
            () -> Server.tryAcquire(CLIENT, name, Duration.ofHours(1), null)
        }) {
            Running<Boolean> waiter = Threads.run(wait);
            eventually(() -> SERVER.waiters(name) == 1);
            waiter.interrupt();
            assertThrows(InterruptedException.class, waiter::join);
            eventually(() -> SERVER.waiters(name) == 0);
        }
        lock.unlock();
        assertNothingIsLeft(name);
        assertEquals(0, SERVER.count("lock_wait_limits_reached"));
    }

    @Test
    void lockKeepsWaitingAndTheInterruptStatusIsSet() throws Exception {
        lock.lock();
        Running<Boolean> waiter = Threads.start(() -> {
            lock.lock();
            boolean interrupted = Thread.currentThread().isInterrupted();
            lock.unlock();
            return interrupted && Thread.currentThread().isInterrupted();
        });
        eventually(() -> SERVER.waiters(name) == 1);
        Object queue = SERVER.queue(name);
        waiter.interrupt();
        assertTrue(
                Threads.start(() -> !CLIENT.getLock(name + ":other").isLocked()).join());
        assertEquals(queue, SERVER.queue(name));
        lock.unlock();
        assertTrue(waiter.join());
    }

    @Test
    void uninterruptibleMethodsIgnoreAnInterrupt() throws Exception {
        assertTrue(Threads.start(() -> {
                    Thread.currentThread().interrupt();
                    lock.lock();
                    assertTrue(lock.tryLock() && lock.isLocked());
                    lock.unlock();
                    lock.unlock();
                    return Thread.interrupted() && !lock.isLocked();
                })
                .join());
    }

    @Test
    void anInterruptedThreadAcquiresNothing() throws Exception {
        for (Threads.Action acquire : new Threads.Action[] {
            lock::lockInterruptibly, () -> lock.tryLock(0, TimeUnit.SECONDS), () -> lock.tryLock(0, 1, TimeUnit.SECONDS)
        }) {
            Running<Boolean> thread = Threads.run(() -> {
                Thread.currentThread().interrupt();
                try {
                    acquire.run();
                } finally {
                    assertFalse(Thread.interrupted());
                }
            });
            assertThrows(InterruptedException.class, thread::join);
        }
        assertFalse(lock.isLocked());
    }

    @Test
    void anInterruptAtTheGrantLeavesNoLockBehind() throws Exception {
        int interrupted = 0;
        int spins = 1;
        // Repeat until the interrupt and the grant have each come first at least once. How many rounds this
        // takes depends on the machine.
        for (int round = 0; round < 100 || interrupted == 0 || interrupted == round; round++) {
            int delay = spins;
            lock.lock();
            Running<Boolean> waiter = Threads.run(() -> {
                lock.lockInterruptibly();
                lock.unlock();
            });
            eventually(() -> SERVER.waiters(name) == 1);
            Running<Boolean> release = Threads.run(() -> {
                Threads.spin(delay);
                waiter.interrupt();
            });
            lock.unlock();
            release.join();
            try {
                waiter.join();
                spins = Math.max(1, spins / 2); // the grant came first: now interrupt earlier
            } catch (InterruptedException expected) {
                interrupted++;
                spins *= 2;
            }
            assertNothingIsLeft(name);
        }
    }

    @Test
    void anInterruptAtAnyMomentLeavesNoneOfSeveralKeysBehind() throws Exception {
        String[] keys = {name + "a", name + "b", name + "c"};
        LockwardLock several = CLIENT.getMultiLock(keys);
        for (int round = 0; round < 500; round++) {
            LockwardLock other = CLIENT.getLock(keys[round % 3]);
            boolean isBusy = round % 2 == 0;
            if (isBusy) {
                other.lock();
            }
            Running<Boolean> waiter = Threads.start(() -> {
                several.lockInterruptibly();
                try {
                    several.lockInterruptibly();
                    several.unlock();
                } finally {
                    several.unlock();
                }
                return true;
            });
            Threads.spin(1 << round % 20);
            waiter.interrupt();
            if (isBusy) {
                other.unlock();
            }
            try {
                waiter.join();
            } catch (InterruptedException expected) {
                // The thread has left the queues.
            }
            assertNothingIsLeft(keys);
        }
    }

    @Test
    void anInterruptedReentryAddsNoHold() throws Exception {
        Threads.run(() -> {
                    lock.lock();
                    // This request opens the connection of SERVER before an interrupt can prevent the opening.
                    assertEquals(1, SERVER.holds(name));
                    for (int round = 0; round < 100; round++) {
                        Thread me = Thread.currentThread();
                        int delay = 1 << round % 16;
                        Running<Boolean> other = Threads.run(() -> {
                            Threads.spin(delay);
                            me.interrupt();
                        });
                        try {
                            lock.lockInterruptibly();
                            assertEquals(2, lock.getHoldCount());
                            assertEquals(2, SERVER.holds(name));
                            lock.unlock();
                        } catch (InterruptedException expected) {
                            // An interrupted re-entry adds no hold.
                        } catch (io.lettuce.core.RedisCommandInterruptedException byTheTest) {
                            lock.unlock();
                        }
                        while (!other.isDone()) {
                            Thread.onSpinWait();
                        }
                        Thread.interrupted();
                        assertEquals(1, lock.getHoldCount());
                        eventually(() -> SERVER.holds(name) == 1);
                    }
                    lock.unlock();
                    assertNothingIsLeft(name);
                })
                .join();
    }
}
