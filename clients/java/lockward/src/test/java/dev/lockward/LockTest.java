package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
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
        assertFalse(Threads.inOtherThread(() -> lock.tryLock(10, TimeUnit.MILLISECONDS)));
        assertFalse(Threads.inOtherThread(lock::isHeldByCurrentThread));
        lock.unlock();
        assertFalse(lock.isHeldByCurrentThread() || lock.isLocked());
        assertTrue(Threads.inOtherThread(() -> lock.tryLock(0, 100, TimeUnit.MILLISECONDS)));
    }

    @Test
    void twoClientsExcludeEachOther() throws Exception {
        try (LockwardClient other = SERVER.client()) {
            lock.lock();
            assertFalse(other.getLock(name).tryLock());
            lock.unlock();
            assertTrue(other.getLock(name).tryLock());
            assertFalse(lock.tryLock());
            other.getLock(name).unlock();
        }
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
    void tokensGrow() {
        List<Long> tokens = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            lock.lock();
            tokens.add(lock.fencingToken());
            lock.unlock();
        }
        List<Long> sorted = new ArrayList<>(new HashSet<>(tokens));
        Collections.sort(sorted);
        assertEquals(sorted, tokens);
    }

    @Test
    void ownersAreNumberedByThread() throws Exception {
        lock.lock();
        String mine = SERVER.info(name).orElseThrow().owner();
        lock.unlock();
        lock.lock();
        assertEquals(mine, SERVER.info(name).orElseThrow().owner());
        lock.unlock();
        String other = Threads.inOtherThread(() -> {
            lock.lock();
            String owner = SERVER.info(name).orElseThrow().owner();
            lock.unlock();
            return owner;
        });
        assertTrue(mine.matches("[0-9a-f-]{36}:\\d+"), mine);
        assertEquals(mine.split(":")[0], other.split(":")[0]);
        assertNotEquals(mine, other);
    }

    @Test
    @SuppressWarnings("deprecation") // in later versions of Java
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
    void aSlowConnectionDoesNotChangeTheOrderOfWaiters() throws Exception {
        try (Server server = new Server();
                Proxy proxy = new Proxy(server.port);
                LockwardClient slow = Server.builder(Server.uri(proxy.port())).build()) {
            server.call("LOCK.ACQUIRE", name, "other");
            LockwardLock mine = slow.getLock(name);
            assertFalse(mine.tryLock());
            proxy.tell("plan hold PING 1"); // the first request of a connection
            Running<Boolean> first = Threads.run(() -> {
                mine.lock();
                mine.unlock();
            });
            eventually(() -> proxy.held() == 1);
            long pings = server.count("cmdstat_ping");
            Running<Boolean> second = Threads.run(() -> {
                mine.lock();
                mine.unlock();
            });
            eventually(() -> server.count("cmdstat_ping") > pings); // the second thread has connected
            for (int i = 0; i < 50; i++) {
                assertEquals(0, server.waiters(name));
            }
            proxy.tell("plan");
            eventually(() -> server.waiters(name) == 2);
            server.call("LOCK.RELEASE", name, "other");
            assertTrue(first.join() && second.join());
        }
    }

    @Test
    void aWaiterDoesNotDelayOtherRequests() throws Exception {
        lock.lock();
        Running<Boolean> waiter = Threads.run(() -> {
            lock.lock();
            lock.unlock();
        });
        eventually(() -> SERVER.waiters(name) == 1);
        LockwardLock other = CLIENT.getLock(name + ":other");
        other.lock();
        other.unlock();
        lock.unlock();
        assertTrue(waiter.join());
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
            // The thread that holds the lock must be able to acquire another one.
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
    void aLockLeftToItsLeaseIsAcquiredAgain() {
        for (int i = 0; i < 3; i++) {
            lock.lock(50, TimeUnit.MILLISECONDS);
            eventually(() -> !lock.isHeldByCurrentThread());
        }
        lock.lock(1, TimeUnit.HOURS);
        assertEquals(1, lock.getHoldCount());
        assertEquals(1, SERVER.holds(name));
        lock.unlock();
        assertFalse(lock.isLocked());
        // The last lock that was left to its lease.
        assertThrows(LockLostException.class, lock::unlock);
        assertFalse(assertThrows(IllegalMonitorStateException.class, lock::unlock) instanceof LockLostException);
    }

    @Test
    void manyLocksLeftToTheirLeasesAreRemoved() {
        for (int i = 0; i < 150; i++) {
            CLIENT.getLock(name + i).lock(1, TimeUnit.MILLISECONDS);
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
    void aLeaseIsNeverRoundedTo0() throws Exception {
        lock.lock(1, TimeUnit.NANOSECONDS);
        eventually(() -> !lock.isLocked());
        assertThrows(LockLostException.class, lock::unlock);
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
        LockRefusedException refused =
                assertThrows(LockRefusedException.class, () -> lock.lock(Long.MAX_VALUE, TimeUnit.DAYS));
        assertTrue(refused.getMessage().contains("invalid expire time"), refused.getMessage());
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
                SERVER.builder().lease(Duration.ofSeconds(1)).build()) {
            LockwardLock mine = brief.getLock(name);
            mine.lock(2, TimeUnit.SECONDS);
            mine.lock();
            SERVER.awaitRenewals(2, name);
            mine.unlock();
            mine.unlock();
        }
    }

    @Test
    void aLockIsRenewedUntilItIsReleased() {
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(2)).build()) {
            LockwardLock mine = brief.getLock(name);
            mine.lock();
            SERVER.awaitRenewals(2, name);
            assertTrue(mine.isHeldByCurrentThread());
            mine.unlock();
            assertFalse(mine.isLocked());
        }
    }

    @Test
    void oneThreadRenewsAllLocksOfAClient() {
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(2)).build()) {
            List<LockwardLock> locks = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                locks.add(brief.getLock(name + i));
                locks.get(i).lock();
            }
            SERVER.awaitRenewals(2, locks.stream().map(LockwardLock::getName).toArray(String[]::new));
            assertTrue(locks.stream().allMatch(LockwardLock::isHeldByCurrentThread));
            locks.forEach(LockwardLock::unlock);
        }
    }

    @Test
    void theLockOfADeadThreadIsNotRenewed() throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        try (LockwardClient brief = SERVER.builder()
                .lease(Duration.ofSeconds(1))
                .onLost(loss -> lost.countDown())
                .build()) {
            Tenure tenure = Threads.start(() -> {
                        brief.getLock(name).lock();
                        return brief.threadTenure(name);
                    })
                    .join();
            assertTrue(lost.await(20, TimeUnit.SECONDS));
            assertFalse(tenure.isHeld());
            eventually(() -> !lock.isLocked());
        }
    }

    @Test
    void aDroppedTenureIsNotRenewed() throws Exception {
        try (LockwardClient brief =
                SERVER.builder().lease(Duration.ofSeconds(1)).build()) {
            WeakReference<Tenure> dropped = new WeakReference<>(
                    brief.tryAcquire(name, Duration.ZERO, null).orElseThrow());
            eventually(() -> {
                System.gc();
                return dropped.get() == null;
            });
            eventually(() -> !lock.isLocked());
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
    void aRefusedLoginOrCommandFailsAtOnce() {
        SERVER.call("ACL", "SETUSER", name, "on", ">right", "~*", "+@connection");
        var uri = SERVER.uri();
        uri.setCredentialsProvider(RedisCredentialsProvider.from(() -> RedisCredentials.just(name, "right")));
        try (LockwardClient few =
                Server.builder(uri).patience(Duration.ofDays(1)).build()) {
            assertEquals(
                    "NOPERM",
                    assertThrows(LockRefusedException.class, () -> few.getLock(name)
                                    .lock())
                            .code());
        }
        uri.setCredentialsProvider(RedisCredentialsProvider.from(() -> RedisCredentials.just(name, "wrong")));
        try (LockwardClient stranger =
                Server.builder(uri).patience(Duration.ofDays(1)).build()) {
            assertEquals(
                    "WRONGPASS",
                    assertThrows(LockRefusedException.class, () -> stranger.getLock(name)
                                    .lock())
                            .code());
        }
    }

    @Test
    void theDefaultLeaseIsKnownWithoutPermissionForLockInfo() {
        SERVER.call("ACL", "SETUSER", name, "on", "nopass", "~*", "+@connection", "+lock.acquire", "+lock.release");
        var uri = SERVER.uri();
        uri.setCredentialsProvider(RedisCredentialsProvider.from(() -> RedisCredentials.just(name, "any")));
        try (LockwardClient few = Server.builder(uri).build()) {
            few.getLock(name).lock();
            assertTrue(lock.isLocked());
            few.getLock(name).unlock();
        }
    }

    @Test
    void settingsOutOfRangeAreRefused() {
        LockwardClient.Builder builder = SERVER.builder();
        assertThrows(IllegalArgumentException.class, () -> builder.patience(Duration.ZERO));
        assertThrows(IllegalArgumentException.class, () -> builder.waitingConnections(0));
        assertThrows(IllegalArgumentException.class, () -> builder.lease(Duration.ofSeconds(-1)));
        assertThrows(IllegalArgumentException.class, () -> CLIENT.tryAcquire(name, Duration.ZERO, Duration.ZERO));
    }

    @Test
    void tooManyWaitersAreRefused() throws Exception {
        try (Server own = new Server();
                LockwardClient client = own.client()) {
            own.call("CONFIG", "SET", "lock.max-waiters", 1);
            client.getLock(name).lock();
            Running<Boolean> first = Threads.run(() -> {
                client.getLock(name).lock();
                client.getLock(name).unlock();
            });
            eventually(() -> own.waiters(name) == 1);
            LockRefusedException refused = assertThrows(
                    LockRefusedException.class,
                    () -> Threads.inOtherThread(() -> client.getLock(name).tryLock(1, TimeUnit.MINUTES)));
            assertEquals("MAXWAITERS", refused.code());
            client.getLock(name).unlock();
            assertTrue(first.join());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"straße", "a b\r\n", ""})
    void anyTextIsAName(String odd) {
        LockwardLock mine = CLIENT.getLock(name + odd);
        mine.lock();
        assertEquals(1, SERVER.holds(name + odd));
        mine.unlock();
    }

    @ParameterizedTest
    @ValueSource(longs = {50, 2_500})
    void aLockWithoutEnoughReplicasIsGivenBack(long within) {
        try (LockwardClient careful = SERVER.builder()
                .patience(Duration.ofSeconds(1))
                .replicas(1, Duration.ofMillis(within))
                .build()) {
            assertThrows(
                    LockUnreplicatedException.class, () -> careful.getLock(name).lock());
            assertFalse(careful.getLock(name).isLocked());
        }
    }

    @Test
    void aLockWithEnoughReplicasIsGranted() throws Exception {
        try (Server primary = new Server();
                Server replica = new Server("replicaof 127.0.0.1 " + primary.port);
                LockwardClient careful =
                        primary.builder().replicas(1, Duration.ofSeconds(20)).build()) {
            eventually(() -> replica.call("INFO", "replication").toString().contains("master_link_status:up"));
            LockwardLock mine = careful.getLock(name);
            mine.lock();
            assertTrue(replica.info(name).isPresent());
            Running<Boolean> waiter = Threads.run(() -> {
                mine.lock();
                mine.unlock();
            });
            eventually(() -> primary.waiters(name) == 1);
            mine.unlock();
            assertTrue(waiter.join());
        }
    }

    @Test
    void anotherThreadCanReleaseATenure() throws Exception {
        Tenure tenure = CLIENT.tryAcquire(name, Duration.ZERO, null).orElseThrow();
        assertTrue(CLIENT.tryAcquire(name, Duration.ZERO, null).isEmpty());
        assertTrue(CLIENT.tryAcquire(name, Duration.ofMillis(20), null).isEmpty());
        assertFalse(lock.tryLock());
        assertEquals(SERVER.info(name).orElseThrow().token(), tenure.fencingToken());
        assertEquals(SERVER.info(name).orElseThrow().owner(), tenure.owner());
        assertEquals(name, tenure.name());
        tenure.renew(Duration.ofMinutes(5));
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 250_000);
        Threads.run(tenure::release).join();
        assertFalse(tenure.isHeld() || lock.isLocked());
        assertThrows(IllegalMonitorStateException.class, tenure::release);
        assertThrows(IllegalMonitorStateException.class, () -> tenure.renew(Duration.ofSeconds(1)));
        tenure.close();
    }

    @Test
    void aTenureCanBeReleasedAfterADelay() throws Exception {
        AtomicInteger losses = new AtomicInteger();
        Tenure tenure = CLIENT.tryAcquire(name, Duration.ZERO, null).orElseThrow();
        tenure.onLost(loss -> losses.incrementAndGet());
        tenure.releaseAfter(Duration.ofMinutes(5));
        assertFalse(tenure.isHeld());
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 250_000);
        assertThrows(IllegalMonitorStateException.class, () -> tenure.releaseAfter(Duration.ofMinutes(5)));

        Tenure brief = CLIENT.tryAcquire(name + "2", Duration.ZERO, Duration.ofMinutes(5))
                .orElseThrow();
        brief.onLost(loss -> losses.incrementAndGet());
        brief.releaseAfter(Duration.ofMillis(50));
        assertTrue(CLIENT.getLock(name + "2").tryLock(1, TimeUnit.MINUTES));
        CLIENT.getLock(name + "2").unlock();
        assertEquals(0, losses.get());

        Tenure lost = CLIENT.tryAcquire(name + "3", Duration.ZERO, null).orElseThrow();
        SERVER.call("DEL", name + "3");
        assertThrows(LockLostException.class, () -> lost.releaseAfter(Duration.ofMinutes(5)));
        assertEquals(0, SERVER.holds(name + "3"));
    }

    @Test
    void renewSetsANewLease() {
        assertThrows(IllegalMonitorStateException.class, () -> lock.renew(Duration.ofMinutes(5)));
        lock.lock(1, TimeUnit.MINUTES);
        lock.renew(Duration.ofMinutes(5));
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() > 250_000);
        lock.renew(Duration.ofMinutes(1));
        assertTrue(SERVER.info(name).orElseThrow().leaseLeft() < 100_000);
        lock.unlock();
    }

    @Test
    void aGrantWhoseLeaseIsOverIsRequestedAgain() throws Exception {
        // Most of these leases are over when the reply arrives, at least the first ones, because the client connects
        // first.
        try (LockwardClient cold = SERVER.client()) {
            for (int i = 0; i < 20; i++) {
                assertTrue(cold.tryAcquire(name + i, Duration.ZERO, Duration.ofMillis(2))
                        .isPresent());
            }
        }
    }

    @ParameterizedTest
    @ValueSource(longs = {0, 300})
    void tryLockReturnsWhenRepliesTakeLongerThanTheLease(long wait) throws Exception {
        try (Server server = new Server("lock.default-lease 40");
                Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port()))
                        .patience(Duration.ofSeconds(1))
                        .build()) {
            proxy.tell("delay 60");
            LockwardLock far = client.getLock(name);
            assertFalse(
                    Threads.inOtherThread(() -> wait == 0 ? far.tryLock() : far.tryLock(wait, TimeUnit.MILLISECONDS)));
        }
    }

    @Test
    void aRefusedLeaseIsNotUsedForRenewals() throws Exception {
        try (LockwardClient client =
                SERVER.builder().lease(Duration.ofSeconds(2)).build()) {
            Tenure tenure = client.tryAcquire(name, Duration.ZERO, null).orElseThrow();
            assertThrows(LockRefusedException.class, () -> tenure.renew(Duration.ofDays(20 * 365)));
            SERVER.awaitRenewals(2, name);
            assertTrue(tenure.isHeld());
            tenure.release();
        }
    }

    @Test
    void aTenureWithALeaseIsNotRenewed() throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        Tenure tenure =
                CLIENT.tryAcquire(name, Duration.ZERO, Duration.ofMillis(200)).orElseThrow();
        tenure.onLost(loss -> lost.countDown());
        assertTrue(lost.await(20, TimeUnit.SECONDS));
        assertThrows(LockLostException.class, tenure::close);
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

    @Test
    void unreachableIsThrownAfterThePatience() {
        try (LockwardClient nobody =
                Server.builder(Server.uri(1)).patience(Duration.ofMillis(300)).build()) {
            LockwardLock mine = nobody.getLock(name);
            assertThrows(LockUnreachableException.class, mine::lock);
            assertThrows(LockUnreachableException.class, mine::tryLock);
            assertThrows(LockUnreachableException.class, () -> mine.tryLock(200, TimeUnit.MILLISECONDS));
            assertThrows(LockUnreachableException.class, mine::isLocked);
        }
    }
}
