package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Threads.Running;
import java.time.Duration;
import org.junit.jupiter.api.Test;

/** Readers and permits. */
class ModeTest {
    private static final Duration NO_WAIT = Duration.ZERO;

    @Test
    void readersHoldTogetherAndAWriterWaits() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            LockwardLock reading = client.getLock("k", Mode.SHARED);
            LockwardLock writing = client.getLock("k");
            reading.lock();
            Tenure other = client.tryAcquire("k", Mode.SHARED, NO_WAIT, null).orElseThrow();
            server.restart("quarantine 60000"); // it has forgotten the readers, and restores them as readers
            reading.renew(Duration.ofSeconds(20));
            other.renew(Duration.ofSeconds(20));
            server.call("CONFIG", "SET", "lock.quarantine", 0);
            assertThrows(LockRefusedException.class, writing::lock);
            reading.lock();
            assertEquals(2, reading.getHoldCount());
            Running<Boolean> writer = Threads.start(() -> {
                writing.lock();
                writing.unlock();
                return true;
            });
            eventually(() -> server.waiters("k") == 1);
            assertTrue(client.tryAcquire("k", Mode.SHARED, NO_WAIT, null).isEmpty());
            other.release();
            reading.unlock();
            assertEquals(1, server.waiters("k"));
            reading.unlock();
            assertTrue(writer.join());
            assertFalse(writing.isLocked());
        }
    }

    @Test
    void twoOfThreePermits() throws Exception {
        try (LockwardClient client = Server.shared().client()) {
            Mode three = Mode.slots(3);
            Tenure two =
                    client.tryAcquire("permits", three.weight(2), NO_WAIT, null).orElseThrow();
            Tenure one = client.tryAcquire("permits", three, NO_WAIT, null).orElseThrow();
            assertTrue(client.tryAcquire("permits", three, NO_WAIT, null).isEmpty());
            two.release();
            client.tryAcquire("permits", three.weight(2), NO_WAIT, null)
                    .orElseThrow()
                    .release();
            one.release();
            assertThrows(
                    LockRefusedException.class, () -> client.tryAcquire("permits", three.weight(4), NO_WAIT, null));
        }
    }
}
