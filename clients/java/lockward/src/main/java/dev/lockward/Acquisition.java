package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The acquisition of one or several keys as one lock. It first tries several keys together. If a key is busy, it acquires the keys
 * one after the other. All clients use the same order, so they do not deadlock. If a key is lost before all keys are held, the
 * acquisition releases all keys and starts again.
 *
 * <p>The steps of an acquisition run one after the other, in the threads that read replies and in the timer's thread.
 */
final class Acquisition {
    /** A long wait is a series of requests. Each of them blocks for at most this time: a slice of the wait. */
    private static final long SLICE = TimeUnit.SECONDS.toNanos(10);

    /** How long the server keeps the position in the queue between two slices, or when a connection breaks, in milliseconds. */
    private static final long KEEP = 5_000;

    /** The lease of a grant that ends a wait, in milliseconds, until the client confirms the grant. */
    private static final long SHORT_LEASE = 3_000;

    /** How long after the wait limit a reply may still arrive. */
    private static final long GRACE = TimeUnit.MILLISECONDS.toNanos(100);

    /** When a call fails, the caller waits at most this long until the granted keys are released. */
    private static final long GIVE_UP_LIMIT = TimeUnit.MILLISECONDS.toNanos(200);

    /** How long after the end of a call the client may still repeat a release that the caller waits for. */
    private static final long GIVE_UP_GRACE = TimeUnit.MILLISECONDS.toNanos(50);

    /** The pause before an acquisition starts again. It prevents a busy loop if the lease is shorter than a round trip. */
    private static final long PAUSE_AFTER_LOSS = TimeUnit.MILLISECONDS.toNanos(50);

    /** True: granted; false: busy. */
    final CompletableFuture<Boolean> result = new CompletableFuture<>();

    /** The tenures that are held when the result is true. */
    final List<Tenure> tenures = new ArrayList<>();

    /** Whether the caller already held one of the keys. */
    final boolean isReentry;

    private final LockwardClient client;
    private final LockRequest request;
    private final boolean isRenewed;
    private final boolean isWaiting;
    private final long waitEnd;
    private final long patience;

    /** When the call ends: a later reply does not count. */
    private final long end;

    /** In milliseconds; 0 for the server's default. */
    private volatile long lease;

    /** The keys that were requested since the acquisition last started. */
    private volatile List<Key> begun = new CopyOnWriteArrayList<>();

    private volatile boolean isCancelled;

    /**
     * An acquisition that has not begun.
     *
     * @param mine the thread's tenures, by key. The keys of this map are re-entered
     * @param thread the thread that will hold the lock, if any
     * @param named the named lease in milliseconds, which is not renewed; 0 for the lease of the request
     * @param wait the wait limit in nanoseconds; 0 does not wait
     */
    Acquisition(LockRequest request, Map<String, Tenure> mine, @Nullable Thread thread, long named, long wait) {
        this.client = request.client;
        this.request = request;
        lease = Math.min(named == 0 ? request.lease : named, Clock.millis(request.holdLimit));
        isRenewed = request.isRenewed && named == 0;
        isWaiting = wait > 0;
        String owner = request.newOwner();
        request.keys.forEach(key -> {
            Tenure present = mine.get(key);
            // A thread need not unlock a lock with a named lease. When this lease is over, the thread begins a new
            // tenure.
            if (present == null || present.isLeft()) {
                tenures.add(new Tenure(request, key, owner, thread));
            } else {
                present.checkHeld();
                tenures.add(present);
            }
        });
        isReentry = tenures.stream().anyMatch(tenure -> tenure.holds > 0);
        patience = client.patience + Clock.nanos(request.replicas.within());
        waitEnd = Clock.now() + wait;
        end = isWaiting ? waitEnd + GRACE : waitEnd + patience;
    }

    Acquisition start() {
        if (tenures.size() > 1) {
            tryTogether();
        } else {
            acquireNext(0);
        }
        return this;
    }

    /** Starts, and waits for the result. An interrupt cancels the acquisition. */
    boolean run(boolean isInterruptible) throws InterruptedException {
        start();
        if (!isInterruptible) {
            return Clock.await(result);
        }
        try {
            return Clock.awaitInterruptibly(result);
        } catch (InterruptedException interrupt) {
            Clock.await(cancel());
            throw interrupt;
        }
    }

    /** Ends the acquisition. The future completes when all granted keys have been released, or after 200 ms. */
    CompletableFuture<?> cancel() {
        isCancelled = true;
        begun.forEach(key -> key.call.cancel());
        return result.handle((isGranted, error) -> giveBack(false)).thenCompose(given -> given);
    }

    private void tryTogether() {
        List<CompletableFuture<Boolean>> tries;
        client.pipeline.lock(); // without this lock, two threads of this client could get one key each, and both fail
        try {
            tries = tenures.stream().map(tenure -> acquire(tenure, false)).toList();
        } finally {
            client.pipeline.unlock();
        }
        Clock.all(tries.stream())
                .whenComplete((all, error) ->
                        ended(true, error == null && tries.stream().allMatch(CompletableFuture::join), error));
    }

    private void acquireNext(int index) {
        acquire(tenures.get(index), isWaiting).whenComplete((isGranted, error) -> {
            if (error == null && isGranted && index + 1 < tenures.size()) {
                acquireNext(index + 1);
            } else {
                ended(false, error == null && isGranted, error);
            }
        });
    }

    private CompletableFuture<Boolean> acquire(Tenure tenure, boolean waits) {
        Key key = new Key(tenure, waits);
        tenure.keep(tenures.size() > 1);
        begun.add(key);
        if (isCancelled || loss() != null) {
            key.call.cancel();
        }
        key.tryOnce(patience);
        return key.result;
    }

    /** The loss of a granted key during the wait for the next key, or null. */
    private @Nullable LockLostException loss() {
        return begun.stream()
                .filter(key -> key.isGranted && tenures.size() > 1 && !key.tenure.isHeld())
                .map(key -> key.tenure.lose(Tenure.LEASE_OVER))
                .findFirst()
                .orElse(null);
    }

    /** @param wereTriedTogether whether the keys were only tried, and not waited for yet */
    private void ended(boolean wereTriedTogether, boolean isGranted, @Nullable Throwable failure) {
        LockLostException loss = loss();
        boolean mayGoOn = loss == null ? wereTriedTogether && failure == null : !isReentry;
        boolean isHeld = isGranted && loss == null;
        boolean goesOn = !isHeld && mayGoOn && isWaiting && !isCancelled;
        if (!goesOn) {
            tenures.forEach(tenure -> tenure.keep(false));
        }
        if (isHeld) {
            succeed();
        } else if (goesOn) {
            long pause = loss == null ? 0 : PAUSE_AFTER_LOSS;
            giveBack(true).thenRun(() -> client.servers.timer.at(Clock.now() + pause, this::acquireAnew));
        } else {
            Throwable cause = failure == null ? loss : Clock.cause(failure);
            boolean mayWait = cause != null && !(cause instanceof LockUnreachableException);
            giveBack(mayWait).thenRun(() -> Clock.complete(result, false, cause));
        }
    }

    /** Acquires the keys one after the other, with a new owner: a late release of the old owner must not end a new grant. */
    private void acquireAnew() {
        String owner = request.newOwner();
        tenures.replaceAll(tenure -> tenure.holds > 0 ? tenure : new Tenure(request, tenure.key, owner, tenure.thread));
        if (!isReentry) {
            List<Key> now = begun;
            Tenure.onLost(tenures, loss -> now.forEach(key -> key.call.cancel()));
        }
        acquireNext(0);
    }

    private void succeed() {
        List<Tenure> begunNow =
                tenures.stream().filter(tenure -> tenure.holds == 1).toList();
        if (!begunNow.isEmpty()) {
            Tenure.loseTogether(tenures);
            request.watchLoss(begunNow);
        }
        result.complete(true);
    }

    /**
     * Releases the granted keys. The future completes when they are released, or after 200 ms. Then the client goes on in the background.
     *
     * @param withUnheard whether to wait also for the release of keys that may have been granted, because a reply is missing. If a
     *     later grant may have the same owner, the future always waits for this release, because it must not end that grant
     */
    private CompletableFuture<Void> giveBack(boolean withUnheard) {
        List<Key> left = begun;
        begun = new CopyOnWriteArrayList<>();
        return Clock.all(left.stream()
                        .filter(key -> key.isGranted || withUnheard || !key.isOnlyGrant)
                        .map(key -> key.isGranted ? key.release() : key.gaveUp))
                .exceptionally(failed -> null)
                .completeOnTimeout(null, GIVE_UP_LIMIT, TimeUnit.NANOSECONDS);
    }

    /** How long replicas may take to confirm a grant, in milliseconds. */
    private long replicationLimit() {
        long within = request.replicas.within();
        return isWaiting ? Math.min(within, Clock.millis(Clock.left(waitEnd))) : within;
    }

    /** @param lease the granted lease in milliseconds */
    private record Grant(long token, long lease) {}

    /**
     * The acquisition of one key. It first tries the key. Then it waits in the server's queue slice by slice, and confirms the grant
     * that ends the wait. If no reply arrives soon after the end of a slice, the client sends the request again.
     */
    private final class Key {
        final Tenure tenure;
        final Call call;

        /** True: granted; false: busy. */
        final CompletableFuture<Boolean> result = new CompletableFuture<>();

        volatile boolean isGranted;

        /** Completes when the server has neither a grant nor a queue position for this caller, or when the client's patience is over. */
        volatile CompletableFuture<?> gaveUp = CompletableFuture.completedFuture(null);

        /** Whether no later grant can have the same owner. It can, if the program has named the owner, or if this is a re-entry. */
        final boolean isOnlyGrant;

        private final boolean isWaiting;
        private final int wanted;
        private boolean isLastSlice;
        private boolean isLeftBehind;
        private @Nullable CompletableFuture<Void> turn;
        private int polls;

        /** @param isWaiting whether to wait until the end of the wait limit */
        Key(Tenure tenure, boolean isWaiting) {
            this.tenure = tenure;
            this.isWaiting = isWaiting;
            wanted = tenure.holds + 1;
            isOnlyGrant = wanted == 1 && request.owner == null;
            call = new Call(client.servers, tenure.key, isWaiting ? end : Clock.earlier(end, Clock.now() + patience));
            call.onLeaseRefused = longest -> lease = longest;
        }

        void tryOnce(long limit) {
            askReplicated(limit, () -> acquire(lease), replies -> {
                Grant grant = grant(replies.get(0));
                if (grant == null) {
                    waitOrPoll();
                } else {
                    granted(grant, replies);
                }
            });
        }

        private void waitOrPoll() {
            long left = Clock.left(waitEnd);
            if (!isWaiting || left <= 0) {
                end(false, null);
                return;
            }
            CompletableFuture<Void> turn = this.turn == null ? client.waitingConnections.enter() : this.turn;
            this.turn = turn;
            // Poll until the turn begins. Without polls there is a deadlock if all connections wait for a lock that
            // this
            // caller holds.
            CompletableFuture<?> next = turn.isDone()
                    ? turn
                    : CompletableFuture.anyOf(turn, call.pause(Math.min(left, Clock.backOff(++polls))));
            then(next, paused -> {
                if (turn.isDone()) {
                    waitForSlice();
                } else {
                    tryOnce(Clock.FOREVER);
                }
            });
        }

        private void waitForSlice() {
            long limit = SLICE + client.servers.responseLimit;
            then(call.ask(true, Clock.FOREVER, limit, () -> List.of(slice())), replies -> {
                Grant grant = grant(replies.get(0));
                isLeftBehind = grant != null || !isLastSlice; // the server keeps the position
                if (grant != null) {
                    confirm(grant);
                } else if (isLastSlice) {
                    end(false, null);
                } else {
                    waitOrPoll();
                }
            });
        }

        /** The grant in a reply, or null if the lock is busy. */
        private @Nullable Grant grant(@Nullable Object reply) {
            tenure.checkAccepted(reply);
            if (reply == null) {
                return null;
            }
            isLeftBehind = true;
            if (reply instanceof List<?> grant
                    && grant.size() >= 3
                    && grant.get(0) instanceof Long token
                    && grant.get(2) instanceof Long granted) {
                return new Grant(token, granted);
            }
            throw new LockRefusedException(tenure.key, "unexpected reply " + reply);
        }

        private Request acquire(long lease, Object... waiting) {
            return Request.withHolds("LOCK.ACQUIRE", tenure, lease, List.of(waiting), wanted, request.kind());
        }

        private Request slice() {
            long left = Clock.left(waitEnd);
            isLastSlice = left <= SLICE;
            long block = Clock.millis(Math.max(0, Math.min(left, SLICE)));
            return isLastSlice
                    ? acquire(Math.min(lease, SHORT_LEASE), "BLOCK", block)
                    : acquire(Math.min(lease, SHORT_LEASE), "BLOCK", block, "KEEP", KEEP);
        }

        /** Renews the short lease of a grant to the full lease. If the short lease is already over, the wait continues. */
        private void confirm(Grant grant) {
            List<Object> token = List.of("TOKEN", grant.token);
            Supplier<Request> renewal =
                    () -> Request.withHolds("LOCK.RENEW", tenure, lease(grant), token, wanted, request.kind());
            askReplicated(patience, renewal, replies -> {
                Object reply = replies.get(0);
                if (ServerError.is(reply, "NOTHELD")) {
                    waitOrPoll();
                } else {
                    tenure.checkNumber(reply);
                    granted(grant, replies);
                }
            });
        }

        private long lease(Grant grant) {
            return lease == 0 ? grant.lease : lease;
        }

        private void granted(Grant grant, List<@Nullable Object> replies) {
            LockRequest.Replicas replicas = request.replicas;
            if (replicas.count() > 0) {
                LockRefusedException.throwIfError(tenure.key, replies.get(1));
                if (!(replies.get(1) instanceof Long count) || count < replicas.count()) {
                    throw new LockUnreplicatedException("only " + replies.get(1) + " of " + replicas.count()
                            + " replicas have confirmed the grant of the lock " + tenure.key
                            + " in time, and it was given back: check the replicas, and try again");
                }
            }
            if (wanted > 1 && grant.token != tenure.token) {
                throw tenure.lose("another tenure has begun");
            }
            tenure.granted(call, grant.token, wanted, lease(grant), isRenewed, request.kind());
            isLeftBehind = false;
            end(true, null);
        }

        /** Sends a request. If replicas must confirm the grant, also sends WAIT. WAIT blocks, so it needs a connection of its own. */
        private void askReplicated(long limit, Supplier<Request> next, Consumer<List<@Nullable Object>> step) {
            LockRequest.Replicas replicas = request.replicas;
            boolean isReplicated = replicas.count() > 0;
            long within = replicationLimit();
            Supplier<List<Request>> requests = () -> isReplicated
                    ? List.of(next.get(), new Request("WAIT", replicas.count(), within))
                    : List.of(next.get());
            then(call.ask(isReplicated, limit, client.servers.responseLimit + Clock.nanos(within), requests), step);
        }

        private <T> void then(CompletableFuture<T> future, Consumer<T> step) {
            future.thenAccept(step).whenComplete((done, failure) -> {
                if (failure != null) {
                    end(false, Clock.cause(failure));
                }
            });
        }

        /** Ends the acquisition of this key and the turn. Without success, also gives up the position in the queue and the grant. */
        private void end(boolean granted, @Nullable Throwable failure) {
            isGranted = granted;
            if (turn != null) {
                client.waitingConnections.end(turn);
            }
            if (isLeftBehind || (failure != null && call.mayHaveRun)) {
                gaveUp = giveUp();
            }
            // If a server has answered during the call, the lock counts as busy at the wait limit. For several keys a
            // server
            // has always answered, because the acquisition has tried the keys before.
            boolean isBusy = failure instanceof LockUnreachableException
                    && isWaiting
                    && (call.isHeard || tenures.size() > 1)
                    && Clock.left(waitEnd) <= 0;
            Clock.complete(result, granted, isBusy ? null : failure);
        }

        private CompletableFuture<?> giveUp() {
            return new Call(client.servers, tenure.key, Clock.now() + giveUpLimit())
                    .ask(() -> new Request("LOCK.RELEASE", tenure.key, tenure.owner, "HOLDS", wanted - 1));
        }

        CompletableFuture<Void> release() {
            return tenure.release(request.isShared(), giveUpLimit());
        }

        /** How long to repeat a release. */
        private long giveUpLimit() {
            return isOnlyGrant ? client.patience : Math.min(GIVE_UP_LIMIT, Clock.left(end) + GIVE_UP_GRACE);
        }
    }
}
