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
 * The contract of java.util.concurrent.locks.Lock and ReentrantLock. The tests run with a LockwardLock. They also run with a fair
 * ReentrantLock, to show that the tests are correct.
 */
class ReentrantLockContractTest {
    /** The methods that both classes have, but that are in no common interface. */
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

        private record Adapter(LockwardLock delegate) implements Subject {
            @Override
            public void lock() {
                delegate.lock();
            }

            @Override
            public void lockInterruptibly() throws InterruptedException {
                delegate.lockInterruptibly();
            }

            @Override
            public boolean tryLock() {
                return delegate.tryLock();
            }

            @Override
            public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
                return delegate.tryLock(time, unit);
            }

            @Override
            public void unlock() {
                delegate.unlock();
            }

            @Override
            public Condition newCondition() {
                return delegate.newCondition();
            }

            @Override
            public boolean isLocked() {
                return delegate.isLocked();
            }

            @Override
            public boolean isHeldByCurrentThread() {
                return delegate.isHeldByCurrentThread();
            }

            @Override
            public int getHoldCount() {
                return delegate.getHoldCount();
            }

            @Override
            public long waiters() {
                return Server.shared().waiters(delegate.getName());
            }
        }

        @AfterAll
        static void close() {
            CLIENT.close();
        }

        @Override
        Subject subject() {
            return new Adapter(CLIENT.getLock("contract:" + UUID.randomUUID()));
        }

        @Test
        void newConditionIsNotSupported() {
            assertThrows(UnsupportedOperationException.class, subject()::newCondition);
        }
    }

    abstract static class Contract {
        abstract Subject subject();

        private final Subject lock = subject();

        /** The methods that acquire the lock and can be interrupted. */
        private final List<Threads.Action> interruptible =
                List.of(lock::lockInterruptibly, () -> assertTrue(lock.tryLock(1, TimeUnit.HOURS)));

        /** All methods that acquire the lock. */
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
        void aNewLockIsFree() throws Exception {
            assertFalse(lock.isLocked() || lock.isHeldByCurrentThread());
            assertEquals(0, lock.getHoldCount());
            assertFalse(Threads.inOtherThread(lock::isLocked));
        }

        @Test
        void everyMethodAcquiresAFreeLock() throws Exception {
            for (Threads.Action acquire : all) {
                acquire.run();
                assertTrue(lock.isLocked() && lock.isHeldByCurrentThread());
                assertEquals(1, lock.getHoldCount());
                lock.unlock();
                assertFalse(lock.isLocked() || lock.isHeldByCurrentThread());
            }
        }

        @Test
        void everyMethodReenters() throws Exception {
            int holds = 0;
            for (Threads.Action acquire : all) {
                acquire.run();
                assertEquals(++holds, lock.getHoldCount());
                assertFalse(Threads.inOtherThread(() -> lock.tryLock()));
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
        void aThreadThatDoesNotHoldTheLockCannotUnlock() throws Exception {
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            lock.lock();
            assertThrows(IllegalMonitorStateException.class, () -> Threads.run(lock::unlock)
                    .join());
            assertTrue(lock.isHeldByCurrentThread());
            lock.unlock();
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
        }

        @Test
        void aWaiterCannotUnlock() throws Exception {
            lock.lock();
            Running<Boolean> waiter = Threads.run(() -> {
                assertFalse(lock.tryLock(1, TimeUnit.SECONDS));
                lock.unlock();
            });
            assertThrows(IllegalMonitorStateException.class, waiter::join);
            assertEquals(1, lock.getHoldCount());
            lock.unlock();
        }

        @Test
        void otherThreadsSeeThatTheLockIsLocked() throws Exception {
            lock.lock();
            lock.lock();
            assertTrue(Threads.inOtherThread(lock::isLocked));
            assertFalse(Threads.inOtherThread(lock::isHeldByCurrentThread));
            assertEquals(0, Threads.inOtherThread(lock::getHoldCount));
            lock.unlock();
            assertTrue(Threads.inOtherThread(lock::isLocked));
            lock.unlock();
            assertFalse(Threads.inOtherThread(lock::isLocked));
        }

        @Test
        void tryLockOfAHeldLockFailsAtOnce() throws Exception {
            lock.lock();
            for (int i = 0; i < 3; i++) {
                assertFalse(Threads.inOtherThread(() -> lock.tryLock()));
                assertFalse(Threads.inOtherThread(() -> lock.tryLock(0, TimeUnit.SECONDS)));
                assertFalse(Threads.inOtherThread(() -> lock.tryLock(Long.MIN_VALUE, TimeUnit.DAYS)));
            }
            assertEquals(0, lock.waiters());
            lock.unlock();
        }

        @Test
        void tryLockWaitsForItsTimeout() throws Exception {
            lock.lock();
            long began = System.nanoTime();
            assertFalse(Threads.inOtherThread(() -> lock.tryLock(1, TimeUnit.SECONDS)));
            assertTrue(System.nanoTime() - began >= TimeUnit.SECONDS.toNanos(1));
            Server.eventually(() -> lock.waiters() == 0);
            lock.unlock();
        }

        @Test
        void aWaiterThatTimedOutIsNotServed() throws Exception {
            lock.lock();
            Running<Boolean> gone = Threads.start(() -> lock.tryLock(1, TimeUnit.SECONDS));
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
        void unlockEndsEveryWait() throws Exception {
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
        void onlyTheLastUnlockServesAWaiter() throws Exception {
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
        void theHolderReentersWhileOthersWait() throws Exception {
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
        void waitersAreServedInOrder() throws Exception {
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
        void aTimedTryLockDoesNotPassWaiters() throws Exception {
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
        void anInterruptedThreadAcquiresNothing() throws Exception {
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
        void anInterruptedThreadDoesNotReenter() throws Exception {
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
        void anInterruptedWaiterAcquiresNothing() throws Exception {
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
        void afterAnInterruptedWaiterTheNextOneIsServed() throws Exception {
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
        void anInterruptDoesNotEndLock() throws Exception {
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
        void lockTryLockAndUnlockIgnoreAnInterrupt() throws Exception {
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
        void threadsExcludeEachOther() throws Exception {
            AtomicInteger inside = new AtomicInteger();
            List<Running<Boolean>> threads = new ArrayList<>();
            for (int i = 0; i < 6; i++) {
                int number = i;
                threads.add(Threads.run(() -> {
                    for (int round = 0; round < 20; round++) {
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
        void writesUnderTheLockAreVisibleToTheNextHolder() throws Exception {
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
