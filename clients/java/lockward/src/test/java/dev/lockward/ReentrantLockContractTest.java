package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;

/**
 * What java.util.concurrent.locks.Lock and ReentrantLock promise, of a fair ReentrantLock, which shows that the tests are
 * right, and of a LockwardLock.
 */
class ReentrantLockContractTest {
    /** What both have, though no interface says so. */
    interface Subject extends Lock {
        boolean isLocked();

        boolean isHeldByCurrentThread();

        int getHoldCount();

        long waiters();
    }

    @Nested
    class OfReentrantLock extends Contract {
        private static final class Fair extends ReentrantLock implements Subject {
            private static final long serialVersionUID = 1;

            private Fair() {
                super(true);
            }

            @Override
            public long waiters() {
                return getQueueLength();
            }
        }

        @Override
        Subject subject() {
            return new Fair();
        }
    }

    @Nested
    class OfLockwardLock extends Contract {
        private static final LockwardClient CLIENT = Server.shared().client();

        private record Ours(LockwardLock ours) implements Subject {
            @Override
            public void lock() {
                ours.lock();
            }

            @Override
            public void lockInterruptibly() throws InterruptedException {
                ours.lockInterruptibly();
            }

            @Override
            public boolean tryLock() {
                return ours.tryLock();
            }

            @Override
            public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
                return ours.tryLock(time, unit);
            }

            @Override
            public void unlock() {
                ours.unlock();
            }

            @Override
            public Condition newCondition() {
                return ours.newCondition();
            }

            @Override
            public boolean isLocked() {
                return ours.isLocked();
            }

            @Override
            public boolean isHeldByCurrentThread() {
                return ours.isHeldByCurrentThread();
            }

            @Override
            public int getHoldCount() {
                return ours.getHoldCount();
            }

            @Override
            public long waiters() {
                return Server.shared().waiters(ours.getName());
            }
        }

        @AfterAll
        static void close() {
            CLIENT.close();
        }

        @Override
        Subject subject() {
            return new Ours(CLIENT.getLock("contract:" + UUID.randomUUID()));
        }

        @Test
        void thereAreNoConditions() {
            assertThrows(UnsupportedOperationException.class, subject()::newCondition);
        }
    }

    abstract static class Contract {
        abstract Subject subject();

        private final Subject lock = subject();

        /** Ways to acquire it that may be interrupted. */
        private final List<Threads.Action> interruptible =
                List.of(lock::lockInterruptibly, () -> assertTrue(lock.tryLock(1, TimeUnit.HOURS)));

        /** All ways to acquire it. */
        private final List<Threads.Action> all = List.of(
                lock::lock,
                lock::lockInterruptibly,
                () -> assertTrue(lock.tryLock()),
                () -> assertTrue(lock.tryLock(1, TimeUnit.HOURS)),
                () -> assertTrue(lock.tryLock(0, TimeUnit.SECONDS)),
                () -> assertTrue(lock.tryLock(-1, TimeUnit.SECONDS)));

        private Running<Boolean> waiting(Threads.Action acquire) {
            long before = lock.waiters();
            Running<Boolean> thread = Threads.run(() -> {
                acquire.run();
                lock.unlock();
            });
            Server.eventually(() -> lock.waiters() == before + 1);
            return thread;
        }

        @Test
        void itIsFreeAtFirst() throws Exception {
            assertFalse(lock.isLocked() || lock.isHeldByCurrentThread());
            assertEquals(0, lock.getHoldCount());
            assertFalse(Threads.elsewhere(lock::isLocked));
        }

        @Test
        void everyWayToAcquireItTakesAFreeLock() throws Exception {
            for (Threads.Action acquire : all) {
                acquire.run();
                assertTrue(lock.isLocked() && lock.isHeldByCurrentThread());
                assertEquals(1, lock.getHoldCount());
                lock.unlock();
                assertFalse(lock.isLocked() || lock.isHeldByCurrentThread());
            }
        }

        @Test
        void everyWayToAcquireItEntersAgain() throws Exception {
            int holds = 0;
            for (Threads.Action acquire : all) {
                acquire.run();
                assertEquals(++holds, lock.getHoldCount());
                assertFalse(Threads.elsewhere(() -> lock.tryLock()));
            }
            while (holds > 0) {
                assertTrue(lock.isHeldByCurrentThread());
                assertEquals(holds--, lock.getHoldCount());
                lock.unlock();
            }
            assertFalse(lock.isHeldByCurrentThread() || lock.isLocked());
        }

        @Test
        void manyHoldsAreCounted() {
            for (int i = 1; i <= 100; i++) {
                lock.lock();
                assertEquals(i, lock.getHoldCount());
            }
            for (int i = 100; i > 0; i--) {
                assertEquals(i, lock.getHoldCount());
                lock.unlock();
            }
            assertEquals(0, lock.getHoldCount());
            assertFalse(lock.isLocked());
        }

        @Test
        void whoeverDoesNotHoldItCannotUnlock() throws Exception {
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            lock.lock();
            assertThrows(IllegalMonitorStateException.class, () -> Threads.run(lock::unlock)
                    .join());
            assertTrue(lock.isHeldByCurrentThread());
            lock.unlock();
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
        }

        @Test
        void whoeverWaitsCannotUnlock() throws Exception {
            lock.lock();
            Running<Boolean> waiter = Threads.run(() -> {
                assertFalse(lock.tryLock(1, TimeUnit.MILLISECONDS));
                lock.unlock();
            });
            assertThrows(IllegalMonitorStateException.class, waiter::join);
            assertEquals(1, lock.getHoldCount());
            lock.unlock();
        }

        @Test
        void othersSeeThatItIsLockedButNotTheirs() throws Exception {
            lock.lock();
            lock.lock();
            assertTrue(Threads.elsewhere(lock::isLocked));
            assertFalse(Threads.elsewhere(lock::isHeldByCurrentThread));
            assertEquals(0, Threads.elsewhere(lock::getHoldCount));
            lock.unlock();
            assertTrue(Threads.elsewhere(lock::isLocked));
            lock.unlock();
            assertFalse(Threads.elsewhere(lock::isLocked));
        }

        @Test
        void aTryOfAHeldLockFailsAtOnce() throws Exception {
            lock.lock();
            for (int i = 0; i < 3; i++) {
                assertFalse(Threads.elsewhere(() -> lock.tryLock()));
                assertFalse(Threads.elsewhere(() -> lock.tryLock(0, TimeUnit.SECONDS)));
                assertFalse(Threads.elsewhere(() -> lock.tryLock(Long.MIN_VALUE, TimeUnit.DAYS)));
            }
            assertEquals(0, lock.waiters());
            lock.unlock();
        }

        @Test
        void aTimedTryWaitsAsLongAsItSays() throws Exception {
            lock.lock();
            long began = System.nanoTime();
            assertFalse(Threads.elsewhere(() -> lock.tryLock(150, TimeUnit.MILLISECONDS)));
            assertTrue(System.nanoTime() - began >= TimeUnit.MILLISECONDS.toNanos(150));
            Server.eventually(() -> lock.waiters() == 0);
            lock.unlock();
        }

        @Test
        void aTimedTryThatEndedLeavesTheLockToOthers() throws Exception {
            lock.lock();
            Running<Boolean> gone = Threads.start(() -> lock.tryLock(50, TimeUnit.MILLISECONDS));
            Running<Boolean> waiter = Threads.run(() -> {
                lock.lock();
                lock.unlock();
            });
            assertFalse(gone.join());
            Server.eventually(() -> lock.waiters() == 1);
            lock.unlock();
            assertTrue(waiter.join());
        }

        @Test
        void everyWayOfWaitingEndsWithTheUnlock() throws Exception {
            for (Threads.Action acquire : List.<Threads.Action>of(
                    lock::lock, lock::lockInterruptibly, () -> assertTrue(lock.tryLock(1, TimeUnit.HOURS)))) {
                lock.lock();
                Running<Boolean> waiter = waiting(acquire);
                assertFalse(waiter.isDone());
                lock.unlock();
                assertTrue(waiter.join());
                assertFalse(lock.isLocked());
            }
        }

        @Test
        void onlyTheLastUnlockLetsTheNextOneIn() throws Exception {
            lock.lock();
            lock.lock();
            Running<Boolean> waiter = waiting(lock::lock);
            lock.unlock();
            assertEquals(1, lock.waiters());
            assertTrue(lock.isHeldByCurrentThread());
            lock.unlock();
            assertTrue(waiter.join());
        }

        @Test
        void theHolderEntersAgainThoughOthersWait() throws Exception {
            lock.lock();
            Running<Boolean> waiter = waiting(lock::lock);
            for (Threads.Action acquire : all) {
                acquire.run();
                lock.unlock();
            }
            assertEquals(1, lock.getHoldCount());
            assertFalse(waiter.isDone());
            lock.unlock();
            assertTrue(waiter.join());
        }

        @Test
        void waitersAreServedInTheirOrder() throws Exception {
            lock.lock();
            List<Integer> order = Collections.synchronizedList(new ArrayList<>());
            List<Running<Boolean>> waiters = new ArrayList<>();
            for (int i = 0; i < 6; i++) {
                int number = i;
                Threads.Action acquire = i % 3 == 0
                        ? lock::lock
                        : i % 3 == 1 ? lock::lockInterruptibly : () -> lock.tryLock(1, TimeUnit.HOURS);
                waiters.add(waiting(() -> {
                    acquire.run();
                    order.add(number);
                }));
            }
            lock.unlock();
            for (Running<Boolean> waiter : waiters) {
                waiter.join();
            }
            assertEquals(List.of(0, 1, 2, 3, 4, 5), order);
        }

        @Test
        void aTimedTryDoesNotPassWaiters() throws Exception {
            lock.lock();
            CountDownLatch hold = new CountDownLatch(1);
            Running<Boolean> first = waiting(() -> {
                lock.lock();
                hold.await();
            });
            lock.unlock();
            assertFalse(lock.tryLock(0, TimeUnit.SECONDS));
            hold.countDown();
            assertTrue(first.join());
        }

        @Test
        void whoeverIsInterruptedBeforehandAcquiresNothing() throws Exception {
            for (Threads.Action acquire : interruptible) {
                Running<Boolean> thread = Threads.run(() -> {
                    Thread.currentThread().interrupt();
                    try {
                        acquire.run();
                    } finally {
                        assertFalse(Thread.currentThread().isInterrupted());
                    }
                });
                assertThrows(InterruptedException.class, thread::join);
                assertFalse(lock.isLocked());
            }
        }

        @Test
        void whoeverIsInterruptedBeforehandDoesNotEvenEnterAgain() throws Exception {
            assertTrue(Threads.start(() -> {
                        lock.lock();
                        for (Threads.Action acquire : interruptible) {
                            Thread.currentThread().interrupt();
                            assertThrows(InterruptedException.class, acquire::run);
                            assertEquals(1, lock.getHoldCount());
                        }
                        lock.unlock();
                        return !lock.isLocked();
                    })
                    .join());
        }

        @Test
        void whoeverIsInterruptedWhileWaitingGetsNothing() throws Exception {
            lock.lock();
            for (Threads.Action acquire : interruptible) {
                Running<Boolean> waiter = waiting(() -> {
                    try {
                        acquire.run();
                    } finally {
                        assertFalse(Thread.currentThread().isInterrupted() || lock.isHeldByCurrentThread());
                    }
                });
                waiter.interrupt();
                assertThrows(InterruptedException.class, waiter::join);
                assertEquals(0, lock.waiters());
            }
            assertTrue(lock.isHeldByCurrentThread());
            lock.unlock();
            assertFalse(lock.isLocked());
        }

        @Test
        void anInterruptedWaiterLetsTheNextOneIn() throws Exception {
            lock.lock();
            Running<Boolean> first = waiting(lock::lockInterruptibly);
            Running<Boolean> second = waiting(lock::lock);
            first.interrupt();
            assertThrows(InterruptedException.class, first::join);
            assertEquals(1, lock.waiters());
            lock.unlock();
            assertTrue(second.join());
        }

        @Test
        void lockIsNotEndedByAnInterrupt() throws Exception {
            lock.lock();
            Running<Boolean> waiter = waiting(() -> {
                lock.lock();
                assertTrue(Thread.currentThread().isInterrupted() && lock.isHeldByCurrentThread());
            });
            waiter.interrupt();
            waiter.interrupt();
            assertEquals(1, lock.waiters());
            assertFalse(waiter.isDone());
            lock.unlock();
            assertTrue(waiter.join());
            assertFalse(lock.isLocked());
        }

        @Test
        void lockAndTryAndUnlockHeedNoInterrupt() throws Exception {
            assertTrue(Threads.start(() -> {
                        Thread.currentThread().interrupt();
                        lock.lock();
                        assertTrue(lock.tryLock());
                        assertEquals(2, lock.getHoldCount());
                        lock.unlock();
                        lock.unlock();
                        assertFalse(lock.isLocked());
                        return Thread.interrupted();
                    })
                    .join());
        }

        @Test
        void onlyOneIsInsideAtATime() throws Exception {
            AtomicInteger inside = new AtomicInteger();
            List<Running<Boolean>> threads = new ArrayList<>();
            for (int i = 0; i < 6; i++) {
                int number = i;
                threads.add(Threads.run(() -> {
                    for (int turn = 0; turn < 20; turn++) {
                        if (number % 2 == 0) {
                            lock.lock();
                        } else if (!lock.tryLock(1, TimeUnit.HOURS)) {
                            continue;
                        }
                        try {
                            assertEquals(1, inside.incrementAndGet());
                            Thread.yield();
                            inside.decrementAndGet();
                        } finally {
                            lock.unlock();
                        }
                    }
                }));
            }
            for (Running<Boolean> thread : threads) {
                assertDoesNotThrow(thread::join);
            }
            assertFalse(lock.isLocked());
        }

        @Test
        void whatWasWrittenUnderItIsSeenUnderIt() throws Exception {
            long[] written = {0};
            lock.lock();
            Running<Boolean> waiter = waiting(() -> {
                lock.lock();
                assertEquals(42, written[0]);
            });
            written[0] = 42;
            lock.unlock();
            assertTrue(waiter.join());
        }
    }
}
