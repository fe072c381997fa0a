package dev.lockward;

import dev.lockward.Servers.Node;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.StatefulRedisConnection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
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
        // They complete in this order.
        CompletableFuture<List<@Nullable Object>> replies = requests.get(requests.size() - 1)
                .handle((reply, error) -> {
                    if (error == null || error instanceof RedisCommandExecutionException) {
                        return requests.stream().map(Request::reply).toList();
                    }
                    throw new CompletionException(error);
                });
        redis.dispatch(requests);
        return replies;
    }
}
