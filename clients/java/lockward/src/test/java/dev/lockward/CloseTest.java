package dev.lockward;

import static dev.lockward.ScriptedServer.NULL;
import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Callers that wait while the client is closed. */
class CloseTest {
    @Test
    void aCallerThatPausesHearsOfTheCloseAtOnce() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> "-LOADING later")) {
            LockwardClient client = Server.builder(server.uri()).build();
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("k").acquire());
            eventually(() -> server.requests.size() == 8); // the next pause takes at least 500 ms
            client.close();
            assertEndsWithin(Duration.ofMillis(300), caller);
        }
    }

    @Test
    void aCallerWhoseConnectionNeverOpensHearsOfTheCloseAtOnce() throws Exception {
        ClientResources resources = ClientResources.create();
        CountDownLatch end = new CountDownLatch(1);
        try (ScriptedServer server = new ScriptedServer(request -> NULL)) {
            LockwardClient client =
                    LockwardClient.builder(server.uri()).resources(resources).build();
            assertFalse(client.getLock("k").tryLock());
            resources.eventExecutorGroup().forEach(executor -> executor.submit(() -> end.await(20, TimeUnit.SECONDS)));
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("k").acquire());
            eventually(() -> server.requests.size() == 2);
            Thread.sleep(200); // until the client asks for a connection
            Threads.Running<Boolean> close = Threads.run(client::close); // also waits for the blocked executors
            assertEndsWithin(Duration.ofSeconds(1), caller);
            end.countDown();
            close.join();
        } finally {
            end.countDown();
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    private static void assertEndsWithin(Duration limit, Threads.Running<Boolean> caller) {
        eventually(limit, caller::isDone);
        assertThrows(IllegalStateException.class, caller::join);
    }

    @Test
    void aTimerThatEndsRunsItsTasksOnce() throws Exception {
        Timer timer = new Timer();
        AtomicInteger runs = new AtomicInteger();
        timer.at(Clock.now() + Clock.nanos(60_000), runs::incrementAndGet);
        timer.end();
        assertTrue(timer.awaitTermination(20, TimeUnit.SECONDS));
        assertTrue(runs.get() == 1, runs::toString);
        CompletableFuture<Void> late = new CompletableFuture<>();
        timer.at(Clock.now() + Clock.nanos(60_000), () -> late.complete(null));
        assertTrue(late.isDone());
    }
}
