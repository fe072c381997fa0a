package dev.lockward;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A lock on a server with Lockward that behaves like {@link java.util.concurrent.locks.ReentrantLock}: waiters are served first come,
 * first served, across all processes.
 *
 * <p>A thread holds the lock, and may acquire it again. The lock is free when it has been unlocked as often. The {@link
 * LockwardClient} knows by the lock's name which thread holds it: objects with the same name and client are the same lock. A
 * lock stays held when the program drops its object.
 *
 * <p>Unless a lease is named, the lock is held until {@link #unlock}: its lease is renewed for as long as the thread lives. If
 * the process or the thread dies, the lock is free when the lease ends. When the lock could not be renewed, or its key was
 * deleted or broken, it is <em>lost</em>: {@link #onLost} listeners are called, {@link #isHeldByCurrentThread} is false, and
 * {@link #unlock} throws a {@link LockLostException}, once for each hold. Until the thread has unlocked it as often as it had
 * locked it, {@link #lock} and the other methods that acquire throw that exception, too, because the work around them is not
 * protected any more. (A lock with a named lease may be left to that lease: when it is lost, it is acquired again.)
 *
 * <p>Methods that send a request throw a {@link LockRefusedException} when the server replies with an error, and a {@link
 * LockUnreachableException} when no server answers.
 */
public final class LockwardLock implements Lock {
    private final LockwardClient client;
    private final String name;
    private final Mode mode;

    LockwardLock(LockwardClient client, String name, Mode mode) {
        this.client = client;
        this.name = name;
        this.mode = mode;
    }

    /** The key of the lock on the server. */
    public String getName() {
        return name;
    }

    /**
     * Acquires the lock, and waits for it without limit. An interrupt does not end the wait; the thread's interrupt status is set
     * afterwards.
     *
     * @throws LockUnreachableException when no server has answered within the client's patience. A thread that is in a server's
     *     queue already keeps waiting through outages of any length
     */
    @Override
    public void lock() {
        uninterruptibly(Clock.FOREVER, null);
    }

    /**
     * Acquires the lock for at most {@code lease}: it is not renewed. (If the thread adds a hold without a lease, the lock is
     * renewed from then on.)
     *
     * @param lease more than 0, rounded up to milliseconds; or -1 for no named lease
     * @throws LockUnreachableException as {@link #lock()}
     */
    public void lock(long lease, TimeUnit unit) {
        uninterruptibly(Clock.FOREVER, millis(lease, unit));
    }

    /**
     * Acquires the lock, and waits for it without limit, or until the thread is interrupted. Then the thread has left the queue
     * when this method returns, and a grant that arrived meanwhile is given back.
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        client.lock(name, mode, Clock.FOREVER, null, true);
    }

    /** As {@link #lockInterruptibly()}, for at most {@code lease}, as in {@link #lock(long, TimeUnit)}. */
    public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        client.lock(name, mode, Clock.FOREVER, millis(lease, unit), true);
    }

    /** Acquires the lock if it is free. It is never free while others wait for it. */
    @Override
    public boolean tryLock() {
        return uninterruptibly(0, null);
    }

    /** Acquires the lock, and waits for it for at most {@code wait}. It does not wait if that is 0 or less. */
    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return client.lock(name, mode, Clock.span(wait, unit), null, true);
    }

    /** As {@link #tryLock(long, TimeUnit)}, for at most {@code lease}, as in {@link #lock(long, TimeUnit)}. */
    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return client.lock(name, mode, Clock.span(wait, unit), millis(lease, unit), true);
    }

    /**
     * Gives one hold back.
     *
     * @throws LockLostException when the lock was lost before. The hold is given back nevertheless
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     * @throws LockUnreachableException when no server has answered within the client's patience. The thread does not have the
     *     hold any more, and the lock ends with its lease
     */
    @Override
    public void unlock() {
        client.unlock(name);
    }

    /** Not supported. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a LockwardLock has no conditions");
    }

    /**
     * Whether the current thread holds the lock: its lease runs by the clock of this process, and no server has denied it. Sends no
     * request.
     */
    public boolean isHeldByCurrentThread() {
        Tenure tenure = client.threadTenure(name);
        return tenure != null && tenure.isHeld();
    }

    /** How many holds the current thread has: 0 when it does not hold the lock, or has lost it. Sends no request. */
    public int getHoldCount() {
        Tenure tenure = client.threadTenure(name);
        return tenure != null && tenure.isHeld() ? tenure.holds() : 0;
    }

    /** Whether any owner holds the lock at the server. */
    public boolean isLocked() {
        return client.isLocked(name);
    }

    /**
     * The fencing token: larger than that of every earlier tenure of this lock. Send it along with every write, so that what is
     * written to can refuse a smaller token than the largest one seen. All holds of a tenure have the same token.
     *
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public long fencingToken() {
        Tenure tenure = tenure();
        tenure.checkHeld();
        return tenure.fencingToken();
    }

    /**
     * Sets a new lease from now, shorter or longer than before. If the lock is renewed, it is the lease of later renewals, too.
     *
     * @param lease more than 0, rounded up to milliseconds
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public void renew(Duration lease) {
        tenure().renew(lease);
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
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     * @throws LockRefusedException when the server replies with another error. The lock stays held
     * @throws LockUnreachableException when no server has replied. The command may have run
     */
    public @Nullable Object guarded(Object... command) {
        return tenure().guarded(command);
    }

    /**
     * Calls {@code listener} once if the lock of the current thread is lost; at once, if it is lost already. The listener is called
     * in a thread of the client. Example: {@code onLost(loss -> thread.interrupt())}.
     *
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public void onLost(Consumer<LockLostException> listener) {
        tenure().onLost(listener);
    }

    private Tenure tenure() {
        Tenure tenure = client.threadTenure(name);
        if (tenure == null) {
            throw LockwardClient.notHeld(name);
        }
        return tenure;
    }

    @Override
    public String toString() {
        return "LockwardLock[" + name + "]";
    }

    private boolean uninterruptibly(long wait, @Nullable Long lease) {
        try {
            return client.lock(name, mode, wait, lease, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    private static @Nullable Long millis(long lease, TimeUnit unit) {
        if (lease == -1) {
            return null;
        }
        if (lease <= 0) {
            throw new IllegalArgumentException("a lease must be more than 0, or -1: " + lease);
        }
        long millis = unit.toMillis(lease);
        return unit.convert(millis, TimeUnit.MILLISECONDS) < lease && millis < Long.MAX_VALUE ? millis + 1 : millis;
    }
}
