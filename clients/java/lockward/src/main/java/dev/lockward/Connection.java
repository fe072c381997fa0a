package dev.lockward;

import dev.lockward.Servers.Node;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.AsyncCommand;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/** A connection to a node. */
record Connection(Node node, StatefulRedisConnection<String, String> redis) {
    boolean isOpen() {
        return redis.isOpen();
    }

    void close() {
        redis.closeAsync();
    }

    /** Sends requests in one pipeline. Completes with the replies, each of which may be a {@link ServerError}. */
    CompletableFuture<List<@Nullable Object>> send(List<Request> requests) {
        CompletableFuture<List<@Nullable Object>> replies = new CompletableFuture<>();
        List<AsyncCommand<String, String, Object>> commands =
                requests.stream().map(Request::command).toList();
        // They complete in this order.
        commands.get(commands.size() - 1).whenComplete((reply, error) -> {
            if (error == null || error instanceof RedisCommandExecutionException) {
                replies.complete(commands.stream().map(Connection::reply).toList());
            } else {
                replies.completeExceptionally(error);
            }
        });
        redis.dispatch(commands);
        return replies;
    }

    private static @Nullable Object reply(AsyncCommand<String, String, Object> command) {
        try {
            return command.getNow(null);
        } catch (RuntimeException error) {
            return new ServerError(String.valueOf(Clock.cause(error).getMessage()));
        }
    }
}
