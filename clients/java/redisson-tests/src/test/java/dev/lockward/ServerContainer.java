package dev.lockward;

import java.util.List;
import org.jspecify.annotations.Nullable;
import org.testcontainers.containers.GenericContainer;

/** A server with the module instead of a container. */
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

    /** Like the restart of a container: on the same port, without data. */
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

    private Server server() {
        if (server == null) {
            throw new IllegalStateException("not started");
        }
        return server;
    }
}
