package dev.lockward;

import static dev.lockward.ScriptedServer.NULL;
import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.Transports;
import io.netty.util.concurrent.EventExecutor;
import io.netty.util.concurrent.SingleThreadEventExecutor;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Callers that wait while the client is closed. */
class CloseTest {
    @Test
    void aCallerThatPausesHearsOfTheCloseAtOnce() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> "-LOADING later")) {
            LockwardClient client = Server.builder(server.uri()).build();
            Acquisition caller = new Acquisition(client.request("k"), Map.of(), null, 0, Clock.FOREVER).start();
            eventually(() -> server.requests.size() >= 8 && isPausing(client));
            client.close();
            // On a busy machine, the pause may have ended before the close.
            assertTrue(caller.result.isDone() || server.requests.size() > 8);
            assertThrows(IllegalStateException.class, () -> Clock.await(caller.result));
        }
    }

    /** Whether the client's timer will end a pause after 400 ms to a second. The pauses after 7 failures take at least 500 ms. */
    private static boolean isPausing(LockwardClient client) {
        return client.servers.timer.getQueue().stream()
                .map(task -> ((Delayed) task).getDelay(TimeUnit.MILLISECONDS))
                .anyMatch(delay -> delay >= 400 && delay <= 1_000);
    }

    @Test
    void aCallerWhoseConnectionNeverOpensHearsOfTheCloseAtOnce() throws Exception {
        Server.shared(); // this call sends the first request of this process
        ClientResources resources = ClientResources.create();
        CountDownLatch end = new CountDownLatch(1);
        try (ScriptedServer server = new ScriptedServer(request -> NULL)) {
            LockwardClient client = LockwardClient.builder(server.uri())
                    .resources(resources)
                    .responseLimit(Duration.ofHours(1))
                    .build();
            assertFalse(client.getLock("k").tryLock());
            block(resources, end);
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("k").acquire());
            eventually(() -> pendingTasks(resources) > 0); // the client asks for a connection
            Threads.Running<Boolean> close = Threads.run(client::close); // close() also waits for the blocked executors
            assertThrows(IllegalStateException.class, caller::join);
            end.countDown();
            close.join();
        } finally {
            end.countDown();
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    /** Blocks Lettuce's threads for connections until the latch is open. */
    static void block(ClientResources resources, CountDownLatch end) {
        resources
                .eventExecutorGroup()
                .forEach(executor -> executor.submit(() -> {
                    end.await();
                    return true;
                }));
        eventually(() -> pendingTasks(resources) == 0);
    }

    /** How many tasks wait for an executor. */
    private static int pendingTasks(ClientResources resources) {
        int pending = 0;
        for (EventExecutor executor : resources.eventExecutorGroup()) {
            pending += ((SingleThreadEventExecutor) executor).pendingTasks();
        }
        return pending;
    }

    @Test
    void aCloseAtAnyMomentEndsEachCall() throws Exception {
        for (int round = 0; round < 20; round++) {
            String name = "closed:" + UUID.randomUUID();
            LockwardClient client = Server.shared()
                    .builder()
                    .lease(Duration.ofSeconds(2))
                    .waitingConnections(3)
                    .build();
            List<Threads.Running<Boolean>> callers = new ArrayList<>();
            for (int caller = 0; caller < 12; caller++) {
                LockRequest request = client.request(name + caller % 3, name + caller % 4);
                callers.add(Threads.start(() -> useUntilClosed(request)));
            }
            Threads.spin(1 << round);
            client.close();
            for (Threads.Running<Boolean> caller : callers) {
                assertTrue(caller.join());
            }
        }
    }

    private static boolean useUntilClosed(LockRequest request) throws Exception {
        try {
            for (; ; ) {
                HeldLock held = request.acquire();
                held.renew();
                held.downgradeToShared();
                held.release();
            }
        } catch (IllegalStateException | LockLostException closed) {
            return true;
        }
    }

    @Test
    void callbacksMayCloseTheClientAlthoughItIsClosed() throws Exception {
        for (int round = 0; round < 20; round++) {
            String name = "closed:" + UUID.randomUUID();
            LockwardClient client =
                    Server.shared().builder().lease(Duration.ofMinutes(1)).build();
            CompletableFuture<Boolean> lost = new CompletableFuture<>();
            HeldLock held = client.request(name).acquire();
            held.onLost(loss -> {
                client.close();
                lost.complete(true);
            });
            Server.shared().call("LOCK.ACQUIRE", name + ":busy", "other", "PX", 60_000);
            CompletableFuture<Boolean> refused = client.request(name + ":busy")
                    .acquireAsync()
                    .handle((lock, error) -> {
                        client.close();
                        return error instanceof IllegalStateException;
                    });
            Threads.spin(1 << round);
            Threads.Running<Boolean> other = Threads.run(client::close);
            client.close();
            assertTrue(other.join() && lost.get(20, TimeUnit.SECONDS) && refused.get(20, TimeUnit.SECONDS));
            assertFalse(held.isHeld());
            assertThrows(IllegalStateException.class, () -> client.request(name).tryAcquire(Duration.ZERO));
        }
    }

    /** One of Lettuce's threads that read replies. */
    static SingleThreadEventExecutor ioThread(ClientResources resources, int number) {
        List<EventExecutor> threads = new ArrayList<>();
        resources
                .eventLoopGroupProvider()
                .allocate(Transports.eventLoopGroupClass())
                .forEach(threads::add);
        return (SingleThreadEventExecutor) threads.get(number);
    }

    @Test
    void aBlockedThreadOfSharedResourcesDoesNotBlockTheClose() throws Exception {
        Server.shared(); // this call sends the first request of this process
        ClientResources resources =
                ClientResources.builder().ioThreadPoolSize(2).build();
        CountDownLatch end = new CountDownLatch(1);
        try (ScriptedServer server = new ScriptedServer(request -> NULL)) {
            LockwardClient client =
                    LockwardClient.builder(server.uri()).resources(resources).build();
            assertFalse(client.getLock("k").tryLock());
            ioThread(resources, 0).execute(() -> Threads.awaitOpen(end)); // the thread of the client's connection
            assertTrue(Threads.run(client::close).join());
        } finally {
            end.countDown();
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    @Test
    void aTimerThatEndsRunsItsTasksOnce() throws Exception {
        Clock.Timer timer = new Clock.Timer();
        AtomicInteger runs = new AtomicInteger();
        timer.at(Clock.now() + 60_000, runs::incrementAndGet);
        timer.end();
        assertTrue(timer.awaitTermination(20, TimeUnit.SECONDS));
        assertTrue(runs.get() == 1, runs::toString);
        CompletableFuture<Void> late = new CompletableFuture<>();
        timer.at(Clock.now() + 60_000, () -> late.complete(null));
        assertTrue(late.isDone());
    }
}
