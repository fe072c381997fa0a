package dev.lockward.spring;

import dev.lockward.LockwardClient;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ThreadLocalRandom;

/** A server for tests, on a port of its own. It ends with the tests. */
final class Server implements AutoCloseable {
    private static final Server SHARED = new Server();

    final int port = freePort();
    private final Process process;
    private final Path folder;
    private final RedisClient redis = RedisClient.create();
    private final StatefulRedisConnection<String, String> connection;

    private RedisURI uri() {
        return RedisURI.create("127.0.0.1", port);
    }

    static Server shared() {
        return SHARED;
    }

    Server(String... arguments) {
        String program = Objects.requireNonNullElse(System.getenv("LOCKWARD_SERVER"), "redis-server");
        String module = Objects.requireNonNullElseGet(System.getenv("LOCKWARD_MODULE"), () -> Path.of(
                        System.getProperty("repository"), "target/release/liblockward.so")
                .toString());
        List<String> command = new ArrayList<>(List.of(program, "--port", "" + port, "--bind", "127.0.0.1"));
        try {
            folder = Files.createTempDirectory("lockward");
            command.addAll(List.of("--dir", folder.toString(), "--save", "", "--loadmodule", module));
            command.addAll(List.of(arguments));
            process = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(folder.resolve("log").toFile())
                    .start();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(this::end));
        eventually(() -> {
            try {
                redis.connect(uri()).close();
                return true;
            } catch (RuntimeException notYet) {
                return false;
            }
        });
        connection = redis.connect(uri());
    }

    LockwardClient client() {
        return LockwardClient.create("redis://127.0.0.1:" + port);
    }

    /** Sends a command, for what it replies, as a list. */
    List<Object> call(String command, Object... arguments) {
        CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
        for (Object argument : arguments) {
            args.add(argument.toString());
        }
        ProtocolKeyword name = new ProtocolKeyword() {
            @Override
            public byte[] getBytes() {
                return command.getBytes(StandardCharsets.US_ASCII);
            }

            @Override
            public String toString() {
                return command;
            }
        };
        return connection.sync().dispatch(name, new ArrayOutput<>(StringCodec.UTF8), args);
    }

    boolean isLocked(String name) {
        return call("EXISTS", name).equals(List.of(1L));
    }

    long waiters(String name) {
        List<Object> info = call("LOCK.INFO", name);
        int at = info.indexOf("waiters");
        return at < 0 ? 0 : (Long) info.get(at + 1);
    }

    private static int freePort() {
        for (; ; ) {
            int port = ThreadLocalRandom.current().nextInt(10_000, 22_000);
            try (Socket probe = new Socket(InetAddress.getLoopbackAddress(), port)) {
                probe.getPort(); // taken
            } catch (IOException free) {
                return port;
            }
        }
    }

    @Override
    public void close() {
        redis.shutdown();
        end();
    }

    void kill() {
        process.destroyForcibly();
    }

    private void end() {
        kill();
        folder.resolve("log").toFile().delete();
        folder.toFile().delete();
    }

    /** Waits until it is so. */
    static void eventually(Callable<Boolean> condition) {
        long until = System.nanoTime() + 30_000_000_000L;
        try {
            while (!condition.call()) {
                if (System.nanoTime() - until > 0) {
                    throw new AssertionError("it has not come true in time");
                }
                Thread.sleep(5);
            }
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
