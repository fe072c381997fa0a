package dev.lockward.spring;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.LockLostException;
import dev.lockward.LockwardClient;
import dev.lockward.Server;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.util.ClassUtils;

/** The locks of Spring Integration. */
class LockRegistryTest {
    private static final Server SERVER = Server.shared();
    private static final LockwardClient CLIENT = SERVER.client();
    private static final LockwardLockRegistry REGISTRY = new LockwardLockRegistry(CLIENT, "registry:");

    private final String key = UUID.randomUUID().toString();
    private final String name = "registry:" + key;
    private final RegistryLock lock = REGISTRY.obtain(key);

    @AfterAll
    static void close() {
        CLIENT.close();
    }

    private static <T> FutureTask<T> start(Callable<T> action) {
        FutureTask<T> task = new FutureTask<>(action);
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    private static <T> T inOtherThread(Callable<T> action) throws Exception {
        return start(action).get(30, TimeUnit.SECONDS);
    }

    @Test
    void theSameKeyIsTheSameLock() {
        assertSame(lock, REGISTRY.obtain(key));
        assertNotSame(lock, REGISTRY.obtain(key + "2"));
        REGISTRY.expireUnusedOlderThan(0);
        assertSame(lock, REGISTRY.obtain(key));
    }

    @Test
    void anUnreachableLockIsRemoved() {
        WeakReference<RegistryLock> dropped = new WeakReference<>(REGISTRY.obtain(key + "2"));
        eventually(() -> {
            System.gc();
            return dropped.get() == null;
        });
    }

    @Test
    void aLockStaysHeldWithoutItsObject() {
        REGISTRY.obtain(key + "2").lock();
        System.gc();
        REGISTRY.obtain(key + "2").unlock();
        assertFalse(SERVER.isLocked(name + "2"));
    }

    @Test
    void aKeyMustBeAString() {
        assertThrows(IllegalArgumentException.class, () -> REGISTRY.obtain(1));
    }

    @Test
    void aThreadReentersWhileOthersWait() throws Exception {
        lock.lock();
        assertTrue(lock.tryLock());
        assertFalse(inOtherThread(() -> REGISTRY.obtain(key).tryLock()));
        assertFalse(inOtherThread(() -> lock.tryLock(1, TimeUnit.SECONDS)));
        lock.unlock();
        FutureTask<Void> waiter = start(() -> {
            lock.lockInterruptibly();
            lock.unlock();
            return null;
        });
        eventually(() -> SERVER.waiters(name) == 1);
        lock.unlock();
        waiter.get(30, TimeUnit.SECONDS);
    }

    @Test
    void registriesOfTwoClientsExcludeEachOther() {
        try (LockwardClient other = SERVER.client()) {
            lock.lock();
            assertFalse(new LockwardLockRegistry(other, "registry:").obtain(key).tryLock());
            assertTrue(new LockwardLockRegistry(CLIENT, "registry:").obtain(key).tryLock());
            lock.unlock();
            lock.unlock();
        }
    }

    @Test
    void aWaiterSendsNoFurtherRequests() throws Exception {
        try (Server own = new Server();
                LockwardClient client = own.client()) {
            RegistryLock one = new LockwardLockRegistry(client, "").obtain(key);
            one.lock();
            FutureTask<Boolean> waiter = start(() -> one.tryLock(1, TimeUnit.SECONDS));
            assertFalse(waiter.get(30, TimeUnit.SECONDS));
            String asked = own.call("INFO", "commandstats").toString();
            // The holder has sent one request. The waiter has sent two: the first does not wait, and the
            // second waits.
            assertTrue(asked.contains("cmdstat_lock.acquire:calls=3,"), asked);
            one.unlock();
        }
    }

    @Test
    void anInterruptedWaiterLeavesTheQueue() throws Exception {
        lock.lock();
        CompletableFuture<Boolean> interrupted = new CompletableFuture<>();
        Thread waiter = new Thread(() -> {
            try {
                lock.lockInterruptibly();
            } catch (InterruptedException expected) {
                interrupted.complete(true);
            }
        });
        waiter.start();
        eventually(() -> SERVER.waiters(name) == 1);
        waiter.interrupt();
        assertTrue(interrupted.get(30, TimeUnit.SECONDS));
        eventually(() -> SERVER.waiters(name) == 0);
        lock.unlock();
    }

    @Test
    void methodsForTheHolderThrowIfTheThreadDoesNotHoldTheLock() {
        assertThrows(IllegalStateException.class, lock::unlock);
        assertThrows(IllegalStateException.class, () -> REGISTRY.renewLock(key));
        assertThrows(IllegalStateException.class, () -> REGISTRY.renewLock(key, Duration.ofSeconds(1)));
    }

    @Test
    void methodsForTheHolderThrowAfterTheLoss() {
        lock.lock();
        SERVER.call("DEL", name);
        ConcurrentModificationException lost = assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertInstanceOf(LockLostException.class, lost.getCause());
        assertThrows(IllegalStateException.class, lock::unlock);
        lock.lock();
        lock.unlock();
    }

    @Test
    void aReentryAfterTheLossThrows() {
        lock.lock();
        SERVER.call("DEL", name);
        assertThrows(CannotAcquireLockException.class, lock::lock);
        assertThrows(ConcurrentModificationException.class, lock::unlock);
    }

    @Test
    void aServerErrorIsThrown() {
        SERVER.call("SET", name, "a string");
        assertThrows(CannotAcquireLockException.class, lock::lock);
        assertThrows(CannotAcquireLockException.class, lock::lockInterruptibly);
        assertThrows(CannotAcquireLockException.class, lock::tryLock);
        assertThrows(CannotAcquireLockException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
        assertThrows(CannotAcquireLockException.class, () -> lock.lock(Duration.ofSeconds(1)));
    }

    @Test
    void aNamedLeaseIsNotRenewed() throws Exception {
        lock.lock(Duration.ofMillis(200));
        eventually(() -> !SERVER.isLocked(name));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertTrue(lock.tryLock(Duration.ZERO, Duration.ofMinutes(5)));
        assertTrue(leaseLeft() > 200_000);
        assertFalse(inOtherThread(() -> lock.tryLock(Duration.ofSeconds(1), Duration.ofMinutes(5))));
        lock.unlock();
        assertThrows(IllegalArgumentException.class, () -> lock.lock(Duration.ofNanos(1)));
        assertThrows(IllegalArgumentException.class, () -> lock.tryLock(Duration.ZERO, Duration.ofMillis(-1)));
    }

    @Test
    void aNamedLeaseIsRenewedByRenewLock() {
        lock.lock(Duration.ofSeconds(10));
        REGISTRY.renewLock(key, Duration.ofMinutes(5));
        assertTrue(leaseLeft() > 200_000);
        REGISTRY.renewLock(key);
        assertTrue(leaseLeft() > 200_000);
        REGISTRY.renewLock(key, Duration.ofMinutes(1));
        assertTrue(leaseLeft() <= 60_000);
        lock.unlock();
        assertFalse(SERVER.isLocked(name));
    }

    private long leaseLeft() {
        return (Long) SERVER.call("PTTL", name).get(0);
    }

    @Test
    void springIntegrationExecutesUnderTheLock() throws Exception {
        LockRegistry<?> registry = REGISTRY;
        assertTrue(registry.executeLocked(key, () -> SERVER.isLocked(name)));
        assertFalse(SERVER.isLocked(name));
        lock.lock();
        assertInstanceOf(
                TimeoutException.class,
                assertThrows(ExecutionException.class, () -> start(() -> {
                                    registry.executeLocked(key, Duration.ofSeconds(1), () -> {});
                                    return null;
                                })
                                .get(30, TimeUnit.SECONDS))
                        .getCause());
        lock.unlock();
    }

    @Test
    void withSpringIntegration7LocksAreDistributedLocks() {
        String its = "org.springframework.integration.support.locks.DistributedLock";
        if (ClassUtils.isPresent(its, null)) {
            assertTrue(ClassUtils.resolveClassName(its, null).isInstance(lock));
        }
    }

    @Test
    void theFencingTokenIsAvailable() {
        lock.lock();
        assertTrue(lock.lockward().fencingToken() > 0);
        lock.unlock();
    }
}
