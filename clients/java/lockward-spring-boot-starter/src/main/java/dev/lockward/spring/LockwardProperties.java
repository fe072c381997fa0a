package dev.lockward.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * Settings of the client and its locks.
 *
 * @param uri The server, as redis://host, or the Sentinels, as redis-sentinel://one,two/0#name. By default, the servers that Spring
 *     Data Redis connects to with Lettuce.
 * @param lease How long a lock stays held after its process dies. By default, the server's setting.
 * @param patience How long the client repeats a request while no server answers.
 * @param waitingConnections How many threads may wait in the servers' queues at a time, each on its own connection.
 * @param replicas How many replicas must confirm a grant.
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
     * How many replicas must confirm a grant.
     *
     * @param count How many replicas must confirm a grant. 0 means that no replica must confirm it.
     * @param within How long the replicas may take to confirm a grant.
     */
    public record Replicas(@DefaultValue("0") int count, @DefaultValue("1s") Duration within) {}

    /**
     * The locks of Spring Integration.
     *
     * @param prefix The prefix of all names in the keys on the server.
     */
    public record LockRegistry(@DefaultValue("integration:") String prefix) {}

    /**
     * The locks of ShedLock.
     *
     * @param prefix The prefix of all names in the keys on the server.
     */
    public record Shedlock(@DefaultValue("shedlock:") String prefix) {}
}
