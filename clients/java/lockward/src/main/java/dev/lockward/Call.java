package dev.lockward;

import dev.lockward.Servers.Connection;
import dev.lockward.Servers.Node;
import io.lettuce.core.RedisCommandExecutionException;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * One call of the program. It sends requests about one key, one after the other, and repeats each request until a server answers. If a
 * reply is lost, the server may get the request twice. Each request names the resulting count of holds or the token of its tenure, so no
 * hold counts twice.
 *
 * <p>The steps of a call run in the threads that read replies and in the timer's thread. No step blocks.
 */
final class Call {
    /** If the client does not know which node has the key, it waits this long for the reply of a node. Then it asks another node. */
    private static final long GUESS_LIMIT = 250;

    /** If false, the call does not repeat a request that the server may have executed. */
    boolean isRepeatable = true;

    /** What the program can do if no server answers. */
    String advice = "try again later";

    /** Whether a server has answered, with any reply. */
    volatile boolean isHeard;

    /** Whether a server may have executed a request whose reply was lost. */
    volatile boolean mayHaveRun;

    /** When the call sent the last request that was answered. */
    volatile long sent = Clock.now();

    /** How long a reply to the next request may take. */
    long replyLimit;

    /** The longest lease that the server accepts. When the server has refused a longer lease, the call sends the request once more. */
    volatile long longestLease = Clock.FOREVER;

    /** Completes when the last attempt on a connection of its own does not use this connection any more. */
    volatile CompletableFuture<?> ownExchange = CompletableFuture.completedFuture(null);

    /** Completes when the last attempt that ended without a reply will send nothing more on a connection of its own. */
    volatile CompletableFuture<?> abandoned = CompletableFuture.completedFuture(null);

    private final Servers servers;
    private final String key;

    /** When the call ends: a later reply does not count. */
    private final long end;

    private volatile boolean isCancelled;

    /** What the call waits for: an attempt, or the end of a pause. */
    private volatile CompletableFuture<?> pending = new CompletableFuture<>();

    // The present request and its progress.
    private boolean isOwn;
    private long silenceLimit;
    private Supplier<List<Request>> requests = List::of;
    private CompletableFuture<List<@Nullable Object>> answers = new CompletableFuture<>();
    private long heardAt = sent;
    private int failures;

    /** Why the present request has no answer. A missing reply does not replace an earlier reason. */
    private @Nullable Throwable failure;

    private @Nullable Node importing;

    /** If a node of a cluster has named another node, and no node has answered since: a hint for the program. */
    private String redirection = "";

    Call(Servers servers, String key, long end) {
        this.servers = servers;
        this.key = key;
        this.end = end;
        replyLimit = servers.responseLimit;
    }

    /** Sends a request on the shared connection. */
    CompletableFuture<@Nullable Object> ask(Supplier<Request> request) {
        return ask(false, Clock.FOREVER, replyLimit, () -> List.of(request.get()))
                .thenApply(replies -> replies.get(0));
    }

    /**
     * Sends requests in one pipeline. The future completes with the replies. Each reply may be a {@link ServerError}. The future fails
     * with a {@link LockUnreachableException}, or with the exception that the supplier throws before an attempt.
     *
     * @param isOwn whether to use a connection that this call does not share with other calls
     * @param patience how long to repeat the requests while no server answers
     * @param limit how long a reply may take
     */
    CompletableFuture<List<@Nullable Object>> ask(
            boolean isOwn, long patience, long limit, Supplier<List<Request>> requests) {
        this.isOwn = isOwn;
        this.requests = requests;
        failure = null;
        silenceLimit = patience;
        replyLimit = limit;
        heardAt = Clock.now();
        CompletableFuture<List<@Nullable Object>> asked = new CompletableFuture<>();
        answers = asked;
        attempt();
        return asked;
    }

    /** Returns a future that completes after this time. If the call is cancelled, the future fails. */
    CompletableFuture<Void> pause(long millis) {
        CompletableFuture<Void> pause = waitFor(new CompletableFuture<>());
        Future<?> alarm = servers.timer.at(Clock.now() + millis, () -> pause.complete(null));
        return pause.whenComplete((done, cancelled) -> alarm.cancel(false));
    }

    /** Ends the call: the call sends no further request, and its future fails with a CancellationException. */
    void cancel() {
        isCancelled = true;
        pending.completeExceptionally(new CancellationException());
    }

    private <F extends CompletableFuture<?>> F waitFor(F next) {
        pending = next;
        if (isCancelled) { // a cancel before the assignment has ended only the previous future
            next.completeExceptionally(new CancellationException());
        }
        return next;
    }

    private void attempt() {
        run(() -> {
            if (servers.isClosed) {
                throw new IllegalStateException("the client is closed");
            }
            List<Request> pipeline = new ArrayList<>(requests.get());
            if (importing != null) {
                pipeline.add(0, new Request("ASKING"));
            }
            new Attempt(pipeline).start();
        });
    }

    /** Runs a step of the call. If the step fails, the call fails, so that the caller does not wait forever. */
    private void run(Runnable step) {
        try {
            step.run();
        } catch (RuntimeException | Error failure) {
            answers.completeExceptionally(failure);
        }
    }

    private long giveUpAt() {
        return Math.min(end, heardAt + silenceLimit);
    }

    /** Sends the requests again after a pause, if there is time. */
    private void repeat(Throwable latest) {
        Throwable cause = failure == null || !(latest instanceof TimeoutException) ? latest : failure;
        failure = cause;
        pause(Math.min(Clock.left(giveUpAt()), Clock.backOff(failures++)))
                .whenComplete((done, cancelled) -> run(() -> {
                    if (cancelled != null) {
                        throw new CancellationException();
                    } else if (Clock.left(giveUpAt()) > 0) {
                        attempt();
                    } else {
                        // Lettuce wraps the error that says why a connection could not be opened.
                        Throwable reason = cause.getCause() == null ? cause : cause.getCause();
                        throw new LockUnreachableException(
                                "no server answers for the lock " + key + ": " + reason.getMessage() + redirection
                                        + "; " + advice,
                                cause);
                    }
                }));
    }

    /** One attempt to send the requests in one pipeline. This future completes with the replies, or fails if a reply is missing. */
    private final class Attempt extends CompletableFuture<List<@Nullable Object>> {
        private final List<Request> pipeline;
        private final boolean isAsking = importing != null;
        private final @Nullable Node known = isAsking ? importing : servers.nodeOf(key);
        private final Node target = known == null ? servers.anyNode(failures) : known;
        private final long latest = Clock.now() + replyLimit;
        private volatile long sentAt;
        private @Nullable Connection used;

        Attempt(List<Request> pipeline) {
            this.pipeline = pipeline;
        }

        void start() {
            if (!waitFor(this).isDone()) {
                CompletableFuture<List<@Nullable Object>> exchange =
                        target.connection(isOwn).thenCompose(this::send);
                ownExchange = isOwn ? exchange : ownExchange;
                exchange.whenComplete((replies, error) -> Clock.complete(this, replies, error));
            }
            long guessed = known == null && isRepeatable ? Clock.now() + GUESS_LIMIT : latest;
            long until = Math.min(guessed, Math.min(latest, giveUpAt()));
            servers.timer
                    .limit(until, this)
                    .whenComplete((replies, error) -> run(() -> {
                        if (error == null) {
                            answered(isAsking ? replies.subList(1, replies.size()) : replies);
                        } else {
                            lost(Clock.cause(error));
                        }
                    }));
        }

        private synchronized CompletableFuture<List<@Nullable Object>> send(Connection connection) {
            if (isDone()) { // the attempt has ended before the connection was open
                target.giveBack(connection, true);
                return this;
            }
            sentAt = Clock.now();
            used = connection;
            connection.redis().dispatch(pipeline);
            // Replies arrive in the order of the requests, so the last reply is the last to arrive.
            return last().handle((reply, error) -> {
                if (error == null || error instanceof RedisCommandExecutionException) {
                    return pipeline.stream().map(Request::reply).toList();
                }
                throw new CompletionException(error);
            });
        }

        private Request last() {
            return pipeline.get(pipeline.size() - 1);
        }

        private void answered(List<@Nullable Object> replies) {
            ServerError error = (ServerError) replies.stream()
                    .filter(ServerError.class::isInstance)
                    .findFirst()
                    .orElse(null);
            if (error == null || error.isAnswer()) {
                isHeard = true;
                heardAt = Clock.now();
                redirection = "";
            }
            importing = null;
            Connection connection = Objects.requireNonNull(used);
            if (error != null && error.isTransient(last(), isRepeatable)) {
                target.giveBack(connection, false);
                mayHaveRun |= replies.get(0) != error;
                redirect(error);
                return;
            }
            target.giveBack(connection, true);
            long longest = ServerError.longestLease(replies.get(0));
            if (longest > 0 && longestLease == Clock.FOREVER) {
                longestLease = longest;
                attempt();
                return;
            }
            if (!isAsking) {
                servers.learn(key, target);
            }
            sent = sentAt;
            failures = 0;
            answers.complete(replies);
        }

        private void redirect(ServerError refusal) {
            switch (refusal.code()) {
                case "MOVED" -> servers.learn(key, redirected(refusal));
                case "ASK" -> {
                    importing = redirected(refusal);
                    if (!isAsking && Clock.left(giveUpAt()) > 0) { // without a pause, because the slot may move again
                        attempt();
                        return;
                    }
                }
                case "MASTERDOWN", "NOREPLICAS", "READONLY" -> target.replace(sentAt);
                case "CLUSTERDOWN" -> servers.learn(key, null); // the cluster may have removed this node
                default -> {}
            }
            repeat(new RedisCommandExecutionException(refusal.message()));
        }

        private Node redirected(ServerError refusal) {
            redirection =
                    " (this process must be able to connect to each node of the cluster: " + refusal.message() + ")";
            return servers.redirected(target, refusal);
        }

        private void lost(Throwable error) {
            Connection connection;
            synchronized (this) { // a later request, such as a release, must not overtake the requests of this attempt
                connection = used;
            }
            importing = null;
            if (failures > 0 || error instanceof TimeoutException) {
                servers.learn(key, null); // another node may know which node has the key
            }
            if (connection != null) {
                mayHaveRun = true;
                if (error instanceof TimeoutException) {
                    // The call may end before the response limit. Replace the connection only if no reply arrives
                    // within the response limit.
                    servers.timer.at(latest, () -> {
                        if (!last().isDone()) {
                            target.replace(sentAt);
                        }
                    });
                }
                if (!connection.isShared()) {
                    abandoned = last(); // it completes when the connection is closed
                }
                target.giveBack(connection, false);
            }
            checkRepeatable(error);
            repeat(error);
        }

        /** Throws if another attempt would be useless or wrong. */
        private void checkRepeatable(Throwable failure) {
            for (Throwable each = failure; each != null; each = each.getCause()) {
                ServerError error = new ServerError(String.valueOf(each.getMessage()));
                if (each instanceof RedisCommandExecutionException && !error.isTransient(last(), true)) {
                    throw new LockRefusedException(
                            key, error.message()); // the error came while the connection was opened
                }
            }
            if (!isRepeatable && mayHaveRun) {
                throw new LockUnreachableException(
                        "no reply to the command guarded by the lock " + key + ": it may have run", failure);
            }
        }
    }
}
