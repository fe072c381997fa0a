package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.resource.ClientResources;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
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
 * The locks of a server, of the primary that Sentinels know, or of a cluster, for all threads of a process: see {@link #getLock}.
 *
 * <p>It has connections of its own: one for each server that all requests share, and one for each thread that waits in a
 * server's queue. One thread renews all that is held.
 */
public final class LockwardClient implements AutoCloseable {
    private static final System.Logger LOGGER = System.getLogger(LockwardClient.class.getName());
    private static final int LISTENING_THREADS = 4;
    private static final int MOST_LEFT = 10_000;
    private static final String CLOSED = "the client was closed";

    private final Settings settings;
    private final Servers servers;
    private final Semaphore waiting;
    private final String id = UUID.randomUUID().toString();
    private final AtomicLong owners = new AtomicLong();
    private final ThreadLocal<Mine> mine = ThreadLocal.withInitial(() -> new Mine(newOwner(), new HashMap<>()));
    private final Set<Tenure> tenures = Collections.newSetFromMap(new WeakHashMap<>());
    private final ScheduledThreadPoolExecutor watchdog;
    private final ThreadPoolExecutor listening;

    /** What may have been granted to who had given up, until a server has heard that nobody wants it. */
    private final Queue<Left> left = new LinkedBlockingQueue<>(MOST_LEFT);

    private final AtomicBoolean isWithdrawing = new AtomicBoolean();

    private record Left(Claim claim, long end) {}

    /** What a thread holds. */
    private record Mine(String owner, Map<String, Tenure> tenures) {
        private static final int MANY = 100;

        /** Of many locks that were left to their leases, those that are over. Unlocking them says that they are not held. */
        void forgetSome() {
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
        waiting = new Semaphore(settings.waitingConnections());
        servers = new Servers(builder.uris, builder.resources, builder.options, settings.patience(), this::hurry);
        watchdog = new ScheduledThreadPoolExecutor(1, daemons("lockward-watchdog"));
        watchdog.setRemoveOnCancelPolicy(true);
        listening = new ThreadPoolExecutor(
                LISTENING_THREADS,
                LISTENING_THREADS,
                10,
                TimeUnit.SECONDS,
                new LinkedBlockingQueue<>(),
                daemons("lockward-lost"));
        listening.allowCoreThreadTimeOut(true);
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
     * redis-sentinel://one,two,three/0#name}. It connects when it is first needed.
     *
     * @param uri as {@link RedisURI} describes it
     */
    public static LockwardClient create(String uri) {
        return builder(RedisURI.create(uri)).build();
    }

    /**
     * A client of one server, or of the primary that Sentinels know; with some nodes of it, of a cluster.
     *
     * @param uri the server, or the Sentinels
     * @param others other nodes of the same cluster
     */
    public static Builder builder(RedisURI uri, RedisURI... others) {
        return new Builder(uri, others);
    }

    /** How a client is to be. */
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

        /** Lettuce's threads and the like, to share them with other clients. They are not shut down by {@link #close}. */
        public Builder resources(ClientResources shared) {
            resources = shared;
            return this;
        }

        /** Lettuce's options, for TLS and sockets. How it reconnects and when it times out is not taken from there. */
        public Builder options(ClientOptions connections) {
            options = connections;
            return this;
        }

        /**
         * The lease of what is renewed: how long a lock stays when this process dies. It is renewed each time a third of it
         * has passed. Without this, it is the server's default, 30 seconds if that was not set.
         *
         * @param renewed more than 0, rounded up to milliseconds
         */
        public Builder lease(Duration renewed) {
            lease = Clock.lease(renewed);
            return this;
        }

        /**
         * How long to go on asking servers that do not answer, before {@link LockUnreachableException}: 5 seconds. A server
         * that has not answered for half of it is connected to anew.
         */
        public Builder patience(Duration limit) {
            if (limit.isZero() || limit.isNegative()) {
                throw new IllegalArgumentException("a patience is more than 0: " + limit);
            }
            patience = Clock.span(limit);
            return this;
        }

        /**
         * How many threads may wait in servers' queues at a time, each on a connection of its own: 256. Threads beyond that
         * have no place in a queue: they ask once a second, or somewhat more often, whether the lock is free.
         */
        public Builder waitingConnections(int limit) {
            if (limit < 1) {
                throw new IllegalArgumentException("one at least: " + limit);
            }
            waitingConnections = limit;
            return this;
        }

        /**
         * Acquires locks only if so many replicas have heard of it within a time; else they are given back, and {@link
         * LockUnreplicatedException} is thrown. A replica that has heard of a grant has it when it is promoted.
         */
        public Builder replicas(int count, Duration within) {
            replicas = new Replicas(count, Clock.lease(within));
            return this;
        }

        /** Called when any lock is lost that is held: as {@link LockwardLock#onLost}, for all of them. */
        public Builder onLost(Consumer<LockLostException> listener) {
            onLost = listener;
            return this;
        }

        /** The client. It is to be closed when it is needed no more. */
        public LockwardClient build() {
            return new LockwardClient(this);
        }
    }

    /**
     * A lock for threads, not yet acquired. Whatever objects are got by the same name from the same client are the same lock.
     *
     * @param name the key on the server
     */
    public LockwardLock getLock(String name) {
        return new LockwardLock(this, Objects.requireNonNull(name));
    }

    /**
     * Acquires a lock for whoever has the object that is returned, rather than for a thread: nobody re-enters, not even
     * the same thread.
     *
     * @param name the key on the server
     * @param wait how long to wait if need be; 0: not at all
     * @param lease how long to hold it at most, more than 0; null: until it is released, renewing it
     * @return nothing when it is busy for longer
     * @throws InterruptedException when the thread is interrupted: as {@link LockwardLock#lockInterruptibly}
     * @throws LockRefusedException when the server refuses
     * @throws LockUnreachableException when no server answers
     */
    public Optional<Tenure> tryAcquire(String name, Duration wait, @Nullable Duration lease)
            throws InterruptedException {
        Claim claim = new Claim(Objects.requireNonNull(name), newOwner());
        return Optional.ofNullable(
                acquire(claim, Clock.span(wait), lease == null ? null : Clock.lease(lease), true, null));
    }

    /**
     * Closes all connections, and renews nothing any more. What is held is not released: it is lost, as its holders are told,
     * and ends with its lease. Who waits gets an IllegalStateException.
     */
    @Override
    public void close() {
        servers.close();
        watchdog.shutdownNow();
        held().forEach(tenure -> tenure.lose(CLOSED));
    }

    private String newOwner() {
        return id + ":" + owners.incrementAndGet();
    }

    // What a thread does with its locks.

    @Nullable
    Tenure mine(String name) {
        return mine.get().tenures().get(name);
    }

    boolean enter(String name, long wait, @Nullable Long lease, boolean interruptible) throws InterruptedException {
        if (interruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        Mine mine = this.mine.get();
        Tenure lost = mine.tenures().get(name);
        if (lost != null) {
            try {
                lost.enter(lease, interruptible);
                return true;
            } catch (LockLostException loss) {
                // Who names a lease may leave the lock to that, and never unlock it.
                if (lost.isRenewed()) {
                    throw loss;
                }
            }
        }
        Tenure tenure = acquire(new Claim(name, mine.owner()), wait, lease, interruptible, Thread.currentThread());
        if (tenure == null) {
            return false;
        }
        tenure.former = lost;
        if (lost != null) {
            lost.former = null; // who never unlocks leaves no more than one behind
        }
        mine.forgetSome();
        mine.tenures().put(name, tenure);
        return true;
    }

    void leave(String name) {
        Tenure tenure = mine(name);
        if (tenure == null) {
            throw notHeld(name);
        }
        try {
            tenure.leave();
        } finally {
            if (tenure.holds() == 0) {
                mine.get().tenures().compute(name, (key, ended) -> tenure.former);
            }
        }
    }

    static IllegalMonitorStateException notHeld(String name) {
        return new IllegalMonitorStateException(
                "the lock " + name + " is not held by " + Thread.currentThread().getName());
    }

    private @Nullable Tenure acquire(
            Claim claim, long wait, @Nullable Long lease, boolean interruptible, @Nullable Thread thread)
            throws InterruptedException {
        servers.checkOpen();
        Long asked = lease == null ? settings.lease() : lease;
        Attempts attempts = attempts(claim.name(), interruptible);
        Grant grant;
        try {
            grant = new Acquisition(claim, asked, settings.replicas(), attempts)
                    .within(wait, settings.patience(), waiting);
        } catch (InterruptedException | RuntimeException given) {
            if (!attempts.withdraw(claim.withdraw(0))) {
                withdrawLater(claim, asked);
            }
            throw given;
        }
        if (grant == null) {
            return null;
        }
        Tenure tenure = new Tenure(this, claim, grant, lease == null, thread, settings.onLost());
        synchronized (tenures) {
            tenures.add(tenure);
        }
        if (servers.isClosed()) {
            tenure.lose(CLOSED);
        }
        tenure.schedule();
        return tenure;
    }

    /** It may have been granted without anybody knowing, and for long. */
    private void withdrawLater(Claim claim, @Nullable Long lease) {
        // What this thread acquires from now on is not taken for it.
        Mine mine = this.mine.get();
        if (claim.owner().equals(mine.owner())) {
            this.mine.set(new Mine(newOwner(), mine.tenures()));
        }
        long most = lease == null ? TimeUnit.HOURS.toMillis(1) : lease; // a guess, where only the server knows
        if (left.offer(new Left(claim, Clock.end(Clock.now(), most)))) {
            withdrawSoon();
        }
    }

    private void withdrawSoon() {
        if (!left.isEmpty() && isWithdrawing.compareAndSet(false, true)) {
            later(this::withdrawNext, TimeUnit.SECONDS.toNanos(1));
        }
    }

    /** One at a time, as the servers may be away for long. */
    private void withdrawNext() {
        Left next = left.poll();
        if (next == null) {
            isWithdrawing.set(false);
            withdrawSoon();
            return;
        }
        String name = next.claim().name();
        send(name, next.claim().withdraw(0))
                .orTimeout(responseLimit(), TimeUnit.NANOSECONDS)
                .whenComplete((reply, silence) -> {
                    if (silence != null) {
                        abandon(name);
                    }
                    if (!Attempts.passes(reply)) {
                        withdrawNext();
                        return;
                    }
                    if (Clock.left(next.end()) > 0) {
                        left.offer(next);
                    }
                    isWithdrawing.set(false);
                    withdrawSoon();
                });
    }

    boolean isLocked(String name) {
        try {
            Object reply = attempts(name, false).ask(Request.of("LOCK.INFO", name));
            if (reply instanceof Refusal refusal) {
                throw new LockRefusedException(refusal.words());
            }
            return !((List<?>) reply).isEmpty();
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    // What tenures ask for.

    Attempts attempts(String name, boolean interruptible) {
        return new Attempts(servers, name, settings.patience(), interruptible);
    }

    /** Sends it once: null where the reply is lost. */
    CompletableFuture<@Nullable Object> send(String name, Request request) {
        return servers.send(name, request);
    }

    void abandon(String name) {
        servers.leave(servers.home(name));
    }

    long responseLimit() {
        return servers.responseLimit();
    }

    @Nullable
    Future<?> timer(Tenure tenure, long delay) {
        WeakReference<Tenure> dropped = new WeakReference<>(tenure);
        return later(
                () -> {
                    Tenure kept = dropped.get();
                    if (kept != null) {
                        kept.tick();
                    }
                },
                delay);
    }

    private @Nullable Future<?> later(Runnable task, long delay) {
        try {
            return watchdog.schedule(task, delay, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            return null;
        }
    }

    private void hurry() {
        held().forEach(Tenure::hurry);
    }

    private List<Tenure> held() {
        synchronized (tenures) {
            return List.copyOf(tenures);
        }
    }

    void forget(Tenure tenure) {
        synchronized (tenures) {
            tenures.remove(tenure);
        }
    }

    /** Tells of a loss, on a thread where that may take its time. */
    void tell(Consumer<LockLostException> listener, LockLostException loss) {
        listening.execute(() -> {
            try {
                listener.accept(loss);
            } catch (RuntimeException error) {
                LOGGER.log(System.Logger.Level.WARNING, "a listener has failed", error);
            }
        });
    }
}
