package dev.lockward.spring;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.LockwardClient;
import dev.lockward.Server;
import io.lettuce.core.RedisURI;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** ShedLock's locks, in addition to ShedLock's own tests. */
class LockProviderTest {
    private static final Server SERVER = Server.shared();
    private static final Duration LONG = Duration.ofMinutes(5);

    private final String name = UUID.randomUUID().toString();
    private final AtomicInteger losses = new AtomicInteger();
    private final LockwardClient client = LockwardClient.builder(RedisURI.create("127.0.0.1", SERVER.port))
            .onLost(loss -> losses.incrementAndGet())
            .build();
    private final LockwardLockProvider provider = new LockwardLockProvider(client, "");

    @AfterEach
    void close() {
        client.close();
    }

    private LockConfiguration configuration(Duration atMost, Duration atLeast) {
        return new LockConfiguration(Instant.now(), name, atMost, atLeast);
    }

    private SimpleLock lock(Duration atMost, Duration atLeast) {
        return provider.lock(configuration(atMost, atLeast)).orElseThrow();
    }

    private long leaseLeft() {
        return (Long) SERVER.call("PTTL", name).get(0);
    }

    @Test
    void twoExecutionsInOneThreadExcludeEachOther() {
        SimpleLock lock = lock(LONG, Duration.ZERO);
        assertEquals(Optional.empty(), provider.lock(configuration(LONG, Duration.ZERO)));
        lock.unlock();
        lock(LONG, Duration.ZERO).unlock();
    }

    @Test
    void lockAtMostForIsTheLease() {
        lock(LONG, Duration.ZERO);
        assertTrue(leaseLeft() > 200_000 && leaseLeft() <= 300_000);
    }

    @Test
    void afterAnUnlockTheLockLastsForTheRestOfLockAtLeastFor() {
        SimpleLock lock = lock(LONG, Duration.ofSeconds(100));
        lock.unlock();
        assertTrue(leaseLeft() > 50_000 && leaseLeft() <= 100_000);
        assertEquals(Optional.empty(), provider.lock(configuration(LONG, Duration.ZERO)));
        assertThrows(IllegalStateException.class, lock::unlock);
    }

    @Test
    void theWallClockDoesNotMatter() {
        LockConfiguration wrong = new LockConfiguration(Instant.EPOCH, name, LONG, Duration.ofSeconds(100));
        provider.lock(wrong).orElseThrow().unlock();
        assertTrue(leaseLeft() > 50_000);
    }

    @Test
    void theEndOfLockAtLeastForIsNotReportedAsALoss() {
        lock(LONG, Duration.ofSeconds(1)).unlock();
        eventually(() -> !SERVER.isLocked(name));
        client.close();
        assertEquals(0, losses.get());
    }

    @Test
    void unlockOfALostLockThrowsNothingAndKeepsTheNextHolder() {
        SimpleLock lost = lock(LONG, Duration.ZERO);
        SERVER.call("DEL", name);
        SimpleLock next = lock(LONG, Duration.ZERO);
        lost.unlock();
        assertTrue(SERVER.isLocked(name));
        next.unlock();
        assertFalse(SERVER.isLocked(name));
        eventually(() -> losses.get() == 1);
    }

    @Test
    void aLostLockIsNotExtended() {
        SimpleLock lost = lock(LONG, Duration.ZERO);
        SERVER.call("DEL", name);
        lock(LONG, Duration.ZERO);
        assertEquals(Optional.empty(), lost.extend(LONG.multipliedBy(2), Duration.ZERO));
        assertTrue(leaseLeft() <= 300_000);
    }

    @Test
    void lockAtLeastForCountsFromTheExtension() {
        SimpleLock lock = lock(LONG, Duration.ZERO);
        SimpleLock extended =
                lock.extend(LONG.multipliedBy(2), Duration.ofSeconds(100)).orElseThrow();
        assertTrue(leaseLeft() > 500_000);
        extended.unlock();
        assertTrue(leaseLeft() > 50_000 && leaseLeft() <= 100_000);
    }

    @Test
    void aServerErrorIsThrownAsALockException() {
        SERVER.call("SET", name, "a string");
        assertThrows(LockException.class, () -> lock(LONG, Duration.ZERO));
    }

    @Test
    void anUnreachableServerIsThrownAsALockException() {
        try (Server own = new Server();
                LockwardClient brief = LockwardClient.builder(RedisURI.create("127.0.0.1", own.port))
                        .patience(Duration.ofSeconds(2))
                        .build()) {
            LockwardLockProvider there = new LockwardLockProvider(brief, "");
            SimpleLock one = there.lock(configuration(LONG, Duration.ZERO)).orElseThrow();
            own.kill();
            assertThrows(LockException.class, () -> one.extend(LONG, Duration.ZERO));
            assertThrows(LockException.class, one::unlock);
            assertThrows(LockException.class, () -> there.lock(configuration(LONG, Duration.ZERO)));
        }
    }

    @Test
    void unlockThrowsNothingIfTheLeaseEndsBeforeAServerAnswers() {
        try (Server own = new Server();
                LockwardClient there = own.client()) {
            SimpleLock lock = new LockwardLockProvider(there, "")
                    .lock(configuration(Duration.ofMillis(500), Duration.ZERO))
                    .orElseThrow();
            own.kill();
            lock.unlock();
        }
    }

    @Test
    void anInterruptedThreadAcquiresNothing() {
        Thread.currentThread().interrupt();
        assertThrows(LockException.class, () -> lock(LONG, Duration.ZERO));
        assertTrue(Thread.interrupted());
        assertFalse(SERVER.isLocked(name));
    }
}
