package dev.lockward.spring;

import dev.lockward.LockwardClient;
import dev.lockward.LockwardLock;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.WeakHashMap;
import java.util.function.Function;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.util.ClassUtils;

/**
 * A lock registry for Spring Integration. A thread may acquire its lock again. The server grants a lock to the waiters of all processes
 * in order, and the client renews held locks.
 *
 * <p>With Spring Integration 7 or later, the locks of this registry are {@link DistributedLock}s.
 */
// The types are raw, because these interfaces have a type parameter in Spring Integration 7, but not in version 6.
@SuppressWarnings("rawtypes")
public final class LockwardLockRegistry implements ExpirableLockRegistry, RenewableLockRegistry {
    private static final Function<LockwardLock, RegistryLock> LOCK = ClassUtils.isPresent(
                    "org.springframework.integration.support.locks.DistributedLock",
                    LockwardLockRegistry.class.getClassLoader())
            ? WithLease::new
            : RegistryLock::new;

    private final LockwardClient client;
    private final String prefix;

    /** While a lock is reachable, {@code obtain} returns the same object for its key. */
    private final Map<RegistryLock, WeakReference<RegistryLock>> locks = new WeakHashMap<>();

    private static final class WithLease extends RegistryLock implements DistributedLock {
        WithLease(LockwardLock lock) {
            super(lock);
        }
    }

    /**
     * A registry of a client's locks.
     *
     * @param prefix the prefix of all keys on the server
     */
    public LockwardLockRegistry(LockwardClient client, String prefix) {
        this.client = Objects.requireNonNull(client);
        this.prefix = Objects.requireNonNull(prefix);
    }

    /**
     * Returns the lock with this key. While a lock is reachable, the registry returns the same object for its key.
     *
     * @param key a string
     */
    @Override
    public RegistryLock obtain(Object key) {
        if (!(key instanceof String name)) {
            throw new IllegalArgumentException("the key of a lock must be a string: " + key);
        }
        RegistryLock lock = LOCK.apply(client.getLock(prefix + name));
        synchronized (locks) {
            WeakReference<RegistryLock> known = locks.get(lock);
            RegistryLock same = known == null ? null : known.get();
            if (same == null) {
                locks.put(lock, new WeakReference<>(lock));
                return lock;
            }
            return same;
        }
    }

    /** Does nothing: the garbage collector removes unreachable objects, and a held lock stays held without its object. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    /**
     * Checks that the current thread holds the lock. The client renews the lock by itself.
     *
     * @throws IllegalStateException when the thread does not hold the lock
     * @throws java.util.ConcurrentModificationException when the thread has lost the lock
     */
    @Override
    public void renewLock(Object key) {
        obtain(key).checkHeld();
    }

    /**
     * Sets a new lease for the current thread's lock. The new lease starts now. Later renewals by the client also use the new lease.
     *
     * @throws IllegalStateException when the thread does not hold the lock
     * @throws java.util.ConcurrentModificationException when the thread has lost the lock
     */
    @Override
    public void renewLock(Object key, Duration lease) {
        obtain(key).renew(lease);
    }
}
