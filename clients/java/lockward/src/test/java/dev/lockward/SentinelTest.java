package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Clients that find the primary through Sentinels. */
class SentinelTest {
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    @Timeout(150)
    void holdersAndWaitersSurviveAFailover(boolean isStopped) throws Exception {
        try (Server primary = new Server();
                Server replica = new Server();
                Server sentinel = Server.sentinel()) {
            replica.call("REPLICAOF", "127.0.0.1", primary.port);
            eventually(() -> replica.call("INFO", "replication").toString().contains("master_link_status:up"));
            sentinel.call("SENTINEL", "MONITOR", "it", "127.0.0.1", primary.port, 1);
            sentinel.call("SENTINEL", "SET", "it", "down-after-milliseconds", 1_000, "failover-timeout", 10_000);
            RedisURI uri =
                    RedisURI.Builder.sentinel("127.0.0.1", sentinel.port, "it").build();
            AtomicInteger losses = new AtomicInteger();
            try (LockwardClient client =
                    Server.builder(uri).patience(Duration.ofSeconds(10)).build()) {
                LockwardLock lock = client.getLock("a");
                lock.lock();
                lock.onLost(loss -> losses.incrementAndGet());
                eventually(() -> replica.holds("a") == 1);
                Running<Boolean> waiter = Threads.run(() -> {
                    lock.lock();
                    lock.unlock();
                });
                eventually(() -> primary.waiters("a") == 1);
                eventually(() -> sentinel.call("SENTINEL", "REPLICAS", "it").size() == 1);
                if (isStopped) {
                    primary.stop(); // its connections stay open
                }
                eventually(Duration.ofSeconds(60), () -> hasFailedOver(sentinel, replica, isStopped));
                eventually(Duration.ofSeconds(60), () -> replica.waiters("a") == 1);
                assertTrue(lock.isHeldByCurrentThread() && !waiter.isDone());
                lock.lock();
                assertEquals(2, replica.holds("a"));
                lock.unlock();
                lock.unlock();
                assertTrue(waiter.join());
                assertEquals(0, losses.get());
            }
        }
    }

    private static boolean hasFailedOver(Server sentinel, Server replica, boolean byItself) {
        try {
            if (replica.call("INFO", "replication").toString().contains("role:master")) {
                return true;
            }
            if (!byItself) {
                sentinel.call("SENTINEL", "FAILOVER", "it");
            }
        } catch (RedisException busy) {
            // The Sentinel does not know the replica yet, or a failover closes the connections.
        }
        return false;
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    @Timeout(150)
    void aWaiterKeepsItsPositionWhileASentinelIsStopped(boolean losesOther) throws Exception {
        try (Server primary = new Server();
                Server stopped = Server.sentinel();
                Server sentinel = Server.sentinel();
                Proxy proxy = new Proxy(sentinel.port)) {
            for (Server each : List.of(stopped, sentinel)) {
                each.call("SENTINEL", "MONITOR", "it", "127.0.0.1", primary.port, 2);
            }
            RedisURI uri = RedisURI.Builder.sentinel("127.0.0.1", stopped.port, "it")
                    .withSentinel("127.0.0.1", proxy.port())
                    .build();
            try (LockwardClient client =
                    Server.builder(uri).patience(Duration.ofSeconds(1)).build()) {
                primary.call("LOCK.ACQUIRE", "a", "other", "EX", 1000);
                Running<Tenure> waiter = Threads.start(
                        () -> client.tryAcquire("a", Duration.ofHours(1), null).orElseThrow());
                eventually(() -> primary.waiters("a") == 1);
                List<Long> queue = primary.queue("a");
                stopped.stop();
                proxy.tell(losesOther ? "plan request *" : "plan");
                primary.killIdle();
                eventually(() -> losesOther ? proxy.lost() > 2 : shared(primary) == 1);
                assertEquals(queue, primary.queue("a"));
                primary.call("LOCK.RELEASE", "a", "other");
                Tenure tenure = waiter.join();
                proxy.tell("plan");
                tenure.release();
            }
        }
    }

    /** How many connections have sent PING last. (Those of Sentinels have a name.) */
    private static long shared(Server primary) {
        return primary.call("CLIENT", "LIST")
                .toString()
                .lines()
                .filter(line -> line.contains(" cmd=ping ") && line.contains(" name= "))
                .count();
    }

    @Test
    void sentinelsNameThePrimary() throws Exception {
        try (Server primary = new Server();
                Server sentinel = Server.sentinel()) {
            sentinel.call("SENTINEL", "MONITOR", "it", "127.0.0.1", primary.port, 1);
            try (LockwardClient client =
                    LockwardClient.create("redis-sentinel://127.0.0.1:" + sentinel.port + "/0#it")) {
                client.getLock("a").lock();
                assertEquals(1, primary.holds("a"));
                client.getLock("a").unlock();
                assertFalse(client.getLock("a").isLocked());
            }
        }
    }
}
