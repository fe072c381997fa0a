package org.redisson;

import dev.lockward.ServerContainer;
import java.util.function.Consumer;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.testcontainers.containers.GenericContainer;

/** The base class of Redisson's tests, with servers instead of containers. */
public class RedisDockerTest {
    protected static final String NOTIFY_KEYSPACE_EVENTS = "notify-keyspace-events";

    private static final ServerContainer CONTAINER = new ServerContainer();

    protected static final RedissonClient redisson;

    static {
        CONTAINER.start();
        redisson = Redisson.create(createConfig());
    }

    protected static GenericContainer<?> createContainer(String... parameters) {
        return new ServerContainer(String.join(" ", parameters));
    }

    protected static Config createConfig() {
        return createConfig(CONTAINER);
    }

    protected static Config createConfig(GenericContainer<?> container) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + container.getFirstMappedPort());
        return config;
    }

    public static RedissonClient createInstance() {
        return Redisson.create(createConfig());
    }

    protected void restart(GenericContainer<?> container) {
        ((ServerContainer) container).restart();
    }

    protected void testWithParams(Consumer<RedissonClient> callback, String... parameters) {
        GenericContainer<?> container = createContainer(parameters);
        container.start();
        RedissonClient client = Redisson.create(createConfig(container));
        try {
            callback.accept(client);
        } finally {
            client.shutdown();
            container.stop();
        }
    }

    protected static void testInCluster(Consumer<RedissonClient> callback) {
        Assumptions.abort("ClusterTest is of a cluster");
    }

    @BeforeEach
    public void beforeEach() {
        CONTAINER.call("FLUSHALL");
        Redisson.renewFirst();
        Permits.reset();
    }
}
