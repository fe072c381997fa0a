package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The acquisition of one or several keys as one lock. The acquisition first tries several keys together. If a key is busy, it acquires
 * the keys one after the other. All clients use the same order, so they do not deadlock. If a key is lost before all keys are held, the
 * acquisition releases all keys and starts again.
 *
 * <p>The steps of an acquisition run one after the other, in the threads that read replies and in the timer's thread.
 */
final class Acquisition {
    /** How long one request of a wait blocks at most: a slice of the wait. A long wait is a series of such requests. */
    private static final long SLICE = 10_000;

    /** How long the server keeps the position in the queue between two slices, or when a connection breaks. */
    private static final long KEEP = 5_000;

    /** If a slice ends earlier, the server did not block, for example because a proxy runs the command in a script. */
    private static final long SHORTEST_SLICE = 1_000;

    /** The longest lease of a grant that ends a wait. Then the client confirms the grant, and so sets the whole lease. */
    private static final long SHORT_LEASE = 3_000;

    /** How long after the wait limit a reply may still arrive. */
    private static final long GRACE = 100;

    /** The longest time that the caller of a failed call waits until all keys are given up. */
    private static final long GIVE_UP_LIMIT = 200;

    /** How long after the end of a call the caller may still wait until all keys are given up. */
    private static final long GIVE_UP_GRACE = 50;

    /** The pause before an acquisition starts again. It prevents a busy loop if the lease is shorter than a round trip. */
    private static final long PAUSE_AFTER_LOSS = 50;

    /** True means granted. False means busy. */
    final CompletableFuture<Boolean> result = new CompletableFuture<>();

    /** The tenures that are held when the result is true. */
    final List<Tenure> tenures = new ArrayList<>();

    /** Whether the caller already held one of the keys. */
    final boolean isReentry;

    private final LockwardClient client;
    private final LockRequest request;
    private final boolean isRenewed;
    private final boolean isWaiting;
    private final long wait;
    private final long waitEnd;
    private final long patience;

    /** When the call ends: a later reply does not count. */
    private final long end;

    /** In milliseconds. 0 means the server's default. */
    private final long lease;

    /** The keys that were requested since the acquisition last started. */
    private volatile List<Key> begun = new CopyOnWriteArrayList<>();

    private volatile boolean isCancelled;

    /**
     * An acquisition that has not begun.
     *
     * @param mine the thread's tenures, by key. The acquisition re-enters the keys that are held
     * @param thread the thread that will hold the lock, if any
     * @param named a named lease, which the client does not renew; 0 means the lease of the request
     * @param wait the wait limit; 0 means that the acquisition does not wait
     */
    Acquisition(LockRequest request, Map<String, Tenure> mine, @Nullable Thread thread, long named, long wait) {
        this.client = request.client;
        this.request = request;
        lease = Math.min(named == 0 ? request.lease : named, request.holdLimit);
        isRenewed = request.isRenewed && named == 0;
        this.wait = wait;
        isWaiting = wait > 0;
        String owner = request.newOwner();
        isReentry = request.keys.stream().map(mine::get).anyMatch(present -> present != null && present.isHeld());
        request.keys.forEach(key -> {
            Tenure present = mine.get(key);
            if (isReentry && present != null && present.holds > 0) {
                present.checkHeld(); // a lock of several keys is lost as soon as one key is lost
                tenures.add(present);
            } else {
                tenures.add(new Tenure(request, key, owner, thread));
            }
        });
        patience = client.patience + request.replicasWithin;
        waitEnd = Clock.now() + wait + 1; // + 1, because a part of the present millisecond is already over
        end = isWaiting ? waitEnd + GRACE : waitEnd + patience;
    }

    Acquisition start() {
        if (tenures.size() == 1) {
            acquireAll(false);
            return this;
        }
        client.pipeline.lock(); // without this lock, two threads could get one key each, and both would fail
        try {
            acquireAll(true);
        } finally {
            client.pipeline.unlock();
        }
        return this;
    }

    /** Starts the acquisition, and waits for the result. If {@code isInterruptible} is true, an interrupt cancels the acquisition. */
    boolean run(boolean isInterruptible) throws InterruptedException {
        start();
        try {
            return isInterruptible ? Clock.awaitInterruptibly(result) : Clock.await(result);
        } catch (InterruptedException interrupt) {
            Clock.await(cancel());
            throw interrupt;
        }
    }

    /** Ends the acquisition. The future completes when all keys are given up, or after 200 ms. */
    CompletableFuture<?> cancel() {
        isCancelled = true;
        begun.forEach(key -> key.call.cancel());
        return result.handle((isGranted, error) -> giveUp()).thenCompose(given -> given);
    }

    /** @param isTrial true to try all keys together; false to acquire one key after the other, with waits if the call may wait */
    private void acquireAll(boolean isTrial) {
        CompletableFuture<Boolean> all = CompletableFuture.completedFuture(true);
        for (Tenure tenure : tenures) {
            all = isTrial
                    ? acquire(tenure, false).thenCombine(all, Boolean::logicalAnd)
                    : all.thenCompose(isGranted ->
                            isGranted ? acquire(tenure, isWaiting) : CompletableFuture.completedFuture(false));
        }
        all.whenComplete((isGranted, error) -> ended(isTrial, error == null && isGranted, error));
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

    /** Called when no key is requested any more. */
    private void ended(boolean wasTrial, boolean isGranted, @Nullable Throwable failure) {
        LockLostException loss = loss();
        tenures.forEach(tenure -> tenure.keep(false));
        if (isGranted && loss == null) {
            List<Tenure> begunNow =
                    tenures.stream().filter(tenure -> tenure.holds == 1).toList();
            if (!begunNow.isEmpty()) {
                request.watchLoss(tenures, begunNow);
            }
            result.complete(true);
            return;
        }
        boolean mayGoOn = isWaiting && !isCancelled && (loss == null ? wasTrial && failure == null : !isReentry);
        giveUp().thenRun(() -> {
            if (mayGoOn) {
                long pause = loss == null ? 0 : PAUSE_AFTER_LOSS;
                client.servers.timer.at(Clock.now() + pause, this::acquireAnew);
            } else {
                Clock.complete(result, false, failure == null ? loss : failure);
            }
        });
    }

    /** Acquires the keys one after the other, with a new owner, because a late release of the old owner must not end a new grant. */
    private void acquireAnew() {
        String owner = request.newOwner();
        tenures.replaceAll(tenure -> tenure.holds > 0 ? tenure : new Tenure(request, tenure.key, owner, tenure.thread));
        if (!isReentry) {
            List<Key> now = begun;
            Tenure.onLost(tenures, loss -> now.forEach(key -> key.call.cancel()));
        }
        acquireAll(false);
    }

    /**
     * Gives up all keys. The future completes when all keys are given up, or after 200 ms. After 200 ms the client continues in the
     * background.
     */
    private CompletableFuture<?> giveUp() {
        List<Key> left = begun;
        begun = new CopyOnWriteArrayList<>();
        long grace = isWaiting || request.owner != null ? GIVE_UP_GRACE : 0;
        long limit = Math.min(GIVE_UP_LIMIT, Clock.left(end) + grace);
        return client.servers
                .timer
                .limit(Clock.now() + limit, Clock.all(left.stream().map(key -> key.giveUp(limit))))
                .exceptionally(failed -> null);
    }

    private long waitLeft() {
        return Math.min(wait, Clock.left(waitEnd));
    }

    /**
     * The acquisition of one key. It first tries the key. Then it waits in the server's queue slice by slice, and confirms the grant
     * that ends the wait. If no reply arrives within the response limit after a slice, the client sends the request again.
     */
    private final class Key {
        final Tenure tenure;
        final Call call;

        /** True means granted. False means busy. */
        final CompletableFuture<Boolean> result = new CompletableFuture<>();

        volatile boolean isGranted;

        /** Whether the server may have a grant or a queue position for this caller. */
        private volatile boolean isLeftBehind;

        private final boolean mayWait;
        private final int wanted;

        /** The token of the last grant, or 0. */
        private long token;

        private long grantedLease;
        private boolean isLastSlice;
        private @Nullable CompletableFuture<Void> turn;
        private int polls;
        private int earlyReplies;

        /** @param mayWait whether to wait until the end of the wait limit */
        Key(Tenure tenure, boolean mayWait) {
            this.tenure = tenure;
            this.mayWait = mayWait;
            wanted = tenure.holdsAtServer() + 1;
            call = new Call(client.servers, tenure.key, end);
        }

        void tryOnce(long limit) {
            askForGrant(limit, () -> acquire(Clock.FOREVER));
        }

        private void waitOrPoll() {
            long left = Clock.left(waitEnd);
            if (!mayWait || left <= 0) {
                end(false, null);
                return;
            }
            CompletableFuture<Void> turn = this.turn == null ? client.servers.beginTurn() : this.turn;
            this.turn = turn;
            // Poll until the turn begins. Without the polls there could be a deadlock: all connections may wait for a
            // lock that this caller holds.
            CompletableFuture<?> pause = turn.isDone() ? turn : call.pause(Math.min(left, Clock.backOff(++polls)));
            then(CompletableFuture.anyOf(turn, pause), paused -> {
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
                boolean hasGrant = isGrant(replies.get(0));
                isLeftBehind = hasGrant || !isLastSlice; // the server keeps the queue position
                if (hasGrant) {
                    confirm();
                } else if (isLastSlice) {
                    end(false, null);
                } else if (Clock.now() - call.sent < SHORTEST_SLICE) { // do not send requests without a break
                    long pause = Math.min(Clock.left(waitEnd), Clock.backOff(earlyReplies++));
                    then(call.pause(pause), paused -> waitOrPoll());
                } else {
                    waitOrPoll();
                }
            });
        }

        /** Reads the reply to a request for the lock, or to a renewal of a grant. Returns false if the lock is busy. */
        private boolean isGrant(@Nullable Object reply) {
            if (token > 0 && ServerError.is(reply, "NOTHELD")) { // the short lease is already over
                token = 0;
                return false;
            }
            tenure.checkAccepted(reply);
            isLeftBehind |= reply != null;
            if (reply instanceof List<?> grant
                    && grant.size() >= 3
                    && grant.get(0) instanceof Long newToken
                    && grant.get(2) instanceof Long newLease) {
                token = newToken;
                grantedLease = newLease;
            } else if (reply != null && (token == 0 || !reply.equals(token))) {
                throw new LockRefusedException(tenure.key, "unexpected reply " + reply);
            }
            return reply != null;
        }

        private Request acquire(long longest, Object... waiting) {
            long asked = Math.min(lease, Math.min(longest, call.longestLease));
            return Request.withHolds("LOCK.ACQUIRE", tenure, asked, List.of(waiting), wanted, request.kind());
        }

        private Request slice() {
            long left = waitLeft();
            isLastSlice = left <= SLICE + 1; // + 1, because waitEnd is rounded up
            long block = Math.max(1, Math.min(left, SLICE));
            return isLastSlice
                    ? acquire(SHORT_LEASE, "BLOCK", block)
                    : acquire(SHORT_LEASE, "BLOCK", block, "KEEP", KEEP);
        }

        /** Renews a grant to set the whole lease instead of the short lease. If the short lease is already over, the wait continues. */
        private void confirm() {
            List<Object> tenureToken = List.of("TOKEN", token);
            askForGrant(
                    patience,
                    () -> Request.withHolds("LOCK.RENEW", tenure, wholeLease(), tenureToken, wanted, request.kind()));
        }

        private long wholeLease() {
            return Math.min(call.longestLease, lease == 0 ? grantedLease : lease);
        }

        /** Asks for the whole lease. If replicas must confirm the grant, also sends WAIT, on a connection of its own, because WAIT blocks. */
        private void askForGrant(long limit, Supplier<Request> next) {
            boolean isReplicated = request.replicas > 0;
            long within = Math.min(request.replicasWithin, isWaiting ? Math.max(1, waitLeft()) : Clock.FOREVER);
            Supplier<List<Request>> requests = () -> isReplicated
                    ? List.of(next.get(), new Request("WAIT", request.replicas, within))
                    : List.of(next.get());
            then(call.ask(isReplicated, limit, client.servers.responseLimit + within, requests), replies -> {
                if (!isGrant(replies.get(0))) {
                    waitOrPoll();
                    return;
                }
                if (isReplicated) {
                    checkReplicas(replies.get(1));
                }
                if (wanted > 1 && token != tenure.token) {
                    throw tenure.lose("another tenure has begun");
                }
                tenure.granted(call, token, wanted, wholeLease(), isRenewed, request.kind());
                client.watch(tenure);
                isGranted = true;
                end(true, null);
            });
        }

        /** Throws if the reply to WAIT shows that too few replicas have confirmed the grant. */
        private void checkReplicas(@Nullable Object reply) {
            LockRefusedException.throwIfError(tenure.key, reply);
            if (!(reply instanceof Long confirmed) || confirmed < request.replicas) {
                throw new LockUnreplicatedException("only " + reply + " of " + request.replicas
                        + " replicas have confirmed the grant of the lock " + tenure.key
                        + " in time, and it was given back: check the replicas, and try again");
            }
        }

        private <T> void then(CompletableFuture<T> future, Consumer<T> step) {
            future.thenAccept(step).whenComplete((done, failure) -> {
                if (failure != null) {
                    end(false, Clock.cause(failure));
                }
            });
        }

        /** Ends the acquisition of this key. The turn ends when its connection is free. */
        private void end(boolean granted, @Nullable Throwable failure) {
            CompletableFuture<Void> turn = this.turn;
            if (turn != null) {
                call.ownExchange.whenComplete((replies, error) -> client.servers.endTurn(turn));
            }
            isLeftBehind |= failure != null && call.mayHaveRun;
            // If a server has answered during the call, the lock counts as busy at the wait limit. If the lock has
            // several keys, a server has answered the trial before this wait.
            boolean isBusy = failure instanceof LockUnreachableException
                    && isWaiting
                    && (call.isHeard || (mayWait && tenures.size() > 1))
                    && Clock.left(waitEnd) <= 0;
            Clock.complete(result, granted, isBusy ? null : failure);
        }

        /**
         * Releases the grant, ends the wait, and gives up the queue position.
         *
         * @param limit how long to repeat the release if the same owner may get another grant. Otherwise this time is the patience
         */
        CompletableFuture<?> giveUp(long limit) {
            if (isGranted && tenure.holds > 0) {
                tenure.dropHold(request.isShared());
            }
            if (!isLeftBehind) {
                return CompletableFuture.completedFuture(null);
            }
            List<Object> token = isGranted ? List.of("TOKEN", tenure.token) : List.of();
            boolean isOnlyGrant = wanted == 1 && request.owner == null;
            Call release = new Call(client.servers, tenure.key, Clock.now() + (isOnlyGrant ? client.patience : limit));
            Supplier<Request> command =
                    () -> new Request("LOCK.RELEASE", tenure.key, tenure.owner, "HOLDS", wanted - 1, token);
            // This release must not overtake a request of this acquisition. A request on another connection may still
            // be in Netty's queue. And Netty sends a request of its own thread before the queued requests of other
            // threads, so the timer's thread sends this release.
            return call.abandoned
                    .handleAsync((reply, error) -> release.ask(command), client.servers.timer)
                    .thenCompose(released -> released);
        }
    }
}
