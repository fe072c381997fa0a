package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntFunction;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Isolated;

/** A thousand virtual threads share a client, and do not block their carrier threads. */
@EnabledForJreRange(
        min = JRE.JAVA_21,
        disabledReason = "there are no virtual threads: mvn test -Djvm=NEWER_JDK/bin/java -Dtest=VirtualThreadsTest")
@Isolated("a recording is of the whole process, and the threads keep the machine busy")
class VirtualThreadsTest {
    private static final int THREADS = 1_000;

    /** How long a carrier thread may be blocked, for example while a class is loaded or the machine is busy. */
    private static final Duration TOLERANCE = Duration.ofMillis(100);

    private static final String PINNED = "jdk.VirtualThreadPinned";

    @TempDir
    private Path folder;

    @Test
    void eachAcquiresOneLock() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            assertEachAcquires(client, thread -> client.getLock("one"));
            assertFalse(server.isLocked("one"));
        }
    }

    @Test
    void eachAcquiresOneOfSeveralLocks() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            assertEachAcquires(client, thread -> client.getLock("lock" + thread % 20));
        }
    }

    @Test
    void eachAcquiresSeveralKeysAsOneLock() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            assertEachAcquires(client, thread -> client.getMultiLock("key" + thread % 20, "key" + (thread + 1) % 20));
        }
    }

    /** Shows that the recording contains an event for a blocked carrier thread. */
    @Test
    void aBlockedCarrierThreadIsRecorded() throws Exception {
        assertEquals(
                1, pins(() -> inVirtualThreads(1, thread -> Blocking.WAITED)).size());
    }

    private static final class Blocking {
        static final boolean WAITED;

        static {
            // In every version of Java, a class initializer pins its virtual thread to the carrier.
            long until = System.nanoTime() + 2 * TOLERANCE.toNanos();
            while (System.nanoTime() - until < 0) {
                LockSupport.parkNanos(until - System.nanoTime());
            }
            WAITED = true;
        }
    }

    private void assertEachAcquires(LockwardClient client, IntFunction<LockwardLock> locks) throws Exception {
        locks.apply(0).lock(); // loads the classes
        locks.apply(0).unlock();
        Set<String> held = ConcurrentHashMap.newKeySet();
        List<RecordedEvent> pins = pins(() -> inVirtualThreads(THREADS, thread -> {
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
        }));
        assertEquals(List.of(), pins);
    }

    private static void inVirtualThreads(int count, IntFunction<Boolean> action) throws Exception {
        ExecutorService threads = (ExecutorService) Executors.class
                .getMethod("newVirtualThreadPerTaskExecutor") // Java 17 has none
                .invoke(null);
        List<Future<Boolean>> results = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int thread = i;
            results.add(threads.submit(() -> action.apply(thread)));
        }
        threads.shutdown();
        assertTrue(threads.awaitTermination(80, TimeUnit.SECONDS));
        for (Future<Boolean> result : results) {
            assertTrue(result.get());
        }
    }

    /** The events of virtual threads that were pinned to their carriers for longer than the tolerance. */
    private List<RecordedEvent> pins(Threads.Action action) throws Exception {
        try (Recording recording = new Recording()) {
            recording.enable(PINNED).withThreshold(TOLERANCE).withStackTrace();
            recording.start();
            action.run();
            recording.stop();
            Path file = folder.resolve("pins.jfr");
            recording.dump(file);
            return RecordingFile.readAllEvents(file).stream()
                    .filter(event -> event.getEventType().getName().equals(PINNED))
                    .toList();
        }
    }
}
