package dev.lockward;

import dev.lockward.Call.Manner;
import dev.lockward.Servers.Node;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** One owner and one key, from the grant to the end. It is renewed and watched until it is released or lost. */
final class Tenure {
    static final List<Object> EXCLUSIVE = List.of();
    static final List<Object> SHARED = List.of("SHARED");

    private static final String LEASE_OVER = "its lease is over";
    /** A lease that ends so little before the hold limit is not renewed any more. */
    private static final long HOLD_TOLERANCE = TimeUnit.MILLISECONDS.toNanos(20);

    private static final long MIN_REPLY_LIMIT = TimeUnit.MILLISECONDS.toNanos(20);

    final String key;
    final String owner;
    private final LockwardClient client;

    /** The thread that holds the lock, if any. The lock is renewed only while it lives. */
    private final @Nullable Thread thread;

    private final long holdLimit;

    // The following is guarded by this object's monitor. No thread waits while it has that.
    private final List<Consumer<LockLostException>> listeners = new ArrayList<>();
    private List<Object> kind = EXCLUSIVE;
    private long token;
    private int holds;
    private int sharedHolds;
    private long lease;
    private boolean isRenewed;
    private long deadline;
    private long holdEnd;
    private @Nullable String loss;

    // The renewals. If several are under way, only the reply to the latest one sets the deadline.
    private @Nullable Node node;
    private @Nullable Call renewal;
    private Timer.@Nullable Task timer;
    private int leaseRequests;
    private int failures;
    private boolean isUrgent;
    private long retryAt;

    /** How many renewals that the program has asked for are under way. */
    private int asked;

    Tenure(LockwardClient client, String key, String owner, long holdLimit, @Nullable Thread thread) {
        this.client = client;
        this.key = key;
        this.owner = owner;
        this.holdLimit = holdLimit;
        this.thread = thread;
    }

    // The requests. Leases are in milliseconds.

    /**
     * Acquires so that the owner has {@code wanted} holds.
     *
     * @param asked null: the server's default lease
     * @param block how many milliseconds to wait; 0 does not wait
     */
    Request acquire(int wanted, @Nullable Long asked, long block, boolean keep, List<Object> asKind) {
        List<Object> arguments = new ArrayList<>(14);
        arguments.add(key);
        arguments.add(owner);
        if (asked != null) {
            arguments.add("PX");
            arguments.add(asked);
        }
        if (block > 0) {
            arguments.add("BLOCK");
            arguments.add(block);
        }
        if (keep) {
            arguments.add("KEEP");
            arguments.add(KeyAcquisition.KEEP);
        }
        arguments.add("HOLDS");
        arguments.add(wanted);
        arguments.addAll(asKind);
        return new Request(Request.ACQUIRE, arguments);
    }

    /** Sets a lease. In quarantine this restores a tenure that the server has forgotten. */
    Request renew(long asked, long ofToken, int count, List<Object> asKind) {
        List<Object> arguments = new ArrayList<>(List.of(key, owner, "PX", asked, "TOKEN", ofToken, "HOLDS", count));
        arguments.addAll(asKind);
        return new Request(Request.RENEW, arguments);
    }

    /** Gives back what may have been granted since the owner had so many holds, and ends its waits. */
    Request giveUp(int left) {
        return new Request(Request.RELEASE, List.of(key, owner, "HOLDS", left));
    }

    // What the program asks for.

    synchronized boolean isHeld() {
        return holds > 0 && loss == null && Clock.left(deadline) > 0;
    }

    synchronized boolean isRenewed() {
        return isRenewed;
    }

    synchronized int holds() {
        return holds;
    }

    synchronized int sharedHolds() {
        return sharedHolds;
    }

    synchronized long token() {
        return token;
    }

    void checkHeld() {
        boolean isOver;
        synchronized (this) {
            if (holds == 0) {
                throw LockwardClient.notHeld(key);
            }
            isOver = loss != null || Clock.left(deadline) <= 0;
        }
        if (isOver) {
            throw lose(LEASE_OVER);
        }
    }

    void onLost(Consumer<LockLostException> listener) {
        String known;
        synchronized (this) {
            known = loss;
            if (known == null) {
                listeners.add(listener);
            }
        }
        if (known != null) {
            client.notifyLost(listener, new LockLostException(key, token(), known));
        }
    }

    /** Makes several keys one lock: when one is lost, the others are renewed no more. */
    static void loseTogether(List<Tenure> tenures) {
        if (tenures.size() > 1) {
            tenures.forEach(tenure -> tenure.onLost(loss -> tenures.forEach(Tenure::stopRenewing)));
        }
    }

    private synchronized void stopRenewing() {
        isRenewed = false;
    }

    /**
     * Sets a lease, from now.
     *
     * @param newLease null: the lease that the lock has
     * @param wider a kind with a larger limit, or null
     */
    CompletableFuture<Void> renew(@Nullable Long newLease, @Nullable List<Object> wider) {
        return renew(newLease, wider, false);
    }

    private CompletableFuture<Void> renew(@Nullable Long newLease, @Nullable List<Object> wider, boolean isShortened) {
        Call call = client.call(key);
        long[] request = new long[2];
        synchronized (this) {
            asked++;
        }
        CompletableFuture<Object> reply = call.ask(Manner.SHARED, () -> {
            checkHeld();
            synchronized (this) {
                request[0] = newLease == null ? nextLease() : newLease;
                request[1] = noteLeaseRequest(request[0]);
                return renew(request[0], token, holds, wider == null ? kind : wider);
            }
        });
        schedule();
        return reply.whenComplete((value, error) -> {
                    synchronized (this) {
                        asked--;
                    }
                })
                .thenCompose(value -> {
                    long longest = ServerError.longestLease(value);
                    if (longest > 0 && longest < request[0] && !isShortened) {
                        return renew(longest, wider, true);
                    }
                    checkAccepted(value);
                    synchronized (this) {
                        lease = newLease == null ? lease : newLease;
                        kind = wider == null ? kind : wider;
                        noteLease((int) request[1], call.sent, request[0]);
                    }
                    schedule();
                    return CompletableFuture.completedFuture(null);
                });
    }

    /** Runs a command if the server has this tenure. */
    CompletableFuture<Object> guarded(Object... command) {
        return sendGuarded(command)
                .thenCompose(reply -> isFenced(reply)
                        ? renew(null, null).thenCompose(renewed -> sendGuarded(command))
                        : CompletableFuture.completedFuture(reply))
                .thenApply(reply -> {
                    if (isFenced(reply) && reply instanceof ServerError error) {
                        throw lose(error.message());
                    }
                    LockRefusedException.throwIfError(key, reply);
                    return reply;
                });
    }

    private CompletableFuture<Object> sendGuarded(Object[] command) {
        return client.call(key).ask(Manner.ONCE, () -> {
            checkHeld();
            List<Object> arguments = new ArrayList<>(List.of(key, token()));
            arguments.addAll(List.of(command));
            return new Request(Request.GUARD, arguments);
        });
    }

    private static boolean isFenced(@Nullable Object reply) {
        return reply instanceof ServerError error && error.code().equals("FENCED");
    }

    /** Gives one hold back. This object has one hold less, even if no server answers. */
    CompletableFuture<Void> release(boolean isShared) {
        int left;
        boolean isLost;
        boolean isDowngrade;
        long end;
        synchronized (this) {
            if (holds == 0) {
                return CompletableFuture.failedFuture(LockwardClient.notHeld(key));
            }
            isLost = loss != null || Clock.left(deadline) <= 0;
            end = deadline;
            left = holds - 1;
            // The thread goes on as a reader.
            isDowngrade = !isShared && kind.isEmpty() && left > 0 && left == sharedHolds;
        }
        CompletableFuture<Void> before =
                isDowngrade && !isLost ? renew(null, SHARED) : CompletableFuture.completedFuture(null);
        // Before the request is sent: a renewal that is denied from now on finds no loss.
        dropHold(left, isShared);
        if (isLost) {
            return CompletableFuture.failedFuture(lose(LEASE_OVER));
        }
        long patient = Clock.now() + client.patience;
        Call call = new Call(client.servers, key, client.patience, end - patient < 0 ? end : patient);
        return before.thenCompose(downgraded -> call.ask(
                        Manner.SHARED,
                        () -> new Request(
                                Request.RELEASE,
                                left == 0
                                        ? List.of(key, owner, "ALL", "TOKEN", token())
                                        : List.of(key, owner, "HOLDS", left, "TOKEN", token()))))
                .thenAccept(reply -> {
                    boolean isReleased = left == 0
                            && call.mayHaveRun
                            && reply instanceof ServerError error
                            && error.code().equals("NOTHELD");
                    if (!isReleased) {
                        checkAccepted(reply);
                    }
                });
    }

    /** Gives the lock back after a delay: its lease ends then. */
    CompletableFuture<Void> releaseAfter(long millis) {
        CompletableFuture<Void> renewed = renew(millis, null);
        return renewed.whenComplete((done, error) -> end());
    }

    /** Forgets the lock, which stays held at the server. Returns what another process needs to go on with it. */
    synchronized List<Object> handOver() {
        checkHeld();
        List<Object> handle = new ArrayList<>(List.of(key, owner, token, holds, lease));
        handle.addAll(kind);
        end();
        return handle;
    }

    /** From now on the lock is neither renewed nor lost. */
    void end() {
        dropHold(0, false);
    }

    private void dropHold(int left, boolean isShared) {
        Call ended;
        synchronized (this) {
            holds = left;
            sharedHolds -= isShared ? 1 : 0;
            if (left > 0) {
                return;
            }
            ended = renewal;
            client.timer.cancel(timer);
        }
        if (ended != null) {
            ended.cancel();
        }
        client.forget(this);
    }

    private void checkAccepted(@Nullable Object reply) {
        if (reply instanceof ServerError error && error.deniesTenure()) {
            throw lose(error.message());
        }
        LockRefusedException.throwIfError(key, reply);
    }

    /** The server has granted the lock. Another process may have acquired it, with more than one hold. */
    void granted(
            long newToken,
            int count,
            long sent,
            long newLease,
            boolean renewed,
            List<Object> asKind,
            @Nullable Node by) {
        synchronized (this) {
            token = newToken;
            kind = asKind;
            lease = newLease;
            isRenewed = renewed;
            deadline = Clock.leaseEnd(sent, newLease);
            holdEnd = sent + holdLimit;
            isUrgent = holdEnd - deadline < 0;
            retryAt = Clock.now();
            loss = null;
            node = by;
            holds = count;
            sharedHolds = asKind.equals(SHARED) ? count : 0;
        }
        client.watch(this);
        schedule();
    }

    /** The server has granted another hold. A re-entry does not shorten the lease. */
    void reentered(long sent, long newLease, boolean renewed, List<Object> asKind) {
        synchronized (this) {
            holds++;
            sharedHolds += asKind.equals(SHARED) ? 1 : 0;
            isRenewed |= renewed;
            long later = Clock.leaseEnd(sent, newLease);
            if (later - deadline > 0) {
                deadline = later;
            }
        }
        schedule();
    }

    /** Ends the tenure as lost, and tells the program. Returns the exception: the first reason stays. */
    LockLostException lose(String reason) {
        List<Consumer<LockLostException>> notified;
        LockLostException lost;
        Call ended;
        synchronized (this) {
            if (loss != null) {
                return new LockLostException(key, token, loss);
            }
            loss = reason;
            lost = new LockLostException(key, token, reason);
            notified = List.copyOf(listeners);
            ended = renewal;
            client.timer.cancel(timer);
        }
        client.forget(this);
        if (ended != null) {
            ended.cancel();
        }
        notified.forEach(listener -> client.notifyLost(listener, lost));
        return lost;
    }

    // The timer and the renewals.

    /** Ends the tenure if its lease is over, or renews it if that is due. */
    void onTimer() {
        boolean isOver;
        boolean isDue;
        synchronized (this) {
            if (holds == 0 || loss != null) {
                return;
            }
            isOver = Clock.left(deadline) <= 0;
            isDue = Clock.left(nextEvent()) <= 0;
        }
        if (isOver) {
            lose(LEASE_OVER);
            return;
        }
        if (isDue) {
            beginRenewal();
            client.renewOthers();
        }
        schedule();
    }

    /** Renews the tenure if a fourth of the lease is over: others are renewed now. */
    void renewWithOthers() {
        boolean isNear;
        synchronized (this) {
            isNear = isRenewed && nextEvent() != deadline && Clock.left(nextEvent()) <= Clock.nanos(lease) / 12;
        }
        if (isNear) {
            beginRenewal();
        }
    }

    /** The connection to a server is lost, and the server may have forgotten the tenure. */
    void renewNow(Node lost) {
        boolean isConcerned;
        synchronized (this) {
            isConcerned = node == lost && asked == 0;
            isUrgent |= isConcerned;
            retryAt = isConcerned ? Clock.now() : retryAt;
        }
        if (isConcerned) {
            beginRenewal();
            schedule();
        }
    }

    private void beginRenewal() {
        Call call;
        long limit;
        synchronized (this) {
            if (holds == 0 || loss != null || renewal != null) {
                return;
            }
            call = new Call(client.servers, key, Clock.FOREVER, deadline);
            renewal = call;
            isUrgent = false;
            limit = Math.max(MIN_REPLY_LIMIT, Math.min(client.servers.responseLimit, Clock.nanos(lease) / 6));
        }
        long[] request = new long[2];
        call.ask(
                        Manner.SHARED,
                        limit,
                        () -> {
                            synchronized (this) {
                                if (holds == 0 || loss != null) {
                                    throw new CancellationException();
                                }
                                request[0] = nextLease();
                                request[1] = noteLeaseRequest(request[0]);
                                return renew(request[0], token, holds, kind);
                            }
                        },
                        List.of())
                .whenComplete((replies, failure) ->
                        renewed(call, replies == null ? null : replies.get(0), (int) request[1], request[0]));
    }

    /** Handles the reply to a renewal, or null. Runs in the thread that reads replies, and must not block it. */
    private void renewed(Call call, @Nullable Object reply, int leaseRequest, long asked) {
        synchronized (this) {
            renewal = null;
            long longest = ServerError.longestLease(reply);
            if (reply instanceof Long) {
                failures = 0;
                isUrgent &= call.sent - retryAt < 0;
                node = call.node;
                noteLease(leaseRequest, call.sent, asked);
            } else if (longest > 0 && longest < asked) {
                lease = longest;
                isUrgent = true;
                retryAt = Clock.now();
            } else {
                isUrgent = true;
                retryAt = Clock.now() + Clock.backOff(++failures);
            }
        }
        if (holds() > 0 && reply instanceof ServerError error && error.deniesTenure()) {
            lose(error.message());
        }
        schedule();
    }

    /** Sets the timer. */
    private synchronized void schedule() {
        client.timer.cancel(timer);
        if (holds > 0 && loss == null) {
            timer = client.watchAt(this, nextEvent());
        }
    }

    /** When the tenure is to be renewed; the end of its lease, if it is not. */
    private long nextEvent() {
        boolean isNotRenewed = !isRenewed || holdEnd - deadline <= HOLD_TOLERANCE + Clock.nanos(lease) / 1000;
        // A lease that was named or re-entered may be longer than the hold limit.
        boolean isNow = isUrgent || deadline - holdEnd > HOLD_TOLERANCE / 2;
        if (renewal != null || (isNotRenewed && !isNow) || (thread != null && !thread.isAlive())) {
            return deadline;
        }
        long third = deadline - Clock.nanos(lease) / 3 * 2;
        long due = isNow || retryAt - third > 0 ? retryAt : third;
        return due - deadline < 0 ? due : deadline;
    }

    /** The lease for the next request: no longer than what is left, if the lock is held for a limited time. */
    private long nextLease() {
        long left = Clock.left(isRenewed || holdEnd - deadline < 0 ? holdEnd : deadline);
        long most = Math.max(1, TimeUnit.NANOSECONDS.toMillis(left));
        return isRenewed ? Math.min(lease, most) : most;
    }

    /** The whole lease, or what is left until the hold limit. */
    synchronized long fullLease() {
        return Math.min(lease, Math.max(1, TimeUnit.NANOSECONDS.toMillis(Clock.left(holdEnd))));
    }

    /** Notes that a lease is about to be asked for: it may be shorter, and the server may set it though no reply arrives. */
    private int noteLeaseRequest(long asked) {
        long end = Clock.leaseEnd(Clock.now(), asked);
        if (end - deadline < 0) {
            deadline = end;
        }
        return ++leaseRequests;
    }

    /** Notes that the server has set a lease. */
    private void noteLease(int leaseRequest, long sent, long asked) {
        if (leaseRequest == leaseRequests) {
            deadline = Clock.leaseEnd(sent, asked);
        }
    }
}
