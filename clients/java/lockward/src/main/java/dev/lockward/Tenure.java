package dev.lockward;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A lock that is held, from its grant to its end. The object holds it, not a thread: one thread may acquire it and another
 * release it. {@link LockwardClient#tryAcquire} returns it.
 *
 * <p>If the program drops the object without releasing it, it is renewed no more, and the lock is free when its lease ends.
 */
public final class Tenure implements AutoCloseable {
    private static final String LEASE_OVER = "its lease is over";

    private final LockwardClient client;
    private final OwnedKey ownedKey;
    private final long token;

    /** The thread that holds the lock, if any. The lock is renewed only while it lives. */
    private final @Nullable Thread thread;

    /** A tenure of the same lock that its thread has lost and not unlocked. */
    @Nullable
    Tenure previous;

    // The following is guarded by this object's monitor. No thread waits while it has that.
    private final List<Consumer<LockLostException>> listeners = new ArrayList<>();
    private int holds = 1;
    private long lease;
    private boolean isRenewed;
    private long deadline;
    private @Nullable String loss;

    // The renewals.
    private @Nullable Future<?> timer;
    private boolean isRenewing;
    private boolean isReleased;
    private boolean isUrgent;
    private long renewalSent;
    private int leaseRequests;
    private int failures;
    private long retryAt = Clock.now();

    Tenure(
            LockwardClient client,
            OwnedKey ownedKey,
            Grant grant,
            boolean isRenewed,
            @Nullable Thread thread,
            @Nullable Consumer<LockLostException> onLost) {
        this.client = client;
        this.ownedKey = ownedKey;
        this.token = grant.token();
        this.lease = grant.lease();
        this.deadline = grant.deadline();
        this.isRenewed = isRenewed;
        this.thread = thread;
        if (onLost != null) {
            listeners.add(onLost);
        }
    }

    /** The key of the lock on the server. */
    public String name() {
        return ownedKey.name();
    }

    /** The owner that holds the lock, as LOCK.INFO shows it. */
    public String owner() {
        return ownedKey.owner();
    }

    /** The fencing token: larger than that of every earlier tenure of this lock. See {@link LockwardLock#fencingToken}. */
    public long fencingToken() {
        return token;
    }

    /** Whether the lock is held: its lease runs by the clock of this process, and no server has denied it. Sends no request. */
    public synchronized boolean isHeld() {
        return holds > 0 && loss == null && Clock.left(deadline) > 0;
    }

    /**
     * Calls {@code listener} once if the lock is lost before it is released; at once, if it is lost already. The listener is called
     * in a thread of the client.
     */
    public void onLost(Consumer<LockLostException> listener) {
        String known;
        synchronized (this) {
            known = loss;
            if (known == null) {
                listeners.add(listener);
            }
        }
        if (known != null) {
            client.notifyLost(listener, lostException(known));
        }
    }

    /**
     * Sets a new lease from now, shorter or longer than before. If the lock is renewed, it is the lease of later renewals, too.
     *
     * @param lease more than 0, rounded up to milliseconds
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when it has been released
     * @throws LockUnreachableException when no server has answered within the client's patience
     */
    public void renew(Duration lease) {
        long millis = Clock.lease(lease);
        checkHeld();
        int leaseRequest;
        long previousLease;
        synchronized (this) {
            previousLease = this.lease;
            this.lease = millis;
            leaseRequest = noteLeaseRequest(millis);
        }
        Attempts attempts = client.attempts(name(), false);
        try {
            sendLease(attempts, millis);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        } catch (LockRefusedException refused) {
            synchronized (this) {
                this.lease = previousLease;
            }
            throw refused;
        }
        noteLease(leaseRequest, attempts.sent, millis);
        schedule();
        checkHeld();
    }

    /**
     * Runs a command only while the server has this tenure: LOCK.GUARD with the fencing token. Example: {@code guarded("SET",
     * "{order:42}:state", "paid")}. Without arguments it only checks the token.
     *
     * <p>The data must be on the lock's server. In a cluster its keys need the slot of the lock, by a common tag such as {@code
     * {order:42}}.
     *
     * <p>The command is not repeated when its reply is missing, because it may have run.
     *
     * @param command its name and arguments: {@code byte[]}, or anything else as text
     * @return the reply: a String, a Long, a List of these and lists, or null
     * @throws LockLostException when the lock has been lost: the command did not run
     * @throws IllegalMonitorStateException when it has been released
     * @throws LockRefusedException when the server replies with another error. The lock stays held
     * @throws LockUnreachableException when no server has replied. The command may have run
     */
    public @Nullable Object guarded(Object... command) {
        Object reply;
        try {
            reply = sendGuarded(command);
            if (isFenced(reply)) {
                restore(client.attempts(name(), false));
                reply = sendGuarded(command);
            }
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
        if (isFenced(reply) && reply instanceof ServerError error) {
            throw lostException(holds() > 0 ? lose(error.message()) : error.message());
        }
        ServerError.throwIfError(reply);
        return ((List<?>) reply).get(0);
    }

    /**
     * Gives the lock back.
     *
     * @throws LockLostException when the lock was lost before
     * @throws IllegalMonitorStateException when it has been released already
     * @throws LockUnreachableException when no server has answered within the client's patience. The lock ends with its lease
     */
    public void release() {
        if (!releaseHold()) {
            throw LockwardClient.notHeld(name());
        }
    }

    /**
     * Gives the lock back after a delay: until then no owner gets it, and then the first waiter does. This object does not hold it
     * any more, and its end is no loss.
     *
     * @param delay more than 0, rounded up to milliseconds
     * @throws LockLostException when the lock was lost before
     * @throws IllegalMonitorStateException when it has been released already
     * @throws LockUnreachableException when no server has answered within the client's patience. The lock ends with its lease
     */
    public void releaseAfter(Duration delay) {
        if (!releaseHold(Clock.lease(delay))) {
            throw LockwardClient.notHeld(name());
        }
    }

    /** As {@link #release}, if the lock has not been released. */
    @Override
    public void close() {
        releaseHold();
    }

    synchronized boolean isRenewed() {
        return isRenewed;
    }

    synchronized int holds() {
        return holds;
    }

    void checkHeld() {
        String known;
        synchronized (this) {
            if (holds == 0) {
                throw LockwardClient.notHeld(name());
            }
            known = loss;
        }
        if (known == null && leaseLeft() <= 0) {
            known = lose(LEASE_OVER);
        }
        if (known != null) {
            throw lostException(known);
        }
    }

    /**
     * Adds a hold. The server refuses a mode with a smaller limit than the tenure has.
     *
     * @param named the lease in milliseconds that the caller has chosen, or null
     */
    void reenter(Mode mode, @Nullable Long named, boolean interruptible) throws InterruptedException {
        checkHeld();
        int before;
        int leaseRequest;
        long millis;
        synchronized (this) {
            before = holds;
            leaseRequest = leaseRequests;
            millis = named == null || isRenewed ? lease : named;
        }
        Attempts attempts = client.attempts(name(), interruptible);
        try {
            millis = acquire(attempts, mode, before + 1, millis, named == null || isRenewed());
        } catch (InterruptedException | LockUnreachableException | IllegalStateException failure) {
            attempts.withdraw(ownedKey.withdraw(before));
            throw failure;
        }
        synchronized (this) {
            holds = before + 1;
            isRenewed |= named == null;
            long end = Clock.leaseEnd(attempts.sent, millis);
            // A re-entry does not shorten a lease. But a renewal that was sent meanwhile may have done so.
            if (end - deadline > 0 && leaseRequest == leaseRequests) {
                deadline = end;
            }
        }
        schedule();
    }

    /** Returns the lease: shorter than asked, if the server refuses that as too long and {@code mayShorten}. */
    private long acquire(Attempts attempts, Mode mode, int wanted, long asked, boolean mayShorten)
            throws InterruptedException {
        OwnedKey requested = new OwnedKey(name(), owner(), mode);
        long millis = asked;
        for (boolean isRestored = false; ; isRestored = true) {
            Object reply = sendAcquire(attempts, requested, wanted, millis);
            while (mayShorten && isLeaseTooLong(reply, millis)) {
                millis = shortenLease(reply, millis);
                reply = sendAcquire(attempts, requested, wanted, millis);
            }
            if (reply instanceof List<?> grant && grant.get(0).equals(token)) {
                return millis;
            }
            if (reply instanceof ServerError error && (isRestored || !error.deniesTenure())) {
                throw new LockRefusedException(error.message());
            }
            if (isRestored) {
                throw lostException(lose("another owner holds it"));
            }
            restore(attempts);
        }
    }

    private static Object sendAcquire(Attempts attempts, OwnedKey requested, int holds, long millis)
            throws InterruptedException {
        return attempts.ask(requested.acquire(holds, millis, OwnedKey.NO_WAIT, null))
                .get(0);
    }

    /**
     * Gives back one hold. This object has one hold less, even if no server answers.
     *
     * @return false if there was none
     */
    boolean releaseHold() {
        return releaseHold(null);
    }

    /** {@code delay}, in milliseconds, is as for {@link #releaseAfter}. */
    private boolean releaseHold(@Nullable Long delay) {
        int left;
        boolean isLost = leaseLeft() <= 0;
        synchronized (this) {
            if (holds == 0) {
                return false;
            }
            isLost |= loss != null;
            // Before the request is sent: a renewal that is denied from now on finds no loss.
            left = --holds;
            if (left == 0 && timer != null) {
                timer.cancel(false);
            }
        }
        if (left == 0) {
            client.forget(this);
        }
        if (isLost) {
            if (left == 0) {
                client.send(name(), ownedKey.end(token)); // the lease may still run at the server
            }
            throw lostException(lose(LEASE_OVER));
        }
        try {
            Attempts attempts = client.attempts(name(), false);
            if (delay == null) {
                sendRelease(attempts, left);
            } else {
                sendLease(attempts, delay);
            }
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        } finally {
            synchronized (this) {
                isReleased = left == 0 && delay == null;
            }
        }
        return true;
    }

    private void sendRelease(Attempts attempts, int left) throws InterruptedException {
        for (boolean isRestored = false; ; isRestored = true) {
            Object reply = attempts.ask(left == 0 ? ownedKey.end(token) : ownedKey.release(left, token));
            // HOLDS: a server that has forgotten some holds counts fewer already. The last release ends all of them.
            if (!(reply instanceof ServerError error) || error.code().equals("HOLDS")) {
                return;
            }
            if (!error.deniesTenure()) {
                throw new LockRefusedException(error.message());
            }
            boolean isRunning = leaseLeft() > 0;
            if (left == 0 && attempts.mayHaveRun && !isRestored && isRunning) {
                return; // an earlier attempt was carried out, and its reply lost
            }
            if (isRestored || !isRunning) {
                throw lostException(lose(error.message()));
            }
            restore(attempts);
        }
    }

    private Object sendGuarded(Object[] command) throws InterruptedException {
        return client.attempts(name(), false).askOnce(ownedKey.guard(token, command), this::checkHeld);
    }

    private static boolean isFenced(Object reply) {
        return reply instanceof ServerError error && error.code().equals("FENCED");
    }

    /** Renews the tenure. A server that has forgotten it restores it in quarantine. */
    private void restore(Attempts attempts) throws InterruptedException {
        long millis = nextLease();
        for (; ; ) {
            int leaseRequest = noteLeaseRequest(millis);
            Object reply = attempts.ask(ownedKey.renew(millis, token, Math.max(1, holds())));
            if (!isLeaseTooLong(reply, millis)) {
                checkAccepted(reply);
                noteLease(leaseRequest, attempts.sent, millis);
                return;
            }
            millis = shortenLease(reply, millis);
        }
    }

    /** Sets exactly this lease. */
    private void sendLease(Attempts attempts, long millis) throws InterruptedException {
        checkAccepted(attempts.ask(ownedKey.renew(millis, token, Math.max(1, holds()))));
    }

    private void checkAccepted(Object reply) {
        if (reply instanceof ServerError error && error.deniesTenure()) {
            throw lostException(lose(error.message()));
        }
        ServerError.throwIfError(reply);
    }

    private static boolean isLeaseTooLong(@Nullable Object reply, long millis) {
        return ServerError.longestLease(reply) < millis;
    }

    /** Returns the longest lease that the server accepts. It is the lease of later renewals, too. */
    private synchronized long shortenLease(@Nullable Object reply, long refused) {
        long longest = ServerError.longestLease(reply);
        if (lease == refused) {
            lease = longest;
        }
        return longest;
    }

    private LockLostException lostException(String reason) {
        return new LockLostException(name(), token, reason);
    }

    /** Ends the tenure as lost. Returns the reason: the first one stays. */
    String lose(String reason) {
        List<Consumer<LockLostException>> notified;
        synchronized (this) {
            if (loss != null) {
                return loss;
            }
            loss = reason;
            notified = List.copyOf(listeners);
            if (timer != null) {
                timer.cancel(false);
            }
        }
        LockLostException lost = lostException(reason);
        notified.forEach(listener -> client.notifyLost(listener, lost));
        client.forget(this);
        return reason;
    }

    /** In nanoseconds. */
    private synchronized long leaseLeft() {
        return Clock.left(deadline);
    }

    /** The lease for the next request, in milliseconds: what is left, if the tenure is not renewed. */
    private synchronized long nextLease() {
        return isRenewed ? lease : Math.max(1, TimeUnit.NANOSECONDS.toMillis(Clock.left(deadline)));
    }

    /**
     * Notes that a lease is about to be requested: it may be shorter, and the server may set it though no reply arrives. Returns
     * the number of the request: only the reply to the last one counts.
     */
    private synchronized int noteLeaseRequest(long millis) {
        long end = Clock.leaseEnd(Clock.now(), millis);
        if (end - deadline < 0) {
            deadline = end;
        }
        return ++leaseRequests;
    }

    /** Notes that the server has set a lease. */
    private synchronized void noteLease(int leaseRequest, long sent, long millis) {
        if (leaseRequest == leaseRequests) {
            deadline = Clock.leaseEnd(sent, millis);
        }
    }

    /** Renews the tenure if that is due, or ends it if its lease is over. */
    void onTimer() {
        boolean isSilent = false;
        Runnable renewal = null;
        synchronized (this) {
            if (holds == 0 || loss != null) {
                return;
            }
            long now = Clock.now();
            if (deadline - now > 0) {
                isSilent = isRenewing && now - renewalSent >= replyLimit();
                if (isSilent || (!isRenewing && renewalDue() - now <= 0)) {
                    renewal = beginRenewal(now);
                }
            }
        }
        if (leaseLeft() <= 0) {
            lose(LEASE_OVER);
            return;
        }
        try {
            if (isSilent) {
                client.disconnect(name());
            }
            if (renewal != null) {
                renewal.run();
            }
        } finally {
            schedule();
        }
    }

    /** Notes that a renewal begins. Returns what sends it. */
    private Runnable beginRenewal(long now) {
        isRenewing = true;
        isUrgent = false;
        renewalSent = now;
        long millis = nextLease();
        int leaseRequest = noteLeaseRequest(millis);
        Request request = ownedKey.renew(millis, token, holds);
        return () -> client.send(name(), request)
                .whenComplete((reply, failure) -> renewed(reply, leaseRequest, now, millis));
    }

    /** Handles the reply to a renewal, or null. Runs in the thread that reads replies, and must not block it. */
    private void renewed(@Nullable Object reply, int leaseRequest, long sent, long millis) {
        boolean isRestoredAfterRelease;
        String denial = null;
        synchronized (this) {
            boolean isLatest = sent == renewalSent;
            if (isLatest) {
                isRenewing = false;
            }
            isRestoredAfterRelease = isReleased && reply instanceof List<?>;
            if (holds > 0 && reply instanceof ServerError error && error.deniesTenure()) {
                denial = error.message();
            }
            if (reply instanceof List<?>) {
                failures = 0;
                retryAt = Clock.now();
                noteLease(leaseRequest, sent, millis);
            } else if (isLatest && isRenewed && isLeaseTooLong(reply, millis)) {
                shortenLease(reply, millis);
                isUrgent = true;
            } else if (isLatest && denial == null) {
                retryAt = Clock.now() + Clock.backOff(failures++);
                isUrgent = true;
            }
        }
        if (isRestoredAfterRelease) {
            client.send(name(), ownedKey.end(token)); // a server in quarantine had forgotten the tenure
        } else if (denial != null) {
            lose(denial);
        } else {
            schedule();
        }
    }

    /** Makes the renewal due now: a server that was restarted may have forgotten the tenure. */
    void renewNow() {
        synchronized (this) {
            isUrgent = true;
        }
        schedule();
    }

    /** Sets the timer. */
    synchronized void schedule() {
        if (timer != null) {
            timer.cancel(false);
        }
        if (holds > 0 && loss == null) {
            long next = isRenewing ? renewalSent + replyLimit() : renewalDue();
            timer = client.timer(this, Clock.left(next - deadline < 0 ? next : deadline));
        }
    }

    /** When the tenure is to be renewed; the end of its lease, if it is not. */
    private long renewalDue() {
        if (thread != null && !thread.isAlive()) {
            return deadline;
        }
        if (isUrgent) {
            return retryAt;
        }
        if (!isRenewed) {
            return deadline;
        }
        long third = deadline - Math.min(Clock.FOREVER, TimeUnit.MILLISECONDS.toNanos(lease)) / 3 * 2;
        return retryAt - third > 0 ? retryAt : third;
    }

    /** After how many nanoseconds without a reply a renewal is sent again on another connection. */
    private long replyLimit() {
        return Math.max(
                TimeUnit.MILLISECONDS.toNanos(500),
                Math.min(client.responseLimit(), TimeUnit.MILLISECONDS.toNanos(lease) / 6));
    }
}
