package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.cluster.SlotHash;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Nodes that are silent. */
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
}
