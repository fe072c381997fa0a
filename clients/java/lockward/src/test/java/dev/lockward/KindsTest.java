package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;

/** The Java interface of read-write locks, semaphores, several keys, leadership, handles and futures. */
class KindsTest {
    private static final Server SERVER = Server.shared();
    private static final LockwardClient CLIENT = SERVER.client();

    private final String name = "kind:" + UUID.randomUUID();

    @AfterAll
    static void close() {
        CLIENT.close();
    }

    @Test
    void readersHoldTogetherAndAWriterWaits() throws Exception {
        LockwardReadWriteLock lock = CLIENT.getReadWriteLock(name);
        lock.readLock().lock();
        lock.readLock().lock();
        assertEquals(2, lock.readLock().getHoldCount());
        assertEquals(0, lock.writeLock().getHoldCount());
        assertTrue(Threads.start(() -> {
                    boolean isReader = lock.readLock().tryLock();
                    lock.readLock().unlock();
                    return isReader;
                })
                .join());
        Running<Boolean> writer = Threads.run(() -> {
            lock.writeLock().lock();
            lock.writeLock().unlock();
        });
        eventually(() -> SERVER.waiters(name) == 1);
        lock.readLock().unlock();
        lock.readLock().unlock();
        assertTrue(writer.join());
    }

    @Test
    void aWriterBecomesAReader() throws Exception {
        LockwardReadWriteLock lock = CLIENT.getReadWriteLock(name);
        lock.writeLock().lock();
        lock.readLock().lock();
        long token = lock.readLock().fencingToken();
        assertFalse(Threads.inOtherThread(() -> lock.readLock().tryLock()));
        lock.writeLock().unlock();
        assertThrows(IllegalMonitorStateException.class, lock.writeLock()::unlock);
        assertTrue(lock.readLock().isHeldByCurrentThread());
        assertEquals(token, lock.readLock().fencingToken());
        assertTrue(Threads.inOtherThread(() -> lock.readLock().tryLock(0, 100, TimeUnit.MILLISECONDS)));
        lock.readLock().unlock();
        eventually(() -> !lock.writeLock().isLocked());
    }

    @Test
    void aReaderThatTriesTheWriteLockGetsFalse() throws Exception {
        LockwardReadWriteLock lock = CLIENT.getReadWriteLock(name);
        LockwardLock writing = lock.writeLock();
        lock.readLock().lock();
        assertFalse(writing.tryLock());
        assertFalse(writing.tryLock(1, TimeUnit.HOURS));
        assertFalse(writing.tryLock(Long.MAX_VALUE, 30, TimeUnit.SECONDS));
        assertFalse(CLIENT.getMultiLock(name, name + ":other").tryLock());
        assertFalse(CLIENT.getLock(name + ":other").isLocked());
        assertEquals(1, lock.readLock().getHoldCount());
        lock.readLock().unlock();
        assertTrue(writing.tryLock());
        writing.unlock();
    }

    @Test
    void aReaderThatLocksTheWriteLockIsRefused() {
        LockwardReadWriteLock lock = CLIENT.getReadWriteLock(name);
        lock.readLock().lock();
        for (Threads.Action wait : new Threads.Action[] {
            lock.writeLock()::lock,
            lock.writeLock()::lockInterruptibly,
            () -> lock.writeLock().lock(30, TimeUnit.SECONDS),
            () -> lock.writeLock().lockInterruptibly(30, TimeUnit.SECONDS)
        }) {
            LockRefusedException refused = assertThrows(LockRefusedException.class, wait::run);
            assertEquals("LIMIT", refused.code());
            assertTrue(refused.getMessage().contains("release first"), refused::getMessage);
        }
        lock.readLock().unlock();
        lock.writeLock().lock();
        lock.writeLock().unlock();
    }

    @Test
    void theServerRefusesTheWriteLockToAReaderWithTheSameOwner() throws Exception {
        try (HeldLock reader = CLIENT.request(name).owner("me").shared().acquire()) {
            LockwardLock writing = CLIENT.request(name).owner("me").asLock();
            assertThrows(LockRefusedException.class, writing::tryLock);
            assertTrue(reader.isHeld());
        }
    }

    @Test
    void aSemaphoreGrantsPermitsAndCloseReleasesThem() throws Exception {
        LockwardSemaphore semaphore = CLIENT.getSemaphore(name, 3);
        try (HeldLock two = semaphore.acquire(2);
                HeldLock one = semaphore.acquire()) {
            assertTrue(two.isHeld() && one.isHeld());
            assertTrue(semaphore.tryAcquire(1, Duration.ZERO).isEmpty());
        }
        semaphore.acquire(3).release();
        assertThrows(LockRefusedException.class, () -> semaphore.acquire(4));
    }

    @Test
    void aSemaphoreWithMoreSlotsKeepsItsWeight() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            HeldLock held = client.request("k").slots(4).weight(3).acquire();
            held.downgradeToSlots(5);
            server.restart("quarantine 60000"); // the next renewal restores the tenure
            eventually(() -> server.isLocked("k"));
            assertEquals(3L, Server.map(server.call("LOCK.INFO", "k")).get("weight"));
        }
    }

    @Test
    void severalKeysFormOneLock() throws Exception {
        LockwardLock both = CLIENT.getMultiLock(name + "b", name + "a", name + "b");
        LockwardLock one = CLIENT.getLock(name + "a");
        both.lock();
        assertEquals(List.of(name + "a", name + "b"), both.held().keys());
        assertFalse(Threads.inOtherThread(() -> one.tryLock()));
        one.lock(); // a re-entry
        both.unlock();
        assertFalse(Threads.inOtherThread(() -> both.tryLock()));
        assertFalse(CLIENT.getLock(name + "b").isLocked());
        one.unlock();
        assertTrue(both.tryLock());
        both.unlock();
        assertFalse(one.isLocked());
    }

    @Test
    void theLossOfALockOfSeveralKeysEndsNoOtherLock() throws Exception {
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(2)).build()) {
            LockwardLock one = brief.getLock(name + "a");
            LockwardLock both = brief.getMultiLock(name + "a", name + "b");
            one.lock();
            both.lock();
            CompletableFuture<LockLostException> loss = new CompletableFuture<>();
            both.onLost(loss::complete);
            SERVER.call("DEL", name + "b");
            loss.get(20, TimeUnit.SECONDS);
            assertThrows(LockLostException.class, both::unlock);
            SERVER.awaitRenewals(3, name + "a");
            one.unlock();
        }
    }

    @Test
    void aLockOfSeveralKeysCanBeAcquiredAgainWhenAllKeysAreLost() {
        LockwardLock both = CLIENT.getMultiLock(name + "a", name + "b");
        both.lock();
        SERVER.call("DEL", name + "a", name + "b");
        assertThrows(LockLostException.class, () -> both.tryLock()); // finds the loss
        both.lock();
        assertEquals(1, both.getHoldCount());
        both.unlock();
        assertFalse(SERVER.isLocked(name + "a") || SERVER.isLocked(name + "b"));
    }

    @Test
    void aLockOfSeveralKeysIsNotAcquiredAgainWhileAKeyIsHeld() {
        LockwardLock both = CLIENT.getMultiLock(name + "a", name + "b");
        for (String lost : List.of(name + "a", name + "b")) {
            both.lock();
            SERVER.call("DEL", lost);
            assertThrows(LockLostException.class, () -> both.tryLock()); // finds the loss
            assertThrows(LockLostException.class, () -> both.tryLock());
            assertThrows(LockLostException.class, both::unlock);
            assertFalse(SERVER.isLocked(name + "a") || SERVER.isLocked(name + "b"));
        }
        assertTrue(both.tryLock());
        both.unlock();
    }

    @Test
    void aWriterThatHasLostTheLockCanBecomeAReader() {
        LockwardReadWriteLock lock = CLIENT.getReadWriteLock(name);
        lock.writeLock().lock();
        lock.readLock().lock();
        SERVER.call("DEL", name);
        assertThrows(LockLostException.class, () -> lock.readLock().tryLock()); // finds the loss
        lock.readLock().lock();
        assertEquals(1, lock.readLock().getHoldCount());
        assertFalse(
                assertThrows(IllegalMonitorStateException.class, lock.writeLock()::unlock)
                        instanceof LockLostException);
        lock.readLock().unlock();
        assertFalse(SERVER.isLocked(name));
    }

    @Test
    void aLeaderThatLosesTheLockIsInterruptedAndLeadsAgain() throws Exception {
        CountDownLatch deposed = new CountDownLatch(1);
        CountDownLatch leads = new CountDownLatch(1);
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(2)).build()) {
            Running<Boolean> leader = Threads.run(() -> brief.lead(name, term -> {
                if (deposed.getCount() == 0) {
                    return;
                }
                try {
                    leads.countDown();
                    new CountDownLatch(1).await();
                } finally {
                    deposed.countDown();
                }
            }));
            assertTrue(leads.await(20, TimeUnit.SECONDS));
            SERVER.call("DEL", name);
            assertTrue(deposed.await(20, TimeUnit.SECONDS) && leader.join());
            assertFalse(CLIENT.getLock(name).isLocked());
        }
    }

    @Test
    void aLeaderWhoseOwnCallFindsTheLossLeadsAgain() throws Exception {
        AtomicInteger terms = new AtomicInteger();
        CLIENT.lead(name, term -> {
            if (terms.incrementAndGet() < 3) {
                SERVER.call("DEL", name);
                term.renew();
            }
        });
        assertEquals(3, terms.get());
        assertFalse(Thread.interrupted() || SERVER.isLocked(name));
    }

    @Test
    void onlyAnExclusiveLockLeads() {
        for (LockRequest request :
                List.of(CLIENT.request(name).shared(), CLIENT.request(name).slots(2))) {
            IllegalStateException refused =
                    assertThrows(IllegalStateException.class, () -> request.lead(HeldLock::release));
            assertTrue(refused.getMessage().contains("exclusive"), refused::getMessage);
        }
    }

    @Test
    void aChangeOfARequestDoesNotChangeTheNextTermOfItsLeader() throws Exception {
        LockRequest request = CLIENT.request(name);
        AtomicInteger terms = new AtomicInteger();
        request.lead(term -> {
            if (terms.incrementAndGet() == 1) {
                request.shared();
                SERVER.call("DEL", name);
                term.renew();
            }
            assertTrue(CLIENT.request(name).shared().tryAcquire(Duration.ZERO).isEmpty());
        });
        assertEquals(2, terms.get());
    }

    @Test
    void anInterruptedCandidateLeavesTheQueue() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        Running<Boolean> candidate = Threads.run(() -> CLIENT.lead(name, term -> {}));
        eventually(() -> SERVER.waiters(name) == 1);
        candidate.interrupt();
        assertThrows(InterruptedException.class, candidate::join);
        eventually(() -> SERVER.waiters(name) == 0);
        held.release();
    }

    @Test
    void aFutureCompletesInAThreadThatMayBlock() throws Exception {
        CompletableFuture<Boolean> nested = CLIENT.request(name)
                .acquireAsync()
                .thenApply(held -> CLIENT.getLock(name).isLocked() && held.isHeld());
        assertTrue(nested.get(20, TimeUnit.SECONDS));
        SERVER.call("DEL", name);
    }

    @Test
    void aChangeOfARequestDoesNotChangeWhatItHasBegun() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        LockRequest request = CLIENT.request(name);
        LockwardLock lock = request.asLock();
        CompletableFuture<HeldLock> waiting = request.acquireAsync();
        eventually(() -> SERVER.waiters(name) == 1);
        request.shared();
        held.release();
        HeldLock exclusive = waiting.get(20, TimeUnit.SECONDS);
        assertTrue(request.tryAcquire(Duration.ZERO).isEmpty());
        exclusive.release();
        lock.lock();
        assertTrue(request.tryAcquire(Duration.ZERO).isEmpty());
        lock.unlock();
    }

    @Test
    void aCancelledFutureLeavesTheQueue() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        CompletableFuture<HeldLock> waiting = CLIENT.request(name).acquireAsync();
        eventually(() -> SERVER.waiters(name) == 1);
        waiting.cancel(true);
        eventually(() -> SERVER.waiters(name) == 0);
        held.releaseAsync().get(20, TimeUnit.SECONDS);
        eventually(() -> !CLIENT.getLock(name).isLocked());
    }

    @Test
    void aCancelledFutureLeavesTheQueueAlthoughAStageBlocks() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        CountDownLatch end = new CountDownLatch(1);
        CompletableFuture<HeldLock> waiting = CLIENT.request(name).acquireAsync();
        waiting.whenComplete((lock, error) -> Threads.awaitOpen(end));
        eventually(() -> SERVER.waiters(name) == 1);
        Running<Boolean> program = Threads.run(() -> waiting.cancel(true));
        try {
            eventually(() -> SERVER.waiters(name) == 0);
        } finally {
            end.countDown();
        }
        assertTrue(program.join());
        held.release();
        assertFalse(SERVER.isLocked(name));
    }

    @Test
    void aFutureThatTimesOutLeavesTheQueue() throws Exception {
        LockwardLock lock = CLIENT.getLock(name);
        lock.lock();
        CompletableFuture<HeldLock> future = CLIENT.request(name).acquireAsync();
        eventually(() -> SERVER.waiters(name) == 1);
        future.orTimeout(1, TimeUnit.MILLISECONDS);
        eventually(() -> SERVER.waiters(name) == 0);
        lock.unlock();
        eventually(() -> !lock.isLocked());
    }

    @Test
    void aFutureThatTheProgramCompletesLeavesTheQueue() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        CompletableFuture<HeldLock> waiting = CLIENT.request(name).acquireAsync();
        eventually(() -> SERVER.waiters(name) == 1);
        waiting.completeOnTimeout(null, 1, TimeUnit.MILLISECONDS);
        eventually(() -> SERVER.waiters(name) == 0);
        held.release();
        assertFalse(SERVER.isLocked(name));
    }

    @Test
    void allOfManyCallersWhoseLimitsEndTogetherAreBusy() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        // On a busy machine a caller may get no answer before its limit, and is then unreachable. So a longer limit
        // follows.
        long limit = 2;
        while (!areAllBusy(limit)) {
            limit *= 2;
            assertTrue(limit < 30);
        }
        eventually(() -> SERVER.waiters(name) == 0);
        held.release();
        assertFalse(SERVER.isLocked(name));
    }

    /** Whether 600 callers of this test's lock are busy. False if one of them is unreachable. */
    private boolean areAllBusy(long limit) throws Exception {
        List<CompletableFuture<Optional<HeldLock>>> callers = new ArrayList<>();
        for (int i = 0; i < 600; i++) {
            callers.add(CLIENT.request(name).tryAcquireAsync(Duration.ofSeconds(limit)));
        }
        boolean areBusy = true;
        for (CompletableFuture<Optional<HeldLock>> caller : callers) {
            try {
                assertTrue(caller.get(60, TimeUnit.SECONDS).isEmpty());
            } catch (ExecutionException failure) {
                assertInstanceOf(LockUnreachableException.class, failure.getCause());
                areBusy = false;
            }
        }
        return areBusy;
    }

    @Test
    void aThreadThatHasHandedItsLockOverIsANewOwnerAfterwards() throws Exception {
        LockwardLock lock = CLIENT.getLock(name);
        LockwardLock other = CLIENT.getLock(name + ":other");
        lock.lock();
        other.lock();
        String handle = lock.held().handle();
        other.unlock();
        assertFalse(lock.tryLock());
        CLIENT.resume(handle).release();
        lock.lock();
        lock.unlock();
    }

    @Test
    void anotherClientResumesALockByItsHandle() throws Exception {
        HeldLock held = CLIENT.request(name).slots(4).weight(2).acquire();
        String handle = held.handle();
        assertFalse(held.isHeld());
        assertThrows(IllegalMonitorStateException.class, held::release);
        try (LockwardClient other = SERVER.client();
                HeldLock resumed = other.resume(handle)) {
            assertEquals(held.fencingToken(), resumed.fencingToken());
            assertTrue(resumed.isHeld());
        }
        assertThrows(LockLostException.class, () -> CLIENT.resume(handle));
    }

    @Test
    void aTextThatIsNoHandleIsRefused() {
        for (String text : List.of(
                "",
                "junk",
                "k:me:1:1:9000:9000:true,",
                "k:me:1:1:9000:9000:true,junk",
                "k::1:1:9000:9000:true",
                "%zz:me:1:1:9000:9000:true",
                "k:me:0:1:9000:9000:true",
                "k:me:1:0:9000:9000:true",
                "k:me:1:1:-1:9000:true",
                "k:me:1:1",
                "k:me:1:1:9000:9000:1",
                "k:me:9223372036854775808:1:9000:9000:true",
                "k:me:1:1:9000:9000:true:JUNK")) {
            IllegalArgumentException refused =
                    assertThrows(IllegalArgumentException.class, () -> CLIENT.resume(text), text);
            assertEquals("this is not the handle of a lock", refused.getMessage());
        }
    }

    @Test
    void aHandleKeepsTheKeyAndTheKind() throws Exception {
        LockRequest[] requests = {
            CLIENT.request(name + ":,%+ é", name + "b"),
            CLIENT.request(name).shared(),
            CLIENT.request(name).slots(4),
            CLIENT.request(name).slots(4).weight(2)
        };
        for (LockRequest request : requests) {
            try (HeldLock resumed = CLIENT.resume(request.acquire().handle())) {
                assertEquals(request.keys, resumed.keys());
            }
        }
    }

    @Test
    void aHeldLockReleasesAllHolds() throws Exception {
        LockwardReadWriteLock lock = CLIENT.getReadWriteLock(name);
        lock.writeLock().lock();
        lock.readLock().lock();
        lock.writeLock().held().release();
        assertEquals(0, lock.readLock().getHoldCount());
        assertFalse(SERVER.isLocked(name));
        lock.writeLock().lock();
        lock.writeLock().lock();
        CLIENT.resume(lock.writeLock().held().handle()).close();
        assertFalse(SERVER.isLocked(name));
    }

    @Test
    void theOtherKeysOfALostHandleAreReleased() throws Exception {
        LockwardLock both = CLIENT.getMultiLock(name + "a", name + "b");
        for (String lost : List.of(name + "a", name + "b")) {
            both.lock();
            both.lock();
            String handle = both.held().handle();
            SERVER.call("DEL", lost);
            assertThrows(LockLostException.class, () -> CLIENT.resume(handle));
            assertFalse(SERVER.isLocked(name + "a") || SERVER.isLocked(name + "b"));
        }
    }

    @Test
    void aLostLockOfSeveralKeysHasNoHandleAndItsReleaseFreesTheOtherKeys() throws Exception {
        HeldLock held = CLIENT.request(name + "a", name + "b").acquire();
        SERVER.call("DEL", name + "b");
        assertThrows(LockLostException.class, held::renew);
        assertThrows(LockLostException.class, held::handle);
        assertThrows(LockLostException.class, held::release);
        assertFalse(SERVER.isLocked(name + "a"));
    }

    @Test
    void aGuardedCommandNeedsALockOfOneKey() throws Exception {
        LockwardLock both = CLIENT.getMultiLock(name + "a", name + "b");
        both.lock();
        UnsupportedOperationException refused =
                assertThrows(UnsupportedOperationException.class, () -> both.guarded("SET", name, 1));
        assertEquals(
                "a guarded command needs a lock of one key, not of [" + name + "a, " + name + "b]",
                refused.getMessage());
        assertTrue(both.isHeldByCurrentThread());
        both.unlock();
    }

    @Test
    void theReplyToAGuardedCommandMayHaveAnyType() throws Exception {
        String data = "data:" + name;
        try (HeldLock held = CLIENT.request(name).acquire()) {
            assertEquals("OK", held.guarded());
            assertNull(held.guarded("GET", data));
            assertEquals(List.of(), held.guarded("LRANGE", data, 0, -1));
            assertEquals(2L, held.guarded("RPUSH", data, "one", "zwei".getBytes()));
            assertEquals(List.of("one", "zwei"), held.guarded("LRANGE", data, 0, -1));
            assertEquals(List.of("0", List.of()), held.guarded("SCAN", 0, "MATCH", "nothing", "COUNT", 1_000_000));
            SERVER.call("DEL", name);
            assertThrows(LockLostException.class, () -> held.guarded("SET", data, 1));
            assertThrows(LockLostException.class, held::release);
        }
    }

    @Test
    void oneOfSeveralThreadsThatTryTheSameKeysGetsThemAll() throws Exception {
        for (int round = 0; round < 20; round++) {
            String[] keys = {name + round + "a", name + round + "b", name + round + "c"};
            List<Running<Boolean>> threads = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                threads.add(Threads.start(() -> CLIENT.getMultiLock(keys).tryLock()));
            }
            int granted = 0;
            for (Running<Boolean> thread : threads) {
                granted += thread.join() ? 1 : 0;
            }
            assertEquals(1, granted);
        }
    }

    @Test
    void aCancelledWaitReleasesItsWaitingConnection() throws Exception {
        HeldLock held = CLIENT.request(name).acquire();
        try (LockwardClient one = SERVER.builder().waitingConnections(1).build()) {
            for (int round = 0; round < 50; round++) {
                CompletableFuture<HeldLock> cancelled = one.request(name).acquireAsync();
                Threads.spin(1 << round % 18);
                cancelled.cancel(true);
            }
            CompletableFuture<HeldLock> waiting = one.request(name).acquireAsync();
            eventually(() -> SERVER.waiters(name) == 1);
            held.release();
            waiting.get(20, TimeUnit.SECONDS).release();
        }
    }

    @Test
    void aReentryKeepsTheHoldLimit() throws Exception {
        LockwardLock lock =
                CLIENT.request(name).holdLimit(Duration.ofSeconds(20)).asLock();
        lock.lock(); // the server's default lease is longer than the hold limit
        long granted = Clock.now();
        eventually(() -> SERVER.info(name).orElseThrow().leaseLeft() <= 19_000);
        lock.lock(1, TimeUnit.HOURS);
        // The re-entry sets a lease that ends at least 1,000 ms after the hold limit. A renewal shortens it.
        eventually(() -> SERVER.info(name).orElseThrow().leaseLeft() - Clock.left(granted) < 20_500);
        lock.unlock();
        lock.unlock();
    }
}
