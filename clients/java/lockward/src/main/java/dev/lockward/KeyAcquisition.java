package dev.lockward;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The acquisition of one key: it tries first, then waits at the server in slices, and confirms what a wait was granted. A slice
 * without a reply tells that the server is gone, so nothing has to be probed while it lasts.
 */
final class KeyAcquisition {
    private static final long SLICE = TimeUnit.SECONDS.toNanos(10);

    /** The lease of a grant after a wait, in milliseconds, until it is confirmed: what a lost grant leaves behind. */
    private static final long SHORT_LEASE = 3_000;

    /** How much later than the wait limit a reply may arrive. */
    private static final long GRACE = TimeUnit.MILLISECONDS.toNanos(100);

    /** How long a caller waits until what it leaves has been given back. */
    static final long GIVE_UP_LIMIT = TimeUnit.MILLISECONDS.toNanos(200);

    /** True: granted; false: busy. */
    final CompletableFuture<Boolean> result = new CompletableFuture<>();

    /** Completes when nothing is left at the server, or the client has tried that for its patience. */
    volatile CompletableFuture<?> gaveUp = CompletableFuture.completedFuture(null);

    private final Acquisition all;
    private final LockwardClient client;
    private final LockRequest request;
    private final Tenure tenure;
    private final boolean isWaiting;
    private final boolean isLimited;
    private final int wanted;
    private final long replicationLimit;
    private final long patience;
    private final Call call;
    private @Nullable Long lease;
    private boolean isShortened;
    private boolean isLastSlice;
    private boolean isLeftBehind;
    private @Nullable CompletableFuture<Void> turn;
    private volatile @Nullable CompletableFuture<Void> pause;
    private int polls;

    /** @param isWaiting whether to wait until the end of the wait limit */
    KeyAcquisition(Acquisition all, Tenure tenure, boolean isWaiting) {
        this.all = all;
        this.client = all.client;
        this.request = all.request;
        this.tenure = tenure;
        this.isWaiting = isWaiting;
        lease = all.lease == null ? null : Math.min(all.lease, Clock.millis(request.holdLimit));
        wanted = tenure.holds() + 1;
        replicationLimit = request.replicas == null ? 0 : Clock.nanos(request.replicas.within());
        isLimited = Clock.left(all.waitEnd) < Clock.FOREVER / 2;
        patience = client.patience + replicationLimit;
        long limit = isLimited ? all.waitEnd + GRACE + replicationLimit : all.waitEnd;
        long end = isWaiting ? limit : Clock.earlier(limit, Clock.now() + patience);
        call = new Call(client.servers, tenure.key, patience, end);
    }

    void start() {
        tryOnce(patience);
    }

    /** Leaves: the result is a CancellationException soon, unless the lock is granted before. */
    void cancel() {
        call.cancel();
    }

    private void tryOnce(long limit) {
        askReplicated(limit, () -> Request.acquire(tenure, lease, List.of(), wanted, request.kind()), replies -> {
            Object reply = replies.get(0);
            if (isGrant(reply)) {
                granted(reply, replies);
            } else if (isShortened(reply)) {
                tryOnce(limit);
            } else {
                checkRefusal(reply);
                waitOrPoll();
            }
        });
    }

    private void waitOrPoll() {
        if (!isWaiting || Clock.left(all.waitEnd) <= 0) {
            end(false, null);
            return;
        }
        CompletableFuture<Void> turn = this.turn;
        if (turn == null) {
            turn = this.turn = client.waitingConnections.enter();
            turn.thenRun(this::endPause);
        }
        if (turn.isDone()) {
            waitForSlice();
            return;
        }
        // Callers that wait for a lock which this caller holds may use all connections: so try again now and then.
        CompletableFuture<Void> pause = call.pause(Math.min(Clock.left(all.waitEnd), Clock.backOff(++polls)));
        this.pause = pause;
        if (turn.isDone()) {
            endPause();
        }
        then(pause, paused -> {
            if (hasTurn()) {
                waitForSlice();
            } else {
                tryOnce(Clock.FOREVER);
            }
        });
    }

    private boolean hasTurn() {
        CompletableFuture<Void> turn = this.turn;
        return turn != null && turn.isDone();
    }

    private void endPause() {
        CompletableFuture<Void> pause = this.pause;
        if (pause != null) {
            pause.complete(null);
        }
    }

    private void waitForSlice() {
        long limit = SLICE + client.servers.responseLimit;
        then(call.ask(true, Clock.FOREVER, limit, () -> List.of(slice())), replies -> {
            Object reply = replies.get(0);
            if (isGrant(reply)) {
                isLeftBehind = true;
                confirm(reply);
                return;
            }
            if (reply == null) {
                isLeftBehind = !isLastSlice; // the server keeps the position
            } else if (!isShortened(reply)) {
                checkRefusal(reply);
            }
            if (reply == null && isLastSlice) {
                end(false, null);
            } else {
                waitOrPoll();
            }
        });
    }

    private Request slice() {
        long left = Clock.left(all.waitEnd);
        isLastSlice = left <= SLICE;
        Long asked = lease == null ? null : Math.min(lease, SHORT_LEASE);
        long block = Clock.millis(Math.max(0, Math.min(left, SLICE)));
        return Request.acquire(tenure, asked, Request.waiting(block, isLastSlice), wanted, request.kind());
    }

    /** Sets the full lease of what a wait was granted. It may be over already: then the wait goes on. */
    private void confirm(Object grant) {
        long full = lease == null ? number(grant, 2) : lease;
        lease = full;
        askReplicated(
                patience, () -> Request.renew(tenure, full, number(grant, 0), wanted, request.kind()), replies -> {
                    Object reply = replies.get(0);
                    if (reply instanceof Long) {
                        granted(grant, replies);
                    } else if (isShortened(reply)) {
                        confirm(grant);
                    } else if (ServerError.is(reply, "NOTHELD")) {
                        waitOrPoll();
                    } else {
                        checkRefusal(reply);
                    }
                });
    }

    private void granted(Object grant, List<@Nullable Object> replies) {
        LockRequest.Replicas replicas = request.replicas;
        if (replicas != null) {
            isLeftBehind = true;
            LockRefusedException.throwIfError(tenure.key, replies.get(1));
            if (!(replies.get(1) instanceof Long count) || count < replicas.count()) {
                throw new LockUnreplicatedException("only " + replies.get(1) + " of " + replicas.count()
                        + " replicas have confirmed the grant of the lock " + tenure.key
                        + " in time, and it was given back: check the replicas, and try again");
            }
        }
        long token = number(grant, 0);
        if (wanted > 1 && token != tenure.token()) {
            throw tenure.lose("another tenure has begun");
        }
        long full = lease == null ? number(grant, 2) : lease;
        tenure.granted(call, token, wanted, full, all.isRenewed, request.kind());
        isLeftBehind = false;
        end(true, null);
    }

    /** Sends a request, followed by WAIT if the grant must be replicated. That holds up the connection, so it is not a shared one. */
    private void askReplicated(long limit, Supplier<Request> next, Consumer<List<@Nullable Object>> step) {
        LockRequest.Replicas replicas = request.replicas;
        then(
                call.ask(
                        replicas != null,
                        limit,
                        client.servers.responseLimit + replicationLimit,
                        () -> replicas == null
                                ? List.of(next.get())
                                : List.of(next.get(), Request.waitForReplicas(replicas.count(), replicas.within()))),
                step);
    }

    private <T> void then(CompletableFuture<T> future, Consumer<T> step) {
        future.thenAccept(step).whenComplete((done, failure) -> {
            if (failure != null) {
                end(false, failure);
            }
        });
    }

    private static boolean isGrant(@Nullable Object reply) {
        return reply instanceof List<?> grant && grant.size() >= 3;
    }

    private static long number(Object grant, int index) {
        return (Long) ((List<?>) grant).get(index);
    }

    /** Whether the server refuses the lease, and names the longest one. That is the lease from now on, for one more attempt. */
    private boolean isShortened(@Nullable Object reply) {
        long longest = ServerError.longestLease(reply);
        if (longest == 0 || isShortened) {
            return false;
        }
        lease = longest;
        isShortened = true;
        return true;
    }

    private void checkRefusal(@Nullable Object reply) {
        if (wanted > 1) {
            tenure.checkAccepted(reply);
        } else {
            LockRefusedException.throwIfError(tenure.key, reply);
        }
    }

    /** Leaves nothing behind: neither a connection, nor a position in a queue, nor a grant. */
    private void end(boolean isGranted, @Nullable Throwable failure) {
        Throwable cause = failure == null ? null : Clock.cause(failure);
        isLeftBehind |= failure != null && call.mayHaveRun;
        CompletableFuture<Void> turn = this.turn;
        if (turn != null) {
            client.waitingConnections.end(turn);
        }
        if (isLeftBehind) {
            gaveUp = giveUp();
        }
        // A busy lock, and not a silent server, has used up the wait limit.
        boolean isBusy = cause instanceof LockUnreachableException
                && isWaiting
                && isLimited
                && (call.isHeard || all.hasSeveral()) // all were tried before
                && Clock.left(all.waitEnd) <= 0;
        Clock.complete(result, isGranted, isBusy ? null : failure);
    }

    private CompletableFuture<?> giveUp() {
        // A later grant may have the same owner, if that was named or this is a re-entry. A late request must not end
        // it.
        boolean isOnlyGrant = wanted == 1 && request.owner == null;
        long limit = isOnlyGrant ? client.patience : GIVE_UP_LIMIT;
        return new Call(client.servers, tenure.key, limit, Clock.now() + limit)
                .ask(() -> Request.giveUp(tenure, wanted - 1));
    }
}
