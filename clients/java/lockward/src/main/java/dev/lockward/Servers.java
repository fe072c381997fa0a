package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Finds the server that has a key, and keeps the connections to each server. All requests share one connection, but each request that
 * waits has a connection of its own.
 *
 * <p>Lettuce's own retries and timeouts are off, because {@link Call} decides when to repeat a request and how long a request may take.
 * Only {@code close} blocks.
 */
final class Servers {
    private static final long IDLE_LIMIT = 5_000;

    /** How long to wait for the Sentinels before the client uses the last known primary. */
    private static final long SENTINEL_LIMIT = 250;

    final Timer timer = new Timer();
    final long responseLimit;
    volatile boolean isClosed;

    private final RedisClient redis;
    private final Runnable onConnectionLost;

    /** When a connection was last lost, or another server became the primary. */
    volatile long lostAt = Long.MIN_VALUE;

    private final Map<RedisURI, Node> nodes = new ConcurrentHashMap<>();

    /** The nodes that the program has named. */
    private final List<Node> seeds;

    /** The nodes that the client knows, by slot. Empty without a cluster. */
    private final Map<Integer, Node> nodesBySlot = new ConcurrentHashMap<>();

    /** Runs the code that begins to open a connection. */
    private volatile Executor starter = Runnable::run;

    record Connection(Node node, StatefulRedisConnection<String, String> redis, AtomicBoolean isClosed) {
        boolean isOpen() {
            return redis.isOpen();
        }
    }

    /** A server, or the primary that Sentinels know. */
    static final class Node {
        final RedisURI uri;
        private final Queue<Connection> idle = new ConcurrentLinkedQueue<>();
        private final Set<Connection> waiting = ConcurrentHashMap.newKeySet();

        /** The address of the last connection. */
        private volatile @Nullable RedisURI address;

        /** Completes when the shared connection is open, and the client has called all users that waited for it. */
        private @Nullable CompletableFuture<Connection> shared;

        private Node(RedisURI uri) {
            this.uri = uri;
        }

        private synchronized @Nullable Connection openConnection() {
            return shared == null || shared.isCompletedExceptionally() ? null : shared.getNow(null);
        }
    }

    /** @param onConnectionLost called when the connection to a node is lost, or when another server has become the primary */
    Servers(LockwardClient.Builder settings, Runnable onConnectionLost) {
        seeds = settings.uris.stream().map(this::node).toList();
        responseLimit = settings.responseLimit;
        this.onConnectionLost = onConnectionLost;
        redis = settings.resources == null ? RedisClient.create() : RedisClient.create(settings.resources);
        redis.setOptions(ownOptions(settings.options, Duration.ofMillis(responseLimit)));
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
     * The node that has the key. If the client does not know which node has the key, this method returns any node, because each node
     * redirects the request. Nodes with an open connection come first.
     *
     * @param failures how often the request has failed. After each failure the method returns another node
     */
    Node nodeFor(String key, int failures) {
        Node known = nodes.size() == 1 ? seeds.get(0) : nodesBySlot.get(SlotHash.getSlot(key));
        if (known != null) {
            return known;
        }
        List<Node> all = nodes.values().stream()
                .sorted(Comparator.comparing(node -> node.openConnection() == null))
                .toList();
        return all.get(failures % all.size());
    }

    /** Whether the client does not know which node of the cluster has the key. */
    boolean isGuess(String key) {
        return nodes.size() > 1 && !nodesBySlot.containsKey(SlotHash.getSlot(key));
    }

    /** Remembers that a node has the key. */
    void learn(String key, Node node) {
        if (nodes.size() > 1) {
            nodesBySlot.put(SlotHash.getSlot(key), node);
        }
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
                // A future calls its dependents in reverse order. So each user depends on the future of the previous
                // user.
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
                        node.waiting.forEach(this::close);
                        closeIdle(node);
                        connectionLost();
                    }
                    return new Connection(node, redis, new AtomicBoolean());
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
        close(connection);
        if (leave(connection.node(), connection) && !isClosed) {
            connectionLost();
        }
    }

    private void connectionLost() {
        lostAt = Clock.now();
        onConnectionLost.run();
    }

    /**
     * Drops the shared connection of a node, so that the next request opens a new shared connection. Returns false if {@code shared} was
     * dropped before. The idle connections stay, because the server may accept no new connection.
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
        return true;
    }

    /** Closes a connection. The client also closes broken connections, because Lettuce keeps each connection until it is closed. */
    private void close(Connection connection) {
        // Lettuce warns of a second close. When the client is closed, Lettuce closes all connections.
        if (!isClosed && !connection.isClosed.getAndSet(true)) {
            connection.redis.closeAsync();
        }
    }

    private void closeIdle(Node node) {
        for (Connection idle = node.idle.poll(); idle != null; idle = node.idle.poll()) {
            close(idle);
        }
    }

    /**
     * Uses new connections to a node from now on, because the node does not answer or is not the primary any more.
     *
     * @param used the connection on which the client has noticed this. If the client has already replaced it, this method does nothing
     */
    void replace(Connection used) {
        Node node = used.node();
        Connection shared = node.openConnection();
        if (shared != null && (shared.equals(used) || node.waiting.contains(used)) && leave(node, shared)) {
            closeIdle(node);
            // Other requests on this connection may still get their replies.
            timer.at(Clock.now() + responseLimit, () -> close(shared));
        }
    }

    // The connections for waits.

    /** A connection for a request that waits: an idle connection, or a new connection to the address of the shared connection. */
    CompletableFuture<Connection> own(Node node) {
        Connection idle = idle(node);
        if (idle != null) {
            return CompletableFuture.completedFuture(idle);
        }
        CompletableFuture<Connection> shared = new CompletableFuture<>();
        withShared(node, (connection, error) -> Clock.complete(shared, connection, error));
        return shared.thenCompose(located -> connect(Objects.requireNonNull(node.address)))
                .thenApply(redis -> {
                    Connection own = new Connection(node, redis, new AtomicBoolean());
                    node.waiting.add(own);
                    return own;
                });
    }

    /** An idle connection, which no wait uses any more, or null. The caller must call {@link #giveBack} for this connection. */
    @Nullable
    Connection idle(Node node) {
        Connection idle = node.idle.poll();
        while (idle != null && !idle.isOpen()) {
            close(idle);
            idle = node.idle.poll();
        }
        if (idle != null) {
            node.waiting.add(idle);
        }
        return idle;
    }

    /**
     * Takes back a connection that a wait has used. If {@code isIdle} is true, keeps the connection for a while. If it is false, closes the
     * connection. Does nothing for a shared connection.
     */
    void giveBack(Connection connection, boolean isIdle) {
        Node node = connection.node();
        if (!node.waiting.remove(connection)) {
            return;
        }
        if (!isIdle || isClosed) {
            close(connection);
            return;
        }
        node.idle.add(connection);
        timer.at(Clock.now() + IDLE_LIMIT, () -> {
            if (node.idle.remove(connection)) {
                close(connection);
            }
        });
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> connect(RedisURI address) {
        // Lettuce may read certificates from files, so another thread calls it.
        return CompletableFuture.supplyAsync(() -> redis.connectAsync(StringCodec.UTF8, address), starter)
                .thenCompose(started -> started)
                .whenComplete((connection, error) -> {
                    if (isClosed && error == null) {
                        connection.closeAsync();
                    }
                });
    }

    /**
     * Begins to open the first connection. For this, Lettuce loads its classes in this thread, which takes seconds on a busy machine. The
     * patience of the first call does not include this time, because the call begins later. If the connection fails, the first request
     * opens another connection.
     */
    void openFirst() {
        withShared(seeds.get(0), (connection, error) -> {});
        starter = redis.getResources().eventExecutorGroup();
    }

    // The primary.

    /** The address of a node. If the node has Sentinels, this is the address of the primary that the Sentinels name. */
    private CompletableFuture<RedisURI> primary(Node node) {
        List<RedisURI> sentinels = node.uri.getSentinels();
        if (sentinels.isEmpty()) {
            return CompletableFuture.completedFuture(address(node).build());
        }
        // Use the first answer, because other Sentinels may not answer.
        CompletableFuture<RedisURI> found = new CompletableFuture<>();
        CompletableFuture<RedisURI> last = timer.limit(Clock.now() + SENTINEL_LIMIT, new CompletableFuture<RedisURI>())
                .exceptionallyCompose(waited -> found.isDone() ? found : lastKnown(node));
        Stream<CompletableFuture<RedisURI>> answers =
                Stream.concat(sentinels.stream().map(sentinel -> askSentinel(sentinel, node)), Stream.of(last));
        Clock.all(answers.map(answer -> answer.thenAccept(found::complete)))
                .whenComplete((all, silence) -> last.whenComplete(
                        (primary, error) -> Clock.complete(found, primary, error))); // if there was no answer
        return found;
    }

    private RedisURI.Builder address(Node node) {
        // The builder copies the node's address and settings, but not its Sentinels.
        return RedisURI.builder(node.uri).withTimeout(Duration.ofMillis(responseLimit));
    }

    private CompletableFuture<RedisURI> askSentinel(RedisURI sentinel, Node node) {
        String name = node.uri.getSentinelMasterId();
        return ask(sentinel, new Request("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name))
                .thenApply(reply -> {
                    if (reply instanceof List<?> primary) {
                        return address(node)
                                .withHost(String.valueOf(primary.get(0)))
                                .withPort(Integer.parseInt(String.valueOf(primary.get(1))))
                                .build();
                    }
                    throw new IllegalStateException("no primary is called " + name);
                });
    }

    /** The address of the last known primary, if this server is still a primary. */
    private CompletableFuture<RedisURI> lastKnown(Node node) {
        RedisURI last = node.address;
        if (last == null) {
            return CompletableFuture.failedFuture(new IllegalStateException("no Sentinel answers"));
        }
        return ask(last, new Request("ROLE")).thenApply(role -> {
            if (role instanceof List<?> words && "master".equals(words.get(0))) {
                return last;
            }
            throw new IllegalStateException(last + " is not a primary any more");
        });
    }

    /** Sends a request on a new connection, and then closes the connection. The reply must arrive within the response limit. */
    private CompletableFuture<@Nullable Object> ask(RedisURI address, Request request) {
        CompletableFuture<StatefulRedisConnection<String, String>> connected = connect(address);
        CompletableFuture<@Nullable Object> reply = connected.thenCompose(redis -> {
            redis.dispatch(request);
            return request;
        });
        return timer.limit(Clock.now() + responseLimit, reply)
                .whenComplete((answer, error) -> connected.thenAccept(StatefulRedisConnection::closeAsync));
    }

    /** Ends all calls. It ends the pauses of the calls, and the waits for replies. */
    void endCalls() {
        isClosed = true;
        timer.end();
    }

    /** Closes all connections. */
    void close() {
        redis.shutdownAsync(0, 2, TimeUnit.SECONDS).join();
    }
}
