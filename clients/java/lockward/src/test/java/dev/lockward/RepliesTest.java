package dev.lockward;

import static dev.lockward.ScriptedServer.CUT;
import static dev.lockward.ScriptedServer.NULL;
import static dev.lockward.ScriptedServer.grant;
import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisURI;
import io.lettuce.core.resource.ClientResources;
import io.netty.util.concurrent.SingleThreadEventExecutor;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** How the client handles rare and missing replies, with a scripted server. */
class RepliesTest {
    /** A server for the keys a and b. It replies that b is busy in the first attempt for both keys. */
    private static ScriptedServer busyAtFirst() {
        AtomicInteger asked = new AtomicInteger();
        return new ScriptedServer(request -> {
            if (!request.startsWith("LOCK.ACQUIRE")) {
                return ":0";
            }
            boolean isBusy = asked.incrementAndGet() <= 2 && request.contains(" b ");
            return isBusy ? NULL : grant(asked.get(), 30_000);
        });
    }

    @Test
    void keysThatWereReleasedAreAcquiredAgainByANewOwner() throws Exception {
        try (ScriptedServer server = busyAtFirst();
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
    void aNamedOwnerAcquiresKeysAgainThatWereReleased() throws Exception {
        try (ScriptedServer server = busyAtFirst();
                LockwardClient client = Server.builder(server.uri()).build()) {
            client.request("a", "b").owner("me").acquire();
            assertEquals(4, server.count("LOCK.ACQUIRE a me ") + server.count("LOCK.ACQUIRE b me "));
        }
    }

    /** A server that grants the key "connect". For the key k it replies only to one release: the n-th, where n is {@code number}. */
    private static ScriptedServer silentUntilRelease(int number) {
        AtomicInteger releases = new AtomicInteger();
        return new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE connect ")
                        || (request.startsWith("LOCK.RELEASE k ") && releases.incrementAndGet() == number)
                ? grant(7, 30_000)
                : null);
    }

    private static LockwardClient patientClient(ScriptedServer server) {
        return Server.builder(server.uri())
                .responseLimit(Duration.ofSeconds(1))
                .patience(Duration.ofSeconds(60))
                .build();
    }

    @Test
    void aReleaseInTheBackgroundIsRepeatedUntilTheServerAnswers() throws Exception {
        try (ScriptedServer server = silentUntilRelease(3);
                LockwardClient client = patientClient(server)) {
            client.request("connect").acquire();
            LockRequest request = client.request("k");
            assertThrows(LockUnreachableException.class, () -> request.tryAcquire(Duration.ofMillis(100)));
            eventually(() -> server.count("LOCK.RELEASE k ") == 3);
        }
    }

    @Test
    void aCancelledCallerDoesNotWaitForTheReplyAndTheReleaseIsRepeated() throws Exception {
        AtomicBoolean isSilent = new AtomicBoolean(true);
        try (ScriptedServer server = new ScriptedServer(
                        request -> request.startsWith("LOCK.ACQUIRE") || isSilent.get() ? null : ":0");
                LockwardClient client = patientClient(server)) {
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("k").acquire());
            eventually(() -> server.count("LOCK.ACQUIRE k ") == 1);
            caller.interrupt();
            assertThrows(InterruptedException.class, caller::join);
            isSilent.set(false);
            eventually(() -> server.count("LOCK.RELEASE k ") >= 2);
        }
    }

    @Test
    void aCancelledCallOfANamedOwnerRepeatsNoReleaseAfterItsEnd() throws Exception {
        AtomicBoolean isOver = new AtomicBoolean();
        AtomicInteger late = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> {
                    late.addAndGet(request.startsWith("LOCK.RELEASE a ") && isOver.get() ? 1 : 0);
                    return switch (request.replaceAll(" me .*", "")) {
                        case "LOCK.ACQUIRE a" -> grant(7, 30_000);
                        case "LOCK.ACQUIRE b" -> request.contains(" BLOCK ") ? null : NULL;
                        default -> null;
                    };
                });
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofMillis(250))
                        .patience(Duration.ofSeconds(60))
                        .build()) {
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("a", "b").owner("me").acquire());
            eventually(() -> server.requests.stream().anyMatch(request -> request.contains(" BLOCK ")));
            caller.interrupt();
            assertThrows(InterruptedException.class, caller::join);
            isOver.set(true);
            // The program has named no owner here, so the client repeats the release within the patience.
            LockRequest other = client.request("c");
            assertThrows(LockUnreachableException.class, () -> other.tryAcquire(Duration.ofMillis(100)));
            eventually(() -> server.count("LOCK.RELEASE c ") >= 4);
            assertTrue(late.get() <= 1, late::toString); // the client may have sent one release just before the end
        }
    }

    @Test
    void aFailedCallOfANamedOwnerRepeatsNoReleaseAfterItsEnd() throws Exception {
        AtomicBoolean isOver = new AtomicBoolean();
        AtomicInteger late = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> {
                    boolean isRelease = request.startsWith("LOCK.RELEASE k ");
                    late.addAndGet(isRelease && isOver.get() ? 1 : 0);
                    return CUT;
                });
                LockwardClient client = patientClient(server)) {
            Duration wait = Duration.ofMillis(100);
            LockRequest request = client.request("k").owner("me");
            assertThrows(LockUnreachableException.class, () -> request.tryAcquire(wait));
            isOver.set(true);
            // The program has named no owner here, so the client repeats the release within the patience.
            assertThrows(
                    LockUnreachableException.class, () -> client.request("c").tryAcquire(wait));
            eventually(() -> server.count("LOCK.RELEASE c ") >= 5);
            assertTrue(late.get() <= 1, late::toString); // the client may have sent one release just before the end
        }
    }

    @Test
    void aCallMakesNoAttemptAfterItsEnd() throws Exception {
        AtomicInteger late = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> CUT);
                LockwardClient client = patientClient(server)) {
            for (int round = 0; round < 5; round++) {
                AtomicBoolean isOver = new AtomicBoolean();
                Call call = new Call(client.servers, "k", Clock.now() + 200);
                assertInstanceOf(LockUnreachableException.class, failure(call.ask(() -> {
                    late.addAndGet(isOver.get() ? 1 : 0);
                    return new Request("LOCK.RELEASE", "k", "me", "HOLDS", 0);
                })));
                isOver.set(true); // the next rounds are longer than a pause, so a late attempt would be counted
            }
            assertEquals(0, late.get());
        }
    }

    @Test
    void anUnansweredAttemptHidesNoEarlierReason() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (ScriptedServer server =
                        new ScriptedServer(request -> asked.getAndIncrement() == 0 ? "-LOADING it" : null);
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofMillis(200))
                        .patience(Duration.ofSeconds(1))
                        .build()) {
            String message = failure(client.request("k").acquireAsync()).getMessage();
            assertTrue(asked.get() > 1 && message.contains("LOADING it"), message);
        }
    }

    @Test
    void aCandidateWaitsWhileNoServerAnswers() throws Exception {
        AtomicBoolean isSilent = new AtomicBoolean(true);
        Function<String, String> answer = request -> request.startsWith("LOCK.ACQUIRE") ? grant(7, 30_000) : ":0";
        try (ScriptedServer server = new ScriptedServer(request -> isSilent.get() ? null : answer.apply(request));
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofMillis(100))
                        .patience(Duration.ofMillis(200))
                        .build()) {
            Threads.Running<Boolean> candidate = Threads.run(() -> client.lead("k", term -> {}));
            // Each acquisition has a new owner, so the second acquisition has begun when there are two
            // owners.
            eventually(() -> server.requests.stream()
                            .filter(request -> request.startsWith("LOCK.ACQUIRE"))
                            .map(request -> request.split(" ")[2])
                            .distinct()
                            .count()
                    >= 2);
            isSilent.set(false);
            assertTrue(candidate.join());
        }
    }

    @Test
    void theTimeForReplicasEndsWithTheWaitLimit() throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE") ? grant(7, 30_000) : ":0");
                LockwardClient client = Server.builder(server.uri()).build()) {
            LockRequest request = client.request("k").replicas(1, Duration.ofHours(1));
            assertThrows(LockUnreplicatedException.class, () -> request.tryAcquire(Duration.ofSeconds(20)));
            String wait = server.requests.stream()
                    .filter(each -> each.startsWith("WAIT "))
                    .findFirst()
                    .orElseThrow();
            assertTrue(Long.parseLong(wait.split(" ")[2]) <= 20_000, wait);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"+OK", ":7", "*1\r\n:7", "*3\r\n+a\r\n+b\r\n+c", "*3\r\n*0\r\n:1\r\n*-1"})
    void aReplyThatIsNoGrantIsRefusedAndGivenUp(String nonsense) throws Exception {
        for (boolean isWaiting : new boolean[] {false, true}) {
            try (ScriptedServer server = new ScriptedServer(request -> !request.startsWith("LOCK.ACQUIRE")
                            ? ":0"
                            : isWaiting && !request.contains(" BLOCK ") ? NULL : nonsense);
                    LockwardClient client = Server.builder(server.uri()).build()) {
                LockRequest request = client.request("k");
                LockRefusedException refused = assertThrows(LockRefusedException.class, request::acquire);
                assertTrue(refused.getMessage().contains("unexpected reply"), refused::getMessage);
                eventually(() -> server.count("LOCK.RELEASE k ") == 1);
            }
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"+OK", "*0", "$-1"})
    void aReplyToWaitThatIsNoNumberCountsAsNoReplica(String nonsense) throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE")
                        ? grant(7, 30_000)
                        : request.startsWith("WAIT") ? nonsense : ":0");
                LockwardClient client = Server.builder(server.uri()).build()) {
            LockRequest request = client.request("k").replicas(1, Duration.ofMillis(100));
            assertThrows(LockUnreplicatedException.class, () -> request.tryAcquire(Duration.ZERO));
            eventually(() -> server.count("LOCK.RELEASE k ") == 1);
        }
    }

    @Test
    void aRenewalByTheProgramSetsTheWholeLease() throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE") ? grant(7, 60_000) : ":7");
                LockwardClient client = Server.builder(server.uri()).build()) {
            HeldLock held = client.request("k")
                    .lease(Duration.ofSeconds(60))
                    .renewal(false)
                    .acquire();
            held.renew();
            assertEquals(1, server.count("LOCK.RENEW k " + held.owner() + " PX 60000 "), server.requests::toString);
        }
    }

    @Test
    void aGrantIsReleasedIfTheServerRefusesTheWaitForReplicas() throws Exception {
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
    void aGrantIsReleasedIfTheServerEndsEveryWaitForReplicas() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE")
                        ? grant(7, 30_000)
                        : request.startsWith("WAIT") ? "-UNBLOCKED force unblock" : ":0");
                LockwardClient client = Server.builder(server.uri())
                        .patience(Duration.ofMillis(500))
                        .build()) {
            LockRequest request = client.request("k").replicas(1, Duration.ofMillis(100));
            assertThrows(LockUnreachableException.class, () -> request.tryAcquire(Duration.ZERO));
            assertTrue(server.count("LOCK.ACQUIRE k ") > 1);
            eventually(() -> server.count("LOCK.RELEASE k ") == 1);
        }
    }

    @Test
    void aReleaseWithoutAReplyFailsAtTheEndOfTheLease() throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE") ? grant(7, 3_000) : null);
                LockwardClient client = patientClient(server)) {
            HeldLock held = client.request("k").acquire();
            CompletableFuture<Void> release = held.releaseAsync();
            assertEndsWithItsLease(failure(release));
            assertFalse(held.isHeld());
        }
    }

    @Test
    void noReleaseWithoutAReplyCanBeTriedAgain() throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE") ? grant(7, 30_000) : null);
                LockwardClient client = Server.builder(server.uri())
                        .patience(Duration.ofMillis(500))
                        .build()) {
            HeldLock held = client.request("k").acquire();
            LockwardReadWriteLock lock = client.getReadWriteLock("l");
            lock.writeLock().lock();
            Tenure writer = client.threadTenures.get().get("l");
            // The scripted server grants no second hold.
            writer.granted(client.call("l"), 7, 2, 30_000, true, Request.SHARED);
            assertEndsWithItsLease(
                    assertThrows(LockUnreachableException.class, () -> held.releaseAfter(Duration.ofMinutes(1))));
            assertEndsWithItsLease(assertThrows(LockUnreachableException.class, lock.writeLock()::unlock));
        }
    }

    private static void assertEndsWithItsLease(Throwable failure) {
        assertInstanceOf(LockUnreachableException.class, failure);
        assertTrue(failure.getMessage().endsWith("; the lock ends with its lease at the latest"), failure::getMessage);
    }

    @Test
    void aDowngradeWithoutAReplyIsRepeatedByTheNextRenewal() throws Exception {
        AtomicBoolean isSilent = new AtomicBoolean(true);
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE")
                        ? grant(7, 6_000)
                        : isSilent.get() ? null : request.endsWith(" SHARED") ? ":7" : "-LIMIT it holds it as SHARED");
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofMillis(500))
                        .patience(Duration.ofSeconds(2))
                        .build()) {
            HeldLock held = client.request("k").acquire();
            assertThrows(LockUnreachableException.class, held::downgradeToShared);
            isSilent.set(false);
            int sent = server.requests.size();
            eventually(() -> server.requests.stream()
                            .skip(sent)
                            .filter(request -> request.endsWith(" SHARED"))
                            .count()
                    >= 2);
            assertTrue(held.isHeld());
        }
    }

    @Test
    void aDowngradeThatRanAndWasThenRefusedIsNamedByTheRenewals() throws Exception {
        AtomicInteger downgrades = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> {
                    if (request.startsWith("LOCK.ACQUIRE")) {
                        return grant(7, 3_000);
                    } else if (!request.endsWith(" SHARED")) {
                        return downgrades.get() == 0 ? ":7" : "-LIMIT it holds it as SHARED";
                    }
                    return switch (downgrades.incrementAndGet()) {
                        case 1 -> CUT; // the server has executed the downgrade
                        case 2 -> "-MISCONF it cannot write to its disk";
                        default -> ":7";
                    };
                });
                LockwardClient client = Server.builder(server.uri()).build()) {
            HeldLock held = client.request("k").acquire();
            assertThrows(LockRefusedException.class, held::downgradeToShared);
            eventually(() -> downgrades.get() >= 4 || !held.isHeld());
            assertTrue(held.isHeld());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"lock.renew", "lock.release"})
    void aWriterIsAReaderEvenIfTheServerRefusesToUnlockTheWriteLock(String refused) throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            LockwardReadWriteLock lock = client.getReadWriteLock("k");
            lock.writeLock().lock();
            lock.readLock().lock();
            lock.readLock().lock();
            server.call("ACL", "SETUSER", "default", "-" + refused);
            assertThrows(LockRefusedException.class, lock.writeLock()::unlock);
            server.call("ACL", "SETUSER", "default", "+" + refused);
            assertEquals(0, lock.writeLock().getHoldCount());
            assertEquals(2, lock.readLock().getHoldCount());
            lock.readLock().unlock();
            lock.readLock().lock();
            lock.readLock().held().renew();
            lock.readLock().unlock();
            lock.readLock().unlock();
            assertEquals(0, lock.readLock().getHoldCount());
            assertFalse(server.isLocked("k"));
        }
    }

    @Test
    void aRefusedReleaseOfTheLastHoldEndsTheHold() throws Exception {
        try (Server server = new Server();
                LockwardClient client = server.client()) {
            LockwardLock lock = client.getLock("k");
            lock.lock();
            server.call("ACL", "SETUSER", "default", "-lock.release");
            assertThrows(LockRefusedException.class, lock::unlock);
            assertEquals(0, lock.getHoldCount());
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
        }
    }

    @Test
    void aBlockedTimerOfTheJdkDelaysNoCancelledCall() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        try (ScriptedServer server = new ScriptedServer(request -> null);
                LockwardClient client = patientClient(server)) {
            CompletableFuture<Boolean> blocked = new CompletableFuture<>();
            CompletableFuture<Void> timeout = new CompletableFuture<>();
            timeout.exceptionally(late -> {
                blocked.complete(true);
                Clock.await(CompletableFuture.runAsync(() -> Threads.awaitOpen(end), client.callbacks));
                return null;
            });
            timeout.orTimeout(1, TimeUnit.MILLISECONDS);
            assertTrue(blocked.get(20, TimeUnit.SECONDS));
            Threads.Running<Boolean> caller =
                    Threads.run(() -> client.request("k").acquire());
            eventually(() -> server.count("LOCK.ACQUIRE k ") == 1);
            caller.interrupt();
            assertThrows(InterruptedException.class, caller::join);
        } finally {
            end.countDown();
        }
    }

    @Test
    void aConnectionThatOpensAfterTheCallerHasLeftIsClosed() throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE k ") ? NULL : grant(7, 30_000));
                LockwardClient client = patientClient(server)) {
            client.request("connect").acquire();
            server.admission = new CountDownLatch(1);
            CompletableFuture<HeldLock> waiting = client.request("k").acquireAsync();
            eventually(() -> server.connections.get() == 2);
            waiting.cancel(true);
            server.admission.countDown();
            eventually(() -> server.connections.get() == 1);
        }
    }

    @Test
    void aConnectionThatStillOpensCountsAsAWaitingConnection() throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE k ") ? NULL : grant(7, 30_000));
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofMinutes(1))
                        .waitingConnections(1)
                        .build()) {
            client.request("connect").acquire();
            server.admission = new CountDownLatch(1);
            for (int call = 0; call < 3; call++) {
                assertTrue(
                        client.request("k").tryAcquire(Duration.ofMillis(200)).isEmpty());
            }
            assertEquals(2, server.connections.get());
            server.admission.countDown();
        }
    }

    @Test
    void aCallEndsEvenIfTheSharedResourcesWereShutDown() throws Exception {
        ClientResources resources = ClientResources.create();
        LockwardClient client = LockwardClient.builder(RedisURI.create("redis-sentinel://127.0.0.1:1/0#primary"))
                .resources(resources)
                .patience(Duration.ofMillis(200))
                .build();
        resources.shutdown(0, 1, TimeUnit.SECONDS).get(20, TimeUnit.SECONDS);
        assertInstanceOf(
                LockUnreachableException.class, failure(client.request("k").tryAcquireAsync(Duration.ofHours(1))));
    }

    @Test
    void anArgumentThatCannotBeSentEndsTheCall() throws Exception {
        IllegalStateException fault = new IllegalStateException("no text");
        Object argument = new Object() {
            @Override
            public String toString() {
                throw fault;
            }
        };
        try (ScriptedServer server = new ScriptedServer(request -> grant(7, 30_000));
                LockwardClient client = Server.builder(server.uri()).build()) {
            HeldLock held = client.request("k").acquire();
            assertSame(fault, assertThrows(IllegalStateException.class, () -> held.guarded("SET", "k", argument)));
            assertTrue(held.isHeld());
            assertEquals(0, server.count("LOCK.GUARD"));
        }
    }

    /** The exception with which a future fails. */
    private static Throwable failure(CompletableFuture<?> future) {
        return assertThrows(ExecutionException.class, () -> future.get(20, TimeUnit.SECONDS))
                .getCause();
    }

    @Test
    void aCallEndsIfTheNodeToWhichItIsRedirectedDoesNotAnswer() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
                ScriptedServer server = new ScriptedServer(request -> "-MOVED 1 127.0.0.1:" + silent.getLocalPort());
                LockwardClient client = Server.builder(server.uri())
                        .responseLimit(Duration.ofMillis(200))
                        .patience(Duration.ofSeconds(1))
                        .build()) {
            String message = failure(client.request("k").acquireAsync()).getMessage();
            assertTrue(message.contains("cluster") && message.contains(":" + silent.getLocalPort()), message);
        }
    }

    @Test
    void aCallThatIsRedirectedInALoopPausesAndEnds() throws Exception {
        AtomicInteger other = new AtomicInteger();
        AtomicInteger first = new AtomicInteger();
        try (ScriptedServer one = new ScriptedServer(request -> "-MOVED 1 127.0.0.1:" + other.get());
                ScriptedServer two = new ScriptedServer(request -> "-MOVED 1 127.0.0.1:" + first.get());
                LockwardClient client = Server.builder(one.uri())
                        .patience(Duration.ofSeconds(1))
                        .build()) {
            first.set(one.uri().getPort());
            other.set(two.uri().getPort());
            LockRequest request = client.request("k");
            assertThrows(LockUnreachableException.class, () -> request.tryAcquire(Duration.ZERO));
            int sent = one.requests.size() + two.requests.size();
            assertTrue(sent > 2 && sent < 20, sent + " requests");
            assertThrows(LockUnreachableException.class, () -> request.tryAcquire(Duration.ofSeconds(1)));
        }
    }

    @Test
    void aCallFollowsAnAskingRedirectionWithoutAPause() throws Exception {
        AtomicLong redirectedAt = new AtomicLong();
        AtomicInteger asked = new AtomicInteger();
        try (ScriptedServer importing = new ScriptedServer(request -> {
                    redirectedAt.addAndGet(-Clock.now());
                    return grant(7, 30_000);
                });
                ScriptedServer migrating = new ScriptedServer(request -> {
                    if (asked.incrementAndGet() < 8) {
                        return "-LOADING later"; // the pause after the next failure is at least 500 ms
                    }
                    redirectedAt.set(Clock.now());
                    return "-ASK 1 127.0.0.1:" + importing.uri().getPort();
                });
                LockwardClient client = Server.builder(migrating.uri()).build()) {
            client.request("k").acquire();
            assertTrue(-redirectedAt.get() < 450, redirectedAt::toString);
        }
    }

    @Test
    void aHandleNamesTheKindOfEachKeyAfterAPartlyRefusedDowngrade() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> {
                    boolean isRefused = request.startsWith("LOCK.RENEW b ") && request.endsWith(" SHARED");
                    return request.startsWith("LOCK.ACQUIRE") ? grant(7, 30_000) : isRefused ? "-NOPERM no" : ":7";
                });
                LockwardClient client = Server.builder(server.uri()).build()) {
            HeldLock held = client.request("a", "b").acquire();
            assertThrows(LockRefusedException.class, held::downgradeToShared);
            int sent = server.requests.size();
            client.resume(held.handle());
            for (String request : server.requests.subList(sent, server.requests.size())) {
                assertEquals(request.startsWith("LOCK.RENEW a "), request.endsWith(" SHARED"), request);
            }
        }
    }

    @Test
    void aRefusedKeyEndsTheCallAlthoughAnotherKeyIsBusy() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> switch (request.replaceAll("( [abc]).*", "$1")) {
                    case "LOCK.ACQUIRE a" -> NULL;
                    case "LOCK.ACQUIRE b" -> "-WRONGTYPE this is no lock";
                    case "LOCK.ACQUIRE c" -> grant(7, 30_000);
                    default -> ":0";
                });
                LockwardClient client = Server.builder(server.uri()).build()) {
            LockRequest request = client.request("a", "b", "c");
            LockRefusedException refused =
                    assertThrows(LockRefusedException.class, () -> request.tryAcquire(Duration.ofSeconds(1)));
            assertEquals("WRONGTYPE", refused.code());
            assertEquals(3, server.count("LOCK.ACQUIRE"));
            assertEquals(1, server.count("LOCK.RELEASE c "));
        }
    }

    @Test
    void aReleaseDoesNotOvertakeACancelledWait() throws Exception {
        Server.shared(); // this call sends the first request of this process
        ClientResources resources =
                ClientResources.builder().ioThreadPoolSize(2).build();
        CountDownLatch end = new CountDownLatch(1);
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE") ? NULL : ":0");
                LockwardClient client = LockwardClient.builder(server.uri())
                        .resources(resources)
                        .responseLimit(Duration.ofMinutes(1))
                        .build();
                AutoCloseable unblock = end::countDown) {
            assertNotNull(unblock);
            // This call opens a connection for waits. It ends with the reply to its only slice, so the long limit takes
            // no time.
            client.request("k").tryAcquire(Duration.ofSeconds(9));
            int waits = waits(server);
            // The first connection uses the first of these two threads, and the connection for waits uses the second.
            SingleThreadEventExecutor second = CloseTest.ioThread(resources, 1);
            second.execute(() -> Threads.awaitOpen(end));
            eventually(() -> second.pendingTasks() == 0);
            Acquisition waiting = new Acquisition(client.request("k"), Map.of(), null, 0, Clock.FOREVER).start();
            eventually(() -> second.pendingTasks() > 0); // the second thread is to send the wait
            waiting.cancel().get(20, TimeUnit.SECONDS);
            assertEquals(0, server.count("LOCK.RELEASE"));
            end.countDown();
            eventually(() -> server.count("LOCK.RELEASE") == 1);
            assertEquals(waits + 1, waits(server));
        } finally {
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    private static int waits(ScriptedServer server) {
        return (int) server.requests.stream()
                .filter(request -> request.contains(" BLOCK "))
                .count();
    }

    @Test
    void aGrantIsConfirmedByTheNextPrimary() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(request -> switch (request.replaceAll(" .*", "")) {
                    case "LOCK.ACQUIRE" -> request.contains(" BLOCK ") ? grant(7, 3_000) : NULL;
                    case "LOCK.RENEW" -> renewals.incrementAndGet() == 1 ? "-READONLY replica" : ":7";
                    default -> ":0";
                });
                LockwardClient client = Server.builder(server.uri()).build()) {
            HeldLock held = client.request("k").lease(Duration.ofSeconds(30)).acquire();
            assertTrue(held.isHeld());
            assertEquals(0, server.count("LOCK.RELEASE"));
        }
    }

    @Test
    void aHoldLimitThatEndsDuringADowngradeIsALoss() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE")
                        ? grant(7, 30_000)
                        : request.contains("SHARED") ? null : ":7");
                LockwardClient client = patientClient(server)) {
            HeldLock held =
                    client.request("k").holdLimit(Duration.ofMillis(600)).acquire();
            assertThrows(LockLostException.class, held::downgradeToShared);
            assertFalse(held.isHeld());
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aResumedLockEndsAsTheFirstProcessHasWanted(boolean hasHoldLimit) throws Exception {
        try (ScriptedServer server =
                        new ScriptedServer(request -> request.startsWith("LOCK.ACQUIRE") ? grant(7, 400) : ":7");
                LockwardClient client = patientClient(server)) {
            LockRequest request = client.request("k").lease(Duration.ofMillis(400));
            request = hasHoldLimit ? request.holdLimit(Duration.ofMillis(700)) : request.renewal(false);
            HeldLock resumed = client.resume(request.acquire().handle());
            eventually(() -> !resumed.isHeld());
            assertEquals(hasHoldLimit, server.count("LOCK.RENEW") > 1);
        }
    }

    @Test
    void anInvalidRedirectionEndsTheCall() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> "-MOVED 1 nowhere");
                LockwardClient client = Server.builder(server.uri()).build()) {
            assertNotNull(failure(client.request("k").acquireAsync()));
        }
    }
}
