package dev.lockward;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * How to acquire a lock: the key or keys, the kind, and the settings. Without a kind the lock is exclusive. {@link
 * LockwardClient#request} creates a request. The program may use a request several times, and change it between the calls. But two
 * threads must not change it at once.
 */
public final class LockRequest implements Cloneable {
    final List<String> keys;
    final LockwardClient client;
    private List<Object> limit = Request.EXCLUSIVE;
    private List<Object> weight = List.of();

    /** In milliseconds. 0 means the server's default. */
    long lease;

    boolean isRenewed = true;

    @Nullable
    String owner;

    long holdLimit = Clock.FOREVER;
    int replicas;

    /** How long the replicas may take. */
    long replicasWithin;

    private @Nullable Consumer<LockLostException> onLost;

    LockRequest(LockwardClient client, List<String> keys) {
        this.client = client;
        this.keys = keys;
        client.defaults.accept(this);
    }

    /** A read lock: all owners that ask for this kind may hold the lock together. */
    public LockRequest shared() {
        limit = Request.SHARED;
        return this;
    }

    /**
     * A semaphore: the weights of all holders together are at most the number of slots.
     *
     * @param slots 1 to 1,000,000. The number should be the same for all callers
     */
    public LockRequest slots(int slots) {
        limit = List.of("SLOTS", slots);
        return this;
    }

    /** How many of the slots to acquire: 1 by default. */
    public LockRequest weight(int slotsTaken) {
        weight = List.of("WEIGHT", slotsTaken);
        return this;
    }

    /** Sets a lease for this lock, instead of the client's lease. It must be at least 2 ms, and is rounded up to milliseconds. */
    public LockRequest lease(Duration length) {
        lease = Clock.span(length, Clock.SHORTEST_LEASE, "lease");
        return this;
    }

    /** Whether the client renews the lock: true by default. Without renewal, the lock is lost when its lease is over. */
    public LockRequest renewal(boolean isOn) {
        isRenewed = isOn;
        return this;
    }

    /** The lock is lost when this time has passed since the grant. Until then the client renews the lock. At least 2 ms. */
    public LockRequest holdLimit(Duration length) {
        holdLimit = Clock.span(length, Clock.SHORTEST_LEASE, "hold limit");
        return this;
    }

    /** The owner's name at the server, 1 to 1,024 bytes, but not {@code *}. Holders with the same name are one owner. */
    public LockRequest owner(String name) {
        int bytes = Objects.requireNonNull(name, "owner").getBytes(StandardCharsets.UTF_8).length;
        if (bytes < 1 || bytes > 1_024 || name.equals("*")) { // for *, the server makes up an owner
            throw new IllegalArgumentException("an owner must be 1 to 1,024 bytes, and not *: this one has " + bytes);
        }
        owner = name;
        return this;
    }

    /** Sets the number of replicas for this lock, instead of the client's setting: see {@link LockwardClient.Builder#replicas}. */
    public LockRequest replicas(int count, Duration within) {
        replicasWithin = timeForReplicas(count, within);
        replicas = count;
        return this;
    }

    static long timeForReplicas(int count, Duration within) {
        if (count < 0) {
            throw new IllegalArgumentException("the number of replicas must be 0 or more: " + count);
        }
        return Clock.span(within, 1, "time for replicas");
    }

    /** Sets a listener that the client calls if the lock is lost: see {@link HeldLock#onLost}. */
    public LockRequest onLost(Consumer<LockLostException> listener) {
        onLost = listener;
        return this;
    }

    /**
     * Acquires the lock, and waits for it without limit.
     *
     * @throws InterruptedException when the thread is interrupted. The client leaves the queue and releases a grant that arrives meanwhile.
     *     If the server does not answer within 200 ms, the client continues this in the background
     * @throws LockRefusedException when the server replies with an error
     * @throws LockUnreachableException when no server answers the first request within the client's patience
     */
    public HeldLock acquire() throws InterruptedException {
        return acquire(Clock.FOREVER).orElseThrow();
    }

    /**
     * Acquires the lock, and waits for it for at most {@code timeout}. With a timeout of 0, this method does not wait.
     *
     * @return empty when the lock was still busy after {@code timeout}
     * @throws InterruptedException when the thread is interrupted. The client leaves the queue and releases a grant that arrives meanwhile.
     *     If the server does not answer within 200 ms, the client continues this in the background
     * @throws LockRefusedException when the server replies with an error
     * @throws LockUnreachableException when no server answers
     */
    public Optional<HeldLock> tryAcquire(Duration timeout) throws InterruptedException {
        return acquire(Clock.span(timeout, 0, "timeout"));
    }

    /** Does what {@link #acquire} does, but does not block the thread. If the future is cancelled, the caller leaves the queue. */
    public CompletableFuture<HeldLock> acquireAsync() {
        return acquireAsync(Clock.FOREVER, Optional::orElseThrow);
    }

    /** Does what {@link #tryAcquire} does, but does not block the thread. If the future is cancelled, the caller leaves the queue. */
    public CompletableFuture<Optional<HeldLock>> tryAcquireAsync(Duration timeout) {
        return acquireAsync(Clock.span(timeout, 0, "timeout"), held -> held);
    }

    /** A lock for threads: {@link java.util.concurrent.locks.Lock}. */
    public LockwardLock asLock() {
        return new LockwardLock(copy());
    }

    /**
     * Runs {@code leader} while this process holds the lock: see {@link LockwardClient#lead}.
     *
     * @throws IllegalStateException when the request is for a read lock or a semaphore: these may have several holders
     */
    public void lead(LockwardClient.Leader leader) throws InterruptedException {
        LockRequest request = copy();
        if (!request.kind().isEmpty()) {
            throw new IllegalStateException("leadership is an exclusive lock, without shared, slots and weight");
        }
        boolean isDone = false;
        while (!isDone) {
            HeldLock term;
            try {
                term = request.acquire();
            } catch (LockUnreachableException outage) {
                continue;
            }
            try {
                isDone = runUntilDeposed(term, leader);
            } finally {
                if (!isDone) {
                    giveUp(term);
                }
            }
            if (isDone) {
                term.close();
            }
        }
    }

    private static void giveUp(HeldLock term) {
        try {
            term.close();
        } catch (LockLostException | LockUnreachableException ended) {
            // The term is over.
        }
    }

    /** Returns false if the leadership was lost. */
    private static boolean runUntilDeposed(HeldLock term, LockwardClient.Leader leader) throws InterruptedException {
        Thread thread = Thread.currentThread();
        AtomicBoolean isLeading = new AtomicBoolean(true);
        term.onLost(loss -> {
            synchronized (isLeading) {
                // If the thread is interrupted, the program has interrupted it.
                if (!thread.isInterrupted() && isLeading.getAndSet(false)) {
                    thread.interrupt();
                }
            }
        });
        try {
            leader.run(term);
            return !term.isLost();
        } catch (InterruptedException | RuntimeException failure) {
            // Only the failure of a leader that was deposed is no failure of this call.
            if (failure instanceof InterruptedException ? isLeading.get() : !term.isLost()) {
                throw failure;
            }
            return false;
        } finally {
            synchronized (isLeading) {
                if (!isLeading.getAndSet(false)) {
                    Thread.interrupted(); // clear the interrupt, because the client sent it only to end the leader
                }
            }
        }
    }

    /** What a call or a lock uses, so that later changes of this request do not change a kind that is already requested. */
    private LockRequest copy() {
        try {
            return (LockRequest) clone();
        } catch (CloneNotSupportedException never) {
            throw new AssertionError(never);
        }
    }

    boolean isShared() {
        return limit.equals(Request.SHARED);
    }

    /** The arguments of LOCK.ACQUIRE and LOCK.RENEW. The server checks them. */
    List<Object> kind() {
        return Stream.concat(limit.stream(), weight.stream()).toList();
    }

    /** The owner of the next tenure. */
    String newOwner() {
        return owner == null ? client.id + ":" + client.owners.incrementAndGet() : owner;
    }

    /**
     * Makes several tenures one lock: when one tenure is lost, the client does not renew the tenures in {@code begun} any more. Calls the
     * program's listener when one of the tenures in {@code begun} is lost.
     */
    void watchLoss(List<Tenure> tenures, List<Tenure> begun) {
        if (tenures.size() > 1) {
            Tenure.onLost(tenures, loss -> begun.forEach(Tenure::stopRenewing));
        }
        if (onLost != null) {
            Tenure.onLost(begun, onLost);
        }
    }

    private Optional<HeldLock> acquire(long wait) throws InterruptedException {
        Acquisition acquisition = new Acquisition(copy(), Map.of(), null, 0, wait);
        return acquisition.run(true) ? Optional.of(new HeldLock(acquisition.tenures)) : Optional.empty();
    }

    private <T> CompletableFuture<T> acquireAsync(long wait, Function<Optional<HeldLock>, T> convert) {
        Acquisition acquisition = new Acquisition(copy(), Map.of(), null, 0, wait).start();
        Acquiring<T> future = new Acquiring<>(acquisition);
        acquisition
                .result
                .thenApply(isHeld ->
                        convert.apply(isHeld ? Optional.of(new HeldLock(acquisition.tenures)) : Optional.empty()))
                .whenCompleteAsync(future::end, client.callbacks); // the program may block this thread
        return future;
    }

    /** The future of an acquisition. If the program completes it, for example by orTimeout, the caller leaves the queue. */
    private static final class Acquiring<T> extends CompletableFuture<T> {
        private final Acquisition acquisition;
        private final AtomicBoolean isOver = new AtomicBoolean();

        Acquiring(Acquisition acquisition) {
            this.acquisition = acquisition;
        }

        @Override
        public boolean cancel(boolean mayInterrupt) {
            leave();
            return super.cancel(mayInterrupt);
        }

        @Override
        public boolean complete(T value) {
            leave();
            return super.complete(value);
        }

        @Override
        public boolean completeExceptionally(Throwable error) {
            leave();
            return super.completeExceptionally(error);
        }

        /** Leaves the queue before the program's dependent stages run, because these stages may block. */
        private void leave() {
            if (isOver.compareAndSet(false, true)) {
                acquisition.cancel();
            }
        }

        /** Called when the acquisition has ended. */
        void end(T value, @Nullable Throwable error) {
            boolean isFirst = isOver.compareAndSet(false, true);
            boolean isTaken = isFirst
                    && (error == null ? super.complete(value) : super.completeExceptionally(Clock.cause(error)));
            if (!isTaken) {
                acquisition.cancel(); // the program has completed the future in this moment
            }
        }
    }
}
