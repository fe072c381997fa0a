package dev.lockward;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A lock on a server with Lockward, with the interface and the manners of {@link
 * java.util.concurrent.locks.ReentrantLock}: whoever waits is served first come, first served, across all processes.
 *
 * <p>A thread holds it, and may acquire it again; it is free when it has been unlocked as often. Which thread holds it is kept
 * in the {@link LockwardClient}, by the lock's name: objects of the same name and client are the same lock, and an
 * object that the program drops changes nothing.
 *
 * <p>Unless a lease is named, the lock is held until {@link #unlock}: its lease is renewed for as long as the thread that
 * holds it lives. If the process or the thread dies, the lock is free when the lease is over. When it could not be
 * renewed, or somebody has deleted or broken the lock, it is <em>lost</em>: {@link #onLost} tells at once, {@link
 * #isHeldByCurrentThread} is false, and {@link #unlock} throws a {@link LockLostException}, once for each hold. Until the
 * thread has unlocked it as often as it had locked it, {@link #lock} and its like throw that, too: the work around it
 * is not protected any more. (But a lock with a named lease may be left to that: when it is lost, it is acquired anew.)
 *
 * <p>What asks a server throws a {@link LockRefusedException} when that refuses, and a {@link LockUnreachableException} when
 * none answers.
 */
public final class LockwardLock implements Lock {
    private final LockwardClient client;
    private final String name;

    LockwardLock(LockwardClient client, String name) {
        this.client = client;
        this.name = name;
    }

    /** The key of the lock on the server. */
    public String getName() {
        return name;
    }

    /**
     * Acquires the lock, and waits for it without limit. An interrupt does not end the waiting; the thread finds it afterwards.
     *
     * @throws LockUnreachableException when no server has answered within the client's patience. Once it waits in a
     *     server's queue, it waits on through outages of any length
     */
    @Override
    public void lock() {
        uninterruptibly(Clock.FOREVER, null);
    }

    /**
     * Acquires the lock for no longer than {@code lease}: it is not renewed. (But a hold without a lease that is added
     * to it has it renewed from then on.)
     *
     * @param lease more than 0; or -1, as if none was named. It is rounded up to milliseconds
     * @throws LockUnreachableException as {@link #lock()}
     */
    public void lock(long lease, TimeUnit unit) {
        uninterruptibly(Clock.FOREVER, millis(lease, unit));
    }

    /**
     * Acquires the lock, and waits for it without limit, or until the thread is interrupted. Then it has left the queue
     * when this returns, and what was granted meanwhile is given back.
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        client.enter(name, Clock.FOREVER, null, true);
    }

    /** As {@link #lockInterruptibly()}, for no longer than {@code lease}, as in {@link #lock(long, TimeUnit)}. */
    public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        client.enter(name, Clock.FOREVER, millis(lease, unit), true);
    }

    /** Acquires the lock if it is free. It is never free while others wait for it. */
    @Override
    public boolean tryLock() {
        return uninterruptibly(0, null);
    }

    /** Acquires the lock, and waits for so long if need be; if {@code wait} is not above 0, it does not wait. */
    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return client.enter(name, Clock.span(wait, unit), null, true);
    }

    /** As {@link #tryLock(long, TimeUnit)}, for no longer than {@code lease}, as in {@link #lock(long, TimeUnit)}. */
    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return client.enter(name, Clock.span(wait, unit), millis(lease, unit), true);
    }

    /**
     * Gives one hold back.
     *
     * @throws LockLostException when the lock had been lost. The hold is given back nevertheless
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     * @throws LockUnreachableException when no server has answered within the client's patience. The hold is given back
     *     here, and the lock ends with its lease
     */
    @Override
    public void unlock() {
        client.leave(name);
    }

    /** Not offered: nobody could be told across processes as a condition has to be. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of Lockward has no conditions");
    }

    /** Whether the current thread holds the lock for certain: its lease runs by the clock of this process, and no server has denied it. Asks no server. */
    public boolean isHeldByCurrentThread() {
        Tenure tenure = client.mine(name);
        return tenure != null && tenure.isHeld();
    }

    /** How many holds the current thread has: 0 when it does not hold the lock, or has lost it. Asks no server. */
    public int getHoldCount() {
        Tenure tenure = client.mine(name);
        return tenure != null && tenure.isHeld() ? tenure.holds() : 0;
    }

    /** Whether anybody holds the lock, as the server says. */
    public boolean isLocked() {
        return client.isLocked(name);
    }

    /**
     * The token of this tenure: larger than that of any earlier holder of this lock. Send it along with every write, and let
     * what is written to refuse a smaller one than it has seen. A tenure has the same token from its first hold to its last.
     *
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public long fencingToken() {
        Tenure tenure = held();
        tenure.checkHeld();
        return tenure.fencingToken();
    }

    /**
     * Gives the lock a lease from now, shorter or longer than it was. Where it is renewed, it is renewed with this one.
     *
     * @param lease more than 0, rounded up to milliseconds
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public void renew(Duration lease) {
        held().renew(lease);
    }

    /**
     * Has {@code listener} called when the lock is lost that the current thread holds: once, or never. It is called by a
     * thread of the client's; at once, if it is lost already. {@code onLost(loss -> thread.interrupt())} is one use.
     *
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public void onLost(Consumer<LockLostException> listener) {
        held().onLost(listener);
    }

    private Tenure held() {
        Tenure tenure = client.mine(name);
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
            return client.enter(name, wait, lease, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    private static @Nullable Long millis(long lease, TimeUnit unit) {
        if (lease == -1) {
            return null;
        }
        if (lease <= 0) {
            throw new IllegalArgumentException("a lease is more than 0, or -1: " + lease);
        }
        long millis = unit.toMillis(lease);
        return unit.convert(millis, TimeUnit.MILLISECONDS) < lease && millis < Long.MAX_VALUE ? millis + 1 : millis;
    }
}
