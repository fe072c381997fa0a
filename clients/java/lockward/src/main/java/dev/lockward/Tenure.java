package dev.lockward;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A lock that is held, from its grant to its end, by whoever has this object rather than by a thread: one thread may acquire
 * it and another release it. {@link LockwardClient#tryAcquire} gives it.
 *
 * <p>When the program drops the object without releasing it, it is renewed no more, and the lock is free when its lease
 * is over.
 */
public final class Tenure implements AutoCloseable {
    private static final String LEASE_OVER = "its lease is over";

    private final LockwardClient client;
    private final Claim claim;
    private final long token;

    /** Who holds it, where that is a thread. It is renewed only while that lives. */
    private final @Nullable Thread thread;

    /** What its thread had lost before, and not unlocked. */
    @Nullable
    Tenure former;

    // All of these are guarded by this object. Nothing waits while it holds that.
    private final List<Consumer<LockLostException>> listeners = new ArrayList<>();
    private int holds = 1;
    private long lease;
    private boolean isRenewed;
    private long deadline;
    private @Nullable String loss;

    // How its renewals go.
    private @Nullable Future<?> timer;
    private boolean isUnderWay;
    private boolean isReleased;
    private boolean isUrgent;
    private long sent;
    private int sends;
    private int failures;
    private long retryAt = Clock.now();

    Tenure(
            LockwardClient client,
            Claim claim,
            Grant grant,
            boolean isRenewed,
            @Nullable Thread thread,
            @Nullable Consumer<LockLostException> onLost) {
        this.client = client;
        this.claim = claim;
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
        return claim.name();
    }

    /** Who holds the lock, as LOCK.INFO tells. */
    public String owner() {
        return claim.owner();
    }

    /** Larger than the token of any earlier holder of this lock: see {@link LockwardLock#fencingToken}. */
    public long fencingToken() {
        return token;
    }

    /**
     * Whether the lock is held for certain: its lease runs by the clock of this process, and no server has denied it. Asks no
     * server.
     */
    public synchronized boolean isHeld() {
        return holds > 0 && loss == null && Clock.left(deadline) > 0;
    }

    /**
     * Has {@code listener} called when the lock is lost before it is released: once, or never. It is called by a thread of the
     * client's; at once, if it is lost already.
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
            client.tell(listener, lost(known));
        }
    }

    /**
     * Gives the lock a lease from now, shorter or longer than it was. Where it is renewed, it is renewed with this one.
     *
     * @param lease more than 0, rounded up to milliseconds
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when it has been released
     * @throws LockUnreachableException when no server has answered within the client's patience
     */
    public void renew(Duration lease) {
        long millis = Clock.lease(lease);
        checkHeld();
        int turn;
        long former;
        synchronized (this) {
            former = this.lease;
            this.lease = millis;
            turn = sends(millis);
        }
        Attempts attempts = client.attempts(name(), false);
        try {
            show(attempts, millis);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        } catch (LockRefusedException refused) {
            synchronized (this) {
                this.lease = former;
            }
            throw refused;
        }
        lasts(turn, attempts.sent, millis);
        schedule();
        checkHeld();
    }

    /**
     * Gives the lock back.
     *
     * @throws LockLostException when the lock had been lost
     * @throws IllegalMonitorStateException when it has been released already
     * @throws LockUnreachableException when no server has answered within the client's patience. It ends with its lease
     */
    public void release() {
        if (!leave()) {
            throw LockwardClient.notHeld(name());
        }
    }

    /**
     * Gives the lock back for a time that is to come: nobody has it until then, and the first waiter from then on. It is
     * held here no more, and its end is no loss.
     *
     * @param rest how long nobody is to have it, more than 0, rounded up to milliseconds
     * @throws LockLostException when the lock had been lost
     * @throws IllegalMonitorStateException when it has been released already
     * @throws LockUnreachableException when no server has answered within the client's patience. It ends with its lease
     */
    public void releaseAfter(Duration rest) {
        if (!leave(Clock.lease(rest))) {
            throw LockwardClient.notHeld(name());
        }
    }

    /** As {@link #release}, unless it has been released already. */
    @Override
    public void close() {
        leave();
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
        if (known == null && remaining() <= 0) {
            known = lose(LEASE_OVER);
        }
        if (known != null) {
            throw lost(known);
        }
    }

    /** One hold more. */
    void enter(@Nullable Long named, boolean interruptible) throws InterruptedException {
        checkHeld();
        int before;
        int turn;
        long millis;
        synchronized (this) {
            before = holds;
            turn = sends;
            millis = named == null || isRenewed ? lease : named;
        }
        Attempts attempts = client.attempts(name(), interruptible);
        try {
            millis = acquire(attempts, before + 1, millis, named == null || isRenewed());
        } catch (InterruptedException | LockUnreachableException | IllegalStateException given) {
            attempts.withdraw(claim.withdraw(before));
            throw given;
        }
        synchronized (this) {
            holds = before + 1;
            isRenewed |= named == null;
            long end = Clock.end(attempts.sent, millis);
            // It does not shorten a lease. But a renewal that was sent meanwhile may have.
            if (end - deadline > 0 && turn == sends) {
                deadline = end;
            }
        }
        schedule();
    }

    /** For which lease: a shorter one than asked, where nobody has named that and the server refuses it. */
    private long acquire(Attempts attempts, int wanted, long asked, boolean isOurs) throws InterruptedException {
        long millis = asked;
        for (boolean isShown = false; ; isShown = true) {
            Object reply = attempts.ask(claim.acquire(wanted, millis, Claim.NO_WAIT, null))
                    .get(0);
            while (isOurs && isTooLong(reply, millis)) {
                millis = half(millis);
                reply = attempts.ask(claim.acquire(wanted, millis, Claim.NO_WAIT, null))
                        .get(0);
            }
            if (reply instanceof List<?> grant && grant.contains(token)) {
                return millis;
            }
            if (reply instanceof Refusal refusal && (isShown || !refusal.denies())) {
                throw new LockRefusedException(refusal.words());
            }
            if (isShown) {
                throw lost(lose("another owner holds it"));
            }
            // The server may have forgotten the tenure, and then takes it back.
            restore(attempts);
        }
    }

    /**
     * One hold less, also when that can not be told to a server.
     *
     * @return false if there was none
     */
    boolean leave() {
        return leave(null);
    }

    private boolean leave(@Nullable Long rest) {
        int left;
        boolean isLost = remaining() <= 0;
        synchronized (this) {
            if (holds == 0) {
                return false;
            }
            isLost |= loss != null;
            // Before it is sent: a renewal that is denied from now on finds no loss.
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
                client.send(name(), claim.end(token)); // in case the server thinks otherwise
            }
            throw lost(lose(LEASE_OVER));
        }
        try {
            Attempts attempts = client.attempts(name(), false);
            if (rest == null) {
                release(attempts, left);
            } else {
                show(attempts, rest);
            }
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        } finally {
            synchronized (this) {
                isReleased = left == 0 && rest == null;
            }
        }
        return true;
    }

    private void release(Attempts attempts, int left) throws InterruptedException {
        for (boolean isShown = false; ; isShown = true) {
            Object reply = attempts.ask(left == 0 ? claim.end(token) : claim.release(left, token));
            // A server that has forgotten some of the holds has less to give back. The last release ends them all.
            if (!(reply instanceof Refusal refusal) || refusal.code().equals("HOLDS")) {
                return;
            }
            if (!refusal.denies()) {
                throw new LockRefusedException(refusal.words());
            }
            boolean isRunning = remaining() > 0;
            if (left == 0 && attempts.repeated && !isShown && isRunning) {
                return; // an earlier request was heard, and its reply lost
            }
            if (isShown || !isRunning) {
                throw lost(lose(refusal.words()));
            }
            restore(attempts);
        }
    }

    /** Shows the token to a server, which takes a tenure back that it has forgotten. */
    private void restore(Attempts attempts) throws InterruptedException {
        long millis = leaseLeft();
        for (; ; ) {
            int turn = sends(millis);
            Object reply = attempts.ask(claim.renew(millis, token, Math.max(1, holds())));
            if (!isTooLong(reply, millis)) {
                check(reply);
                lasts(turn, attempts.sent, millis);
                return;
            }
            millis = half(millis);
        }
    }

    /** Gives it the lease that is named. */
    private void show(Attempts attempts, long millis) throws InterruptedException {
        check(attempts.ask(claim.renew(millis, token, Math.max(1, holds()))));
    }

    private void check(Object reply) {
        if (reply instanceof Refusal refusal) {
            throw refusal.denies() ? lost(lose(refusal.words())) : new LockRefusedException(refusal.words());
        }
    }

    /** Whether the server refuses the lease, as its longest may be shorter than it was: then a shorter one is asked for. */
    private static boolean isTooLong(@Nullable Object reply, long millis) {
        return millis > 1 && reply instanceof Refusal refusal && refusal.isOfLease();
    }

    /** Half of a lease that was refused, which it is renewed with from now on. */
    private synchronized long half(long refused) {
        if (lease == refused) {
            lease = refused / 2;
        }
        return refused / 2;
    }

    private LockLostException lost(String reason) {
        return new LockLostException(name(), token, reason);
    }

    /** Ends it as far as this process is concerned: for which reason. The first one stays. */
    String lose(String reason) {
        List<Consumer<LockLostException>> told;
        synchronized (this) {
            if (loss != null) {
                return loss;
            }
            loss = reason;
            told = List.copyOf(listeners);
            if (timer != null) {
                timer.cancel(false);
            }
        }
        LockLostException lost = lost(reason);
        told.forEach(listener -> client.tell(listener, lost));
        client.forget(this);
        return reason;
    }

    /** The time that is left of its lease. */
    private synchronized long remaining() {
        return Clock.left(deadline);
    }

    /** Where it is renewed, a whole lease; else what is left of it. In milliseconds. */
    private synchronized long leaseLeft() {
        return isRenewed ? lease : Math.max(1, TimeUnit.NANOSECONDS.toMillis(Clock.left(deadline)));
    }

    /**
     * Notes that a request is sent that gives it such a lease, which may be shorter than it was: which one it is. The last one
     * that is sent is what counts.
     */
    private synchronized int sends(long millis) {
        long end = Clock.end(Clock.now(), millis);
        if (end - deadline < 0) {
            deadline = end;
        }
        return ++sends;
    }

    /** Notes that the request was answered. */
    private synchronized void lasts(int turn, long asked, long millis) {
        if (turn == sends) {
            deadline = Clock.end(asked, millis);
        }
    }

    /** Does what is due now: renews it, or finds that it is lost. */
    void tick() {
        boolean isSilent = false;
        boolean isDue = false;
        int turn = 0;
        long millis = 0;
        Request renewal = null;
        long now = Clock.now();
        synchronized (this) {
            if (holds == 0 || loss != null) {
                return;
            }
            if (deadline - now > 0) {
                isSilent = isUnderWay && now - sent >= silence();
                isDue = isSilent || (!isUnderWay && due() - now <= 0);
            }
            if (isDue) {
                isUnderWay = true;
                isUrgent = false;
                sent = now;
                millis = leaseLeft();
                turn = sends(millis);
                renewal = claim.renew(millis, token, holds);
            }
        }
        if (remaining() <= 0) {
            lose(LEASE_OVER);
            return;
        }
        try {
            if (isSilent) {
                client.abandon(name());
            }
            if (renewal != null) {
                int sending = turn;
                long asked = millis;
                client.send(name(), renewal).whenComplete((reply, error) -> renewed(reply, sending, now, asked));
            }
        } finally {
            schedule();
        }
    }

    /** Runs where replies are read, which must not be held up. */
    private void renewed(@Nullable Object reply, int turn, long asked, long millis) {
        boolean isBack;
        String denial = null;
        synchronized (this) {
            boolean isLatest = asked == sent;
            if (isLatest) {
                isUnderWay = false;
            }
            isBack = isReleased && reply instanceof List<?>;
            if (holds > 0 && reply instanceof Refusal refusal && refusal.denies()) {
                denial = refusal.words();
            }
            if (reply instanceof List<?>) {
                failures = 0;
                retryAt = Clock.now();
                lasts(turn, asked, millis);
            } else if (isLatest && isRenewed && isTooLong(reply, millis)) {
                half(millis);
                isUrgent = true;
            } else if (isLatest && denial == null) {
                retryAt = Clock.now() + Clock.backOff(failures++);
                isUrgent = true;
            }
        }
        if (isBack) {
            // A server that had forgotten it may have taken it back after it was released.
            client.send(name(), claim.end(token));
        } else if (denial != null) {
            lose(denial);
        } else {
            schedule();
        }
    }

    /** The server may have started anew and forgotten: it hears of this as soon as it can. */
    void hurry() {
        synchronized (this) {
            isUrgent = true;
        }
        schedule();
    }

    /** Has it looked after when there is something to do next. */
    synchronized void schedule() {
        if (timer != null) {
            timer.cancel(false);
        }
        if (holds > 0 && loss == null) {
            long next = isUnderWay ? sent + silence() : due();
            timer = client.timer(this, Clock.left(next - deadline < 0 ? next : deadline));
        }
    }

    /** When it is to be renewed; when its lease is over, if it is not. */
    private long due() {
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

    /** After so long without a reply, another connection is tried. */
    private long silence() {
        return Math.max(
                TimeUnit.MILLISECONDS.toNanos(500),
                Math.min(client.responseLimit(), TimeUnit.MILLISECONDS.toNanos(lease) / 6));
    }
}
