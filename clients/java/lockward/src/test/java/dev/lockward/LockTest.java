package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A lock at one server. */
class LockTest {
    private static final Server SERVER = Server.shared();
    private static final LockwardClient CLIENT = SERVER.client();

    private final String name = "lock:" + UUID.randomUUID();
    private final LockwardLock lock = CLIENT.getLock(name);

    @AfterAll
    static void close() {
        CLIENT.close();
    }

    @Test
    void onlyOneThreadHoldsTheLock() throws Exception {
        lock.lock();
        assertTrue(lock.isHeldByCurrentThread() && lock.isLocked());
        assertFalse(Threads.inOtherThread(() -> lock.tryLock()));
        assertFalse(Threads.inOtherThread(() -> lock.tryLock(1, TimeUnit.SECONDS)));
        assertFalse(Threads.inOtherThread(lock::isHeldByCurrentThread));
        lock.unlock();
        assertFalse(lock.isHeldByCurrentThread() || lock.isLocked());
        assertTrue(Threads.inOtherThread(() -> lock.tryLock(0, 100, TimeUnit.MILLISECONDS)));
    }

    @Test
    void objectsWithTheSameNameAreTheSameLock() {
        CLIENT.getLock(name).lock();
        CLIENT.getLock(name).lock();
        assertEquals(2, lock.getHoldCount());
        assertEquals(2, SERVER.holds(name));
        CLIENT.getLock(name).unlock();
        lock.unlock();
        assertFalse(lock.isLocked());
    }

    @Test
    void reentriesAreCountedAndKeepTheToken() {
        lock.lock();
        long token = lock.fencingToken();
        lock.lock();
        assertTrue(lock.tryLock());
        assertEquals(3, lock.getHoldCount());
        assertEquals(3, SERVER.holds(name));
        assertEquals(token, lock.fencingToken());
        lock.unlock();
        lock.unlock();
        assertEquals(1, SERVER.holds(name));
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
        assertEquals(0, lock.getHoldCount());
        assertThrows(IllegalMonitorStateException.class, lock::fencingToken);
    }

    @Test
    @SuppressWarnings("deprecation") // later versions of Java deprecate getId
    void threadsWithTheSameIdAreTwoOwners() throws Exception {
        class Twin extends Thread {
            private final AtomicInteger inside;

            Twin(AtomicInteger inside) {
                this.inside = inside;
            }

            @Override
            public long getId() {
                return 1;
            }

            @Override
            public void run() {
                inside.addAndGet(lock.tryLock() ? 1 : 0);
            }
        }
        AtomicInteger inside = new AtomicInteger();
        for (int i = 0; i < 2; i++) {
            Twin twin = new Twin(inside);
            twin.start();
            twin.join();
        }
        assertEquals(1, inside.get());
    }

    @Test
    void onlyTheHoldingThreadCanUnlock() throws Exception {
        lock.lock();
        IllegalMonitorStateException refused = assertThrows(
                IllegalMonitorStateException.class,
                () -> Threads.inOtherThread(() -> {
                    lock.unlock();
                    return true;
                }));
        assertFalse(refused instanceof LockLostException);
        assertTrue(lock.isHeldByCurrentThread() && lock.isLocked());
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void moreThreadsThanWaitingConnectionsAreServed() throws Exception {
        try (LockwardClient few = SERVER.builder().waitingConnections(1).build()) {
            lock.lock();
            List<Running<Boolean>> threads = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                threads.add(Threads.run(() -> {
                    few.getLock(name).lock();
                    few.getLock(name).unlock();
                }));
            }
            eventually(() -> SERVER.waiters(name) == 1);
            // The thread that holds the lock must be able to acquire another lock.
            LockwardLock other = few.getLock(name + ":other");
            Running<Boolean> brief =
                    Threads.start(() -> CLIENT.getLock(name + ":other").tryLock(0, 300, TimeUnit.MILLISECONDS));
            assertTrue(brief.join());
            other.lock();
            other.unlock();
            assertEquals(1, SERVER.waiters(name));
            lock.unlock();
            for (Running<Boolean> thread : threads) {
                assertTrue(thread.join());
            }
        }
    }

    @Test
    void aLockIsLostAfterItsNamedLease() throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        lock.lock(300, TimeUnit.MILLISECONDS);
        lock.onLost(loss -> lost.countDown());
        assertTrue(lost.await(20, TimeUnit.SECONDS));
        assertFalse(lock.isHeldByCurrentThread());
        assertEquals(0, lock.getHoldCount());
        eventually(() -> !lock.isLocked());
        assertThrows(LockLostException.class, lock::unlock);
        IllegalMonitorStateException again = assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertFalse(again instanceof LockLostException);
    }

    @Test
    void aLockWhoseNamedLeaseIsOverCanBeAcquiredAgain() {
        for (int i = 0; i < 3; i++) {
            lock.lock(50, TimeUnit.MILLISECONDS);
            eventually(() -> !lock.isHeldByCurrentThread());
        }
        lock.lock(1, TimeUnit.HOURS);
        assertEquals(1, lock.getHoldCount());
        assertEquals(1, SERVER.holds(name));
        lock.unlock();
        assertFalse(lock.isLocked());
        assertFalse(assertThrows(IllegalMonitorStateException.class, lock::unlock) instanceof LockLostException);
    }

    @Test
    void aLostLockCanBeAcquiredAgain() {
        lock.lock();
        lock.lock();
        long token = lock.fencingToken();
        SERVER.call("DEL", name);
        assertThrows(LockLostException.class, () -> lock.tryLock()); // finds the loss
        assertFalse(lock.isHeldByCurrentThread());
        lock.lock();
        assertTrue(lock.fencingToken() > token);
        assertEquals(1, lock.getHoldCount());
        assertEquals(1, SERVER.holds(name));
        lock.unlock();
        assertFalse(lock.isLocked());
        assertFalse(assertThrows(IllegalMonitorStateException.class, lock::unlock) instanceof LockLostException);
    }

    @Test
    void unlockThrowsOnceForEachLostHold() {
        lock.lock();
        lock.lock();
        SERVER.call("DEL", name);
        assertThrows(LockLostException.class, lock::unlock);
        SERVER.call("LOCK.ACQUIRE", name, "another");
        assertFalse(lock.tryLock()); // the thread has not acquired the lock again
        assertThrows(LockLostException.class, lock::unlock);
        assertFalse(assertThrows(IllegalMonitorStateException.class, lock::unlock) instanceof LockLostException);
    }

    @Test
    void manyLocksWhoseNamedLeasesAreOverAreForgotten() {
        for (int i = 0; i < 150; i++) {
            CLIENT.getLock(name + i).lock(2, TimeUnit.MILLISECONDS);
        }
        eventually(() -> !CLIENT.getLock(name + 149).isHeldByCurrentThread());
        lock.lock();
        lock.unlock();
        assertFalse(
                assertThrows(IllegalMonitorStateException.class, () -> CLIENT.getLock(name + 0)
                                .unlock())
                        instanceof LockLostException);
    }

    @Test
    void aLeaseIsAtLeastTwoMilliseconds() throws Exception {
        lock.lock(1_000_001, TimeUnit.NANOSECONDS); // rounded up
        eventually(() -> !lock.isLocked());
        assertThrows(LockLostException.class, lock::unlock);
        Duration one = Duration.ofMillis(1);
        assertThrows(IllegalArgumentException.class, () -> lock.tryLock(1_000, 1, TimeUnit.MILLISECONDS));
        assertThrows(IllegalArgumentException.class, () -> CLIENT.request(name).lease(one));
        assertThrows(IllegalArgumentException.class, () -> CLIENT.request(name).holdLimit(one));
        assertThrows(IllegalArgumentException.class, () -> SERVER.builder().lease(one));
        try (HeldLock held = CLIENT.request(name).acquire()) {
            assertThrows(IllegalArgumentException.class, () -> held.renew(one));
        }
        assertThrows(IllegalArgumentException.class, () -> lock.lock(0, TimeUnit.SECONDS));
        assertThrows(IllegalArgumentException.class, () -> lock.tryLock(1, -2, TimeUnit.SECONDS));
        assertTrue(lock.tryLock(1, -1, TimeUnit.SECONDS));
        lock.unlock();
    }

    @Test
    void hugeSpansDoNotOverflow() throws Exception {
        assertTrue(lock.tryLock(Long.MAX_VALUE, TimeUnit.DAYS));
        Running<Boolean> waiter = Threads.start(() -> {
            assertTrue(lock.tryLock(Long.MAX_VALUE, 3000, TimeUnit.DAYS));
            assertTrue(lock.isHeldByCurrentThread());
            lock.unlock();
            return true;
        });
        eventually(() -> SERVER.waiters(name) == 1);
        lock.unlock();
        assertTrue(waiter.join());
        assertTrue(lock.tryLock(Long.MIN_VALUE, TimeUnit.DAYS));
        lock.unlock();
        lock.lock(Long.MAX_VALUE, TimeUnit.DAYS); // the client takes the longest lease that the server allows
        lock.unlock();
    }

    @Test
    void hugeSettingsDoNotOverflow() {
        Duration longest = Duration.ofSeconds(Long.MAX_VALUE);
        try (LockwardClient client =
                SERVER.builder().patience(longest).responseLimit(longest).build()) {
            assertTrue(client.getLock(name).tryLock());
        }
    }

    @Test
    void anOwnerThatIsEmptyTooLongOrAnAsteriskIsRefused() throws Exception {
        LockRequest request = CLIENT.request(name);
        for (String owner : List.of("", "*", "é".repeat(513))) {
            String message = assertThrows(IllegalArgumentException.class, () -> request.owner(owner))
                    .getMessage();
            assertTrue(message.length() < 100, message);
        }
        String longest = "é".repeat(512);
        try (HeldLock held = request.owner(longest).acquire()) {
            assertEquals(longest, held.owner());
        }
    }

    @Test
    void theLeaseDefaultsToTheServersSetting() {
        lock.lock();
        long lease = SERVER.info(name).orElseThrow().leaseLeft();
        assertTrue(lease > 20_000 && lease <= 30_000, "" + lease);
        lock.unlock();
        try (LockwardClient other =
                SERVER.builder().lease(Duration.ofMinutes(10)).build()) {
            other.getLock(name).lock();
            assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 500_000);
            other.getLock(name).unlock();
        }
    }

    @Test
    void aHoldWithoutALeaseStartsRenewals() {
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(3)).build()) {
            LockwardLock mine = brief.getLock(name);
            mine.lock(500, TimeUnit.MILLISECONDS);
            mine.lock();
            SERVER.awaitRenewals(2, name);
            assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 500);
            mine.unlock();
            mine.unlock();
        }
    }

    @Test
    void theLockOfADeadThreadIsNotRenewed() throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        try (LockwardClient brief = SERVER.builder()
                .lease(Duration.ofSeconds(1))
                .onLost(loss -> lost.countDown())
                .build()) {
            HeldLock tenure = Threads.start(() -> {
                        brief.getLock(name).lock();
                        return brief.getLock(name).held();
                    })
                    .join();
            assertTrue(lost.await(20, TimeUnit.SECONDS));
            assertFalse(tenure.isHeld());
            eventually(() -> !lock.isLocked());
        }
    }

    @Test
    void aDroppedHeldLockIsNotRenewed() throws Exception {
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(1)).build()) {
            assertTrue(Server.tryAcquire(brief, name, Duration.ZERO, null).isPresent());
            eventually(() -> {
                // One collection may not be enough: this thread may still have references to the lock.
                System.gc();
                return !lock.isLocked();
            });
        }
    }

    @Test
    void aDroppedLockObjectKeepsTheLockHeld() {
        CLIENT.getLock(name).lock();
        System.gc();
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
    }

    @Test
    void theExceptionHasTheErrorOfTheServer() {
        SERVER.call("SET", name, "a string");
        LockRefusedException refused = assertThrows(LockRefusedException.class, lock::lock);
        assertEquals("WRONGTYPE", refused.code());
        assertThrows(LockRefusedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
        assertThrows(LockRefusedException.class, lock::isLocked);
        assertThrows(NullPointerException.class, () -> CLIENT.getLock(null));
    }

    @Test
    void settingsOutOfRangeAreRefused() {
        LockwardClient.Builder builder = SERVER.builder();
        assertThrows(IllegalArgumentException.class, () -> builder.patience(Duration.ZERO));
        assertThrows(IllegalArgumentException.class, () -> builder.waitingConnections(0));
        assertThrows(IllegalArgumentException.class, () -> builder.replicas(-1, Duration.ofSeconds(1)));
        assertThrows(IllegalArgumentException.class, () -> CLIENT.request(name).replicas(-1, Duration.ofSeconds(1)));
        assertThrows(IllegalArgumentException.class, () -> builder.lease(Duration.ofSeconds(-1)));
        assertThrows(
                IllegalArgumentException.class, () -> Server.tryAcquire(CLIENT, name, Duration.ZERO, Duration.ZERO));
    }

    @Test
    void anErrorNamesTheArgumentThatIsNull() {
        LockRequest request = CLIENT.request(name);
        Map<String, Executable> calls = Map.of(
                "key", () -> CLIENT.getLock(null),
                "handle", () -> CLIENT.resume(null),
                "owner", () -> request.owner(null),
                "lease", () -> request.lease(null),
                "time for replicas", () -> request.replicas(1, null),
                "timeout", () -> request.tryAcquire(null));
        calls.forEach((argument, call) -> assertEquals(
                argument, assertThrows(NullPointerException.class, call).getMessage()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"straße", "a b\r\n", ""})
    void anyTextIsAName(String odd) {
        LockwardLock mine = CLIENT.getLock(name + odd);
        mine.lock();
        assertEquals(1, SERVER.holds(name + odd));
        mine.unlock();
    }

    @Test
    void anotherThreadCanReleaseAHeldLock() throws Exception {
        HeldLock tenure = Server.tryAcquire(CLIENT, name, Duration.ZERO, null).orElseThrow();
        assertTrue(Server.tryAcquire(CLIENT, name, Duration.ZERO, null).isEmpty());
        assertTrue(Server.tryAcquire(CLIENT, name, Duration.ofSeconds(1), null).isEmpty());
        assertFalse(lock.tryLock());
        assertEquals(SERVER.info(name).orElseThrow().token(), tenure.fencingToken());
        assertEquals(SERVER.info(name).orElseThrow().owner(), tenure.owner());
        assertEquals(name, tenure.keys().get(0));
        tenure.renew(Duration.ofMinutes(5));
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 250_000);
        Threads.run(tenure::release).join();
        assertFalse(tenure.isHeld() || lock.isLocked());
        assertReleased(tenure);
        tenure.close();
        HeldLock handedOver =
                Server.tryAcquire(CLIENT, name, Duration.ZERO, null).orElseThrow();
        CLIENT.resume(handedOver.handle()).release();
        assertReleased(handedOver);
    }

    /** Any thread may use a HeldLock, so the error does not name the thread. */
    private static void assertReleased(HeldLock held) {
        for (Executable call : List.<Executable>of(held::release, held::renew, held::guarded, held::handle)) {
            String message =
                    assertThrows(IllegalMonitorStateException.class, call).getMessage();
            assertTrue(message.endsWith("was released or handed over: acquire it again"), message);
        }
    }

    @Test
    void aSecondReleaseAtTheSameTimeIsNoLoss() throws Exception {
        AtomicInteger late = new AtomicInteger();
        CountDownLatch lost = new CountDownLatch(1);
        for (int round = 1; round <= 500; round++) {
            HeldLock held =
                    CLIENT.request(name).onLost(loss -> lost.countDown()).acquire();
            inTwoThreads(() -> {
                try {
                    held.release();
                } catch (LockLostException loss) {
                    throw loss;
                } catch (IllegalMonitorStateException notHeld) {
                    late.incrementAndGet();
                }
            });
            assertEquals(round, late.get());
        }
        assertEquals(1, lost.getCount());
    }

    @Test
    void aSecondCloseAtTheSameTimeDoesNothing() throws Exception {
        for (int round = 1; round <= 500; round++) {
            inTwoThreads(CLIENT.request(name, name + ":other").acquire()::close);
        }
    }

    private static void inTwoThreads(Threads.Action action) throws Exception {
        AtomicInteger ready = new AtomicInteger();
        Threads.Action atOnce = () -> {
            ready.incrementAndGet();
            while (ready.get() < 2) {
                Thread.onSpinWait();
            }
            action.run();
        };
        Running<Boolean> one = Threads.run(atOnce);
        Running<Boolean> other = Threads.run(atOnce);
        one.join();
        other.join();
    }

    @Test
    void aHeldLockCanBeReleasedAfterADelay() throws Exception {
        AtomicInteger losses = new AtomicInteger();
        HeldLock tenure = Server.tryAcquire(CLIENT, name, Duration.ZERO, null).orElseThrow();
        tenure.onLost(loss -> losses.incrementAndGet());
        tenure.releaseAfter(Duration.ofMinutes(5));
        assertFalse(tenure.isHeld());
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 250_000);
        assertThrows(IllegalMonitorStateException.class, () -> tenure.releaseAfter(Duration.ofMinutes(5)));

        HeldLock brief = Server.tryAcquire(CLIENT, name + "2", Duration.ZERO, Duration.ofMinutes(5))
                .orElseThrow();
        brief.onLost(loss -> losses.incrementAndGet());
        brief.releaseAfter(Duration.ofSeconds(1));
        assertTrue(CLIENT.getLock(name + "2").tryLock(1, TimeUnit.MINUTES));
        CLIENT.getLock(name + "2").unlock();
        assertEquals(0, losses.get());

        HeldLock lost =
                Server.tryAcquire(CLIENT, name + "3", Duration.ZERO, null).orElseThrow();
        SERVER.call("DEL", name + "3");
        assertThrows(LockLostException.class, () -> lost.releaseAfter(Duration.ofMinutes(5)));
        assertEquals(0, SERVER.holds(name + "3"));
    }

    @Test
    void renewSetsANewLease() {
        assertThrows(IllegalMonitorStateException.class, () -> lock.held().renew(Duration.ofMinutes(5)));
        lock.lock(1, TimeUnit.MINUTES);
        lock.held().renew(Duration.ofMinutes(5));
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 250_000);
        lock.held().renew(Duration.ofMinutes(1));
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() < 100_000);
        lock.unlock();
    }

    @Test
    void closeEndsThreadsAndCallsListeners() throws Exception {
        LockwardClient own = LockwardClient.create("redis://127.0.0.1:" + SERVER.port);
        CountDownLatch lost = new CountDownLatch(1);
        LockwardLock mine = own.getLock(name);
        mine.lock();
        mine.onLost(loss -> lost.countDown());
        Running<Boolean> waiter = Threads.run(mine::lock);
        Running<Boolean> timed = Threads.start(() -> mine.tryLock(1, TimeUnit.HOURS));
        eventually(() -> SERVER.waiters(name) == 2);
        own.close();
        assertThrows(IllegalStateException.class, waiter::join);
        assertThrows(IllegalStateException.class, timed::join);
        assertTrue(lost.await(20, TimeUnit.SECONDS));
        assertFalse(mine.isHeldByCurrentThread());
        assertThrows(LockLostException.class, mine::unlock);
        assertThrows(IllegalStateException.class, mine::lock);
        assertThrows(IllegalStateException.class, mine::isLocked);
        eventually(() -> SERVER.waiters(name) == 0);
        own.close();
        Set<Thread> left = Thread.getAllStackTraces().keySet();
        assertTrue(left.stream().noneMatch(thread -> thread == waiter.thread()));
    }
}
