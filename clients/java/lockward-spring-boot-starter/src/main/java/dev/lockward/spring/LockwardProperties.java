package dev.lockward.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * How the client is to be, and what its locks are called.
 *
 * @param uri The server, as redis://host, or the Sentinels, as redis-sentinel://one,two/0#name. Without this, it is what Spring Data
 *     Redis connects to by Lettuce.
 * @param lease How long a lock stays that is renewed when its process dies. Without this, it is the server's default.
 * @param patience How long to go on asking servers that do not answer.
 * @param waitingConnections How many threads may wait in servers' queues at a time, each on a connection of its own.
 * @param replicas What replicas have to know of a grant.
 * @param lockRegistry The locks of Spring Integration.
 * @param shedlock The locks of ShedLock.
 */
@ConfigurationProperties("lockward")
public record LockwardProperties(
        @Nullable String uri,
        @Nullable Duration lease,
        @DefaultValue("5s") Duration patience,
        @DefaultValue("256") int waitingConnections,
        @DefaultValue Replicas replicas,
        @DefaultValue LockRegistry lockRegistry,
        @DefaultValue Shedlock shedlock) {

    /**
     * What replicas have to know of a grant.
     *
     * @param count How many replicas have to have heard of a grant; 0 for none.
     * @param within How long they may take.
     */
    public record Replicas(@DefaultValue("0") int count, @DefaultValue("1s") Duration within) {}

    /**
     * The locks of Spring Integration.
     *
     * @param prefix What stands before each name, in the key on the server.
     */
    public record LockRegistry(@DefaultValue("integration:") String prefix) {}

    /**
     * The locks of ShedLock.
     *
     * @param prefix What stands before each name, in the key on the server.
     */
    public record Shedlock(@DefaultValue("shedlock:") String prefix) {}
}
