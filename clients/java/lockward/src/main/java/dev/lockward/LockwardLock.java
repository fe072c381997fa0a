package dev.lockward;

import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A lock on a server with Lockward that behaves like a fair {@link java.util.concurrent.locks.ReentrantLock}. The server grants the lock
 * to waiters of all processes in the order of their requests.
 *
 * <p>A thread holds the lock, and may acquire it again. The lock is free when the thread has unlocked it as many times as it locked it.
 * Objects with the same name and the same {@link LockwardClient} are the same lock. A lock stays held when the program drops its
 * object.
 *
 * <p>If the program names no lease, the thread holds the lock until {@link #unlock}: the client renews the lock while the thread
 * lives. If the process or the thread dies, the lock is free when the lease ends.
 *
 * <p>The lock is <em>lost</em> when its lease ends without a renewal, or when somebody deletes or overwrites its key. Then the client
 * calls the {@link #onLost} listeners, {@link #isHeldByCurrentThread} is false, and {@link #unlock} throws a {@link LockLostException},
 * once for each hold. The thread need not unlock a lost lock. It may acquire the lock again, with a new token. Then it has only the new
 * holds. A nested call of a method that acquires, such as {@link #lock}, throws a LockLostException if it finds that the lock is lost. If
 * the lock has several keys, such calls throw this exception while some of the keys are held and others are lost.
 *
 * <p>Methods that send a request throw a {@link LockRefusedException} when the server replies with an error, and a {@link
 * LockUnreachableException} when no server answers.
 */
public final class LockwardLock implements Lock {
    /** When a thread has this many locks, the client forgets the thread's locks that are lost or released. */
    private static final int MANY = 100;

    private final LockRequest request;

    LockwardLock(LockRequest request) {
        this.request = request;
    }

    /** The key of the lock on the server. If the lock has several keys, this is the first key. */
    public String getName() {
        return request.keys.get(0);
    }

    /**
     * Acquires the lock, and waits for it without limit. An interrupt does not end the wait. It only sets the thread's interrupt status.
     *
     * @throws LockUnreachableException when no server answers the first request within the client's patience. A thread in a server's
     *     queue keeps waiting, even if no server answers for longer than this time
     */
    @Override
    public void lock() {
        uninterruptibly(Clock.FOREVER, 0);
    }

    /**
     * Acquires the lock for at most {@code lease}: the client does not renew the lock. If the thread then acquires the lock again without
     * a named lease, the client begins to renew the lock.
     *
     * @param lease at least 2 ms, rounded up to milliseconds; -1 means no named lease
     * @throws LockUnreachableException when no server answers the first request within the client's patience
     */
    public void lock(long lease, TimeUnit unit) {
        uninterruptibly(Clock.FOREVER, millis(lease, unit));
    }

    /**
     * Acquires the lock, and waits for it without limit, or until the thread is interrupted. After an interrupt
     * the client leaves the queue, and releases a grant that arrives meanwhile. If the server does not answer within 200 ms, the client
     * continues this in the background.
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        acquire(Clock.FOREVER, 0, true);
    }

    /** Does what {@link #lockInterruptibly()} does, with a named lease: see {@link #lock(long, TimeUnit)}. */
    public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        acquire(Clock.FOREVER, millis(lease, unit), true);
    }

    /** Acquires the lock if it is free and no other caller waits for it. A reader cannot acquire the write lock. */
    @Override
    public boolean tryLock() {
        return uninterruptibly(0, 0);
    }

    /**
     * Acquires the lock, and waits for it for at most {@code wait}. If {@code wait} is 0 or less, this method does not wait. If a reader
     * asks for the write lock, the result is false at once, because the reader would wait for itself.
     */
    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return acquire(Clock.span(wait, unit), 0, true);
    }

    /** Does what {@link #tryLock(long, TimeUnit)} does, with a named lease: see {@link #lock(long, TimeUnit)}. */
    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return acquire(Clock.span(wait, unit), millis(lease, unit), true);
    }

    /**
     * Releases one hold. When a writer that also has the read lock unlocks the write lock, it becomes a reader.
     *
     * @throws LockLostException when the lock was lost before. The thread has one hold less
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     * @throws LockRefusedException when the server replies with an error. The thread has one hold less. If this was its last hold, the
     *     lock ends with its lease. If the server has refused to make a writer a reader, other readers wait until the thread unlocks the
     *     read lock
     * @throws LockUnreachableException when no server answers within the client's patience. The thread has one hold less, and the
     *     lock ends with its lease
     */
    @Override
    public void unlock() {
        List<Tenure> tenures = tenures();
        try {
            Clock.await(Clock.all(tenures.stream().map(tenure -> tenure.release(request.isShared()))));
        } finally {
            Map<String, Tenure> mine = request.client.threadTenures.get();
            tenures.stream().filter(tenure -> tenure.holds == 0).forEach(tenure -> mine.remove(tenure.key));
        }
    }

    /** Not supported. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a LockwardLock has no conditions");
    }

    /**
     * Whether the current thread holds the lock: its lease is not over by this process's clock, and no server has reported a loss.
     * Sends no request.
     */
    public boolean isHeldByCurrentThread() {
        return getHoldCount() > 0;
    }

    /** How many holds the current thread has. 0 if the thread does not hold the lock, or has lost it. Sends no request. */
    public int getHoldCount() {
        Map<String, Tenure> mine = request.client.threadTenures.get();
        return request.keys.stream()
                .map(mine::get)
                .mapToInt(tenure -> tenure == null || !tenure.isHeld() ? 0 : tenure.holds(request.isShared()))
                .min()
                .orElse(0);
    }

    /** Whether any owner holds the lock at the server. If the lock has several keys, this method checks only the first key. */
    public boolean isLocked() {
        Object info = Clock.await(request.client.call(getName()).ask(() -> new Request("LOCK.INFO", getName())));
        LockRefusedException.throwIfError(getName(), info);
        return info instanceof List<?>;
    }

    /**
     * The fencing token. It is larger than the token of every earlier tenure of this lock. Send the token with every write, so that the
     * store can refuse a token that is smaller than an earlier token. All holds of a tenure have the same token.
     *
     * @throws LockLostException when the lock has been lost
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public long fencingToken() {
        List<Tenure> tenures = tenures();
        tenures.forEach(Tenure::checkHeld);
        return tenures.get(0).token;
    }

    /**
     * The lock that the current thread holds, as a {@link HeldLock}. With this object the program can renew the lock, downgrade it, or
     * hand it over. If the program releases the object, the thread does not hold the lock any more.
     *
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public HeldLock held() {
        return new HeldLock(tenures());
    }

    /**
     * Runs a command only while the server has this tenure: see {@link HeldLock#guarded}.
     *
     * @throws LockLostException when the lock is lost. The command did not run
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     * @throws LockUnreachableException when no server has replied. The command may have run
     * @throws UnsupportedOperationException when the lock has several keys
     */
    public @Nullable Object guarded(Object... command) {
        return held().guarded(command);
    }

    /**
     * Calls {@code listener} once if the lock of the current thread is lost: see {@link HeldLock#onLost}. Example: {@code onLost(loss ->
     * thread.interrupt())}.
     *
     * @throws IllegalMonitorStateException when the current thread does not hold the lock
     */
    public void onLost(Consumer<LockLostException> listener) {
        held().onLost(listener);
    }

    @Override
    public String toString() {
        return "LockwardLock" + request.keys;
    }

    private boolean uninterruptibly(long wait, long lease) {
        try {
            return acquire(wait, lease, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /**
     * Acquires the lock if it is granted within {@code wait}. If the thread would wait for itself, the result is false at once. But if
     * {@code wait} has no limit, the method throws the server's refusal.
     *
     * @param lease a named lease in milliseconds; 0 means no named lease, so the client renews the lock
     */
    private boolean acquire(long wait, long lease, boolean isInterruptible) throws InterruptedException {
        if (isInterruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        Map<String, Tenure> mine = request.client.threadTenures.get();
        Acquisition acquisition = new Acquisition(request, mine, Thread.currentThread(), lease, wait);
        try {
            if (!acquisition.run(isInterruptible)) {
                return false;
            }
        } catch (LockRefusedException refusal) {
            if (refusal.code().equals("LIMIT") && acquisition.isReentry && wait < Clock.FOREVER) {
                return false;
            }
            throw refusal;
        }
        if (mine.size() >= MANY) {
            mine.values().removeIf(tenure -> !tenure.isHeld());
        }
        acquisition.tenures.forEach(tenure -> mine.put(tenure.key, tenure));
        return true;
    }

    /** The tenures that the current thread holds. */
    private List<Tenure> tenures() {
        Map<String, Tenure> mine = request.client.threadTenures.get();
        return request.keys.stream()
                .map(key -> {
                    Tenure tenure = mine.get(key);
                    if (tenure == null || tenure.holds(request.isShared()) == 0) {
                        throw new IllegalMonitorStateException("the lock " + key + " is not held by "
                                + Thread.currentThread().getName() + ": acquire it first");
                    }
                    return tenure;
                })
                .toList();
    }

    private static long millis(long lease, TimeUnit unit) {
        long millis = Clock.span(lease, unit);
        if (lease != -1 && millis < Clock.SHORTEST_LEASE) {
            throw new IllegalArgumentException("a lease must be 2 ms or more, or -1: " + lease + " " + unit);
        }
        return millis;
    }
}
