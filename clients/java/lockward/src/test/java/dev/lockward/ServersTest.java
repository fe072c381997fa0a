package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.resource.ClientResources;
import java.lang.ref.WeakReference;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Nodes that are silent, and a server that accepts no connection. */
class ServersTest {
    @Test
    void aLockOnACutConnectionIsRenewedThoughTheOnlySeedIsSilent() throws Exception {
        List<Server> nodes = Server.cluster();
        Server seed = nodes.get(0);
        Server other = nodes.get(1);
        String key = IntStream.iterate(0, number -> number + 1)
                .mapToObj(number -> "k" + number)
                .filter(name -> SlotHash.getSlot(name) / 5_462 == 1)
                .findFirst()
                .orElseThrow();
        try (seed;
                LockwardClient client =
                        Server.builder(seed.uri()).lease(Duration.ofSeconds(6)).build()) {
            HeldLock held = client.request(key).acquire();
            CompletableFuture<LockLostException> loss = new CompletableFuture<>();
            held.onLost(loss::complete);
            seed.stop();
            other.killIdle();
            other.awaitRenewals(3, key);
            assertFalse(loss.isDone());
            assertTrue(held.isHeld());
            seed.resume();
        }
    }

    @Test
    void aGrantIsConfirmedThoughTheServerAcceptsNoOtherConnection() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            CompletableFuture<HeldLock> waiting = waitBehindAnother(server, client);
            server.killIdle();
            server.call("CONFIG", "SET", "maxclients", server.connections() - 1);
            server.call("LOCK.RELEASE", "k", "other", "ALL");
            assertTrue(waiting.get(20, TimeUnit.SECONDS).isHeld());
            assertTrue(server.info("k").orElseThrow().leaseLeft() > 3_000);
        }
    }

    @Test
    void anIdleConnectionIsUsedIfTheSharedOneBrokeAndTheServerAcceptsNoOther() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            CompletableFuture<HeldLock> waiting = waitBehindAnother(server, client);
            server.call("LOCK.RELEASE", "k", "other", "ALL");
            HeldLock held = waiting.get(20, TimeUnit.SECONDS);
            server.call("CONFIG", "SET", "maxclients", 1);
            server.killOldest();
            held.release();
            assertFalse(server.isLocked("k"));
        }
    }

    @Test
    void theErrorSaysWhyNoConnectionCouldBeOpened() throws Exception {
        int closed;
        try (ServerSocket socket = new ServerSocket(0)) {
            closed = socket.getLocalPort();
        }
        try (LockwardClient client = Server.builder(RedisURI.create("127.0.0.1", closed))
                .patience(Duration.ofMillis(500))
                .build()) {
            // On a busy machine the first call may end before its connection is refused.
            eventually(() -> assertThrows(LockUnreachableException.class, () -> client.request("k")
                            .tryAcquire(Duration.ZERO))
                    .getMessage()
                    .contains("Connection refused: "));
        }
    }

    @Test
    void anErrorDuringTheOpeningOfAConnectionEndsTheCall() throws Exception {
        RedisURI uri = Server.shared().uri();
        uri.setDatabase(1_000_000);
        try (LockwardClient client =
                Server.builder(uri).patience(Duration.ofHours(1)).build()) {
            LockRefusedException refused = assertThrows(
                    LockRefusedException.class, () -> client.request("k").acquire());
            assertTrue(refused.getMessage().contains("DB index is out of range"), refused::getMessage);
        }
    }

    @Test
    void theFirstConnectionHasBegunWhenTheClientIsBuilt() throws Exception {
        Server.shared(); // this call sends the first request of this process
        ClientResources resources = ClientResources.create();
        CountDownLatch end = new CountDownLatch(1);
        CloseTest.block(resources, end);
        try (ScriptedServer server = new ScriptedServer(request -> ScriptedServer.grant(7, 30_000));
                LockwardClient client = LockwardClient.builder(server.uri())
                        .resources(resources)
                        .build()) {
            assertTrue(client.getLock("k").tryLock());
            end.countDown();
        } finally {
            end.countDown();
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    @Test
    void aConnectionToASilentSentinelIsClosed() throws Exception {
        try (ServerSocket sentinel = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
                LockwardClient client = Server.builder(
                                RedisURI.Builder.sentinel("127.0.0.1", sentinel.getLocalPort(), "primary")
                                        .build())
                        .responseLimit(Duration.ofMillis(500))
                        .patience(Duration.ofMillis(500))
                        .build();
                Socket connection = sentinel.accept()) {
            connection.setSoTimeout(20_000);
            assertThrows(
                    LockUnreachableException.class, () -> client.request("k").tryAcquire(Duration.ZERO));
            connection.getInputStream().readAllBytes(); // ends when the client closes the connection
        }
    }

    @Test
    void aBrokenConnectionIsNotKept() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            client.getLock("k").tryLock();
            WeakReference<Object> shared = new WeakReference<>(
                    client.servers.nodeOf("k").connection(false).join().redis());
            server.killOldest();
            eventually(() -> {
                System.gc();
                return client.getLock("k").isLocked() && shared.get() == null;
            });
        }
    }

    private static CompletableFuture<HeldLock> waitBehindAnother(Server server, LockwardClient client) {
        server.call("LOCK.ACQUIRE", "k", "other", "PX", 60_000);
        CompletableFuture<HeldLock> waiting = client.request("k").acquireAsync();
        eventually(() -> server.waiters("k") == 1);
        return waiting;
    }
}
