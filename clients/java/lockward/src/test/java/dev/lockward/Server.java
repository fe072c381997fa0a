package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/** A server for tests. It ends when the tests end, at the latest. */
public final class Server implements AutoCloseable {
    private static final ClientResources RESOURCES = ClientResources.create();

    public final int port;
    private final TestProcess process;
    private final String node;
    private final RedisClient redis = RedisClient.create(RESOURCES);
    private @Nullable StatefulRedisConnection<String, String> connection;

    /** The reply to LOCK.INFO for a lock with one holder. */
    record Info(String owner, long holds, long token, long leaseLeft, long waiters) {}

    private static final class Shared {
        private static final Server SERVER = new Server();

        static {
            // The first request of a process loads many classes, which takes long on a busy machine.
            Duration limit = Duration.ofSeconds(60);
            try (LockwardClient client =
                    SERVER.builder().responseLimit(limit).patience(limit).build()) {
                client.getLock("first request").isLocked();
            }
        }
    }

    /** A server that many tests use at the same time. */
    public static Server shared() {
        return Shared.SERVER;
    }

    /** Starts a server with the module and these lines of redis.conf. */
    public Server(String... config) {
        this(new TestProcess("server", config), 0, "");
    }

    private Server(TestProcess process, int number, String node) {
        this.process = process;
        this.node = node;
        port = process.ports.get(number);
        redis.setOptions(ClientOptions.builder()
                .protocolVersion(ProtocolVersion.RESP2)
                .autoReconnect(false)
                .socketOptions(SocketOptions.builder()
                        .connectTimeout(Duration.ofSeconds(5))
                        .build())
                .build());
    }

    static Server sentinel() {
        return new Server(new TestProcess("sentinel"), 0, "");
    }

    /** Starts three nodes, each with a third of the slots. */
    static List<Server> cluster() {
        TestProcess process = new TestProcess("cluster");
        return IntStream.range(0, 3)
                .mapToObj(number -> new Server(process, number, number + " "))
                .toList();
    }

    RedisURI uri() {
        return uri(port);
    }

    static RedisURI uri(int port) {
        return RedisURI.create("127.0.0.1", port);
    }

    public LockwardClient client() {
        return builder().build();
    }

    LockwardClient.Builder builder() {
        return builder(uri());
    }

    static LockwardClient.Builder builder(RedisURI uri, RedisURI... others) {
        shared(); // this call sends the first request of this process
        return LockwardClient.builder(uri, others).resources(RESOURCES);
    }

    /** Sends a command. Returns its reply as a list. */
    public synchronized List<Object> call(String command, Object... arguments) {
        if (connection == null || !connection.isOpen()) {
            connection = redis.connect(StringCodec.UTF8, uri());
        }
        Request request = new Request(command, arguments);
        return connection.sync().dispatch(request.getType(), new ArrayOutput<>(StringCodec.UTF8), request.getArgs());
    }

    Optional<Info> info(String name) {
        Map<String, Object> info = map(call("LOCK.INFO", name));
        if (info.isEmpty()) {
            return Optional.empty();
        }
        Map<String, Object> holder = map((List<?>) ((List<?>) info.get("holders")).get(0));
        return Optional.of(new Info(
                (String) holder.get("owner"),
                (Long) holder.get("holds"),
                (Long) holder.get("token"),
                (Long) holder.get("lease-left"),
                (Long) info.get("waiters")));
    }

    public boolean isLocked(String name) {
        return info(name).isPresent();
    }

    /** The owner of a lock with one holder. Empty if the lock is free. */
    public String owner(String name) {
        return info(name).map(Info::owner).orElse("");
    }

    long holds(String name) {
        return info(name).map(Info::holds).orElse(0L);
    }

    public long waiters(String name) {
        return info(name).map(Info::waiters).orElse(0L);
    }

    long connections() {
        return call("CLIENT", "LIST", "TYPE", "normal").toString().lines().count() - 1;
    }

    /** Closes all connections that do not wait. */
    void killIdle() {
        others().filter(line -> line.contains(" flags=N ")).forEach(this::kill);
    }

    /** Closes the oldest connection, which is the client's shared connection. */
    void killOldest() {
        kill(others().findFirst().orElseThrow());
    }

    /** The lines of CLIENT LIST, without the line of this object's own connection. */
    private Stream<String> others() {
        Object own = call("CLIENT", "ID").get(0);
        return call("CLIENT", "LIST", "TYPE", "normal")
                .toString()
                .lines()
                .filter(line -> line.contains("id=") && !line.contains("id=" + own + " "));
    }

    private void kill(String line) {
        call("CLIENT", "KILL", "ID", line.replaceFirst("^\\W*id=(\\d+) .*", "$1"));
    }

    /** A number in the reply to INFO. */
    long count(String name) {
        Matcher matcher = Pattern.compile(name + "\\D+(\\d+)")
                .matcher(call("INFO", "everything").toString());
        return matcher.find() ? Long.parseLong(matcher.group(1)) : 0;
    }

    /** The ids of the waiters' connections, in the order in which they are served. */
    List<Long> queue(String name) {
        Map<String, Object> info = map(call("LOCK.INFO", name, "WAITERS", 100));
        return ((List<?>) info.getOrDefault("queue", List.of()))
                .stream()
                        .map(waiter -> (Long) map((List<?>) waiter).get("client-id"))
                        .toList();
    }

    static Map<String, Object> map(List<?> flat) {
        Map<String, Object> map = new HashMap<>();
        for (int i = 0; i + 1 < flat.size(); i += 2) {
            map.put((String) flat.get(i), flat.get(i + 1));
        }
        return map;
    }

    void stop() {
        process.ask(node + "pause");
    }

    void resume() {
        process.ask(node + "resume");
    }

    public void kill() {
        process.ask(node + "kill");
    }

    public void restart() {
        process.ask(node + "restart");
        disconnect();
    }

    /** Restarts the server with more arguments for the module. */
    void restart(String settings) {
        process.ask(node + "module " + settings);
        restart();
    }

    private synchronized void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    @Override
    public void close() {
        process.close();
        redis.shutdown(Duration.ZERO, Duration.ofSeconds(2));
    }

    /** Waits until each of these locks was renewed {@code count} times. */
    void awaitRenewals(int count, String... names) {
        long[] last = new long[names.length];
        int[] increases = new int[names.length];
        eventually(() -> {
            for (int i = 0; i < names.length; i++) {
                long left = info(names[i]).orElseThrow().leaseLeft();
                increases[i] += left > last[i] ? 1 : 0;
                last[i] = left;
            }
            // The first increase is the grant.
            return Arrays.stream(increases).allMatch(increase -> increase > count);
        });
    }

    /** Waits until the condition is true. */
    public static void eventually(Callable<Boolean> condition) {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        try {
            while (!condition.call()) {
                assertTrue(System.nanoTime() < until, "the condition is still false");
                Thread.sleep(5);
            }
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Acquires a lock. The returned object is the held lock. */
    static Optional<HeldLock> tryAcquire(LockwardClient client, String name, Duration wait, Duration lease)
            throws InterruptedException {
        LockRequest request = client.request(name);
        return (lease == null ? request : request.lease(lease).renewal(false)).tryAcquire(wait);
    }
}
