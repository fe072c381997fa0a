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
 * Sends requests about one lock until a server answers, where the lock is now.
 *
 * <p>Each request may be sent again, whether the one before was heard or not.
 */
final class Attempts {
    private static final Set<String> PASSING =
            Set.of("ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "TRYAGAIN", "UNBLOCKED");
    private static final Set<String> NOT_LET_IN = Set.of("NOAUTH", "NOPERM", "WRONGPASS");

    private static final long GRACE = TimeUnit.SECONDS.toNanos(2);

    /** How long who leaves waits until that is heard. */
    private static final long FAREWELL = TimeUnit.SECONDS.toNanos(1);

    /** An attempt that has lasted longer was no failure to connect: pauses start anew. */
    private static final long OUTAGE = TimeUnit.SECONDS.toNanos(1);

    private final Servers servers;
    private final String name;
    private final boolean interruptible;
    private long until;
    private int failures;

    /** How long an exchange may take beyond what the server was asked to wait for the lock. */
    long grace = GRACE;

    private @Nullable Node asking;

    /** When the request was sent that was answered. */
    long sent;

    /** Whether an earlier request than that may have been heard. */
    boolean repeated;

    Attempts(Servers servers, String name, long span, boolean interruptible) {
        this.servers = servers;
        this.name = name;
        this.interruptible = interruptible;
        within(span);
    }

    void within(long span) {
        until = Clock.now() + span;
    }

    private long left() {
        return Clock.left(until);
    }

    /** Asks on the connection that all share, until a reply comes that does not pass. */
    List<Object> ask(List<Request> requests) throws InterruptedException {
        return persistently(servers::home, node -> exchange(node, requests));
    }

    Object ask(Request request) throws InterruptedException {
        return ask(List.of(request)).get(0);
    }

    /**
     * Asks on a connection of its own, on which the server may let it wait as long as there is time; and then what is to be
     * asked next, as there may be no other connection by now. Its reply is the last one.
     */
    List<Object> askInLine(Supplier<List<Request>> requests, Function<List<Object>, @Nullable Request> next)
            throws InterruptedException {
        return persistently(
                name -> asking == null ? servers.home(name) : asking, node -> exchangeInLine(node, requests, next));
    }

    private interface Exchange {
        List<Object> with(Node node) throws InterruptedException, ExecutionException, TimeoutException;
    }

    private List<Object> persistently(Function<String, Node> where, Exchange exchange) throws InterruptedException {
        for (; ; ) {
            Node node = where.apply(name);
            sent = Clock.now();
            Throwable cause;
            try {
                List<Object> replies = exchange.with(node);
                if (!(replies.get(0) instanceof Refusal refusal) || !passes(refusal)) {
                    return replies;
                }
                follow(node, refusal);
                cause = new RedisCommandExecutionException(refusal.words());
            } catch (ExecutionException failure) {
                cause = Objects.requireNonNullElse(failure.getCause(), failure);
                repeated = true;
                asking = null;
            } catch (TimeoutException silence) {
                cause = silence;
                repeated = true;
                asking = null;
            }
            setback(cause);
        }
    }

    private List<Object> exchange(Node node, List<Request> requests)
            throws InterruptedException, ExecutionException, TimeoutException {
        try {
            return Clock.await(servers.ask(node, requests), promptly(), interruptible);
        } catch (TimeoutException silence) {
            if (Clock.now() - sent >= servers.responseLimit()) {
                servers.leave(node);
            }
            throw silence;
        }
    }

    private List<Object> exchangeInLine(
            Node node, Supplier<List<Request>> requests, Function<List<Object>, @Nullable Request> next)
            throws InterruptedException, ExecutionException, TimeoutException {
        CompletableFuture<Void> turn = new CompletableFuture<>();
        CompletableFuture<Void> turnBefore = node.last.getAndSet(turn);
        CompletableFuture<StatefulRedisConnection<String, String>> line = servers.line(node);
        boolean isWhole = false;
        try {
            StatefulRedisConnection<String, String> connection = Clock.await(line, promptly(), interruptible);
            // Who has come later does not overtake whose connection is slow to open.
            Clock.await(turnBefore, promptly(), interruptible);
            sent = Clock.now();
            CompletableFuture<List<Object>> pending = send(connection, requests.get());
            turn.complete(null);
            List<Object> replies = new ArrayList<>(awaitTurn(node, pending));
            Request more = next.apply(replies);
            if (more != null) {
                sent = Clock.now();
                replies.addAll(Clock.await(send(connection, List.of(more)), promptly(), interruptible));
            }
            isWhole = true;
            servers.giveBack(node, connection);
            return replies;
        } finally {
            turn.complete(null);
            if (!isWhole) {
                close(line);
            }
        }
    }

    private CompletableFuture<List<Object>> send(
            StatefulRedisConnection<String, String> connection, List<Request> requests) {
        if (asking == null) {
            return Node.send(connection, requests);
        }
        List<Request> all = new ArrayList<>(List.of(Request.ASKING));
        all.addAll(requests);
        return Node.send(connection, all).thenApply(replies -> replies.subList(1, replies.size()));
    }

    private long promptly() {
        return Math.max(Servers.LEAST, Math.min(left(), servers.responseLimit()));
    }

    private List<Object> awaitTurn(Node node, CompletableFuture<List<Object>> replies)
            throws InterruptedException, ExecutionException, TimeoutException {
        long last = Clock.now() + Math.min(Clock.FOREVER, Math.max(0, left()) + grace);
        for (; ; ) {
            try {
                return Clock.await(replies, Math.min(Clock.left(last), servers.probeInterval()), interruptible);
            } catch (TimeoutException silence) {
                if (Clock.left(last) <= 0) {
                    throw silence;
                }
                // A server that stands still keeps its connections. What it says meanwhile is not held up.
                servers.serves(node, asking == null ? name : null).thenAccept(serves -> {
                    if (!serves) {
                        replies.completeExceptionally(silence);
                    }
                });
            }
        }
    }

    /** Closing it leaves the queue. It is closed before anything is withdrawn. */
    private static void close(CompletableFuture<StatefulRedisConnection<String, String>> line) {
        CompletableFuture<Void> closed = line.thenCompose(StatefulRedisConnection::closeAsync);
        if (line.isDone()) {
            try {
                Clock.await(closed, FAREWELL, false);
            } catch (InterruptedException | ExecutionException | TimeoutException gone) {
                // It is left alone: the server finds out by itself.
            }
        }
    }

    void pause(long span) throws InterruptedException {
        servers.pause(span, interruptible);
    }

    /**
     * Gives back what may have been granted meanwhile; best effort, as its lease ends it otherwise.
     *
     * @return whether it has been heard
     */
    boolean withdraw(Request request) {
        try {
            return !passes(Clock.await(servers.send(name, request), FAREWELL, false));
        } catch (InterruptedException | ExecutionException | TimeoutException late) {
            return false;
        }
    }

    /** Whether the same request may be answered another way soon. */
    static boolean passes(@Nullable Object reply) {
        return reply == null || (reply instanceof Refusal refusal && PASSING.contains(refusal.code()));
    }

    private void follow(Node node, Refusal refusal) {
        asking = null;
        switch (refusal.code()) {
            case "MOVED" -> servers.moved(node, name, refusal);
            case "ASK" -> asking = servers.asked(node, refusal);
            case "READONLY", "MASTERDOWN" -> servers.leave(node);
            default -> {}
        }
    }

    /** Pauses before the next attempt, if there is to be one. */
    private void setback(Throwable cause) throws InterruptedException {
        servers.checkOpen();
        for (Throwable each = cause; each != null; each = each.getCause()) {
            String words = String.valueOf(each.getMessage());
            if (each instanceof RedisCommandExecutionException && NOT_LET_IN.contains(Refusal.code(words))) {
                throw new LockRefusedException(words);
            }
        }
        if (Clock.now() - sent > OUTAGE) {
            failures = 0;
        }
        long pause = Clock.backOff(failures++);
        if (left() <= pause) {
            throw new LockUnreachableException("no server answers for the lock " + name + ": " + cause, cause);
        }
        servers.pause(pause, interruptible);
    }
}
