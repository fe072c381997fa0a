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
 * A server, for as long as the connection to it that all short requests share does not break. A connection that waits can
 * do nothing else, so who waits has one of its own.
 */
final class Node {
    final RedisURI uri;

    /** Connections on which somebody has waited, for who waits next. */
    final Queue<StatefulRedisConnection<String, String>> spare = new ConcurrentLinkedQueue<>();

    /** Done when the last of those who wait has sent its request. */
    final AtomicReference<CompletableFuture<Void>> last =
            new AtomicReference<>(CompletableFuture.completedFuture(null));

    private @Nullable CompletableFuture<RedisURI> address;
    private @Nullable CompletableFuture<StatefulRedisConnection<String, String>> shared;

    Node(RedisURI uri) {
        this.uri = uri;
    }

    /** Where it is, which Sentinels may have to be asked. */
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
        spare.forEach(StatefulRedisConnection::closeAsync);
    }

    /** Sends the requests, one right after the other, for their replies: each a list, empty for null, or a {@link Refusal}. */
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

    private static Object reply(@Nullable List<Object> value, @Nullable Throwable error) {
        if (error instanceof RedisCommandExecutionException said) {
            return new Refusal(String.valueOf(said.getMessage()));
        }
        if (error != null) {
            throw new CompletionException(error);
        }
        return Objects.requireNonNull(value);
    }
}
