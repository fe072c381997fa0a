package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Finds the server that has a key, and keeps the connections to it: one that all requests share, and one for each request that waits.
 *
 * <p>Lettuce's own retries and timeouts are off, because {@link Call} decides when to repeat a request and how long it may take. Only
 * {@code close} blocks.
 */
final class Servers {
    private static final long IDLE_LIMIT = TimeUnit.SECONDS.toNanos(5);

    /** How long to wait for the Sentinels. Then the client uses the last known primary. */
    private static final long SENTINEL_LIMIT = TimeUnit.MILLISECONDS.toNanos(250);

    final Timer timer = new Timer();
    final long responseLimit;
    volatile boolean isClosed;

    private final RedisClient redis;
    private final Consumer<Node> onConnectionLost;
    private final Map<RedisURI, Node> nodes = new ConcurrentHashMap<>();

    /** The nodes that the program has named. */
    private final List<Node> seeds;

    /** The nodes that the client knows, by slot. Empty without a cluster. */
    private final Map<Integer, Node> nodesBySlot = new ConcurrentHashMap<>();

    /** Runs the beginnings of connections. */
    private volatile Executor starter = Runnable::run;

    /** How often a connection has failed. */
    private final AtomicInteger failures = new AtomicInteger();

    record Connection(Node node, StatefulRedisConnection<String, String> redis) {
        boolean isOpen() {
            return redis.isOpen();
        }

        void close() {
            redis.closeAsync();
        }
    }

    /** A server, or the primary that Sentinels know. */
    static final class Node {
        final RedisURI uri;
        private final Queue<Connection> idle = new ConcurrentLinkedQueue<>();
        private final Set<Connection> waiting = ConcurrentHashMap.newKeySet();

        /** The address of the last connection. */
        private volatile @Nullable RedisURI address;

        /** When the connection was last lost, or another server became the primary. */
        volatile long lostAt = Clock.now();

        /** Completes when the shared connection is open, and the client has called all users that waited for it. */
        private @Nullable CompletableFuture<Connection> shared;

        private Node(RedisURI uri) {
            this.uri = uri;
        }

        private synchronized @Nullable Connection openConnection() {
            return shared == null || shared.isCompletedExceptionally() ? null : shared.getNow(null);
        }
    }

    /** @param onConnectionLost called when the connection to a node is lost, or another server is the primary */
    Servers(LockwardClient.Builder settings, Consumer<Node> onConnectionLost) {
        seeds = settings.uris.stream().map(this::node).toList();
        responseLimit = settings.responseLimit;
        this.onConnectionLost = onConnectionLost;
        redis = settings.resources == null ? RedisClient.create() : RedisClient.create(settings.resources);
        redis.setOptions(ownOptions(settings.options, Duration.ofNanos(responseLimit)));
    }

    private static ClientOptions ownOptions(ClientOptions theirs, Duration connectLimit) {
        return theirs.mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build())
                .protocolVersion(ProtocolVersion.RESP2)
                .socketOptions(theirs.getSocketOptions()
                        .mutate()
                        .connectTimeout(connectLimit)
                        .build())
                .build();
    }

    // The node of a key.

    /**
     * The node that has the key. If the client does not know this node, returns another one, which redirects the request.
     *
     * @param silent a node that has not redirected an earlier request of the same call
     */
    Node nodeFor(String key, @Nullable Node silent) {
        if (nodes.size() == 1) {
            return seeds.get(0);
        }
        Node known = nodesBySlot.get(SlotHash.getSlot(key));
        if (known != null) {
            return known;
        }
        List<Node> others = Stream.concat(seeds.stream(), nodes.values().stream())
                .distinct()
                .filter(node -> node != silent)
                .toList();
        return others.stream()
                .filter(node -> node.openConnection() != null)
                .findFirst()
                .orElseGet(() ->
                        others.isEmpty() ? seeds.get(0) : others.get(Math.floorMod(failures.get(), others.size())));
    }

    /** Whether the client does not know which node of the cluster has the key. */
    boolean isGuess(String key) {
        return nodes.size() > 1 && !nodesBySlot.containsKey(SlotHash.getSlot(key));
    }

    /** Remembers that a node has the key. */
    void learn(String key, Node node) {
        nodesBySlot.put(SlotHash.getSlot(key), node);
    }

    /** The node that MOVED or ASK names. If the error names no host, the node has the same host as {@code asked}. */
    Node redirected(Node asked, ServerError error) {
        String address = error.message().substring(error.message().lastIndexOf(' ') + 1);
        int colon = address.lastIndexOf(':');
        String host = address.substring(0, colon);
        return node(RedisURI.builder(asked.uri)
                .withHost(host.isEmpty() || host.equals("?") ? asked.uri.getHost() : host)
                .withPort(Integer.parseInt(address.substring(colon + 1)))
                .build());
    }

    private Node node(RedisURI uri) {
        return nodes.computeIfAbsent(uri, Node::new);
    }

    // The shared connection of a node.

    /** Calls {@code user} with the shared connection to a node, or with an error. Calls several users in the order of their requests. */
    void withShared(Node node, BiConsumer<? super @Nullable Connection, ? super @Nullable Throwable> user) {
        CompletableFuture<Connection> shared;
        synchronized (node) {
            if (node.shared == null || node.shared.isCompletedExceptionally()) {
                node.shared = open(node);
            }
            shared = node.shared;
            if (!shared.isDone()) {
                // A future calls its dependents in reverse order. So each user depends on the previous one.
                node.shared = shared.whenComplete(user);
                return;
            }
        }
        shared.whenComplete(user);
    }

    private CompletableFuture<Connection> open(Node node) {
        CompletableFuture<Connection> opened = new CompletableFuture<>();
        CompletableFuture.completedFuture(node)
                .thenCompose(this::primary) // if this throws, the calls that wait for the connection get the exception
                .thenCompose(address -> connect(address).thenApply(redis -> {
                    RedisURI last = node.address;
                    node.address = address;
                    if (last != null && !last.equals(address)) { // there is a new primary
                        node.waiting.forEach(Connection::close);
                        closeIdle(node);
                        onConnectionLost.accept(node);
                    }
                    return new Connection(node, redis);
                }))
                .whenComplete((connection, error) -> {
                    if (connection == null) {
                        leave(node, null);
                    } else {
                        connection.redis().addListener(new RedisConnectionStateListener() {
                            @Override
                            public void onRedisDisconnected(RedisChannelHandler<?, ?> closed) {
                                disconnected(connection);
                            }
                        });
                    }
                    Clock.complete(opened, connection, error);
                    if (connection != null && !connection.isOpen()) {
                        disconnected(connection);
                    }
                });
        return opened;
    }

    private void disconnected(Connection connection) {
        if (leave(connection.node(), connection) && !isClosed) {
            onConnectionLost.accept(connection.node());
        }
    }

    /**
     * Makes the next request to the node open a new connection. Returns false if {@code shared} was already left. The idle connections
     * stay, because the server may accept no new connection.
     *
     * @param shared the present shared connection, or null if it could not be opened
     */
    private boolean leave(Node node, @Nullable Connection shared) {
        synchronized (node) {
            if (!Objects.equals(shared, node.openConnection())) {
                return false;
            }
            node.shared = null;
        }
        nodesBySlot.values().removeIf(node::equals);
        failures.incrementAndGet();
        return true;
    }

    private static void closeIdle(Node node) {
        for (Connection idle = node.idle.poll(); idle != null; idle = node.idle.poll()) {
            idle.close();
        }
    }

    /**
     * Uses new connections to a node from now on, because the node does not answer or is not the primary any more.
     *
     * @param used the connection that has shown this. If this connection was already replaced, the method does nothing
     */
    void replace(Connection used) {
        Node node = used.node();
        Connection shared = node.openConnection();
        if (shared != null && (shared.equals(used) || node.waiting.contains(used)) && leave(node, shared)) {
            closeIdle(node);
            // Other requests on this connection may still get their replies.
            timer.at(Clock.now() + responseLimit, shared::close);
        }
    }

    // The connections for waits.

    /** A connection for a request that waits: an idle one, or a new one to the address of the shared one. */
    CompletableFuture<Connection> own(Node node) {
        Connection idle = idle(node);
        if (idle != null) {
            return CompletableFuture.completedFuture(idle);
        }
        CompletableFuture<Connection> shared = new CompletableFuture<>();
        withShared(node, (connection, error) -> Clock.complete(shared, connection, error));
        return shared.thenCompose(located -> connect(Objects.requireNonNull(node.address)))
                .thenApply(redis -> {
                    Connection own = new Connection(node, redis);
                    node.waiting.add(own);
                    return own;
                });
    }

    /** A connection that no wait uses any more, or null. The caller must give the connection back. */
    @Nullable
    Connection idle(Node node) {
        Connection idle = node.idle.poll();
        while (idle != null && !idle.isOpen()) {
            idle = node.idle.poll();
        }
        if (idle != null) {
            node.waiting.add(idle);
        }
        return idle;
    }

    /** Takes a connection back. Keeps an idle connection for a while, and closes any other. Does nothing for a shared connection. */
    void giveBack(Connection connection, boolean isIdle) {
        Node node = connection.node();
        if (!node.waiting.remove(connection)) {
            return;
        }
        if (!isIdle || isClosed) {
            connection.close();
            return;
        }
        node.idle.add(connection);
        timer.at(Clock.now() + IDLE_LIMIT, () -> {
            if (node.idle.remove(connection)) {
                connection.close();
            }
        });
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> connect(RedisURI address) {
        return inBackground(() -> redis.connectAsync(StringCodec.UTF8, address)).whenComplete((connection, error) -> {
            if (isClosed && error == null) {
                connection.closeAsync();
            }
        });
    }

    /** Calls {@code start} in another thread, because Lettuce may read certificates from files. */
    private <T> CompletableFuture<T> inBackground(Supplier<CompletionStage<T>> start) {
        return CompletableFuture.supplyAsync(start, starter).thenCompose(started -> started);
    }

    /**
     * Begins to open the first connection. Meanwhile Lettuce loads its classes in this thread, which takes seconds on a busy machine. So
     * this time does not count for the patience of the first call. If the connection fails, the first request opens another.
     */
    void openFirst() {
        withShared(seeds.get(0), (connection, error) -> {});
        starter = redis.getResources().eventExecutorGroup();
    }

    // The primary.

    /** The address of a node. With Sentinels, it is the address of their primary. */
    private CompletableFuture<RedisURI> primary(Node node) {
        List<RedisURI> sentinels = node.uri.getSentinels();
        if (sentinels.isEmpty()) {
            return CompletableFuture.completedFuture(address(node).build());
        }
        // Take the first answer, because other Sentinels may not answer.
        CompletableFuture<RedisURI> found = new CompletableFuture<>();
        CompletableFuture<RedisURI> last = new CompletableFuture<Void>()
                .completeOnTimeout(null, SENTINEL_LIMIT, TimeUnit.NANOSECONDS)
                .thenCompose(waited -> found.isDone() ? found : lastKnown(node));
        Stream<CompletableFuture<RedisURI>> answers =
                Stream.concat(sentinels.stream().map(sentinel -> ask(sentinel, node)), Stream.of(last));
        Clock.all(answers.map(answer -> answer.thenAccept(found::complete)))
                .whenComplete((all, silence) -> last.whenComplete(
                        (primary, error) -> Clock.complete(found, primary, error))); // if there was no answer
        return found;
    }

    private RedisURI.Builder address(Node node) {
        // The builder copies the node's address and settings, but not its Sentinels.
        return RedisURI.builder(node.uri).withTimeout(Duration.ofNanos(responseLimit));
    }

    private CompletableFuture<RedisURI> ask(RedisURI sentinel, Node node) {
        String name = node.uri.getSentinelMasterId();
        return ask(
                inBackground(() -> redis.connectSentinelAsync(StringCodec.UTF8, sentinel)),
                connection -> connection.async().getMasterAddrByName(name).thenApply(primary -> {
                    if (primary instanceof InetSocketAddress known) {
                        return address(node)
                                .withHost(known.getHostString())
                                .withPort(known.getPort())
                                .build();
                    }
                    throw new IllegalStateException("no primary is called " + name);
                }));
    }

    /** The address of the last known primary, if this server is still a primary. */
    private CompletableFuture<RedisURI> lastKnown(Node node) {
        RedisURI last = node.address;
        if (last == null) {
            return CompletableFuture.failedFuture(new IllegalStateException("no Sentinel answers"));
        }
        return ask(connect(last), connection -> connection.async().role().thenApply(role -> {
            if (role.get(0).equals("master")) {
                return last;
            }
            throw new IllegalStateException(last + " is not a primary any more");
        }));
    }

    /** Asks a question on a connection within the response limit, and then closes the connection. */
    private <C extends StatefulConnection<?, ?>, T> CompletableFuture<T> ask(
            CompletableFuture<C> connected, Function<C, CompletionStage<T>> question) {
        return connected
                .thenCompose(question)
                .orTimeout(responseLimit, TimeUnit.NANOSECONDS)
                .whenComplete((answer, error) -> connected.thenAccept(StatefulConnection::closeAsync));
    }

    /** Ends all calls: ends their pauses, and the waits for replies. */
    void endCalls() {
        isClosed = true;
        timer.end();
    }

    /** Closes all connections. */
    void close() {
        redis.shutdownAsync(0, 2, TimeUnit.SECONDS).join();
    }
}
