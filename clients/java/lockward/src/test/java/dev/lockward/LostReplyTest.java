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
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Lost requests and replies: no hold is counted twice. */
class LostReplyTest {
    private final Server server = Server.shared();
    private final String name = "lost:" + UUID.randomUUID();

    @Test
    void holdsAreRightAfterLostRequestsAndReplies() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port())).build()) {
            proxy.tell("random 7 33 67 LOCK.*");
            LockwardLock lock = client.getLock(name);
            for (int round = 0; round < 250; round++) {
                for (int holds = 1; holds <= 2; holds++) {
                    lock.lock();
                    assertEquals(holds, lock.getHoldCount());
                    assertEquals(holds, server.holds(name));
                }
                for (int holds = 1; holds >= 0; holds--) {
                    lock.unlock();
                    assertEquals(holds, lock.getHoldCount());
                    assertEquals(holds, server.holds(name));
                }
            }
            assertTrue(proxy.lost() > 50);
        }
    }

    @Test
    void lostRepliesKeepMutualExclusion() throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger rounds = new AtomicInteger();
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port())).build()) {
            proxy.tell("random 11 25 50 LOCK.*");
            LockwardLock lock = client.getLock(name);
            List<Running<Boolean>> threads = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                threads.add(Threads.run(() -> {
                    for (int round = 0; round < 50; round++) {
                        lock.lock();
                        lock.lock();
                        assertEquals(1, inside.incrementAndGet());
                        rounds.incrementAndGet();
                        inside.decrementAndGet();
                        lock.unlock();
                        lock.unlock();
                    }
                }));
            }
            for (Running<Boolean> thread : threads) {
                thread.join();
            }
            assertEquals(200, rounds.get());
            assertTrue(proxy.lost() > 20);
        }
        assertEquals(0, server.holds(name));
    }

    @ParameterizedTest
    @ValueSource(strings = {"LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW"})
    void aRequestWhoseReplyIsLostIsRepeated(String command) throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port()))
                        .lease(Duration.ofSeconds(3))
                        .build()) {
            AtomicInteger losses = new AtomicInteger();
            proxy.tell("plan reply " + command + " 1");
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.onLost(loss -> losses.incrementAndGet());
            lock.lock();
            if (command.equals("LOCK.RENEW")) {
                eventually(() -> proxy.lost() == 1);
                eventually(() -> server.info(name).orElseThrow().leaseLeft() > 2_500);
            }
            assertEquals(2, server.holds(name));
            lock.unlock();
            assertEquals(1, server.holds(name));
            lock.unlock();
            assertEquals(0, server.holds(name));
            assertEquals(1, proxy.lost());
            assertEquals(0, losses.get());
        }
    }

    @Test
    void aLostReplyToTheLastReleaseIsNoLoss() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port())).build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            proxy.tell("plan reply ALL 1");
            lock.unlock();
            assertEquals(1, proxy.lost());
            assertFalse(lock.isLocked());
        }
    }

    @Test
    void aLockThatCouldNotBeReleasedCanBeAcquiredAgain() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port()))
                        .patience(Duration.ofMillis(500))
                        .build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.lock();
            proxy.tell("plan request LOCK.RELEASE");
            assertThrows(LockUnreachableException.class, lock::unlock);
            assertThrows(LockUnreachableException.class, lock::unlock);
            assertEquals(2, server.holds(name));
            proxy.tell("plan");
            assertTrue(lock.tryLock());
            assertEquals(1, server.holds(name));
            lock.unlock();
            assertFalse(lock.isLocked());
        }
    }

    @Test
    void aGrantWhoseReplyIsLostIsGivenBackLater() throws Exception {
        try (Server server = new Server("lock.default-lease 600000");
                Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port()))
                        .patience(Duration.ofMillis(500))
                        .build()) {
            proxy.tell("plan reply LOCK.ACQUIRE 1, request *");
            LockwardLock lock = client.getLock(name);
            assertThrows(LockUnreachableException.class, lock::tryLock);
            assertEquals(1, server.holds(name));
            proxy.tell("plan");
            eventually(() -> server.holds(name) == 0);
            assertTrue(lock.tryLock());
            lock.unlock();
        }
    }

    @Test
    void theLeaseOfALockThatCouldNotBeReleasedDoesNotGoOn() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port()))
                        .patience(Duration.ofMillis(500))
                        .build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock(1, TimeUnit.HOURS);
            proxy.tell("plan request LOCK.RELEASE");
            assertThrows(LockUnreachableException.class, lock::unlock);
            proxy.tell("plan");
            lock.lock();
            assertTrue(server.info(name).orElseThrow().leaseLeft() <= 30_000);
            lock.unlock();
            assertFalse(lock.isLocked());
        }
    }

    @Test
    void aRepeatedRequestFindsAGrantWhoseReplyWasLost() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port())).build();
                LockwardClient holder = server.client()) {
            holder.getLock(name).lock();
            proxy.tell("plan reply BLOCK 1");
            Running<Long> waiter = Threads.start(() -> {
                LockwardLock lock = client.getLock(name);
                lock.lock();
                long token = lock.fencingToken();
                assertEquals(1, server.holds(name));
                assertEquals(token, server.info(name).orElseThrow().token());
                lock.unlock();
                return token;
            });
            eventually(() -> server.waiters(name) == 1);
            holder.getLock(name).unlock();
            assertTrue(waiter.join() > 0);
            assertEquals(1, proxy.lost());
            assertFalse(holder.getLock(name).isLocked());
        }
    }
}
