package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.SocketOptions.KeepAliveOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.sentinel.api.StatefulRedisSentinelConnection;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * Which server has a key, and the connections to it: one that all requests share, and one for each request that waits.
 *
 * <p>Lettuce's own repetitions and timeouts are turned off: {@link Call} has to know when a request is repeated, and how long
 * it may take. No method blocks, but {@code close}.
 */
final class Servers {
    private static final long IDLE_LIMIT = TimeUnit.SECONDS.toNanos(5);

    /** How long Sentinels are asked before the last known primary is used. */
    private static final long SENTINEL_LIMIT = TimeUnit.MILLISECONDS.toNanos(250);

    final Timer timer;
    final long responseLimit;
    volatile boolean closed;

    private final RedisClient redis;
    private final List<RedisURI> seeds;
    private final Consumer<Node> onConnectionLost;
    private final Map<RedisURI, Node> nodes = new ConcurrentHashMap<>();

    /** The nodes that are known to have a slot. Empty without a cluster. */
    private final Map<Integer, Node> nodesBySlot = new ConcurrentHashMap<>();

    /** How often a node did not answer. */
    private final AtomicInteger failures = new AtomicInteger();

    /** A server, or the primary that Sentinels know. */
    static final class Node {
        final RedisURI uri;
        private final Queue<StatefulRedisConnection<String, String>> idle = new ConcurrentLinkedQueue<>();
        private final Set<StatefulRedisConnection<String, String>> waiting = ConcurrentHashMap.newKeySet();

        /** Where the last connection was opened. */
        private volatile @Nullable RedisURI address;

        private volatile long lastAnswer = Long.MIN_VALUE;
        private @Nullable Shared shared;

        private Node(RedisURI uri) {
            this.uri = uri;
        }

        void answered(long now) {
            lastAnswer = now;
        }
    }

    /** What uses a connection, or gets the error of its opening. */
    interface User {
        void accept(@Nullable StatefulRedisConnection<String, String> connection, @Nullable Throwable error);
    }

    /** A shared connection that is open, or about to be. */
    private static final class Shared {
        private final Queue<User> users = new ArrayDeque<>();
        private volatile @Nullable StatefulRedisConnection<String, String> connection;

        /** The next one that has waited for the connection. Later ones use it at once when nobody is left. */
        private @Nullable User next(Node node, StatefulRedisConnection<String, String> opened) {
            synchronized (node) {
                User user = users.poll();
                if (user == null) {
                    connection = opened;
                }
                return user;
            }
        }
    }

    Servers(
            List<RedisURI> seeds,
            @Nullable ClientResources resources,
            ClientOptions options,
            long responseLimit,
            Timer timer,
            Consumer<Node> onConnectionLost) {
        this.seeds = seeds;
        this.responseLimit = responseLimit;
        this.timer = timer;
        this.onConnectionLost = onConnectionLost;
        redis = resources == null ? RedisClient.create() : RedisClient.create(resources);
        redis.setOptions(ownOptions(options, Duration.ofNanos(responseLimit)));
    }

    private static ClientOptions ownOptions(ClientOptions theirs, Duration connectLimit) {
        SocketOptions.Builder socket = theirs.getSocketOptions().mutate().connectTimeout(connectLimit);
        if (!theirs.getSocketOptions().isKeepAlive()) {
            socket.keepAlive(KeepAliveOptions.builder()
                    .enable()
                    .idle(Duration.ofSeconds(12))
                    .interval(Duration.ofSeconds(3))
                    .count(3)
                    .build());
        }
        return theirs.mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build())
                .protocolVersion(ProtocolVersion.RESP2)
                .socketOptions(socket.build())
                .build();
    }

    /**
     * The node that has the key, as far as the client knows. Any node of a cluster can redirect a request.
     *
     * @param silent a node that has not redirected an earlier request of the same call
     */
    Node nodeFor(String key, @Nullable Node silent) {
        Node known = nodesBySlot.isEmpty() ? null : nodesBySlot.get(SlotHash.getSlot(key));
        if (known != null) {
            return known;
        }
        if (seeds.size() > 1 || nodes.size() > 1) {
            Node lively = nodes.values().stream()
                    .filter(node -> node != silent && isConnected(node))
                    .max(Comparator.comparingLong(node -> node.lastAnswer))
                    .orElse(null);
            if (lively != null) {
                return lively;
            }
        }
        List<RedisURI> all = new ArrayList<>(seeds);
        nodesBySlot.values().forEach(node -> all.add(node.uri));
        if (silent != null && all.size() > 1) {
            all.remove(silent.uri);
        }
        return node(all.get(Math.floorMod(failures.get(), all.size())));
    }

    /** Whether the client does not know which node of the cluster has the key. */
    boolean isGuess(String key) {
        return (seeds.size() > 1 || !nodesBySlot.isEmpty()) && !nodesBySlot.containsKey(SlotHash.getSlot(key));
    }

    /** Notes that a node has the key. */
    void has(Node node, String key) {
        if (isGuess(key)) {
            nodesBySlot.put(SlotHash.getSlot(key), node);
        }
    }

    private static boolean isConnected(Node node) {
        synchronized (node) {
            return node.shared != null && node.shared.connection != null;
        }
    }

    private Node node(RedisURI uri) {
        return nodes.computeIfAbsent(uri, Node::new);
    }

    /** Notes where MOVED leads. */
    void moved(Node asked, String key, ServerError error) {
        nodesBySlot.put(SlotHash.getSlot(key), redirected(asked, error));
    }

    /** The node that MOVED or ASK names. A node that does not know its own host leaves it out. */
    Node redirected(Node asked, ServerError error) {
        String address = error.message().substring(error.message().lastIndexOf(' ') + 1);
        int colon = address.lastIndexOf(':');
        String host = address.substring(0, colon);
        return node(RedisURI.builder(asked.uri)
                .withHost(host.isEmpty() || host.equals("?") ? asked.uri.getHost() : host)
                .withPort(Integer.parseInt(address.substring(colon + 1)))
                .build());
    }

    /** Calls {@code user} with the connection that all requests to a node share, or with an error. In the order of the calls. */
    void withShared(Node node, User user) {
        Shared shared;
        boolean isNew;
        StatefulRedisConnection<String, String> open;
        synchronized (node) {
            shared = node.shared;
            isNew = shared == null;
            if (shared == null) {
                shared = new Shared();
                node.shared = shared;
            }
            open = shared.connection;
            if (open == null) {
                shared.users.add(user);
            }
        }
        if (open != null) {
            user.accept(open, null);
        } else if (isNew) {
            open(node, shared);
        }
    }

    private void open(Node node, Shared shared) {
        CompletableFuture.completedFuture(node)
                .thenCompose(this::locate) // what it throws ends the calls that wait for the connection
                .thenCompose(address -> open(address).thenApply(connection -> {
                    RedisURI last = node.address;
                    node.address = address;
                    if (last != null && !last.equals(address)) { // there is a new primary
                        node.waiting.forEach(StatefulConnection::closeAsync);
                        onConnectionLost.accept(node);
                    }
                    return connection;
                }))
                .whenComplete((connection, error) -> {
                    if (connection == null) {
                        forget(node, shared);
                        shared.users.forEach(user -> user.accept(null, error));
                        return;
                    }
                    connection.addListener(new RedisConnectionStateListener() {
                        @Override
                        public void onRedisDisconnected(RedisChannelHandler<?, ?> closed) {
                            connectionLost(node, shared);
                        }
                    });
                    for (User user = shared.next(node, connection); user != null; ) {
                        user.accept(connection, null);
                        user = shared.next(node, connection);
                    }
                    if (!connection.isOpen()) {
                        connectionLost(node, shared);
                    }
                });
    }

    private void connectionLost(Node node, Shared shared) {
        if (forget(node, shared) && !closed) {
            onConnectionLost.accept(node);
        }
    }

    /** Makes the next request to the node open a new connection. Returns false if that was done already. */
    private boolean forget(Node node, Shared shared) {
        synchronized (node) {
            if (node.shared != shared) {
                return false;
            }
            node.shared = null;
        }
        nodesBySlot.values().removeIf(node::equals);
        failures.incrementAndGet();
        for (var idle = node.idle.poll(); idle != null; idle = node.idle.poll()) {
            idle.closeAsync();
        }
        return true;
    }

    /**
     * Uses new connections to a node from now on: it is silent, or not the primary any more.
     *
     * @param connection the one that was used. If it is not the shared one any more, that has been replaced already
     */
    void replace(Node node, StatefulRedisConnection<String, String> connection) {
        Shared shared;
        synchronized (node) {
            shared = node.shared;
        }
        if (shared != null && (shared.connection == connection || node.waiting.contains(connection))) {
            forget(node, shared);
            // Other requests may still be answered.
            StatefulRedisConnection<String, String> silent = shared.connection;
            if (silent != null) {
                timer.at(Clock.now() + responseLimit, silent::closeAsync);
            }
        }
    }

    /** A connection for a request that waits: an idle one, or a new one to where the shared one leads. */
    CompletableFuture<StatefulRedisConnection<String, String>> waiting(Node node) {
        var idle = node.idle.poll();
        while (idle != null && !idle.isOpen()) {
            idle = node.idle.poll();
        }
        CompletableFuture<StatefulRedisConnection<String, String>> connection = new CompletableFuture<>();
        if (idle == null) {
            withShared(node, (shared, error) -> {
                if (error == null) {
                    open(address(node)).whenComplete((opened, failure) -> complete(connection, opened, failure));
                } else {
                    connection.completeExceptionally(error);
                }
            });
        } else {
            connection.complete(idle);
        }
        return connection.thenApply(open -> {
            node.waiting.add(open);
            return open;
        });
    }

    private static <T> void complete(CompletableFuture<T> future, @Nullable T value, @Nullable Throwable error) {
        if (error == null) {
            future.complete(value);
        } else {
            future.completeExceptionally(error);
        }
    }

    private static RedisURI address(Node node) {
        RedisURI address = node.address;
        return address == null ? node.uri : address;
    }

    /** Takes a waiting connection back. It is kept for a while if no request is under way on it. */
    void giveBack(Node node, StatefulRedisConnection<String, String> connection, boolean isIdle) {
        if (!node.waiting.remove(connection) || !isIdle || closed) {
            connection.closeAsync();
            return;
        }
        node.idle.add(connection);
        timer.at(Clock.now() + IDLE_LIMIT, () -> {
            if (node.idle.remove(connection)) {
                connection.closeAsync();
            }
        });
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> open(RedisURI address) {
        // In a thread that may take a while: the first connection loads classes and reads certificates.
        return CompletableFuture.supplyAsync(
                        () -> redis.connectAsync(StringCodec.UTF8, address),
                        redis.getResources().eventExecutorGroup())
                .thenCompose(connection -> connection)
                .whenComplete((connection, error) -> {
                    if (closed && error == null) {
                        connection.closeAsync();
                    }
                });
    }

    /** The address of a node, with the primary's if Sentinels know it. */
    private CompletableFuture<RedisURI> locate(Node node) {
        // The copy has no Sentinels.
        RedisURI.Builder address = RedisURI.builder(node.uri).withTimeout(Duration.ofNanos(responseLimit));
        if (node.uri.getSentinels().isEmpty()) {
            return CompletableFuture.completedFuture(address.build());
        }
        // The first Sentinel that answers is believed: others may be stopped.
        CompletableFuture<RedisURI> found = new CompletableFuture<>();
        List<CompletableFuture<Boolean>> answers = node.uri.getSentinels().stream()
                .map(sentinel -> primary(sentinel, node.uri.getSentinelMasterId())
                        .thenApply(primary -> found.complete(address.withHost(primary.getHostString())
                                .withPort(primary.getPort())
                                .build())))
                .toList();
        CompletableFuture.allOf(answers.toArray(CompletableFuture[]::new))
                .whenComplete((all, error) -> lastKnown(node, found, error));
        Timer.Task limit = timer.at(Clock.now() + SENTINEL_LIMIT, () -> lastKnown(node, found, null));
        return found.whenComplete((primary, error) -> timer.cancel(limit));
    }

    /**
     * Finds the last known primary, if it still is one.
     *
     * @param failure why the Sentinels do not answer; null if they may still answer
     */
    private void lastKnown(Node node, CompletableFuture<RedisURI> found, @Nullable Throwable failure) {
        RedisURI last = node.address;
        if (found.isDone() || (last == null && failure == null)) {
            return;
        }
        if (last == null) {
            found.completeExceptionally(failure);
            return;
        }
        open(last).whenComplete((connection, error) -> {
            if (connection == null) {
                fail(found, error, failure);
                return;
            }
            connection.async().role().whenComplete((role, none) -> {
                if (role != null && "master".equals(role.get(0))) {
                    found.complete(last);
                } else {
                    fail(found, none, failure);
                }
                connection.closeAsync();
            });
            timer.at(Clock.now() + responseLimit, connection::closeAsync);
        });
    }

    private static void fail(CompletableFuture<?> found, @Nullable Throwable error, @Nullable Throwable failure) {
        if (failure != null) {
            found.completeExceptionally(error == null ? failure : error);
        }
    }

    private CompletableFuture<InetSocketAddress> primary(RedisURI sentinel, String name) {
        CompletableFuture<StatefulRedisSentinelConnection<String, String>> connected = CompletableFuture.supplyAsync(
                        () -> sentinel, redis.getResources().eventExecutorGroup())
                .thenCompose(uri -> redis.connectSentinelAsync(StringCodec.UTF8, uri));
        CompletableFuture<InetSocketAddress> answer = connected
                .thenCompose(connection -> connection.async().getMasterAddrByName(name))
                .thenApply(primary -> {
                    if (primary instanceof InetSocketAddress known) {
                        return known;
                    }
                    throw new IllegalStateException("no primary is called " + name);
                });
        Timer.Task limit = timer.at(
                Clock.now() + responseLimit,
                () -> answer.completeExceptionally(new IllegalStateException("a Sentinel is silent")));
        return answer.whenComplete((primary, error) -> {
            timer.cancel(limit);
            connected.thenAccept(StatefulConnection::closeAsync);
        });
    }

    /** Sends requests in one pipeline. Returns the commands, which complete in the same order. */
    static List<AsyncCommand<String, String, Object>> send(
            StatefulRedisConnection<String, String> connection, List<Request> requests) {
        List<AsyncCommand<String, String, Object>> commands =
                requests.stream().map(Request::command).toList();
        if (commands.size() == 1) {
            connection.dispatch(commands.get(0));
        } else {
            connection.dispatch(commands);
        }
        return commands;
    }

    /** Closes all connections, which ends the waits on them. */
    void close() {
        closed = true;
        redis.shutdownAsync(0, 2, TimeUnit.SECONDS).join();
    }
}
