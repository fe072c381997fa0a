package dev.lockward;

import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.CommandArgs;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.testcontainers.containers.GenericContainer;

/** Replaces a container by a server with the module. */
public final class ServerContainer extends GenericContainer<ServerContainer> {
    private final String[] config;
    private @Nullable Server server;

    /** A server with these lines of redis.conf. */
    public ServerContainer(String... config) {
        this.config = config;
    }

    @Override
    public void start() {
        server = new Server(config);
    }

    @Override
    public void stop() {
        server().close();
    }

    /** Restarts the server like a container: on the same port, without data. */
    public void restart() {
        server().restart();
    }

    @Override
    public int getFirstMappedPort() {
        return server().port;
    }

    public List<Object> call(String command, Object... arguments) {
        return server().call(command, arguments);
    }

    /** The total weight of a lock's holders. */
    public static long weight(RedisCommands<String, String> commands, String name) {
        List<Object> info = commands.dispatch(
                new Request("LOCK.INFO").getType(),
                new ArrayOutput<>(StringCodec.UTF8),
                new CommandArgs<>(StringCodec.UTF8).add(name));
        return (Long) Server.map(info).getOrDefault("weight", 0L);
    }

    private Server server() {
        if (server == null) {
            throw new IllegalStateException("not started");
        }
        return server;
    }
}
