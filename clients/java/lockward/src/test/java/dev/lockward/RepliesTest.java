package dev.lockward;

import static dev.lockward.ScriptedServer.NULL;
import static dev.lockward.ScriptedServer.grant;
import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** What the client makes of replies that are rare or missing, with a scripted server. */
class RepliesTest {
    @Test
    void keysThatWereGivenBackAreAcquiredByANewOwner() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> {
                    if (!request.startsWith("LOCK.ACQUIRE")) {
                        return ":0";
                    }
                    boolean isBusy = asked.incrementAndGet() <= 2 && request.contains(" b ");
                    return isBusy ? NULL : grant(asked.get(), 30_000);
                });
                LockwardClient client = Server.builder(server.uri()).build()) {
            HeldLock held = client.request("a", "b").acquire();
            String first = server.requests.get(0).split(" ")[2];
            assertEquals(first, server.requests.get(1).split(" ")[2]);
            assertTrue(server.requests.get(2).startsWith("LOCK.RELEASE a " + first), server.requests::toString);
            assertNotEquals(first, held.owner());
            assertEquals(
                    2, server.count("LOCK.ACQUIRE a " + held.owner()) + server.count("LOCK.ACQUIRE b " + held.owner()));
        }
    }

    @Test
    void aNamedOwnerAcquiresKeysThatWereGivenBack() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> {
                    if (!request.startsWith("LOCK.ACQUIRE")) {
                        return ":0";
                    }
                    return asked.incrementAndGet() == 1 ? NULL : grant(asked.get(), 30_000);
                });
                LockwardClient client = Server.builder(server.uri()).build()) {
            client.request("a", "b").owner("me").acquire();
            assertEquals(4, server.count("LOCK.ACQUIRE a me ") + server.count("LOCK.ACQUIRE b me "));
        }
    }

    @Test
    void aGiveUpInTheBackgroundIsSentUntilItIsAnswered() throws Exception {
        AtomicInteger releases = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE connect ")
                                || (request.startsWith("LOCK.RELEASE") && releases.incrementAndGet() == 3)
                        ? grant(7, 30_000)
                        : null);
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofSeconds(1))
                        .patience(Duration.ofSeconds(60))
                        .build()) {
            client.request("connect").acquire();
            LockRequest request = client.request("k");
            assertThrows(LockUnreachableException.class, () -> request.tryAcquire(Duration.ofMillis(100)));
            eventually(() -> releases.get() == 3);
            assertEquals(3, server.count("LOCK.RELEASE k "), server.requests::toString);
        }
    }

    @Test
    void aCancelledCallerWaitsFor200MillisecondsAndTheGiveUpGoesOn() throws Exception {
        AtomicInteger releases = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE connect ")
                                || (request.startsWith("LOCK.RELEASE") && releases.incrementAndGet() == 2)
                        ? grant(7, 30_000)
                        : null);
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofSeconds(1))
                        .patience(Duration.ofSeconds(60))
                        .build()) {
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("k").acquire());
            eventually(() -> server.count("LOCK.ACQUIRE k ") == 1);
            caller.interrupt();
            assertThrows(InterruptedException.class, caller::join);
            assertTrue(releases.get() <= 1); // the response limit is longer
            eventually(() -> releases.get() == 2);
        }
    }

    @Test
    void aRefusedWaitForReplicasGivesTheGrantBack() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE")
                        ? grant(7, 30_000)
                        : request.startsWith("WAIT") ? "-ERR no replicas here" : ":0");
                LockwardClient client = Server.builder(server.uri()).build()) {
            LockRequest request = client.request("k").replicas(1, Duration.ofMillis(100));
            assertThrows(LockRefusedException.class, () -> request.tryAcquire(Duration.ZERO));
            eventually(() -> server.count("LOCK.RELEASE k ") == 1);
        }
    }

    @Test
    void aRedirectionThatMakesNoSenseEndsTheCall() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> "-MOVED 1 nowhere");
                LockwardClient client = Server.builder(server.uri()).build()) {
            CompletableFuture<HeldLock> future = client.request("k").acquireAsync();
            assertThrows(ExecutionException.class, () -> future.get(20, TimeUnit.SECONDS));
        }
    }
}
