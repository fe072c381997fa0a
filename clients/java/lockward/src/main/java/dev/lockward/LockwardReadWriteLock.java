package dev.lockward;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A read lock and a write lock of one key, similar to a {@link java.util.concurrent.locks.ReentrantReadWriteLock}. The server grants the
 * lock to readers and writers in the order of their requests.
 *
 * <p>The writer may also acquire the read lock. When the writer then unlocks the write lock, it is a reader, and other readers may also
 * hold the lock. A reader that asks for the write lock would wait for itself. So {@code tryLock} returns false at once, and {@code lock}
 * throws a {@link LockRefusedException}.
 */
public record LockwardReadWriteLock(LockwardLock readLock, LockwardLock writeLock) implements ReadWriteLock {}
