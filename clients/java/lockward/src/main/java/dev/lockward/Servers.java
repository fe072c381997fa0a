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
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
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

    private static final long CLOSE_LIMIT = 2; // in seconds

    /** How long to wait for the Sentinels before the client uses the last known primary. */
    private static final long SENTINEL_LIMIT = 250;

    final Clock.Timer timer = new Clock.Timer();
    final long responseLimit;
    volatile boolean isClosed;

    /** How many calls may wait on connections of their own. */
    private final int waitingConnections;

    /** The turns that have not ended, in the order in which they begin. Guarded by the monitor of this list. */
    private final List<CompletableFuture<Void>> turns = new ArrayList<>();

    private final RedisClient redis;
    private final Runnable onConnectionLost;

    /** When a connection was last lost, or another server became the primary. */
    volatile long lostAt = Long.MIN_VALUE;

    private final Map<RedisURI, Node> nodes = new ConcurrentHashMap<>();

    /** The first node that the program has named. */
    private final Node first;

    /** The nodes that the client knows, by slot. Empty without a cluster. */
    private final Map<Integer, Node> nodesBySlot = new ConcurrentHashMap<>();

    /** Runs the code that begins to open a connection. */
    private volatile Executor starter = Runnable::run;

    /** @param onConnectionLost called when the connection to a node is lost, or when another server has become the primary */
    Servers(LockwardClient.Builder settings, Runnable onConnectionLost) {
        first = settings.uris.stream().map(this::node).toList().get(0);
        responseLimit = settings.responseLimit;
        waitingConnections = settings.waitingConnections;
        this.onConnectionLost = onConnectionLost;
        redis = settings.resources == null ? RedisClient.create() : RedisClient.create(settings.resources);
        redis.setOptions(ownOptions(settings.options, Duration.ofMillis(Math.min(responseLimit, Integer.MAX_VALUE))));
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

    /**
     * Begins to open the first connection. For this, Lettuce loads its classes in this thread, which takes seconds on a busy machine. The
     * patience of the first call does not include this time, because the call begins later. If the connection fails, the first request
     * opens another connection.
     */
    void openFirst() {
        first.connection(false);
        starter = redis.getResources().eventExecutorGroup();
    }

    /** Ends all calls: their pauses, and their waits for replies. */
    void endCalls() {
        isClosed = true;
        timer.end();
    }

    /** Closes all connections, within 2 seconds even if the program blocks the threads of shared resources. */
    void close() {
        redis.shutdownAsync(0, CLOSE_LIMIT, TimeUnit.SECONDS)
                .completeOnTimeout(null, CLOSE_LIMIT, TimeUnit.SECONDS)
                .join();
    }

    // The turns of calls that wait in a server's queue. Each of these calls has a connection of its own.

    /** Returns a future that completes when the turn of the caller begins. */
    CompletableFuture<Void> beginTurn() {
        CompletableFuture<Void> turn = new CompletableFuture<>();
        synchronized (turns) {
            turns.add(turn);
            if (turns.size() <= waitingConnections) {
                turn.complete(null);
            }
        }
        return turn;
    }

    /** Ends a turn, even if the turn has not begun. */
    void endTurn(CompletableFuture<Void> turn) {
        Optional<CompletableFuture<Void>> last;
        synchronized (turns) {
            turns.removeIf(each -> each == turn);
            last = turns.stream().skip(waitingConnections - 1).findFirst();
        }
        last.ifPresent(next -> next.complete(null)); // has no effect if the next turn has already begun
    }

    // The node of a key.

    /** The node that has the key, or null if the client does not know it. */
    @Nullable
    Node nodeOf(String key) {
        return nodes.size() == 1 ? first : nodesBySlot.get(SlotHash.getSlot(key));
    }

    /**
     * Any node, which redirects requests to the node that has the key. Nodes with an open connection come first.
     *
     * @param failures how often the request has failed. After each failure the method returns another node
     */
    Node anyNode(int failures) {
        List<Node> all = nodes.values().stream()
                .sorted(Comparator.comparing(node -> node.openConnection() == null))
                .toList();
        return all.get(failures % all.size());
    }

    /** Remembers which node has the key. Null means that the client does not know it any more. */
    void learn(String key, @Nullable Node node) {
        if (nodes.size() > 1) {
            nodesBySlot.compute(SlotHash.getSlot(key), (slot, known) -> node);
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

    private void connectionLost() {
        lostAt = Clock.now();
        onConnectionLost.run();
    }

    record Connection(StatefulRedisConnection<String, String> redis, boolean isShared, long opened) {}

    /** A server, or the primary that Sentinels know, and the connections to it. */
    final class Node {
        private final RedisURI uri;

        /** The connections that were neither closed nor lost. */
        private final Set<Connection> connections = ConcurrentHashMap.newKeySet();

        /** The idle connections for waits. */
        private final Queue<Connection> idle = new ConcurrentLinkedQueue<>();

        /** The address of the last shared connection. */
        private volatile @Nullable RedisURI address;

        /** Completes when the shared connection is open, and the futures of all earlier calls of {@link #shared()} have completed. */
        private CompletableFuture<Connection> shared = CompletableFuture.failedFuture(new IllegalStateException());

        private Node(RedisURI uri) {
            this.uri = uri;
        }

        /**
         * A connection for a request.
         *
         * @param isOwn true for a connection that no other request uses; the caller must call {@link #giveBack}. False for the shared
         *     connection or, if the server accepts no connection, for an idle connection
         */
        CompletableFuture<Connection> connection(boolean isOwn) {
            Connection unused = isOwn ? idle.poll() : null;
            if (unused != null) {
                return CompletableFuture.completedFuture(unused);
            } else if (isOwn) {
                return shared().thenCompose(located -> open(Objects.requireNonNull(address), false));
            }
            return shared().exceptionallyCompose(error -> {
                Connection last = idle.poll();
                return last == null ? CompletableFuture.failedFuture(error) : CompletableFuture.completedFuture(last);
            });
        }

        /** The shared connection. The futures of several calls complete in the order of the calls. */
        private synchronized CompletableFuture<Connection> shared() {
            if (shared.isDone() && openConnection() == null) {
                shared = openShared();
            }
            if (shared.isDone()) {
                return shared;
            }
            // A future completes its dependents in reverse order. So each call depends on the future of the previous
            // call.
            CompletableFuture<Connection> opened = new CompletableFuture<>();
            shared = shared.whenComplete((connection, error) -> Clock.complete(opened, connection, error));
            return opened;
        }

        /** The shared connection, or null if it is not open. */
        private synchronized @Nullable Connection openConnection() {
            Connection connection = shared.isCompletedExceptionally() ? null : shared.getNow(null);
            return connection != null && connection.redis.isOpen() ? connection : null;
        }

        private CompletableFuture<Connection> openShared() {
            // If one of these steps throws an exception, the calls that wait for the connection get this exception.
            return CompletableFuture.completedFuture(uri)
                    .thenCompose(configured -> primary())
                    .thenCompose(primary -> open(primary, true).thenApply(connection -> {
                        RedisURI last = address;
                        address = primary;
                        if (last != null && !last.equals(primary)) { // there is a new primary
                            connections.stream()
                                    .filter(each -> !each.equals(connection))
                                    .forEach(this::close);
                            connectionLost();
                        }
                        return connection;
                    }));
        }

        private CompletableFuture<Connection> open(RedisURI server, boolean isShared) {
            return connect(server).thenApply(redis -> {
                Connection connection = new Connection(redis, isShared, Clock.now());
                connections.add(connection);
                redis.addListener(new RedisConnectionStateListener() {
                    @Override
                    public void onRedisDisconnected(RedisChannelHandler<?, ?> closed) {
                        lost(connection);
                    }
                });
                if (!redis.isOpen()) {
                    lost(connection);
                }
                return connection;
            });
        }

        private void lost(Connection connection) {
            if (close(connection) && connection.isShared && !isClosed) {
                connectionLost();
            }
        }

        /**
         * Closes a connection, also a broken one, because Lettuce keeps each connection until it is closed. Returns false if the connection
         * was closed before.
         */
        private boolean close(Connection connection) {
            idle.remove(connection);
            boolean isFirst = connections.remove(connection);
            // Lettuce warns of a second close. When the client is closed, Lettuce closes all connections.
            if (isFirst && !isClosed) {
                connection.redis.closeAsync();
            }
            return isFirst;
        }

        /**
         * Uses new connections from now on, because the server does not answer or is not the primary any more. If the shared connection
         * is broken, the idle connections stay, because the server may accept no new connection.
         *
         * @param sent when the client sent the request. If the shared connection is newer, this method does nothing
         */
        synchronized void replace(long sent) {
            Connection old = openConnection();
            if (old != null && old.opened <= sent) {
                shared = CompletableFuture.failedFuture(new IllegalStateException());
                idle.forEach(this::close);
                // Other requests on this connection may still get their replies.
                timer.at(Clock.now() + responseLimit, () -> close(old));
            }
        }

        /**
         * Takes back a connection that a wait has used. If {@code isIdle} is true, keeps the connection for 5 seconds. If {@code isIdle} is
         * false, closes the connection. Does nothing for a shared connection.
         */
        void giveBack(Connection connection, boolean isIdle) {
            if (isIdle && !connection.isShared && connection.redis.isOpen()) {
                idle.add(connection);
                timer.at(Clock.now() + IDLE_LIMIT, () -> {
                    if (idle.remove(connection)) {
                        close(connection);
                    }
                });
            } else if (!connection.isShared) {
                close(connection);
            }
        }

        // The primary.

        /** The address of the server. If there are Sentinels, this is the address of the primary that they name. */
        private CompletableFuture<RedisURI> primary() {
            List<RedisURI> sentinels = uri.getSentinels();
            if (sentinels.isEmpty()) {
                return CompletableFuture.completedFuture(uri);
            }
            // Use the first answer, because other Sentinels may not answer.
            CompletableFuture<RedisURI> found = new CompletableFuture<>();
            CompletableFuture<RedisURI> last = timer.limit(
                            Clock.now() + SENTINEL_LIMIT, new CompletableFuture<RedisURI>())
                    .exceptionallyCompose(waited -> found.isDone() ? found : lastKnown());
            Stream<CompletableFuture<RedisURI>> answers =
                    Stream.concat(sentinels.stream().map(this::askSentinel), Stream.of(last));
            Clock.all(answers.map(answer -> answer.thenAccept(found::complete))).exceptionally(error -> {
                found.completeExceptionally(Clock.cause(error)); // has no effect after an answer
                return null;
            });
            return found;
        }

        private CompletableFuture<RedisURI> askSentinel(RedisURI sentinel) {
            String name = uri.getSentinelMasterId();
            return ask(sentinel, new Request("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name))
                    .thenApply(reply -> {
                        if (reply instanceof List<?> primary) {
                            return RedisURI.builder(uri) // copies the settings, but not the Sentinels
                                    .withHost(String.valueOf(primary.get(0)))
                                    .withPort(Integer.parseInt(String.valueOf(primary.get(1))))
                                    .build();
                        }
                        throw new IllegalStateException("no primary is called " + name);
                    });
        }

        /** The address of the last known primary, if this server is still a primary. */
        private CompletableFuture<RedisURI> lastKnown() {
            RedisURI last = address;
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
    }

    /** Sends a request on a new connection, and then closes the connection. The reply must arrive within the response limit. */
    private CompletableFuture<@Nullable Object> ask(RedisURI server, Request request) {
        CompletableFuture<StatefulRedisConnection<String, String>> connected = connect(server);
        CompletableFuture<@Nullable Object> reply = connected.thenCompose(connection -> {
            connection.dispatch(request);
            return request.thenApply(replies -> replies.get(0));
        });
        return timer.limit(Clock.now() + responseLimit, reply)
                .whenComplete((answer, error) -> connected.thenAccept(StatefulRedisConnection::closeAsync));
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> connect(RedisURI server) {
        // Lettuce closes a connection whose login takes longer than the timeout in the URI.
        RedisURI.Builder limited = RedisURI.builder(server).withTimeout(Duration.ofMillis(responseLimit));
        // Lettuce may block while it reads certificates from files, so another thread calls Lettuce.
        return CompletableFuture.supplyAsync(() -> redis.connectAsync(StringCodec.UTF8, limited.build()), starter)
                .thenCompose(started -> started)
                .whenComplete((connection, error) -> {
                    if (isClosed && error == null) {
                        connection.closeAsync();
                    }
                });
    }
}
