package dev.lockward;

import dev.lockward.Call.Manner;
import java.util.List;
import java.util.concurrent.CancellationException;
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
    /** How many milliseconds the server keeps the position in the queue between two slices, or when a connection breaks. */
    static final long KEEP = 5_000;

    private static final long SLICE = TimeUnit.SECONDS.toNanos(10);

    /** The lease of a grant after a wait, in milliseconds, until it is confirmed: what a lost grant leaves behind. */
    private static final long SHORT_LEASE = 3_000;

    /** How much later than the wait limit a reply may arrive. */
    private static final long GRACE = TimeUnit.MILLISECONDS.toNanos(100);

    static final long GIVE_UP_LIMIT = TimeUnit.MILLISECONDS.toNanos(200);

    /** True: granted; false: busy. */
    final CompletableFuture<Boolean> result = new CompletableFuture<>();

    private final LockwardClient client;
    private final Tenure tenure;
    private final LockRequest request;
    private final boolean isRenewed;
    private final boolean isWaiting;
    private final boolean isLimited;
    private final long waitEnd;
    private final int wanted;
    private final Call call;
    private @Nullable Long lease;
    private boolean isShortened;
    private boolean isLastSlice;
    private boolean hasWaited;
    private volatile boolean hasPermit;
    private int polls;

    /**
     * @param lease in milliseconds; null for the server's default
     * @param waits whether to wait until {@code waitEnd}
     */
    KeyAcquisition(
            LockwardClient client,
            Tenure tenure,
            LockRequest request,
            @Nullable Long lease,
            boolean isRenewed,
            boolean waits,
            long waitEnd) {
        this.client = client;
        this.tenure = tenure;
        this.request = request;
        this.lease = lease == null ? null : Math.min(lease, Clock.millis(request.holdLimit));
        this.isRenewed = isRenewed;
        this.isWaiting = waits;
        this.waitEnd = waitEnd;
        this.wanted = tenure.holds() + 1;
        isLimited = Clock.left(waitEnd) < Clock.FOREVER / 2;
        long patience = client.patience + replicationLimit();
        long patient = Clock.now() + patience;
        long limit = isLimited ? waitEnd + GRACE + replicationLimit() : waitEnd;
        call = new Call(client.servers, tenure.key, patience, waits || limit - patient < 0 ? limit : patient);
    }

    void start() {
        tryOnce(request.replicas == null ? Manner.SHARED : Manner.OWN);
    }

    /**
     * Leaves: what was or will be granted is given back.
     *
     * @return when the server has answered that, or 200 ms later
     */
    CompletableFuture<?> cancel() {
        boolean isFirst = result.completeExceptionally(new CancellationException());
        call.cancel();
        return isFirst ? end(true) : CompletableFuture.completedFuture(null);
    }

    private void ask(
            Manner manner, long limit, Supplier<Request> next, List<Request> following, Consumer<List<Object>> handle) {
        call.ask(manner, limit, next, following).whenComplete((replies, error) -> {
            if (error != null) {
                fail(error);
                return;
            }
            try {
                handle.accept(replies);
            } catch (RuntimeException | Error refusal) {
                fail(refusal);
            }
        });
    }

    /** WAIT, if the grant must be replicated. It holds up the connection, which is not a shared one then. */
    private List<Request> replication() {
        LockRequest.Replicas replicas = request.replicas;
        return replicas == null
                ? List.of()
                : List.of(new Request(Request.WAIT, List.of(replicas.count(), replicas.within())));
    }

    private long replicationLimit() {
        LockRequest.Replicas replicas = request.replicas;
        return replicas == null ? 0 : Clock.nanos(replicas.within());
    }

    private long replyLimit() {
        return client.servers.responseLimit + replicationLimit();
    }

    private void tryOnce(Manner manner) {
        ask(
                manner,
                replyLimit(),
                () -> tenure.acquire(wanted, lease, 0, false, request.kind()),
                replication(),
                replies -> {
                    Object reply = replies.get(0);
                    if (isGrant(reply)) {
                        granted(reply, replies);
                    } else if (isShortened(reply)) {
                        tryOnce(manner);
                    } else {
                        checkRefusal(reply);
                        waitOrPoll();
                    }
                });
    }

    private void waitOrPoll() {
        if (!isWaiting || Clock.left(waitEnd) <= 0) {
            finish(false, hasWaited);
            return;
        }
        hasPermit = hasPermit || client.waitPermits.tryAcquire();
        if (hasPermit) {
            waitForSlice();
        } else {
            long pause = Math.min(Clock.left(waitEnd), Clock.backOff(++polls));
            client.timer.at(
                    Clock.now() + pause, () -> tryOnce(request.replicas == null ? Manner.PATIENT : Manner.WAITING));
        }
    }

    private void waitForSlice() {
        hasWaited = true;
        ask(Manner.WAITING, SLICE + client.servers.responseLimit, this::slice, List.of(), replies -> {
            Object reply = replies.get(0);
            if (isGrant(reply)) {
                confirm(reply);
            } else if (reply == null && isLastSlice) {
                finish(false, false);
            } else {
                if (!isShortened(reply)) {
                    checkRefusal(reply);
                }
                waitOrPoll();
            }
        });
    }

    private Request slice() {
        long left = Clock.left(waitEnd);
        isLastSlice = left <= SLICE;
        Long asked = lease == null ? null : Math.min(lease, SHORT_LEASE);
        return tenure.acquire(
                wanted, asked, Clock.millis(Math.max(0, Math.min(left, SLICE))), !isLastSlice, request.kind());
    }

    /** Sets the full lease of what a wait was granted. It may be over already: then the wait goes on. */
    private void confirm(Object grant) {
        long full = lease == null ? number(grant, 2) : lease;
        lease = full;
        if (request.replicas == null) {
            call.closeOwn(true);
        }
        ask(
                request.replicas == null ? Manner.SHARED : Manner.OWN,
                replyLimit(),
                () -> tenure.renew(full, number(grant, 0), wanted, request.kind()),
                replication(),
                replies -> {
                    Object reply = replies.get(0);
                    if (reply instanceof Long) {
                        granted(grant, replies);
                    } else if (isShortened(reply)) {
                        confirm(grant);
                    } else if (reply instanceof ServerError error
                            && error.code().equals("NOTHELD")) {
                        waitOrPoll();
                    } else {
                        checkRefusal(reply);
                    }
                });
    }

    private void granted(Object grant, List<Object> replies) {
        LockRequest.Replicas replicas = request.replicas;
        if (replicas != null) {
            hasWaited = true; // there is a grant to give back
            LockRefusedException.throwIfError(tenure.key, replies.get(1));
            if ((Long) replies.get(1) < replicas.count()) {
                LockUnreplicatedException error = new LockUnreplicatedException("only " + replies.get(1) + " of "
                        + replicas.count() + " replicas have confirmed the grant of the lock " + tenure.key
                        + " in time, and it was given back: check the replicas, and try again");
                end(true).whenComplete((done, failed) -> result.completeExceptionally(error));
                return;
            }
        }
        long token = number(grant, 0);
        long full = lease == null ? number(grant, 2) : lease;
        if (wanted == 1) {
            tenure.granted(token, 1, call.sent, full, isRenewed, request.kind(), call.node);
        } else if (token == tenure.token()) {
            tenure.reentered(call.sent, full, isRenewed, request.kind());
        } else {
            throw tenure.lose("another tenure has begun");
        }
        if (!finish(true, false)) {
            tenure.release(request.isShared()); // the caller has left meanwhile
        }
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
        if (wanted > 1 && reply instanceof ServerError error && error.deniesTenure()) {
            throw tenure.lose(error.message());
        }
        LockRefusedException.throwIfError(tenure.key, reply);
    }

    private boolean finish(boolean isGranted, boolean isLeftBehind) {
        boolean isFirst = result.complete(isGranted);
        end(isLeftBehind);
        return isFirst;
    }

    private void fail(Throwable failure) {
        Throwable cause = Clock.cause(failure);
        // A busy lock, and not a silent server, has used up the wait limit.
        boolean isBusy = cause instanceof LockUnreachableException
                && isWaiting
                && isLimited
                && call.isHeard
                && Clock.left(waitEnd) <= 0;
        boolean isFirst = isBusy ? result.complete(false) : result.completeExceptionally(cause);
        // Also after cancel(): the permit may have been taken since.
        end(isFirst && (call.mayHaveRun || hasWaited));
    }

    /** Leaves nothing behind: neither a connection, nor a position in a queue, nor a grant. */
    private CompletableFuture<?> end(boolean isLeftBehind) {
        call.closeOwn(!isLeftBehind);
        synchronized (this) {
            if (hasPermit) {
                client.waitPermits.release();
                hasPermit = false;
            }
        }
        return isLeftBehind
                ? new Call(client.servers, tenure.key, GIVE_UP_LIMIT, Clock.now() + GIVE_UP_LIMIT)
                        .ask(Manner.SHARED, () -> tenure.giveUp(wanted - 1))
                        .exceptionally(unanswered -> List.of())
                : CompletableFuture.completedFuture(null);
    }
}
