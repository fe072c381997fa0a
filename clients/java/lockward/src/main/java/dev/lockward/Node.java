package dev.lockward;

import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.AsyncCommand;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * A server and its connections: a shared one for requests that do not wait, and dedicated ones for those that do. A new object is
 * made when the shared connection breaks.
 */
final class Node {
    final RedisURI uri;

    /** Idle dedicated connections. */
    final Queue<StatefulRedisConnection<String, String>> idle = new ConcurrentLinkedQueue<>();

    /** Completes when the last thread that began to wait has sent its request. */
    final AtomicReference<CompletableFuture<Void>> lastSend =
            new AtomicReference<>(CompletableFuture.completedFuture(null));

    private @Nullable CompletableFuture<RedisURI> address;
    private @Nullable CompletableFuture<StatefulRedisConnection<String, String>> shared;

    Node(RedisURI uri) {
        this.uri = uri;
    }

    /** The address, which may have to be looked up at Sentinels. */
    synchronized CompletableFuture<RedisURI> address(Supplier<CompletableFuture<RedisURI>> lookUp) {
        if (address == null) {
            address = lookUp.get();
        }
        return address;
    }

    synchronized CompletableFuture<StatefulRedisConnection<String, String>> shared(
            Supplier<CompletableFuture<StatefulRedisConnection<String, String>>> connect) {
        if (shared == null) {
            shared = connect.get();
        }
        return shared;
    }

    synchronized void close() {
        if (shared != null) {
            shared.thenAccept(StatefulRedisConnection::closeAsync);
        }
        idle.forEach(StatefulRedisConnection::closeAsync);
    }

    /** Sends requests in one pipeline. Each reply is a list, which is empty for null, or a {@link ServerError}. */
    static CompletableFuture<List<Object>> send(
            StatefulRedisConnection<String, String> connection, List<Request> requests) {
        List<AsyncCommand<String, String, List<Object>>> commands =
                requests.stream().map(Request::command).toList();
        connection.dispatch(commands);
        CompletableFuture<List<Object>> replies = CompletableFuture.completedFuture(new ArrayList<>());
        for (AsyncCommand<String, String, List<Object>> command : commands) {
            replies = replies.thenCombine(command.handle(Node::reply), (list, reply) -> {
                list.add(reply);
                return list;
            });
        }
        return replies;
    }

    /** As {@link #send}, to a node that is importing the slot: with ASKING before the first request. */
    static CompletableFuture<List<Object>> sendAsking(
            StatefulRedisConnection<String, String> connection, List<Request> requests) {
        List<Request> all = new ArrayList<>(List.of(Request.ASKING));
        all.addAll(requests);
        return send(connection, all).thenApply(replies -> replies.subList(1, replies.size()));
    }

    private static Object reply(@Nullable List<Object> value, @Nullable Throwable error) {
        if (error instanceof RedisCommandExecutionException refusal) {
            return new ServerError(String.valueOf(refusal.getMessage()));
        }
        if (error != null) {
            throw new CompletionException(error);
        }
        return Objects.requireNonNull(value);
    }
}
