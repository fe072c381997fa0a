package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.resource.ClientResources;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A client of one server, of the primary that Sentinels know, or of a cluster, for all threads of a process. See {@link #getLock}.
 *
 * <p>The client opens one shared connection to each server, and one connection for each call that waits in a server's queue. One
 * thread watches all leases.
 */
public final class LockwardClient implements AutoCloseable {
    private static final String CLOSED = "the client was closed";

    final Servers servers;
    final long patience;

    /**
     * A thread holds this lock while it sends the requests for several keys, so that pipelines do not mix. It is not a monitor, because
     * a monitor would pin virtual threads.
     */
    final Lock pipeline = new ReentrantLock();

    /** The locks of each thread, by key. */
    final ThreadLocal<Map<String, Tenure>> threadTenures = ThreadLocal.withInitial(HashMap::new);

    /** Sets the client's settings in a new request. */
    final Consumer<LockRequest> defaults;

    /** The name of a new owner consists of this id and a number. */
    final String id = UUID.randomUUID().toString();

    final AtomicLong owners = new AtomicLong();

    /** The tenures that are held. If the program drops a tenure, the tenure leaves this set, and the client stops renewing the tenure. */
    final Set<Tenure> live = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

    // When the timer calls onAlarm next. Both fields are guarded by the monitor of the set `live`.
    private Future<?> alarm = CompletableFuture.completedFuture(null);
    private long alarmAt = Clock.now() + Clock.FOREVER;

    /** Runs listeners. It starts as many threads as necessary, so a slow listener does not delay other listeners. */
    final Executor callbacks = Executors.newCachedThreadPool(task -> Clock.daemon(task, "lockward-callback"));

    private LockwardClient(Builder builder) {
        patience = builder.patience;
        defaults = builder.defaults;
        servers = new Servers(builder, () -> check(true));
        servers.openFirst();
    }

    /**
     * A client of one server, such as {@code redis://localhost}, or of the primary that Sentinels know, such as {@code
     * redis-sentinel://one,two,three/0#name}. The client connects in the background.
     *
     * @param uri a URI in the form that {@link RedisURI} describes. {@code rediss} means TLS. {@code user:password@} comes before the host
     */
    public static LockwardClient create(String uri) {
        return builder(RedisURI.create(uri)).build();
    }

    /**
     * A client of one server, of the primary that Sentinels know, or of a cluster.
     *
     * @param uri the server, or the Sentinels
     * @param others other nodes of the same cluster
     */
    public static Builder builder(RedisURI uri, RedisURI... others) {
        return new Builder(uri, others);
    }

    /** The settings of a client. */
    public static final class Builder {
        final List<RedisURI> uris = new ArrayList<>();

        @Nullable
        ClientResources resources;

        ClientOptions options = ClientOptions.create();
        private Consumer<LockRequest> defaults = request -> {};
        private long patience = 5_000;
        long responseLimit = 2_000;
        int waitingConnections = 256;

        private Builder(RedisURI uri, RedisURI... others) {
            uris.add(uri);
            uris.addAll(List.of(others));
        }

        /** Sets Lettuce's threads and other resources, to share them with other clients. {@link #close} does not shut them down. */
        public Builder resources(ClientResources shared) {
            resources = shared;
            return this;
        }

        /**
         * Sets Lettuce's options for TLS (CA and client certificate) and sockets. The client ignores the options for reconnects and
         * timeouts.
         */
        public Builder options(ClientOptions connections) {
            options = connections;
            return this;
        }

        /**
         * The lease: how long a lock lasts without renewal, for example after this process has died. The client renews the lock when
         * a third of the lease is over. Without this setting, the lease is the server's {@code lock.default-lease}.
         *
         * @param renewed at least 2 ms, rounded up to milliseconds
         */
        public Builder lease(Duration renewed) {
            long millis = Clock.span(renewed, Clock.SHORTEST_LEASE, "lease");
            defaults = defaults.andThen(request -> request.lease = millis);
            return this;
        }

        /**
         * How long the client repeats a request while no server answers: 5 seconds by default. Then it throws {@link
         * LockUnreachableException}. A thread in a server's queue keeps waiting until its wait limit.
         */
        public Builder patience(Duration limit) {
            patience = Clock.span(limit, 1, "patience");
            return this;
        }

        /** How long the client waits for a reply before it sends the request again on a new connection: 2 seconds by default. */
        public Builder responseLimit(Duration limit) {
            responseLimit = Clock.span(limit, 1, "response limit");
            return this;
        }

        /**
         * How many calls may wait in servers' queues at a time, each on its own connection: 256 by default. Further calls are in no
         * queue: each sends a request at least once a second.
         */
        public Builder waitingConnections(int limit) {
            if (limit < 1) {
                throw new IllegalArgumentException("at least one connection must be allowed to wait: " + limit);
            }
            waitingConnections = limit;
            return this;
        }

        /**
         * Acquires locks only if {@code count} replicas confirm the grant before the time {@code within} is over. If fewer replicas
         * confirm the grant, the client releases the lock, and throws {@link LockUnreplicatedException}. A replica that has confirmed a
         * grant still has the lock when the replica becomes the primary.
         */
        public Builder replicas(int count, Duration within) {
            LockRequest.timeForReplicas(count, within);
            defaults = defaults.andThen(request -> request.replicas(count, within));
            return this;
        }

        /** Calls {@code listener} when a held lock is lost: see {@link HeldLock#onLost}. */
        public Builder onLost(Consumer<LockLostException> listener) {
            defaults = defaults.andThen(request -> request.onLost(listener));
            return this;
        }

        /** Creates the client. Close it when it is not needed any more. */
        public LockwardClient build() {
            return new LockwardClient(this);
        }
    }

    // The kinds of locks.

    /**
     * Returns a request for a lock, with all settings and all ways to acquire the lock. The methods below are short forms.
     *
     * @param keys the key on the server, or several keys that form one lock
     */
    public LockRequest request(String... keys) {
        // All clients sort keys by their bytes. Other sort orders could cause deadlocks between clients.
        List<String> sorted = Arrays.stream(keys)
                .map(key -> Objects.requireNonNull(key, "key"))
                .distinct()
                .sorted((one, other) -> Arrays.compareUnsigned(
                        one.getBytes(StandardCharsets.UTF_8), other.getBytes(StandardCharsets.UTF_8)))
                .toList();
        if (sorted.isEmpty()) {
            throw new IllegalArgumentException("a lock needs a key");
        }
        return new LockRequest(this, sorted);
    }

    /**
     * A lock for threads, not yet acquired. Objects with the same name and client are the same lock.
     *
     * @param name the key on the server
     */
    public LockwardLock getLock(String name) {
        return request(name).asLock();
    }

    /** A read lock and a write lock of one key. The write lock is the same lock as {@link #getLock} returns for this key. */
    public LockwardReadWriteLock getReadWriteLock(String name) {
        return new LockwardReadWriteLock(request(name).shared().asLock(), getLock(name));
    }

    /**
     * A semaphore.
     *
     * @param slots how many permits there are, 1 to 1,000,000. The number should be the same for all callers
     */
    public LockwardSemaphore getSemaphore(String name, int slots) {
        return new LockwardSemaphore(this, name, slots);
    }

    /** Several keys as one lock for threads. Two locks of several keys do not deadlock, even if they share keys. */
    public LockwardLock getMultiLock(String... names) {
        return request(names).asLock();
    }

    /** The work of a leader. */
    @FunctionalInterface
    public interface Leader {
        /**
         * Runs while the process leads. When the leadership is lost, the client interrupts the thread.
         *
         * @param term the lock, with the fencing token as the number of the term
         */
        void run(HeldLock term) throws InterruptedException;
    }

    /**
     * Waits without limit until this process is the leader, even while no server answers. Then runs {@code leader} in this thread. If the
     * lock is lost while {@code leader} runs, the client interrupts this thread. After {@code leader} has returned or thrown an exception,
     * this method waits again. If {@code leader} ends while the lock is held, this method releases the lock and ends.
     *
     * @throws LockLostException when the release finds that the lock was lost
     * @throws LockUnreachableException when no server answers the release
     * @throws InterruptedException when the program has interrupted this thread
     */
    public void lead(String name, Leader leader) throws InterruptedException {
        request(name).lead(leader);
    }

    /**
     * Continues a lock of another process.
     *
     * @param handle the text that {@link HeldLock#handle} has returned in the other process
     * @throws IllegalArgumentException when the text is not the handle of a lock
     * @throws LockLostException when the lock was lost meanwhile
     * @throws LockUnreachableException when no server answers
     */
    public HeldLock resume(String handle) {
        return HeldLock.resume(this, handle);
    }

    /**
     * Closes all connections, and stops the renewals. This method does not release the locks. Locks that are held count as lost, and the
     * client calls their listeners. The server frees the locks when their leases end. Threads that wait for a lock get an
     * IllegalStateException.
     */
    @Override
    public void close() {
        servers.endCalls();
        List.copyOf(live).forEach(tenure -> tenure.lose(CLOSED));
        servers.close();
    }

    // Methods for tenures and acquisitions.

    /** Returns a call that ends when the patience is over, at the latest. */
    Call call(String key) {
        return new Call(servers, key, Clock.now() + patience);
    }

    /** Makes the timer check all tenures at this instant, or earlier. */
    void wakeAt(long due) {
        synchronized (live) {
            if (due < alarmAt && !servers.isClosed) {
                alarm.cancel(false);
                alarmAt = due;
                alarm = servers.timer.at(due, this::onAlarm);
            }
        }
    }

    private void onAlarm() {
        synchronized (live) {
            alarmAt = Clock.now() + Clock.FOREVER;
        }
        if (!servers.isClosed) {
            // When the client is closed, this thread may hold a tenure's monitor, so a check could cause a deadlock.
            check(false);
        }
    }

    /** @param mayBeForgotten whether a connection was lost, so that a server may have forgotten its tenures */
    private void check(boolean mayBeForgotten) {
        List.copyOf(live).forEach(tenure -> tenure.check(mayBeForgotten));
    }

    void watch(Tenure tenure) {
        live.add(tenure);
        if (servers.isClosed) {
            tenure.lose(CLOSED);
        }
        tenure.check(false);
    }

    /** Returns a copy of the future. The copy completes in a thread that the program may block. */
    <T> CompletableFuture<T> async(CompletableFuture<T> future) {
        CompletableFuture<T> copy = new CompletableFuture<>();
        future.whenCompleteAsync((value, error) -> Clock.complete(copy, value, error), callbacks);
        return copy;
    }
}
