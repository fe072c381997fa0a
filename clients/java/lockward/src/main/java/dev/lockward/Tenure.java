package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/** A tenure of one key by one owner. The client renews and watches the tenure until it is released or lost. */
final class Tenure {
    private static final System.Logger LOGGER = System.getLogger(LockwardClient.class.getName());
    static final String LEASE_OVER = "its lease is over";

    /** If the time between the end of the lease and the hold limit is less than this, the client does not renew the lease any more. */
    private static final long HOLD_TOLERANCE = 20;

    /** The longest pause after a failed renewal. If a sixth of the lease is shorter, the pause is a sixth of the lease. */
    private static final long LONGEST_PAUSE = 1_000;

    private static final long MIN_REPLY_LIMIT = 20;

    final String key;
    final String owner;

    /** The thread that holds the lock, if any. The client renews the lock only while this thread lives. */
    final @Nullable Thread thread;

    final LockwardClient client;
    private final long holdLimit;

    /** Completes when the tenure is lost, with the reason. */
    private final CompletableFuture<String> lost = new CompletableFuture<>();

    // A thread changes the following fields only while it holds this object's monitor. While it holds the monitor, the
    // thread never waits.

    /** The kinds that the server may have: several after downgrades without replies. The next renewal names the first. */
    private List<List<Object>> kinds = List.of(Request.EXCLUSIVE);

    volatile long token;
    volatile int holds;
    volatile long lease;

    private int sharedHolds;

    /** How many releases of holds the server has refused. The owner still has these holds at the server. */
    private int refusedReleases;

    private boolean isRenewed;

    /** Whether a call waits for other keys of the lock. During this wait the client always renews the tenure. */
    private boolean isKept;

    private long deadline;
    private long holdEnd;

    /** When the next renewal begins, or the deadline if there is no next renewal. */
    private long renewAt;

    /** The latest renewal that is in progress. Replies to earlier renewals do not set the deadline. */
    private @Nullable Call renewal;

    Tenure(LockRequest request, String key, String owner, @Nullable Thread thread) {
        client = request.client;
        holdLimit = request.holdLimit;
        this.key = key;
        this.owner = owner;
        this.thread = thread;
    }

    synchronized boolean isHeld() {
        return holds > 0 && !isLost() && Clock.left(deadline) > 0;
    }

    boolean isLost() {
        return lost.isDone();
    }

    synchronized int holds(boolean isShared) {
        return isShared ? sharedHolds : holds - sharedHolds;
    }

    /** How many holds the owner has at the server. */
    synchronized int holdsAtServer() {
        return holds + refusedReleases;
    }

    synchronized void checkHeld() {
        if (holds == 0) {
            throw released();
        }
        if (!isHeld()) {
            throw lose(LEASE_OVER);
        }
    }

    private IllegalMonitorStateException released() {
        return new IllegalMonitorStateException("the lock " + key + " was released or handed over: acquire it again");
    }

    /**
     * Stores a hold that the server has granted. It is the first hold of the tenure, or a re-entry. A re-entry never shortens the lease.
     * The caller must then call {@link LockwardClient#watch}.
     *
     * @param count how many holds the owner now has at the server
     */
    synchronized void granted(Call by, long newToken, int count, long newLease, boolean renewed, List<Object> asKind) {
        int added = count - holdsAtServer();
        sharedHolds += asKind.equals(Request.SHARED) ? added : 0;
        long end = Clock.leaseEnd(by.sent, newLease);
        if (holds == 0 || (renewed && !isRenewed)) {
            lease = newLease;
        }
        isRenewed |= renewed;
        if (holds == 0) {
            token = newToken;
            kinds = List.of(asKind);
            holdEnd = by.sent + holdLimit;
        } else {
            end = Math.max(end, deadline);
        }
        holds += added;
        leaseEnds(end);
    }

    // The loss.

    /** Calls the listener once when one of the tenures is lost. The listener may block, because it runs in a thread of its own. */
    static void onLost(List<Tenure> tenures, Consumer<LockLostException> listener) {
        CompletableFuture.anyOf(tenures.stream()
                        .map(tenure -> tenure.lost.thenApply(tenure::loss))
                        .toArray(CompletableFuture[]::new))
                .thenAcceptAsync(loss -> listener.accept((LockLostException) loss), tenures.get(0).client.callbacks)
                .exceptionally(error -> {
                    LOGGER.log(System.Logger.Level.WARNING, "a listener for lost locks has failed", error);
                    return null;
                });
    }

    private LockLostException loss(String reason) {
        return new LockLostException(key, token, reason);
    }

    /** This limit, with the present weight. The server refuses SHARED with a weight, so the largest number of slots replaces SHARED. */
    synchronized List<Object> withWeight(List<Object> limit) {
        List<Object> weight = kinds.get(0).stream().skip(2).toList();
        boolean isRefused = limit.equals(Request.SHARED) && !weight.isEmpty();
        List<Object> accepted = isRefused ? List.of("SLOTS", 1_000_000) : limit;
        return Stream.concat(accepted.stream(), weight.stream()).toList();
    }

    synchronized void stopRenewing() {
        isRenewed = false;
        keep(false);
    }

    /** Called when a wait for other keys of the lock begins (true), and when it has ended (false). */
    synchronized void keep(boolean isWaiting) {
        isKept = isWaiting;
        if (holds > 0 && !isRenewed) {
            leaseEnds(deadline);
            client.wakeAt(renewAt);
        }
    }

    /** Ends the tenure as lost, and calls the program's listeners. If the tenure was lost before, the exception has the first reason. */
    LockLostException lose(String reason) {
        client.live.remove(this);
        lost.complete(reason);
        return loss(lost.join());
    }

    /** Throws if the reply is an error. If the error says that the owner does not hold the lock any more, the tenure is lost. */
    void checkAccepted(@Nullable Object reply) {
        if (token > 0 && reply instanceof ServerError error && error.deniesTenure()) {
            throw lose(error.message());
        }
        LockRefusedException.throwIfError(key, reply);
    }

    /** Does what {@link #checkAccepted} does, and also throws if the reply is not a number. */
    void checkNumber(@Nullable Object reply) {
        checkAccepted(reply);
        if (!(reply instanceof Long)) {
            throw new LockRefusedException(key, "unexpected reply " + reply);
        }
    }

    // The renewals.

    /**
     * Ends the tenure if its lease is over. Renews the tenure if a renewal is due within a twelfth of the lease. The client renews this
     * early, so that several tenures share a pipeline.
     *
     * @param mayBeForgotten whether a connection was lost, so that a server may have forgotten its tenures
     */
    void check(boolean mayBeForgotten) {
        boolean isDue;
        synchronized (this) {
            if (holds == 0 || isLost()) {
                return;
            }
            if (!isHeld()) {
                lose(LEASE_OVER);
                return;
            }
            isDue = renewAt != deadline && Clock.left(renewAt) <= lease / 12;
            if (isDue || mayBeForgotten) {
                renewAt = deadline;
                isDue = renewal == null && (thread == null || thread.isAlive());
            }
            client.wakeAt(Math.min(renewAt, deadline));
        }
        if (isDue) {
            renew(new Call(client.servers, key, deadline), false, null);
        }
    }

    /**
     * Renews the lock with this lease and kind. If no server answers, the next renewal sets the lease and the kind.
     *
     * @param newLease the new lease. 0 keeps the present lease; if the client does not renew the lock, 0 also keeps the end of the lease
     * @param newKind a kind with a larger limit, or null
     */
    CompletableFuture<Void> renew(long newLease, @Nullable List<Object> newKind) {
        return renew(client.call(key), newLease, newKind);
    }

    private CompletableFuture<Void> renew(Call call, long newLease, @Nullable List<Object> newKind) {
        long oldLease;
        synchronized (this) {
            oldLease = lease;
            lease = newLease == 0 ? lease : newLease;
            if (newKind != null) {
                kinds = Stream.concat(Stream.of(newKind), others(newKind)).toList();
            }
        }
        return renew(call, newLease != 0, newKind).whenComplete((done, failure) -> {
            if (failure != null && Clock.cause(failure) instanceof LockRefusedException) {
                lease = oldLease;
            }
        });
    }

    /**
     * @param isWanted whether the program has asked for the whole lease. If false, see {@link #nextLease}
     * @param downgrade the kind of a downgrade, or null
     */
    private CompletableFuture<Void> renew(Call call, boolean isWanted, @Nullable List<Object> downgrade) {
        var sent = new Object() {
            long lease;
            int holds;
            List<Object> kind = Request.EXCLUSIVE;
        };
        synchronized (this) {
            renewal = call;
            call.replyLimit =
                    isWanted ? call.replyLimit : Math.max(MIN_REPLY_LIMIT, Math.min(call.replyLimit, lease / 6));
        }
        return call.ask(() -> {
                    checkHeld();
                    synchronized (this) {
                        lease = Math.min(lease, call.longestLease);
                        sent.lease = nextLease(isWanted);
                        sent.holds = holdsAtServer();
                        sent.kind = kinds.get(0);
                        // The server may set this lease even if the reply is lost.
                        deadline = Math.min(deadline, Clock.leaseEnd(Clock.now(), sent.lease));
                        client.wakeAt(deadline);
                        return Request.withHolds(
                                "LOCK.RENEW", this, sent.lease, List.of("TOKEN", token), sent.holds, sent.kind);
                    }
                })
                .thenCompose(reply -> {
                    if (sent.holds != holdsAtServer() && reply instanceof ServerError) {
                        return renew(call, isWanted, downgrade); // the program has changed the holds meanwhile
                    }
                    if (reply instanceof ServerError refusal && reject(sent.kind, refusal.code(), downgrade)) {
                        return renew(call, isWanted, null);
                    }
                    synchronized (this) {
                        checkNumber(reply);
                        if (sent.kind.equals(kinds.get(0))) {
                            kinds = List.of(sent.kind);
                        }
                        if (renewal == call) {
                            leaseEnds(Clock.leaseEnd(call.sent, sent.lease));
                            renewAt = client.servers.lostAt > call.sent ? Clock.now() : renewAt;
                        }
                    }
                    return CompletableFuture.<Void>completedFuture(null);
                })
                .whenComplete((done, failure) -> {
                    synchronized (this) {
                        renewal = renewal == call ? null : renewal;
                        if (failure != null && (isRenewed || isKept)) {
                            renewAt = Clock.now() + Math.min(LONGEST_PAUSE, lease / 6);
                        }
                        client.wakeAt(Math.min(renewAt, deadline));
                    }
                });
    }

    private Stream<List<Object>> others(List<Object> kind) {
        return kinds.stream().filter(other -> !other.equals(kind));
    }

    /**
     * Called when the server has refused a renewal that named this kind. The next renewal names another kind, if there is one. Returns
     * whether to send it at once.
     */
    private synchronized boolean reject(List<Object> kind, String code, @Nullable List<Object> downgrade) {
        boolean isDowngrade = kind.equals(downgrade);
        boolean isOfAnotherKind = code.equals("LIMIT") || code.equals("ERR"); // the server has no such kind
        if (kinds.size() == 1 || !kind.equals(kinds.get(0)) || !(isOfAnotherKind || isDowngrade)) {
            return false;
        }
        // After another error, the server may have executed an earlier request whose reply was lost.
        kinds = isOfAnotherKind
                ? others(kind).toList()
                : Stream.concat(others(kind), Stream.of(kind)).toList();
        return !isDowngrade;
    }

    /**
     * The lease that a renewal sets. This lease does not end after the hold limit. If the client does not renew the lock automatically,
     * the new lease does not end after the present lease.
     */
    private long nextLease(boolean isWanted) {
        long until = isWanted || isRenewed || isKept ? holdEnd : deadline;
        return Math.min(lease, Math.max(1, Clock.left(until)));
    }

    /** Called when the server has set a lease that ends at this instant. */
    private void leaseEnds(long end) {
        deadline = Math.min(end, holdEnd);
        renewAt = deadline;
        if (end - holdEnd > HOLD_TOLERANCE) {
            renewAt = Clock.now(); // renew now, to shorten the lease to the hold limit
        } else if ((isRenewed || isKept) && holdEnd - end > HOLD_TOLERANCE + lease / 1000) {
            renewAt = end - lease * 2 / 3;
        }
    }

    // Guarded commands, and the end of the tenure.

    /**
     * Runs a command if the server has this tenure.
     *
     * @param mayRenew whether to renew the tenure if the server does not know it. A server in quarantine then restores the tenure
     */
    CompletableFuture<@Nullable Object> guarded(boolean mayRenew, Object... command) {
        Call call = client.call(key);
        call.isRepeatable = false;
        return call.ask(() -> {
                    checkHeld();
                    return new Request("LOCK.GUARD", key, token, List.of(command));
                })
                .thenCompose(reply -> {
                    if (reply instanceof ServerError error && error.code().equals("FENCED")) {
                        if (mayRenew) {
                            return renew(0, null).thenCompose(renewed -> guarded(false, command));
                        }
                        throw lose(error.message());
                    }
                    LockRefusedException.throwIfError(key, reply);
                    return CompletableFuture.completedFuture(reply);
                });
    }

    /** Releases all holds. */
    CompletableFuture<Void> releaseAll() {
        synchronized (this) {
            holds = Math.min(holds, 1);
        }
        return release(false);
    }

    /** Releases one hold. This object then has one hold less, even if no server answers, or if the server refuses the release. */
    CompletableFuture<Void> release(boolean isShared) {
        int left;
        Object kept;
        boolean isDowngrade;
        Call call;
        synchronized (this) {
            if (holds == 0) {
                return CompletableFuture.failedFuture(released());
            }
            if (!isHeld()) {
                dropHold(isShared);
                return CompletableFuture.failedFuture(lose(LEASE_OVER));
            }
            call = lastCall(deadline);
            left = holds - 1;
            kept = left == 0 ? "ALL" : List.of("HOLDS", holdsAtServer() - 1);
            isDowngrade = !isShared && kinds.get(0).isEmpty() && left > 0 && left == sharedHolds;
            // Drop the hold before the client sends the release: a renewal that the server denies after the release is
            // no loss.
            dropHold(isShared);
        }
        // A writer that also has the read lock becomes a reader.
        return (isDowngrade ? renew(call, 0, Request.SHARED) : CompletableFuture.<Void>completedFuture(null))
                .thenCompose(ready -> call.ask(() -> new Request("LOCK.RELEASE", key, owner, kept, "TOKEN", token)))
                .thenAccept(reply -> {
                    boolean wasReleased = left == 0 && call.mayHaveRun && ServerError.is(reply, "NOTHELD");
                    if (!wasReleased) {
                        checkNumber(reply);
                    }
                })
                .whenComplete((released, failure) -> {
                    if (left > 0 && failure != null && Clock.cause(failure) instanceof LockRefusedException) {
                        synchronized (this) {
                            refusedReleases++;
                        }
                    }
                });
    }

    /** Ends the tenure in this process, and sets the lease at the server to the delay. */
    CompletableFuture<Void> releaseAfter(long delay) {
        return renew(lastCall(Long.MAX_VALUE), delay, null).whenComplete((done, error) -> end());
    }

    /** A call that the program cannot repeat, because the hold is over. It ends at {@code latest}, or when the patience is over. */
    private Call lastCall(long latest) {
        Call call = new Call(client.servers, key, Math.min(latest, Clock.now() + client.patience));
        call.advice = "the lock ends with its lease at the latest";
        return call;
    }

    /**
     * Ends the tenure in this process, but not at the server. Returns the values with which another process resumes the tenure: key,
     * owner, token, holds, lease, rest of the hold limit, whether the client renews the tenure, and kind.
     */
    synchronized List<Object> handOver() {
        checkHeld();
        long holdLeft = holdLimit == Clock.FOREVER ? holdLimit : Clock.left(holdEnd);
        List<Object> handle =
                new ArrayList<>(List.of(key, owner, token, holdsAtServer(), lease, Math.max(1, holdLeft), isRenewed));
        handle.addAll(kinds.get(0));
        end();
        return handle;
    }

    synchronized void dropHold(boolean isShared) {
        sharedHolds = Math.min(holds - 1, isShared ? sharedHolds - 1 : sharedHolds);
        holds--;
        if (holds == 0) {
            end();
        }
    }

    /** From now on the client neither renews the tenure nor reports its loss. */
    void end() {
        synchronized (this) {
            holds = 0;
            sharedHolds = 0;
        }
        client.live.remove(this);
    }
}
