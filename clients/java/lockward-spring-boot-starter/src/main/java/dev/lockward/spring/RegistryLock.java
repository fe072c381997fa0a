package dev.lockward.spring;

import dev.lockward.LockLostException;
import dev.lockward.LockwardException;
import dev.lockward.LockwardLock;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.springframework.dao.CannotAcquireLockException;

/**
 * A lock of a {@link LockwardLockRegistry}: a {@link LockwardLock} that throws the exceptions of Spring Integration's locks.
 *
 * <p>Methods that acquire the lock throw a {@link CannotAcquireLockException} when the server replies with an error, when no server
 * answers, or when a nested call finds that the lock is lost. Methods for the holder throw an {@link IllegalStateException}
 * when the thread does not hold the lock, and a {@link ConcurrentModificationException} when the thread has lost the lock.
 */
public class RegistryLock implements Lock {
    private final LockwardLock lock;

    RegistryLock(LockwardLock lock) {
        this.lock = lock;
    }

    /** Acquires the lock, and waits without limit. The client renews the lock until the thread unlocks it. */
    @Override
    public void lock() {
        acquire(() -> {
            lock.lock();
            return true;
        });
    }

    /**
     * Acquires the lock for at most {@code lease}. The client does not renew the lock.
     *
     * @param lease at least 2 ms
     */
    public void lock(Duration lease) {
        long millis = millis(lease);
        acquire(() -> {
            lock.lock(millis, TimeUnit.MILLISECONDS);
            return true;
        });
    }

    /** Acquires the lock, and waits without limit, or until the thread is interrupted. */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        acquire(() -> {
            lock.lockInterruptibly();
            return true;
        });
    }

    /** Acquires the lock if it is free: see {@link LockwardLock#tryLock()}. */
    @Override
    public boolean tryLock() {
        return acquire(lock::tryLock);
    }

    /** Acquires the lock, and waits for at most {@code wait}: see {@link LockwardLock#tryLock(long, TimeUnit)}. */
    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return acquire(() -> lock.tryLock(wait, unit));
    }

    /**
     * Acquires the lock, and waits for at most {@code wait}. The thread holds the lock for at most {@code lease}: see {@link
     * #lock(Duration)}.
     *
     * @param lease at least 2 ms
     */
    public boolean tryLock(Duration wait, Duration lease) throws InterruptedException {
        long millis = millis(lease);
        return acquire(() -> lock.tryLock(TimeUnit.MILLISECONDS.convert(wait), millis, TimeUnit.MILLISECONDS));
    }

    @Override
    public void unlock() {
        asHolder(lock::unlock);
    }

    /** Not supported. */
    @Override
    public Condition newCondition() {
        return lock.newCondition();
    }

    /** The underlying lock, which has the fencing token and listeners for a loss. */
    public LockwardLock lockward() {
        return lock;
    }

    void renew(Duration lease) {
        asHolder(() -> lock.held().renew(lease));
    }

    void checkHeld() {
        asHolder(lock::fencingToken);
    }

    private interface Acquisition<E extends Exception> {
        boolean run() throws E;
    }

    private static <E extends Exception> boolean acquire(Acquisition<E> acquisition) throws E {
        try {
            return acquisition.run();
        } catch (LockwardException | LockLostException error) {
            throw new CannotAcquireLockException(String.valueOf(error.getMessage()), error);
        }
    }

    private static void asHolder(Runnable action) {
        try {
            action.run();
        } catch (LockLostException lost) {
            throw new ConcurrentModificationException(lost.getMessage(), lost);
        } catch (IllegalMonitorStateException notHeld) {
            throw new IllegalStateException(notHeld.getMessage(), notHeld);
        }
    }

    private static long millis(Duration lease) {
        long millis = TimeUnit.MILLISECONDS.convert(lease);
        if (millis < 2) { // -1 would mean no named lease
            throw new IllegalArgumentException("a lease must be 2 ms or more: " + lease);
        }
        return millis;
    }

    @Override
    public final boolean equals(Object other) {
        return other instanceof RegistryLock another && lock.getName().equals(another.lock.getName());
    }

    @Override
    public final int hashCode() {
        return lock.getName().hashCode();
    }

    @Override
    public String toString() {
        return "RegistryLock[" + lock.getName() + "]";
    }
}
