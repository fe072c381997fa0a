package dev.lockward;

import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.StatefulRedisConnection;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * Sends requests about one lock to the node that has it, until a server answers.
 *
 * <p>A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So
 * each request names the count of holds that it leads to, or the token of its tenure.
 */
final class Attempts {
    private static final Set<String> LOGIN_ERRORS = Set.of("NOAUTH", "NOPERM", "WRONGPASS");

    /** How long a caller that leaves waits for the reply to its withdrawal. */
    private static final long WITHDRAW_LIMIT = TimeUnit.SECONDS.toNanos(1);

    /** After an attempt that has lasted longer, pauses start again from the shortest. */
    private static final long LONG_ATTEMPT = TimeUnit.SECONDS.toNanos(1);

    private final Servers servers;
    private final String name;
    private final boolean interruptible;

    /** Whether a request that may have been carried out is not sent again. */
    private boolean isOnce;

    private long deadline;
    private int failures;

    /** How much longer than the server waits a reply may take. */
    long replyMargin = TimeUnit.SECONDS.toNanos(2);

    /** The node that ASK has named for the next attempt. */
    private @Nullable Node importing;

    /** When the request was sent that was answered. */
    long sent;

    /** Whether an earlier attempt, whose reply was lost, may have been carried out. */
    boolean mayHaveRun;

    Attempts(Servers servers, String name, long limit, boolean interruptible) {
        this.servers = servers;
        this.name = name;
        this.interruptible = interruptible;
        limit(limit);
    }

    /** Sets how long requests are repeated, from now. */
    void limit(long limit) {
        deadline = Clock.now() + limit;
    }

    private long left() {
        return Clock.left(deadline);
    }

    /** Sends requests that do not wait, on the shared connection. */
    List<Object> ask(List<Request> requests) throws InterruptedException {
        return retry(servers::nodeFor, node -> exchange(node, requests));
    }

    Object ask(Request request) throws InterruptedException {
        return ask(List.of(request)).get(0);
    }

    /** Sends a request that must not be carried out twice. Runs {@code check} before each attempt. */
    Object askOnce(Request request, Runnable check) throws InterruptedException {
        isOnce = true;
        Function<String, Node> find = key -> {
            check.run();
            return servers.nodeFor(key);
        };
        return retry(find, node -> exchange(node, List.of(request))).get(0);
    }

    /**
     * Sends requests on a dedicated connection, where the server may let them wait until the deadline. Then it sends the request
     * that {@code next} returns for the replies, if any, on the same connection: the server may accept no other by then. Its
     * reply is the last one.
     */
    List<Object> askDedicated(Supplier<List<Request>> requests, Function<List<Object>, @Nullable Request> next)
            throws InterruptedException {
        return retry(
                name -> importing == null ? servers.nodeFor(name) : importing,
                node -> exchangeDedicated(node, requests, next));
    }

    private interface Exchange {
        List<Object> with(Node node) throws InterruptedException, ExecutionException, TimeoutException;
    }

    private List<Object> retry(Function<String, Node> find, Exchange exchange) throws InterruptedException {
        for (; ; ) {
            Node node = find.apply(name);
            sent = Clock.now();
            Throwable cause;
            try {
                List<Object> replies = exchange.with(node);
                if (!(replies.get(0) instanceof ServerError error) || !error.isTransient()) {
                    return replies;
                }
                follow(node, error);
                cause = new RedisCommandExecutionException(error.message());
            } catch (ExecutionException | TimeoutException failure) {
                cause = failure instanceof ExecutionException
                        ? Objects.requireNonNullElse(failure.getCause(), failure)
                        : failure;
                mayHaveRun = true;
                importing = null;
            }
            pauseAfter(cause);
        }
    }

    private List<Object> exchange(Node node, List<Request> requests)
            throws InterruptedException, ExecutionException, TimeoutException {
        try {
            return Clock.await(servers.ask(node, requests), responseLimit(), interruptible);
        } catch (TimeoutException silence) {
            if (Clock.now() - sent >= servers.responseLimit()) {
                servers.disconnect(node);
            }
            throw silence;
        }
    }

    private List<Object> exchangeDedicated(
            Node node, Supplier<List<Request>> requests, Function<List<Object>, @Nullable Request> next)
            throws InterruptedException, ExecutionException, TimeoutException {
        CompletableFuture<Void> hasSent = new CompletableFuture<>();
        CompletableFuture<Void> previousHasSent = node.lastSend.getAndSet(hasSent);
        CompletableFuture<StatefulRedisConnection<String, String>> opening = servers.dedicatedConnection(node);
        boolean isComplete = false;
        try {
            StatefulRedisConnection<String, String> connection = Clock.await(opening, responseLimit(), interruptible);
            // Requests are sent in the order in which threads begin to wait, even if a connection opens slowly.
            Clock.await(previousHasSent, responseLimit(), interruptible);
            sent = Clock.now();
            CompletableFuture<List<Object>> pending = send(connection, requests.get());
            hasSent.complete(null);
            List<Object> replies = new ArrayList<>(awaitWithProbes(node, pending));
            Request more = next.apply(replies);
            if (more != null) {
                sent = Clock.now();
                replies.addAll(Clock.await(send(connection, List.of(more)), responseLimit(), interruptible));
            }
            isComplete = true;
            servers.keepIdle(node, connection);
            return replies;
        } finally {
            hasSent.complete(null);
            if (!isComplete) {
                close(opening);
            }
        }
    }

    private CompletableFuture<List<Object>> send(
            StatefulRedisConnection<String, String> connection, List<Request> requests) {
        return importing == null ? Node.send(connection, requests) : Node.sendAsking(connection, requests);
    }

    private long responseLimit() {
        return Math.max(Servers.MIN_CONNECT_LIMIT, Math.min(left(), servers.responseLimit()));
    }

    /** Waits for replies, and probes the server meanwhile: a server process that is stopped keeps its connections. */
    private List<Object> awaitWithProbes(Node node, CompletableFuture<List<Object>> replies)
            throws InterruptedException, ExecutionException, TimeoutException {
        long last = Clock.now() + Math.min(Clock.FOREVER, Math.max(0, left()) + replyMargin);
        for (; ; ) {
            try {
                return Clock.await(replies, Math.min(Clock.left(last), servers.probeInterval()), interruptible);
            } catch (TimeoutException silence) {
                if (Clock.left(last) <= 0) {
                    throw silence;
                }
                servers.probe(node, importing == null ? name : null).thenAccept(isThere -> {
                    if (!isThere) {
                        replies.completeExceptionally(silence);
                    }
                });
            }
        }
    }

    /** Closes a connection, which leaves the server's queue, before anything is withdrawn. */
    private static void close(CompletableFuture<StatefulRedisConnection<String, String>> opening) {
        CompletableFuture<Void> closed = opening.thenCompose(StatefulRedisConnection::closeAsync);
        if (opening.isDone()) {
            try {
                Clock.await(closed, WITHDRAW_LIMIT, false);
            } catch (InterruptedException | ExecutionException | TimeoutException failed) {
                // The server finds out by itself.
            }
        }
    }

    void pause(long span) throws InterruptedException {
        servers.pause(span, interruptible);
    }

    /**
     * Gives back what may have been granted. It is sent once; if that fails, the lock ends with its lease.
     *
     * @return whether a server has answered
     */
    boolean withdraw(Request request) {
        try {
            return isAnswer(Clock.await(servers.send(name, request), WITHDRAW_LIMIT, false));
        } catch (InterruptedException | ExecutionException | TimeoutException failed) {
            return false;
        }
    }

    /** Whether a reply is neither missing (null) nor a transient error. */
    static boolean isAnswer(@Nullable Object reply) {
        return reply != null && !(reply instanceof ServerError error && error.isTransient());
    }

    private void follow(Node node, ServerError error) {
        importing = null;
        switch (error.code()) {
            case "MOVED" -> servers.moved(node, name, error);
            case "ASK" -> importing = servers.redirected(node, error);
            case "READONLY", "MASTERDOWN" -> servers.disconnect(node);
            default -> {}
        }
    }

    /** Pauses before the next attempt. Throws if there is to be none. */
    private void pauseAfter(Throwable cause) throws InterruptedException {
        servers.checkOpen();
        for (Throwable each = cause; each != null; each = each.getCause()) {
            String message = String.valueOf(each.getMessage());
            if (each instanceof RedisCommandExecutionException && LOGIN_ERRORS.contains(ServerError.code(message))) {
                throw new LockRefusedException(message);
            }
        }
        if (isOnce && mayHaveRun) {
            throw new LockUnreachableException("no reply, and the command may have run: " + cause, cause);
        }
        if (Clock.now() - sent > LONG_ATTEMPT) {
            failures = 0;
        }
        long pause = Clock.backOff(failures++);
        if (left() <= pause) {
            throw new LockUnreachableException("no server answers for the lock " + name + ": " + cause, cause);
        }
        pause(pause);
    }
}
