package dev.lockward;

import dev.lockward.Servers.Node;
import io.lettuce.core.api.StatefulRedisConnection;

/** A connection to a node. */
record Connection(Node node, StatefulRedisConnection<String, String> redis) {
    boolean isOpen() {
        return redis.isOpen();
    }

    void close() {
        redis.closeAsync();
    }
}
