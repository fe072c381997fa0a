package dev.lockward;

import java.util.List;
import org.jspecify.annotations.Nullable;
import org.testcontainers.containers.GenericContainer;

/** A server with the module instead of a container. */
public final class ServerContainer extends GenericContainer<ServerContainer> {
    private final String[] arguments;
    private @Nullable Server server;

    public ServerContainer(String... arguments) {
        this.arguments = arguments;
    }

    @Override
    public void start() {
        server = new Server(arguments);
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
