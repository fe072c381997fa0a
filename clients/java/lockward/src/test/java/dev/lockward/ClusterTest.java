package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import io.lettuce.core.cluster.SlotHash;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;

/** A cluster of three nodes. */
class ClusterTest {
    private static final int SLOTS = SlotHash.SLOT_COUNT;
    private static final List<Server> NODES = Server.cluster();

    @AfterAll
    static void end() {
        NODES.forEach(Server::close);
    }

    private static LockwardClient.Builder client() {
        return Server.builder(NODES.get(0).uri(), NODES.get(1).uri());
    }

    /** A name whose slot is on a node. */
    private static String on(int node, String prefix) {
        for (int i = 0; ; i++) {
            int slot = SlotHash.getSlot(prefix + i);
            if (slot * 3 / SLOTS == node && (slot + 1) * 3 / SLOTS == node) {
                return prefix + i;
            }
        }
    }

    @Test
    void locksAreOnTheNodesOfTheirSlots() throws Exception {
        try (LockwardClient client = client().lease(Duration.ofSeconds(2)).build()) {
            for (int i = 0; i < 3; i++) {
                Server node = NODES.get(i);
                String name = on(i, "a");
                LockwardLock lock = client.getLock(name);
                lock.lock();
                lock.lock();
                assertEquals(2, node.holds(name));
                Running<Boolean> waiter = Threads.run(() -> {
                    lock.lock();
                    lock.unlock();
                });
                eventually(() -> node.waiters(name) == 1);
                node.awaitRenewals(3, name);
                lock.unlock();
                lock.unlock();
                assertTrue(waiter.join());
            }
        }
    }

    @Test
    void aGuardedCommandRunsOnTheNodeOfTheLock() throws Exception {
        try (LockwardClient client = client().build()) {
            for (int i = 0; i < 3; i++) {
                String name = on(i, "d");
                LockwardLock lock = client.getLock("{" + name + "}lock");
                lock.lock();
                assertEquals("OK", lock.guarded("SET", "{" + name + "}data", i));
                assertEquals(List.of(String.valueOf(i)), NODES.get(i).call("GET", "{" + name + "}data"));
                lock.unlock();
            }
        }
    }

    @Test
    void aWaiterKeepsItsPositionWhenAnotherConnectionBreaks() throws Exception {
        Server node = NODES.get(2);
        String name = on(2, "c");
        try (LockwardClient client = client().patience(Duration.ofMillis(500)).build()) {
            node.call("LOCK.ACQUIRE", name, "other", "EX", 1000);
            LockwardLock lock = client.getLock(name);
            Running<Boolean> waiter = Threads.run(() -> {
                lock.lock();
                lock.unlock();
            });
            eventually(() -> node.waiters(name) == 1);
            List<Long> queue = node.queue(name);
            node.killIdle();
            eventually(() -> node.connections() == 3);
            assertEquals(queue, node.queue(name));
            node.call("LOCK.RELEASE", name, "other");
            assertTrue(waiter.join());
        }
    }

    /** The client finds out by ASK and MOVED, while it waits, renews, re-enters and releases. */
    @Test
    void aLockMovesWithItsSlot() throws Exception {
        String name = on(0, "b");
        Server source = NODES.get(0);
        Server target = NODES.get(1);
        int slot = SlotHash.getSlot(name);
        Object from = source.call("CLUSTER", "MYID").get(0);
        Object to = target.call("CLUSTER", "MYID").get(0);
        AtomicInteger losses = new AtomicInteger();
        try (LockwardClient client = client().lease(Duration.ofSeconds(2)).build();
                LockwardClient late = client().build()) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            lock.onLost(loss -> losses.incrementAndGet());
            Running<Boolean> waiter = Threads.start(() -> {
                boolean granted = lock.tryLock(1, TimeUnit.HOURS);
                lock.unlock();
                return granted;
            });
            eventually(() -> source.waiters(name) == 1);
            target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", from);
            source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", to);
            source.call("MIGRATE", "127.0.0.1", target.port, name, 0, 5000);
            lock.lock();
            assertEquals("OK", lock.guarded());
            eventually(() -> lock.isLocked());
            Running<Boolean> asking = Threads.start(() -> late.getLock(name).tryLock(2, TimeUnit.SECONDS));
            assertFalse(asking.join());
            for (Server node : List.of(target, source, NODES.get(2))) {
                node.call("CLUSTER", "SETSLOT", slot, "NODE", to);
            }
            eventually(() -> target.waiters(name) == 1);
            assertEquals(2, target.holds(name));
            target.awaitRenewals(3, name);
            assertTrue(lock.isHeldByCurrentThread() && !waiter.isDone());
            lock.unlock();
            lock.unlock();
            assertTrue(waiter.join());
            assertEquals(0, losses.get());
        }
    }
}
