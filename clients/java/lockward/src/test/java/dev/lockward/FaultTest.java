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
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Locks that are taken away, servers that are killed, stopped or restarted, connections that break. */
class FaultTest {
    private final Server shared = Server.shared();
    private final String name = "fault:" + UUID.randomUUID();

    @ParameterizedTest
    @ValueSource(strings = {"DEL", "SET", "LOCK.RELEASE"})
    void aLockThatIsTakenAwayIsLost(String theft) throws Exception {
        List<LockLostException> all = new ArrayList<>();
        CountDownLatch lost = new CountDownLatch(2);
        try (LockwardClient client = shared.builder()
                .lease(Duration.ofMillis(1500))
                .onLost(loss -> {
                    all.add(loss);
                    lost.countDown();
                })
                .build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.lock();
            long token = lock.fencingToken();
            lock.onLost(loss -> lost.countDown());
            take(theft);
            assertTrue(lost.await(20, TimeUnit.SECONDS));
            assertEquals(1, all.size());
            assertEquals(name, all.get(0).name());
            assertEquals(token, all.get(0).fencingToken());
            assertFalse(lock.isHeldByCurrentThread());
            assertThrows(LockLostException.class, lock::fencingToken);
            assertThrows(LockLostException.class, lock::lock);
            assertThrows(LockLostException.class, lock::tryLock);
            CountDownLatch late = new CountDownLatch(1);
            lock.onLost(loss -> late.countDown());
            assertTrue(late.await(20, TimeUnit.SECONDS));
            // Once for each hold, so that each finally block throws the same exception.
            assertThrows(LockLostException.class, lock::unlock);
            assertThrows(LockLostException.class, lock::unlock);
            assertFalse(assertThrows(IllegalMonitorStateException.class, lock::unlock) instanceof LockLostException);
            shared.call("DEL", name);
            assertTrue(lock.tryLock());
            lock.unlock();
        }
    }

    private void take(String theft) {
        switch (theft) {
            case "DEL" -> shared.call("DEL", name);
            case "SET" -> shared.call("SET", name, "a string");
            default ->
                shared.call(
                        "LOCK.RELEASE", name, shared.info(name).orElseThrow().owner(), "ALL");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"DEL", "SET", "LOCK.RELEASE"})
    void unlockAndReentryThrowAfterTheLoss(String theft) {
        try (LockwardClient client = shared.client()) {
            LockwardLock lock = client.getLock(name);
            AtomicInteger losses = new AtomicInteger();
            for (Runnable action : List.<Runnable>of(lock::unlock, lock::lock, lock::tryLock)) {
                shared.call("DEL", name);
                lock.lock();
                lock.onLost(loss -> losses.incrementAndGet());
                take(theft);
                assertThrows(LockLostException.class, action::run);
                assertEquals(0, lock.getHoldCount());
                try {
                    lock.unlock();
                } catch (IllegalMonitorStateException known) {
                    // already lost, or not held
                }
            }
            eventually(() -> losses.get() == 3);
        }
    }

    @Test
    void everyUnlockOfALostLockThrows() {
        try (LockwardClient client = shared.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.lock();
            shared.call("DEL", name);
            assertThrows(LockLostException.class, lock::unlock);
            assertFalse(lock.isHeldByCurrentThread());
            assertThrows(LockLostException.class, lock::unlock);
        }
    }

    @Test
    void aReentryFailsWhenAnotherOwnerHasTheLock() throws Exception {
        try (LockwardClient client = shared.client();
                LockwardClient thief = shared.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            shared.call("DEL", name);
            thief.getLock(name).lock();
            assertThrows(LockLostException.class, lock::lock);
            assertThrows(LockLostException.class, lock::unlock);
            assertEquals(1, shared.holds(name));
            thief.getLock(name).unlock();
        }
    }

    @Test
    void aFailingOrBlockedListenerDoesNotStopRenewals() throws Exception {
        CountDownLatch hang = new CountDownLatch(1);
        AtomicInteger losses = new AtomicInteger();
        try (LockwardClient client =
                shared.builder().lease(Duration.ofSeconds(2)).build()) {
            LockwardLock kept = client.getLock(name + ":kept");
            kept.lock();
            LockwardLock lost = client.getLock(name);
            lost.lock();
            lost.onLost(loss -> {
                losses.incrementAndGet();
                throw new IllegalStateException("not today");
            });
            lost.onLost(loss -> {
                losses.incrementAndGet();
                try {
                    hang.await();
                } catch (InterruptedException end) {
                    Thread.currentThread().interrupt();
                }
            });
            lost.onLost(loss -> losses.incrementAndGet());
            shared.call("DEL", name);
            eventually(() -> losses.get() == 3);
            shared.awaitRenewals(3, name + ":kept");
            kept.unlock();
            assertThrows(LockLostException.class, lost::unlock);
        } finally {
            hang.countDown();
        }
    }

    @Test
    void aWaiterWhoseConnectionBreaksWaitsAgain() throws Exception {
        try (LockwardClient client = shared.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            Running<Boolean> waiter = Threads.start(() -> {
                boolean granted = lock.tryLock(1, TimeUnit.HOURS);
                lock.unlock();
                return granted;
            });
            Object before = List.of();
            for (int i = 0; i < 3; i++) {
                Object former = before;
                eventually(
                        () -> shared.waiters(name) == 1 && !shared.queue(name).equals(former));
                before = shared.queue(name);
                shared.call("CLIENT", "KILL", "ID", shared.queue(name).get(0));
            }
            eventually(() -> shared.waiters(name) == 1);
            assertFalse(waiter.isDone());
            lock.unlock();
            assertTrue(waiter.join());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"maxclients", "requirepass"})
    void aWaiterNeedsNoSecondConnection(String setting) throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.builder()
                        .patience(Duration.ofMillis(500))
                        .lease(Duration.ofSeconds(2))
                        .build()) {
            server.call("LOCK.ACQUIRE", name, "other", "EX", 1000);
            Running<Tenure> waiter = Threads.start(
                    () -> client.tryAcquire(name, Duration.ofHours(1), null).orElseThrow());
            eventually(() -> server.waiters(name) == 1);
            List<Long> queue = server.queue(name);
            boolean isFull = setting.equals("maxclients");
            server.call("CONFIG", "SET", setting, isFull ? "2" : "secret");
            server.killIdle();
            eventually(() -> server.count(isFull ? "rejected_connections" : "errorstat_NOAUTH") >= 3);
            assertEquals(queue, server.queue(name));
            server.call("LOCK.RELEASE", name, "other");
            // After the long wait the grant is confirmed, on the same connection.
            Tenure tenure = waiter.join();
            server.call("CONFIG", "SET", setting, isFull ? "10000" : "");
            tenure.release();
        }
    }

    @Test
    void theWaitLimitHoldsWhenConnectionsBreak() throws Exception {
        try (LockwardClient client = shared.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            Running<Boolean> waiter = Threads.start(() -> lock.tryLock(4, TimeUnit.SECONDS));
            eventually(() -> shared.waiters(name) == 1);
            shared.call("CLIENT", "KILL", "ID", shared.queue(name).get(0));
            eventually(() -> shared.waiters(name) == 1);
            assertFalse(waiter.join());
            eventually(() -> shared.waiters(name) == 0);
            lock.unlock();
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aTenureSurvivesARestartOfTheServer(boolean isPersistent) throws Exception {
        String[] config = isPersistent ? new String[] {"appendonly yes", "appendfsync always"} : new String[0];
        try (Server server = new Server(config);
                LockwardClient client =
                        server.builder().lease(Duration.ofSeconds(20)).build()) {
            LockwardLock lock = client.getLock(name);
            AtomicInteger losses = new AtomicInteger();
            lock.lock();
            lock.lock();
            Tenure fixed = client.tryAcquire(name + ":fixed", Duration.ZERO, Duration.ofSeconds(20))
                    .orElseThrow();
            lock.onLost(loss -> losses.incrementAndGet());
            fixed.onLost(loss -> losses.incrementAndGet());
            long token = lock.fencingToken();
            Running<Boolean> waiter = Threads.run(() -> {
                lock.lockInterruptibly();
                lock.unlock();
            });
            eventually(() -> server.waiters(name) == 1);
            if (isPersistent) {
                server.restart();
            } else {
                server.restart("quarantine 30000");
            }
            // This is before a third of the lease is over.
            eventually(Duration.ofSeconds(5), () -> server.holds(name) == 2 && server.holds(name + ":fixed") == 1);
            eventually(() -> server.waiters(name) == 1);
            assertEquals(token, server.info(name).orElseThrow().token());
            assertTrue(lock.isHeldByCurrentThread() && fixed.isHeld());
            assertEquals(token, lock.fencingToken());
            assertFalse(Threads.inOtherThread(() -> lock.tryLock()));
            fixed.release();
            lock.unlock();
            lock.unlock();
            assertEquals(0, losses.get());
            if (isPersistent) {
                assertTrue(waiter.join());
            } else {
                waiter.interrupt(); // in quarantine no new lock is granted
                assertThrows(InterruptedException.class, waiter::join);
            }
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"lock.max-lease", "lock.quarantine"})
    void aLeaseThatBecomesTooLongIsShortened(String setting) throws Exception {
        try (Server server = new Server();
                LockwardClient client =
                        server.builder().lease(Duration.ofSeconds(4)).build()) {
            Tenure tenure = client.tryAcquire(name, Duration.ZERO, null).orElseThrow();
            server.call("CONFIG", "SET", setting, 1500);
            long[] last = {0};
            AtomicInteger renewals = new AtomicInteger();
            eventually(() -> {
                long left = server.info(name).orElseThrow().leaseLeft();
                renewals.addAndGet(left > last[0] && left <= 1500 ? 1 : 0);
                last[0] = left;
                return renewals.get() > 10;
            });
            assertTrue(tenure.isHeld());
            assertThrows(LockRefusedException.class, () -> tenure.renew(Duration.ofSeconds(4)));
            assertTrue(tenure.isHeld());
            tenure.release();
        }
    }

    @Test
    void aReentryShortensALeaseThatIsTooLong() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock(20, TimeUnit.SECONDS);
            server.call("CONFIG", "SET", "lock.max-lease", 8000);
            assertThrows(LockRefusedException.class, () -> lock.lock(20, TimeUnit.SECONDS));
            lock.lock();
            assertEquals(2, server.holds(name));
            server.call("CONFIG", "SET", "lock.max-lease", 3000);
            lock.lock();
            assertEquals(3, server.holds(name));
            lock.unlock();
            lock.unlock();
            lock.unlock();
        }
    }

    @Test
    void aTenureIsRestoredWithAShorterLease() throws Exception {
        try (Server server = new Server();
                LockwardClient client =
                        server.builder().lease(Duration.ofSeconds(25)).build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            server.restart("quarantine 10000");
            eventually(Duration.ofSeconds(8), () -> server.holds(name) == 1);
            assertEquals(lock.fencingToken(), server.info(name).orElseThrow().token());
            lock.unlock();
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"LOCK.RELEASE", "LOCK.ACQUIRE"})
    void aDeniedTenureIsRestoredFirst(String command) throws Exception {
        AtomicInteger losses = new AtomicInteger();
        try (Server server = new Server();
                Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port()))
                        .patience(Duration.ofSeconds(20))
                        .onLost(loss -> losses.incrementAndGet())
                        .build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.lock();
            Tenure fixed = client.tryAcquire(name + ":fixed", Duration.ZERO, Duration.ofMinutes(10))
                    .orElseThrow();
            long token = lock.fencingToken();
            // Renewals are lost until the server has denied this thread's request.
            proxy.tell("plan request LOCK.RENEW until " + command);
            server.restart("quarantine 20000");
            if (command.equals("LOCK.RELEASE")) {
                lock.unlock();
                assertEquals(1, server.holds(name));
            } else {
                lock.lock();
                assertEquals(3, server.holds(name));
                lock.unlock();
                lock.unlock();
            }
            assertEquals(token, server.info(name).orElseThrow().token());
            fixed.release();
            lock.unlock();
            assertEquals(0, server.holds(name));
            assertEquals(0, losses.get());
        }
    }

    @Test
    void aLockIsLostWhenTheServerHasForgottenIt() throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.onLost(loss -> lost.countDown());
            server.restart();
            assertTrue(lost.await(20, TimeUnit.SECONDS));
            assertThrows(LockLostException.class, lock::unlock);
        }
    }

    @Test
    void aLockAtAStoppedServerIsLostWhenItsLeaseEnds() throws Exception {
        CountDownLatch lost = new CountDownLatch(2);
        try (Server server = new Server();
                LockwardClient client =
                        server.builder().lease(Duration.ofMillis(800)).build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.onLost(loss -> lost.countDown());
            Tenure other =
                    client.tryAcquire(name + ":other", Duration.ZERO, null).orElseThrow();
            other.onLost(loss -> lost.countDown());
            server.stop();
            assertTrue(lost.await(20, TimeUnit.SECONDS));
            assertFalse(lock.isHeldByCurrentThread() || other.isHeld());
            server.resume();
            assertThrows(LockLostException.class, lock::unlock);
            assertThrows(LockLostException.class, other::release);
            assertTrue(lock.tryLock(20, TimeUnit.SECONDS));
            lock.unlock();
        }
    }

    @Test
    void theWaitLimitHoldsAtAStoppedServer() throws Exception {
        try (Server server = new Server();
                LockwardClient client =
                        server.builder().patience(Duration.ofSeconds(2)).build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock(1, TimeUnit.HOURS);
            Running<Boolean> timed = Threads.start(() -> lock.tryLock(1, TimeUnit.SECONDS));
            Running<Boolean> endless = Threads.run(() -> {
                lock.lock();
                lock.unlock();
            });
            eventually(() -> server.waiters(name) == 2);
            server.stop();
            assertThrows(LockUnreachableException.class, timed::join);
            assertThrows(LockUnreachableException.class, () -> client.getLock(name + ":other")
                    .lock());
            server.resume();
            lock.unlock();
            assertTrue(endless.join());
        }
    }

    @Test
    void noConnectionsStayToADisconnectedServer() throws Exception {
        try (Server server = new Server();
                LockwardClient client =
                        server.builder().patience(Duration.ofSeconds(1)).build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            List<Running<Boolean>> waiters = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                waiters.add(Threads.run(() -> {
                    lock.lock();
                    lock.unlock();
                }));
            }
            eventually(() -> server.waiters(name) == 4);
            lock.unlock();
            for (Running<Boolean> waiter : waiters) {
                waiter.join();
            }
            eventually(() -> server.connections() == 6); // of this test, the shared one, and the idle ones
            server.call("REPLICAOF", "127.0.0.1", 1);
            assertThrows(LockUnreachableException.class, lock::lock);
            eventually(() -> server.connections() <= 2);
        }
    }

    @Test
    void anUnlockThatReachesNoServerThrows() throws Exception {
        Server server = new Server();
        try (LockwardClient client =
                server.builder().patience(Duration.ofMillis(500)).build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.lock();
            server.kill();
            assertThrows(LockUnreachableException.class, lock::lock);
            assertThrows(LockUnreachableException.class, lock::unlock);
            assertThrows(LockUnreachableException.class, lock::unlock);
            assertEquals(0, lock.getHoldCount());
        } finally {
            server.close();
        }
    }
}
