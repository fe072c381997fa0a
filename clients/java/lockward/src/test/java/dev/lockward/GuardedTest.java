package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;

/** Commands that run only while the lock is held. */
class GuardedTest {
    private final Server server = Server.shared();
    private final String name = "guarded:" + UUID.randomUUID();
    private final String data = "data:" + UUID.randomUUID();

    private static Tenure acquire(LockwardClient client, String name) throws InterruptedException {
        return client.tryAcquire(name, Duration.ZERO, Duration.ofMinutes(10)).orElseThrow();
    }

    /** Gives the lock to another owner. */
    private static void overtake(Server server, String name) {
        server.call("DEL", name);
        server.call("LOCK.ACQUIRE", name, "another", "PX", 600_000);
    }

    private void checkUnwritten() {
        assertEquals(List.of(0L), server.call("EXISTS", data));
    }

    @Test
    void aGuardedCommandRuns() throws Exception {
        try (LockwardClient client = server.client()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            assertEquals("OK", lock.guarded("SET", data, 1));
            assertEquals(2L, lock.guarded("INCR", data.getBytes(StandardCharsets.UTF_8)));
            assertEquals(List.of("2"), server.call("GET", data));
            lock.unlock();
        }
    }

    @Test
    void aReplyMayHaveAnyForm() throws Exception {
        try (LockwardClient client = server.client()) {
            Tenure tenure = acquire(client, name);
            assertNull(tenure.guarded("GET", data));
            assertEquals(List.of(), tenure.guarded("LRANGE", data, 0, -1));
            tenure.guarded("RPUSH", data, "one", "zwei");
            assertEquals(List.of("one"), tenure.guarded("LRANGE", data, 0, 0));
            assertEquals(List.of("one", "zwei"), tenure.guarded("LRANGE", data, 0, -1));
            assertEquals(List.of("0", List.of()), tenure.guarded("SCAN", 0, "MATCH", "nothing", "COUNT", 1_000_000));
            tenure.release();
        }
    }

    @Test
    void aForgottenTenureIsRestoredBeforeTheCommandRuns() throws Exception {
        try (Server own = new Server();
                Server empty = new Server();
                LockwardClient client = own.client()) {
            Tenure tenure = acquire(client, name);
            // The connection stays open, so the client notices nothing.
            own.call("REPLICAOF", "127.0.0.1", empty.port);
            eventually(() -> own.call("EXISTS", name).equals(List.of(0L)));
            own.call("CONFIG", "SET", "lock.quarantine", 600_000);
            own.call("REPLICAOF", "NO", "ONE");
            assertEquals("OK", tenure.guarded("SET", data, 1));
            assertEquals(2, own.count("cmdstat_lock.guard:calls"));
        }
    }

    @Test
    void withoutACommandTheTokenIsChecked() throws Exception {
        try (LockwardClient client = server.client()) {
            Tenure tenure = acquire(client, name);
            assertEquals("OK", tenure.guarded());
            overtake(server, name);
            assertThrows(LockLostException.class, tenure::guarded);
        }
    }

    @Test
    void aGuardedCommandOfAFormerHolderDoesNotRun() throws Exception {
        try (LockwardClient client = server.client()) {
            Tenure tenure = acquire(client, name);
            overtake(server, name);
            LockLostException loss = assertThrows(LockLostException.class, () -> tenure.guarded("SET", data, 1));
            assertTrue(loss.getMessage().contains("NOTHELD the lock is held by another owner"), loss.getMessage());
            checkUnwritten();
        }
    }

    @Test
    void aRefusedGuardedCommandMarksTheLockAsLost() throws Exception {
        try (Server own = new Server();
                LockwardClient client = own.client()) {
            CompletableFuture<LockLostException> lost = new CompletableFuture<>();
            Tenure tenure = acquire(client, name);
            tenure.onLost(lost::complete);
            overtake(own, name);
            assertTrue(tenure.isHeld());
            assertThrows(LockLostException.class, () -> tenure.guarded("SET", data, 1));
            assertFalse(tenure.isHeld());
            eventually(lost::isDone);
            assertThrows(LockLostException.class, () -> tenure.guarded("SET", data, 1));
            assertEquals(1, own.count("cmdstat_lock.guard:calls")); // the second one was not sent
        }
    }

    @Test
    void anErrorOfTheGuardedCommandKeepsTheLock() throws Exception {
        try (LockwardClient client = server.client()) {
            Tenure tenure = acquire(client, name);
            LockRefusedException refused =
                    assertThrows(LockRefusedException.class, () -> tenure.guarded("LPUSH", name, "x"));
            assertEquals("WRONGTYPE", refused.code());
            assertTrue(tenure.isHeld());
            tenure.release();
        }
    }

    @Test
    void aGuardedCommandIsNotSentAfterTheLease() throws Exception {
        try (Server own = new Server();
                LockwardClient client = own.client()) {
            Tenure tenure = client.tryAcquire(name, Duration.ZERO, Duration.ofMillis(50))
                    .orElseThrow();
            eventually(() -> !tenure.isHeld());
            assertThrows(LockLostException.class, () -> tenure.guarded("SET", data, 1));
            assertEquals(0, own.count("cmdstat_lock.guard:calls"));
        }
    }

    @Test
    void aGuardedCommandThatArrivesAfterTheLeaseDoesNotRun() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port())).build()) {
            Tenure tenure = client.tryAcquire(name, Duration.ZERO, Duration.ofSeconds(1))
                    .orElseThrow();
            proxy.tell("plan hold LOCK.GUARD");
            CompletableFuture<Object> written = CompletableFuture.supplyAsync(() -> tenure.guarded("SET", data, 1));
            eventually(() -> proxy.held() == 1 && !server.isLocked(name));
            overtake(server, name);
            proxy.tell("plan");
            CompletionException failure = assertThrows(CompletionException.class, written::join);
            assertTrue(failure.getCause() instanceof LockLostException, failure.toString());
            checkUnwritten();
        }
    }

    @Test
    void aGuardedCommandIsNotRepeatedWhenItsReplyIsLost() throws Exception {
        try (Proxy proxy = new Proxy(server.port);
                LockwardClient client = Server.builder(Server.uri(proxy.port())).build()) {
            Tenure tenure = acquire(client, name);
            proxy.tell("plan reply LOCK.GUARD");
            assertThrows(LockUnreachableException.class, () -> tenure.guarded("INCR", data));
            assertEquals(List.of("1"), server.call("GET", data));
            assertTrue(tenure.isHeld());
        }
    }

    @Test
    void aGuardedCommandIsSentAgainWhenAReplicaHasRefusedIt() throws Exception {
        try (Server own = new Server();
                LockwardClient client =
                        own.builder().patience(Duration.ofSeconds(20)).build()) {
            Tenure tenure = acquire(client, name);
            own.call("REPLICAOF", "127.0.0.1", 1);
            CompletableFuture<Object> written = CompletableFuture.supplyAsync(() -> tenure.guarded("SET", data, 1));
            eventually(() -> own.count("errorstat_READONLY:count") > 0);
            own.call("REPLICAOF", "NO", "ONE");
            assertEquals("OK", written.join());
        }
    }

    @Test
    void aReleasedLockGuardsNothing() throws Exception {
        try (LockwardClient client = server.client()) {
            Tenure tenure = acquire(client, name);
            tenure.release();
            assertThrows(IllegalMonitorStateException.class, () -> tenure.guarded("SET", data, 1));
            checkUnwritten();
        }
    }
}
