package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.resource.ClientResources;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A client of one server, of the primary that Sentinels know, or of a cluster, for all threads of a process. See {@link #getLock}.
 *
 * <p>It opens one connection to each server that all requests share, and one for each thread that waits in a server's queue. One
 * thread renews all locks.
 */
public final class LockwardClient implements AutoCloseable {
    private static final System.Logger LOGGER = System.getLogger(LockwardClient.class.getName());
    private static final int LISTENER_THREADS = 4;
    private static final int MAX_ABANDONED = 10_000;
    private static final String CLOSED = "the client was closed";

    private final Settings settings;
    private final Servers servers;
    private final Semaphore waitPermits;
    private final String id = UUID.randomUUID().toString();
    private final AtomicLong owners = new AtomicLong();
    private final ThreadLocal<ThreadLocks> threadLocks =
            ThreadLocal.withInitial(() -> new ThreadLocks(newOwner(), new HashMap<>(), new HashSet<>()));
    private final Set<Tenure> tenures = Collections.newSetFromMap(new WeakHashMap<>());
    private final ScheduledThreadPoolExecutor watchdog;
    private final ThreadPoolExecutor listenerThreads;

    /** Acquisitions that have failed and may be granted. They are withdrawn when a server answers. */
    private final Queue<AbandonedAcquire> abandoned = new LinkedBlockingQueue<>(MAX_ABANDONED);

    private final AtomicBoolean isWithdrawing = new AtomicBoolean();

    private record AbandonedAcquire(OwnedKey ownedKey, long leaseEnd) {}

    /** The locks of a thread, by key; and the keys of those that the owner may still hold, because no server has released them. */
    private record ThreadLocks(String owner, Map<String, Tenure> tenures, Set<String> leftovers) {
        private static final int MANY = 100;

        /** Removes locks that were left to their leases, if there are many. To unlock them then says that they are not held. */
        void removeExpired() {
            if (tenures.size() >= MANY) {
                tenures.values().removeIf(tenure -> !tenure.isHeld() && !tenure.isRenewed());
            }
        }
    }

    record Replicas(int count, long within) {}

    private record Settings(
            @Nullable Long lease,
            long patience,
            int waitingConnections,
            @Nullable Replicas replicas,
            @Nullable Consumer<LockLostException> onLost) {}

    private LockwardClient(Builder builder) {
        settings = new Settings(
                builder.lease, builder.patience, builder.waitingConnections, builder.replicas, builder.onLost);
        waitPermits = new Semaphore(settings.waitingConnections());
        servers = new Servers(builder.uris, builder.resources, builder.options, settings.patience(), this::renewAllNow);
        watchdog = new ScheduledThreadPoolExecutor(1, daemons("lockward-watchdog"));
        watchdog.setRemoveOnCancelPolicy(true);
        listenerThreads = new ThreadPoolExecutor(
                LISTENER_THREADS,
                LISTENER_THREADS,
                10,
                TimeUnit.SECONDS,
                new LinkedBlockingQueue<>(),
                daemons("lockward-lost"));
        listenerThreads.allowCoreThreadTimeOut(true);
    }

    private static ThreadFactory daemons(String name) {
        return task -> {
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    /**
     * A client of one server, {@code redis://localhost}, or of the primary that Sentinels know, {@code
     * redis-sentinel://one,two,three/0#name}. It connects when it sends its first request.
     *
     * @param uri as {@link RedisURI} describes it
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
        private final List<RedisURI> uris = new ArrayList<>();
        private @Nullable ClientResources resources;
        private ClientOptions options = ClientOptions.create();
        private @Nullable Long lease;
        private long patience = TimeUnit.SECONDS.toNanos(5);
        private int waitingConnections = 256;
        private @Nullable Replicas replicas;
        private @Nullable Consumer<LockLostException> onLost;

        private Builder(RedisURI uri, RedisURI... others) {
            uris.add(uri);
            uris.addAll(List.of(others));
        }

        /** Lettuce's threads and other resources, to share them with other clients. {@link #close} does not shut them down. */
        public Builder resources(ClientResources shared) {
            resources = shared;
            return this;
        }

        /** Lettuce's options, for TLS and sockets. Those for reconnecting and timeouts are ignored. */
        public Builder options(ClientOptions connections) {
            options = connections;
            return this;
        }

        /**
         * The lease of locks that are renewed: how long a lock stays held after this process dies. It is renewed when a third
         * of it is over. Without this setting, it is the server's default, 30 seconds unless set.
         *
         * @param renewed more than 0, rounded up to milliseconds
         */
        public Builder lease(Duration renewed) {
            lease = Clock.lease(renewed);
            return this;
        }

        /**
         * How long a request is repeated while no server answers, before {@link LockUnreachableException}: 5 seconds unless set.
         * If a server does not reply for half of this time, the client opens a new connection.
         */
        public Builder patience(Duration limit) {
            if (limit.isZero() || limit.isNegative()) {
                throw new IllegalArgumentException("the patience must be more than 0: " + limit);
            }
            patience = Clock.span(limit);
            return this;
        }

        /**
         * How many threads may wait in servers' queues at a time, each on its own connection: 256 unless set. More threads are
         * not in a queue: they ask once a second or more often whether the lock is free.
         */
        public Builder waitingConnections(int limit) {
            if (limit < 1) {
                throw new IllegalArgumentException("at least one connection must be allowed to wait: " + limit);
            }
            waitingConnections = limit;
            return this;
        }

        /**
         * Acquires locks only if so many replicas confirm the grant in time. Otherwise they are given back, and {@link
         * LockUnreplicatedException} is thrown. A replica that has confirmed a grant has the lock when it is promoted.
         */
        public Builder replicas(int count, Duration within) {
            replicas = new Replicas(count, Clock.lease(within));
            return this;
        }

        /** Called when any held lock is lost, as with {@link LockwardLock#onLost}. */
        public Builder onLost(Consumer<LockLostException> listener) {
            onLost = listener;
            return this;
        }

        /** Creates the client. Close it when it is not needed any more. */
        public LockwardClient build() {
            return new LockwardClient(this);
        }
    }

    /**
     * A lock for threads, not yet acquired. Objects with the same name and client are the same lock.
     *
     * @param name the key on the server
     */
    public LockwardLock getLock(String name) {
        return getLock(name, Mode.EXCLUSIVE);
    }

    /**
     * As {@link #getLock(String)}, but not exclusive. A thread that holds the lock may acquire it again in a mode with the same or
     * a larger limit, and keeps the mode that it has. Any other mode is refused until it has released the lock.
     *
     * @param name the key on the server
     */
    public LockwardLock getLock(String name, Mode mode) {
        return new LockwardLock(this, Objects.requireNonNull(name), Objects.requireNonNull(mode));
    }

    /**
     * Acquires a lock that is held by the returned object, independent of threads. It is not re-entrant, not even for the same
     * thread.
     *
     * @param name the key on the server
     * @param wait the wait limit; 0 does not wait
     * @param lease how long to hold the lock at most, more than 0; null: until it is released, with renewals
     * @return empty when the lock is busy for longer
     * @throws InterruptedException when the thread is interrupted. It has left the queue then, and holds nothing
     * @throws LockRefusedException when the server replies with an error
     * @throws LockUnreachableException when no server answers
     */
    public Optional<Tenure> tryAcquire(String name, Duration wait, @Nullable Duration lease)
            throws InterruptedException {
        return tryAcquire(name, Mode.EXCLUSIVE, wait, lease);
    }

    /** As {@link #tryAcquire(String, Duration, Duration)}, but not exclusive. */
    public Optional<Tenure> tryAcquire(String name, Mode mode, Duration wait, @Nullable Duration lease)
            throws InterruptedException {
        OwnedKey ownedKey = new OwnedKey(Objects.requireNonNull(name), newOwner(), Objects.requireNonNull(mode));
        return Optional.ofNullable(
                acquire(ownedKey, Clock.span(wait), lease == null ? null : Clock.lease(lease), true, null, false));
    }

    /**
     * Closes all connections, and stops the renewals. Held locks are not released: they are lost, their listeners are called, and
     * they end with their leases. Threads that wait get an IllegalStateException.
     */
    @Override
    public void close() {
        servers.close();
        watchdog.shutdownNow();
        liveTenures().forEach(tenure -> tenure.lose(CLOSED));
    }

    private String newOwner() {
        return id + ":" + owners.incrementAndGet();
    }

    // The locks of the current thread.

    @Nullable
    Tenure threadTenure(String name) {
        return threadLocks.get().tenures().get(name);
    }

    /** Acquires or re-enters a lock for the current thread. */
    boolean lock(String name, Mode mode, long wait, @Nullable Long lease, boolean interruptible)
            throws InterruptedException {
        if (interruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        ThreadLocks locks = threadLocks.get();
        Tenure present = locks.tenures().get(name);
        if (present != null) {
            try {
                present.reenter(mode, lease, interruptible);
                return true;
            } catch (LockLostException loss) {
                // A lock with a named lease may be left to that, and never be unlocked. It is acquired again.
                if (present.isRenewed()) {
                    throw loss;
                }
            }
        }
        OwnedKey ownedKey = new OwnedKey(name, locks.owner(), mode);
        boolean isLeftover = present != null || locks.leftovers().contains(name);
        Tenure tenure = acquire(ownedKey, wait, lease, interruptible, Thread.currentThread(), isLeftover);
        locks.leftovers().remove(name);
        if (tenure == null) {
            return false;
        }
        tenure.previous = present;
        if (present != null) {
            present.previous = null; // a thread that never unlocks leaves only one tenure behind
        }
        locks.removeExpired();
        locks.tenures().put(name, tenure);
        return true;
    }

    void unlock(String name) {
        ThreadLocks locks = threadLocks.get();
        Tenure tenure = locks.tenures().get(name);
        if (tenure == null) {
            throw notHeld(name);
        }
        locks.leftovers().add(name);
        try {
            tenure.releaseHold();
            locks.leftovers().remove(name);
        } finally {
            if (tenure.holds() == 0) {
                locks.tenures().compute(name, (key, ended) -> tenure.previous);
            }
        }
    }

    static IllegalMonitorStateException notHeld(String name) {
        return new IllegalMonitorStateException(
                "the lock " + name + " is not held by " + Thread.currentThread().getName());
    }

    private @Nullable Tenure acquire(
            OwnedKey ownedKey,
            long wait,
            @Nullable Long named,
            boolean interruptible,
            @Nullable Thread thread,
            boolean isLeftover)
            throws InterruptedException {
        servers.checkOpen();
        Long lease = named == null ? settings.lease() : named;
        Attempts attempts = attempts(ownedKey.name(), interruptible);
        Grant grant;
        try {
            grant = new PendingAcquire(
                            ownedKey, lease, settings.replicas(), attempts, waitPermits, wait, settings.patience())
                    .run(isLeftover);
        } catch (InterruptedException | RuntimeException failure) {
            if (!attempts.withdraw(ownedKey.withdraw(0))) {
                withdrawLater(ownedKey, lease);
            }
            throw failure;
        }
        if (grant == null) {
            return null;
        }
        Tenure tenure = new Tenure(this, ownedKey, grant, named == null, thread, settings.onLost());
        synchronized (tenures) {
            tenures.add(tenure);
        }
        if (servers.isClosed()) {
            tenure.lose(CLOSED);
        }
        tenure.schedule();
        return tenure;
    }

    /** Withdraws an acquisition that may be granted, when a server answers. */
    private void withdrawLater(OwnedKey ownedKey, @Nullable Long lease) {
        // From now on this thread uses another owner, so that its later acquisitions are not withdrawn.
        ThreadLocks locks = threadLocks.get();
        if (ownedKey.owner().equals(locks.owner())) {
            threadLocks.set(new ThreadLocks(newOwner(), locks.tenures(), new HashSet<>()));
        }
        long maxLease = lease == null ? TimeUnit.HOURS.toMillis(1) : lease; // the server's default is unknown
        if (abandoned.offer(new AbandonedAcquire(ownedKey, Clock.leaseEnd(Clock.now(), maxLease)))) {
            scheduleWithdrawal();
        }
    }

    private void scheduleWithdrawal() {
        if (!abandoned.isEmpty() && isWithdrawing.compareAndSet(false, true)) {
            schedule(this::withdrawNext, TimeUnit.SECONDS.toNanos(1));
        }
    }

    /** Withdraws one acquisition after the other: the servers may be down for long. */
    private void withdrawNext() {
        AbandonedAcquire next = abandoned.poll();
        if (next == null) {
            isWithdrawing.set(false);
            scheduleWithdrawal();
            return;
        }
        String name = next.ownedKey().name();
        send(name, next.ownedKey().withdraw(0))
                .orTimeout(responseLimit(), TimeUnit.NANOSECONDS)
                .whenComplete((reply, silence) -> {
                    if (silence != null) {
                        disconnect(name);
                    }
                    if (Attempts.isAnswer(reply)) {
                        withdrawNext();
                        return;
                    }
                    if (Clock.left(next.leaseEnd()) > 0) {
                        abandoned.offer(next);
                    }
                    isWithdrawing.set(false);
                    scheduleWithdrawal();
                });
    }

    boolean isLocked(String name) {
        try {
            Object reply = attempts(name, false).ask(Request.of("LOCK.INFO", name));
            ServerError.throwIfError(reply);
            return !((List<?>) reply).isEmpty();
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    // For tenures.

    Attempts attempts(String name, boolean interruptible) {
        return new Attempts(servers, name, settings.patience(), interruptible);
    }

    /** Sends a request once. The future completes with null if no reply arrives. */
    CompletableFuture<@Nullable Object> send(String name, Request request) {
        return servers.send(name, request);
    }

    /** Opens new connections to the node that has the lock, for the next requests. */
    void disconnect(String name) {
        servers.disconnect(servers.nodeFor(name));
    }

    long responseLimit() {
        return servers.responseLimit();
    }

    /** Calls {@code onTimer} after a delay, unless the program has dropped the tenure. */
    @Nullable
    Future<?> timer(Tenure tenure, long delay) {
        WeakReference<Tenure> reference = new WeakReference<>(tenure);
        return schedule(
                () -> {
                    Tenure live = reference.get();
                    if (live != null) {
                        live.onTimer();
                    }
                },
                delay);
    }

    private @Nullable Future<?> schedule(Runnable task, long delay) {
        try {
            return watchdog.schedule(task, delay, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            return null;
        }
    }

    private void renewAllNow() {
        liveTenures().forEach(Tenure::renewNow);
    }

    private List<Tenure> liveTenures() {
        synchronized (tenures) {
            return List.copyOf(tenures);
        }
    }

    void forget(Tenure tenure) {
        synchronized (tenures) {
            tenures.remove(tenure);
        }
    }

    /** Calls a listener in a thread that it may block. */
    void notifyLost(Consumer<LockLostException> listener, LockLostException loss) {
        listenerThreads.execute(() -> {
            try {
                listener.accept(loss);
            } catch (RuntimeException error) {
                LOGGER.log(System.Logger.Level.WARNING, "a listener for lost locks has failed", error);
            }
        });
    }
}
