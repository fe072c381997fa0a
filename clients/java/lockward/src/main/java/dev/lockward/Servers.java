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
 * Which server has a lock, and the connections to it.
 *
 * <p>All of Lettuce's that would repeat or time out requests by itself is turned off: here it is known what a repetition
 * means, and how long a request may take. Nothing here blocks.
 */
final class Servers implements AutoCloseable {
    /** How many connections stand by at each node for those who wait next. */
    private static final int SPARE = 16;

    /** A connection is given so much time at least, however short the patience is. */
    static final long LEAST = TimeUnit.SECONDS.toNanos(2);

    private final RedisClient redis;
    private final List<RedisURI> seeds;
    private final Runnable onBreak;
    private final Map<RedisURI, Node> nodes = new ConcurrentHashMap<>();
    /** By slot, as MOVED has told. Empty where there is no cluster. */
    private final Map<Integer, RedisURI> homes = new ConcurrentHashMap<>();

    private final long patience;
    private final CompletableFuture<Void> closing = new CompletableFuture<>();

    private final AtomicInteger turn = new AtomicInteger();
    private volatile boolean closed;

    Servers(
            List<RedisURI> seeds,
            @Nullable ClientResources resources,
            ClientOptions options,
            long patience,
            Runnable onBreak) {
        this.seeds = seeds;
        this.patience = patience;
        this.onBreak = onBreak;
        redis = resources == null ? RedisClient.create() : RedisClient.create(resources);
        redis.setOptions(ours(options));
    }

    private static ClientOptions ours(ClientOptions theirs) {
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

    /** The node that has the lock, as far as is known. */
    Node home(String name) {
        RedisURI known = homes.isEmpty() ? null : homes.get(SlotHash.getSlot(name));
        return nodes.computeIfAbsent(known == null ? any() : known, Node::new);
    }

    /** Any node of a cluster knows. They are asked in turn, as some may be down. */
    private RedisURI any() {
        List<RedisURI> all = new ArrayList<>(seeds);
        all.addAll(homes.values());
        return all.get(Math.floorMod(turn.get(), all.size()));
    }

    /** Sends what takes no time, on the connection that all share. */
    CompletableFuture<List<Object>> ask(Node node, List<Request> requests) {
        return shared(node)
                .thenCompose(connection -> Node.send(connection, requests))
                .thenCompose(replies -> {
                    if (replies.get(0) instanceof Refusal refusal
                            && refusal.code().equals("ASK")) {
                        Node other = asked(node, refusal);
                        List<Request> asking = new ArrayList<>(List.of(Request.ASKING));
                        asking.addAll(requests);
                        return shared(other)
                                .thenCompose(connection -> Node.send(connection, asking))
                                .thenApply(all -> all.subList(1, all.size()));
                    }
                    return CompletableFuture.completedFuture(replies);
                });
    }

    /** Sends it once, with its reply, or null where none comes. */
    CompletableFuture<@Nullable Object> send(String name, Request request) {
        Node node = home(name);
        return ask(node, List.of(request)).handle((replies, error) -> {
            Object reply = replies == null ? null : replies.get(0);
            if (reply instanceof Refusal refusal && refusal.code().equals("MOVED")) {
                moved(node, name, refusal);
            } else if (reply instanceof Refusal refusal && refusal.code().equals("READONLY")) {
                leave(node);
            }
            return reply;
        });
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> shared(Node node) {
        return node.shared(() -> connect(node).whenComplete((connection, error) -> {
            if (error != null) {
                leave(node);
                return;
            }
            connection.addListener(new RedisConnectionStateListener() {
                @Override
                public void onRedisDisconnected(RedisChannelHandler<?, ?> broken) {
                    broken(node);
                }
            });
            if (!connection.isOpen()) {
                broken(node);
            }
        }));
    }

    /** A connection for one who waits. */
    CompletableFuture<StatefulRedisConnection<String, String>> line(Node node) {
        for (; ; ) {
            StatefulRedisConnection<String, String> spare = node.spare.poll();
            if (spare == null) {
                return connect(node);
            }
            if (spare.isOpen()) {
                return CompletableFuture.completedFuture(spare);
            }
            spare.closeAsync();
        }
    }

    /** Keeps a connection for who waits next. Nothing may be under way on it. */
    void giveBack(Node node, StatefulRedisConnection<String, String> line) {
        if (closed || nodes.get(node.uri) != node || node.spare.size() >= SPARE) {
            line.closeAsync();
        } else {
            node.spare.add(line);
        }
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> connect(Node node) {
        if (closed) {
            return CompletableFuture.failedFuture(closed());
        }
        return address(node)
                .thenCompose(address -> redis.connectAsync(StringCodec.UTF8, address))
                .whenComplete((connection, error) -> {
                    if (closed && error == null) {
                        connection.closeAsync();
                    } else if (isGone(error)) {
                        leave(node);
                    }
                });
    }

    /** A node stays where it is: when Sentinels send elsewhere, that is another one. */
    private CompletableFuture<RedisURI> address(Node node) {
        return node.address(() -> lookUp(node.uri).whenComplete((address, error) -> {
            if (error != null) {
                leave(node);
            }
        }));
    }

    private CompletableFuture<RedisURI> lookUp(RedisURI uri) {
        // Without its Sentinels.
        RedisURI.Builder address = RedisURI.builder(uri).withTimeout(Duration.ofNanos(unhurriedLimit()));
        if (uri.getSentinels().isEmpty()) {
            return CompletableFuture.completedFuture(address.build());
        }
        // The first one that answers is believed, as others may stand still.
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

    /** The lock is elsewhere, as the server says. */
    void moved(Node node, String name, Refusal refusal) {
        homes.put(SlotHash.getSlot(name), address(node, refusal));
    }

    /** Where MOVED and ASK send. A node that does not know its own name means the one that it was reached by. */
    private static RedisURI address(Node asked, Refusal refusal) {
        String to = refusal.words().substring(refusal.words().lastIndexOf(' ') + 1);
        int colon = to.lastIndexOf(':');
        String host = to.substring(0, colon);
        return RedisURI.builder(asked.uri)
                .withHost(host.isEmpty() || host.equals("?") ? asked.uri.getHost() : host)
                .withPort(Integer.parseInt(to.substring(colon + 1)))
                .build();
    }

    /** Asks anew where things are, on new connections. */
    void leave(Node node) {
        if (nodes.remove(node.uri, node)) {
            homes.values().removeIf(node.uri::equals);
            turn.incrementAndGet();
            node.close();
        }
    }

    private void broken(Node node) {
        if (!closed) {
            leave(node);
            onBreak.run();
        }
    }

    Node asked(Node node, Refusal refusal) {
        return nodes.computeIfAbsent(address(node, refusal), Node::new);
    }

    /**
     * Whether nothing speaks against a server at which somebody waits: that it is silent, or gone, or another one has the lock
     * now. It does not if there is no second connection to be had to ask it: for want of room, say, or of its new password.
     *
     * @param name null, if a node has sent here that is known to have the lock
     */
    CompletableFuture<Boolean> serves(Node node, @Nullable String name) {
        RedisURI known = name == null ? null : homes.get(SlotHash.getSlot(name));
        if (known != null && !known.equals(node.uri)) {
            return CompletableFuture.completedFuture(false);
        }
        Node now = nodes.computeIfAbsent(node.uri, Node::new);
        CompletableFuture<RedisURI> there = address(now);
        return there.thenCombine(address(node), RedisURI::equals)
                .thenCompose(isSame -> isSame ? answers(now) : CompletableFuture.completedFuture(false))
                .exceptionally(error -> there.isCompletedExceptionally() || !isGone(error));
    }

    private CompletableFuture<Boolean> answers(Node node) {
        return shared(node).thenCompose(connection -> Node.send(connection, List.of(Request.PING))
                .orTimeout(unhurriedLimit(), TimeUnit.NANOSECONDS)
                .handle((reply, error) -> {
                    boolean isSilent = error instanceof TimeoutException;
                    if (isSilent) {
                        leave(node);
                    }
                    return !isSilent;
                }));
    }

    /** Whether no connection could be made because nobody answers there. */
    private static boolean isGone(@Nullable Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof RedisCommandTimeoutException
                    || (each instanceof ConnectException && !(each instanceof ConnectTimeoutException))) {
                return true;
            }
        }
        return false;
    }

    /** How long it may take to connect; and to answer before a place in a queue is given up. */
    private long unhurriedLimit() {
        return Math.max(LEAST, responseLimit());
    }

    /** How long a server may take to answer what takes no time. */
    long responseLimit() {
        return patience / 2;
    }

    /** How often a server is asked whether it is still there, while somebody waits in its queue. */
    long probeInterval() {
        return patience;
    }

    void pause(long span, boolean interruptible) throws InterruptedException {
        try {
            Clock.await(closing, span, interruptible);
            throw closed();
        } catch (TimeoutException over) {
            // as it should be
        } catch (ExecutionException never) {
            throw new AssertionError(never);
        }
    }

    boolean isClosed() {
        return closed;
    }

    void checkOpen() {
        if (closed) {
            throw closed();
        }
    }

    private static IllegalStateException closed() {
        return new IllegalStateException("the client is closed");
    }

    /** Whoever waits on a connection learns that it is closed. */
    @Override
    public void close() {
        closed = true;
        closing.complete(null);
        redis.shutdownAsync(0, 2, TimeUnit.SECONDS).join();
    }
}
