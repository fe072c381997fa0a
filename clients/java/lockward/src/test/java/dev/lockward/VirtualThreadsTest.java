package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * A thousand virtual threads share a client, and one carrier thread. If a thread that waits for a lock blocked the carrier, the holder
 * could not run, and the wait would never end.
 */
@EnabledForJreRange(
        min = JRE.JAVA_21,
        disabledReason = "there are no virtual threads: mvn test -Djvm=NEWER_JDK/bin/java -Dtest=VirtualThreadsTest")
@Isolated("the threads keep the machine busy")
class VirtualThreadsTest {
    private static final int THREADS = 1_000;

    @Test
    void eachAcquiresOneLock() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            assertEachAcquires(thread -> client.getLock("one"));
            assertFalse(server.isLocked("one"));
        }
    }

    @Test
    void eachAcquiresOneOfSeveralLocks() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            assertEachAcquires(thread -> client.getLock("lock" + thread % 20));
        }
    }

    @Test
    void eachAcquiresSeveralKeysAsOneLock() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            assertEachAcquires(thread -> client.getMultiLock("key" + thread % 20, "key" + (thread + 1) % 20));
        }
    }

    private static void assertEachAcquires(IntFunction<LockwardLock> locks) throws Exception {
        Set<String> held = ConcurrentHashMap.newKeySet();
        inVirtualThreads(thread -> {
            LockwardLock lock = locks.apply(thread);
            lock.lock();
            try {
                List<String> keys = lock.held().keys();
                boolean isAlone = keys.stream().allMatch(held::add);
                Thread.yield();
                keys.forEach(held::remove);
                return isAlone;
            } finally {
                lock.unlock();
            }
        });
    }

    private static void inVirtualThreads(IntFunction<Boolean> action) throws Exception {
        assertEquals("1", System.getProperty("jdk.virtualThreadScheduler.maxPoolSize")); // pom.xml sets this property
        ExecutorService threads = (ExecutorService) Executors.class
                .getMethod("newVirtualThreadPerTaskExecutor") // Java 17 does not have this method
                .invoke(null);
        List<Future<Boolean>> results = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            int thread = i;
            results.add(threads.submit(() -> action.apply(thread)));
        }
        threads.shutdown();
        assertTrue(threads.awaitTermination(80, TimeUnit.SECONDS));
        for (Future<Boolean> result : results) {
            assertTrue(result.get());
        }
    }
}
