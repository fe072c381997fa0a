package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.SocketOptions.KeepAliveOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.sentinel.api.StatefulRedisSentinelConnection;
import io.netty.channel.ConnectTimeoutException;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;

/**
 * Which node has a lock, and the connections to it.
 *
 * <p>Lettuce's own repetitions and timeouts are turned off: {@link Attempts} has to know when a request is repeated, and how long
 * it may take. No method here blocks, but {@code close} and {@code pause}.
 */
final class Servers implements AutoCloseable {
    /** How many idle dedicated connections to each node are kept. */
    private static final int MAX_IDLE = 16;

    /** How long opening a connection may take at least, however short the patience is. */
    static final long MIN_CONNECT_LIMIT = TimeUnit.SECONDS.toNanos(2);

    private final RedisClient redis;
    private final List<RedisURI> seeds;
    private final Runnable onConnectionLost;
    private final Map<RedisURI, Node> nodes = new ConcurrentHashMap<>();
    /** The nodes that MOVED has named. Empty without a cluster. */
    private final Map<Integer, RedisURI> nodesBySlot = new ConcurrentHashMap<>();

    private final long patience;
    private final CompletableFuture<Void> closing = new CompletableFuture<>();

    /** How often a node was disconnected. */
    private final AtomicInteger disconnects = new AtomicInteger();

    private volatile boolean closed;

    Servers(
            List<RedisURI> seeds,
            @Nullable ClientResources resources,
            ClientOptions options,
            long patience,
            Runnable onConnectionLost) {
        this.seeds = seeds;
        this.patience = patience;
        this.onConnectionLost = onConnectionLost;
        redis = resources == null ? RedisClient.create() : RedisClient.create(resources);
        redis.setOptions(ownOptions(options));
    }

    private static ClientOptions ownOptions(ClientOptions theirs) {
        SocketOptions socket = theirs.getSocketOptions();
        if (!socket.isKeepAlive()) {
            socket = socket.mutate()
                    .keepAlive(KeepAliveOptions.builder()
                            .enable()
                            .idle(Duration.ofSeconds(12))
                            .interval(Duration.ofSeconds(3))
                            .count(3)
                            .build())
                    .build();
        }
        return theirs.mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build())
                .protocolVersion(ProtocolVersion.RESP2)
                .socketOptions(socket)
                .build();
    }

    /** The node that has the lock, as far as the client knows. */
    Node nodeFor(String name) {
        RedisURI known = nodesBySlot.isEmpty() ? null : nodesBySlot.get(SlotHash.getSlot(name));
        return nodes.computeIfAbsent(known == null ? anyNode() : known, Node::new);
    }

    /** Any node of a cluster can redirect a request. After each failure another one is used. */
    private RedisURI anyNode() {
        List<RedisURI> all = new ArrayList<>(seeds);
        all.addAll(nodesBySlot.values());
        return all.get(Math.floorMod(disconnects.get(), all.size()));
    }

    /** Sends requests that do not wait, on the shared connection. Follows ASK. */
    CompletableFuture<List<Object>> ask(Node node, List<Request> requests) {
        return shared(node)
                .thenCompose(connection -> Node.send(connection, requests))
                .thenCompose(replies -> replies.get(0) instanceof ServerError error
                                && error.code().equals("ASK")
                        ? shared(redirected(node, error))
                                .thenCompose(connection -> Node.sendAsking(connection, requests))
                        : CompletableFuture.completedFuture(replies));
    }

    /** Sends a request once. The future completes with its reply, or null if none arrives. */
    CompletableFuture<@Nullable Object> send(String name, Request request) {
        Node node = nodeFor(name);
        return ask(node, List.of(request)).handle((replies, failure) -> {
            Object reply = replies == null ? null : replies.get(0);
            if (reply instanceof ServerError error) {
                switch (error.code()) {
                    case "MOVED" -> moved(node, name, error);
                    case "READONLY" -> disconnect(node);
                    default -> {}
                }
            }
            return reply;
        });
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> shared(Node node) {
        return node.shared(() -> connect(node).whenComplete((connection, error) -> {
            if (error != null) {
                disconnect(node);
                return;
            }
            connection.addListener(new RedisConnectionStateListener() {
                @Override
                public void onRedisDisconnected(RedisChannelHandler<?, ?> closed) {
                    connectionLost(node);
                }
            });
            if (!connection.isOpen()) {
                connectionLost(node);
            }
        }));
    }

    /** An idle connection for a request that waits, or a new one. */
    CompletableFuture<StatefulRedisConnection<String, String>> dedicatedConnection(Node node) {
        for (; ; ) {
            StatefulRedisConnection<String, String> idle = node.idle.poll();
            if (idle == null) {
                return connect(node);
            }
            if (idle.isOpen()) {
                return CompletableFuture.completedFuture(idle);
            }
            idle.closeAsync();
        }
    }

    /** Keeps a dedicated connection for the next request that waits. No request may be under way on it. */
    void keepIdle(Node node, StatefulRedisConnection<String, String> connection) {
        if (closed || nodes.get(node.uri) != node || node.idle.size() >= MAX_IDLE) {
            connection.closeAsync();
        } else {
            node.idle.add(connection);
        }
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> connect(Node node) {
        if (closed) {
            return CompletableFuture.failedFuture(closedException());
        }
        return address(node)
                .thenCompose(address -> redis.connectAsync(StringCodec.UTF8, address))
                .whenComplete((connection, error) -> {
                    if (closed && error == null) {
                        connection.closeAsync();
                    } else if (isGone(error)) {
                        disconnect(node);
                    }
                });
    }

    /** The address of a node. It does not change: when Sentinels name another address, a new node is made. */
    private CompletableFuture<RedisURI> address(Node node) {
        return node.address(() -> lookUp(node.uri).whenComplete((address, error) -> {
            if (error != null) {
                disconnect(node);
            }
        }));
    }

    private CompletableFuture<RedisURI> lookUp(RedisURI uri) {
        // The copy has no Sentinels.
        RedisURI.Builder address = RedisURI.builder(uri).withTimeout(Duration.ofNanos(connectLimit()));
        if (uri.getSentinels().isEmpty()) {
            return CompletableFuture.completedFuture(address.build());
        }
        // The first Sentinel that answers is believed: others may be stopped.
        CompletableFuture<InetSocketAddress> first = new CompletableFuture<>();
        List<CompletableFuture<Boolean>> answers = uri.getSentinels().stream()
                .map(sentinel -> primary(sentinel, uri.getSentinelMasterId()).thenApply(first::complete))
                .toList();
        CompletableFuture.allOf(answers.toArray(CompletableFuture[]::new)).exceptionally(error -> {
            first.completeExceptionally(error);
            return null;
        });
        return first.thenApply(primary -> address.withHost(primary.getHostString())
                .withPort(primary.getPort())
                .build());
    }

    private CompletableFuture<InetSocketAddress> primary(RedisURI sentinel, String name) {
        CompletableFuture<StatefulRedisSentinelConnection<String, String>> connected =
                CompletableFuture.completedFuture(sentinel)
                        .thenCompose(uri -> redis.connectSentinelAsync(StringCodec.UTF8, uri));
        return connected
                .thenCompose(connection -> connection.async().getMasterAddrByName(name))
                .thenApply(
                        primary -> (InetSocketAddress) Objects.requireNonNull(primary, "no primary is called " + name))
                .orTimeout(responseLimit(), TimeUnit.NANOSECONDS)
                .whenComplete((primary, error) -> connected.thenAccept(StatefulConnection::closeAsync));
    }

    /** Notes where MOVED leads. */
    void moved(Node node, String name, ServerError error) {
        nodesBySlot.put(SlotHash.getSlot(name), address(node, error));
    }

    /** The address in MOVED or ASK. A node that does not know its own host leaves it out. */
    private static RedisURI address(Node asked, ServerError error) {
        String address = error.message().substring(error.message().lastIndexOf(' ') + 1);
        int colon = address.lastIndexOf(':');
        String host = address.substring(0, colon);
        return RedisURI.builder(asked.uri)
                .withHost(host.isEmpty() || host.equals("?") ? asked.uri.getHost() : host)
                .withPort(Integer.parseInt(address.substring(colon + 1)))
                .build();
    }

    /** Closes the connections to a node. New ones are opened for the next requests, perhaps to another node. */
    void disconnect(Node node) {
        if (nodes.remove(node.uri, node)) {
            nodesBySlot.values().removeIf(node.uri::equals);
            disconnects.incrementAndGet();
            node.close();
        }
    }

    private void connectionLost(Node node) {
        if (!closed) {
            disconnect(node);
            onConnectionLost.run();
        }
    }

    /** The node that MOVED or ASK names. */
    Node redirected(Node node, ServerError error) {
        return nodes.computeIfAbsent(address(node, error), Node::new);
    }

    /**
     * Whether the server where a thread waits is still there, and still has the lock. It is gone if it does not reply, or refuses
     * connections, or another server has the lock. That no second connection can be opened proves nothing: there may be too
     * many clients, or a new password.
     *
     * @param name null if a node that is known to have the lock has redirected the request with ASK
     */
    CompletableFuture<Boolean> probe(Node node, @Nullable String name) {
        RedisURI known = name == null ? null : nodesBySlot.get(SlotHash.getSlot(name));
        if (known != null && !known.equals(node.uri)) {
            return CompletableFuture.completedFuture(false);
        }
        Node current = nodes.computeIfAbsent(node.uri, Node::new);
        CompletableFuture<RedisURI> address = address(current);
        return address.thenCombine(address(node), RedisURI::equals)
                .thenCompose(isSame -> isSame ? answers(current) : CompletableFuture.completedFuture(false))
                .exceptionally(error -> address.isCompletedExceptionally() || !isGone(error));
    }

    private CompletableFuture<Boolean> answers(Node node) {
        return shared(node).thenCompose(connection -> Node.send(connection, List.of(Request.PING))
                .orTimeout(connectLimit(), TimeUnit.NANOSECONDS)
                .handle((reply, error) -> {
                    boolean isSilent = error instanceof TimeoutException;
                    if (isSilent) {
                        disconnect(node);
                    }
                    return !isSilent;
                }));
    }

    /** Whether no connection could be opened because no server answers at the address. */
    private static boolean isGone(@Nullable Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof RedisCommandTimeoutException
                    || (each instanceof ConnectException && !(each instanceof ConnectTimeoutException))) {
                return true;
            }
        }
        return false;
    }

    /** How long opening a connection may take; and the reply to a probe, before a position in a queue is given up. */
    private long connectLimit() {
        return Math.max(MIN_CONNECT_LIMIT, responseLimit());
    }

    /** How long a server has to reply to a request that does not wait. */
    long responseLimit() {
        return patience / 2;
    }

    /** How often a server is probed while a thread waits there. */
    long probeInterval() {
        return patience;
    }

    void pause(long span, boolean interruptible) throws InterruptedException {
        try {
            Clock.await(closing, span, interruptible);
            throw closedException();
        } catch (TimeoutException over) {
            // the pause is over
        } catch (ExecutionException never) {
            throw new AssertionError(never);
        }
    }

    boolean isClosed() {
        return closed;
    }

    void checkOpen() {
        if (closed) {
            throw closedException();
        }
    }

    private static IllegalStateException closedException() {
        return new IllegalStateException("the client is closed");
    }

    /** Closes all connections, which ends the waits on them. */
    @Override
    public void close() {
        closed = true;
        closing.complete(null);
        redis.shutdownAsync(0, 2, TimeUnit.SECONDS).join();
    }
}
