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
 * Spring Integration's locks at a server with Lockward: re-entrant per thread, served first come, first served across all processes,
 * and renewed for as long as they are held.
 *
 * <p>From Spring Integration 7 on, each of its locks is a {@link DistributedLock}, too.
 */
// Raw: these interfaces have a type parameter since Spring Integration 7, and had none in 6.
@SuppressWarnings("rawtypes")
public final class LockwardLockRegistry implements ExpirableLockRegistry, RenewableLockRegistry {
    private static final Function<LockwardLock, RegistryLock> LOCK = ClassUtils.isPresent(
                    "org.springframework.integration.support.locks.DistributedLock",
                    LockwardLockRegistry.class.getClassLoader())
            ? WithLease::new
            : RegistryLock::new;

    private final LockwardClient client;
    private final String prefix;

    /** For as long as somebody has it, the same lock is given for the same key. */
    private final Map<RegistryLock, WeakReference<RegistryLock>> locks = new WeakHashMap<>();

    private static final class WithLease extends RegistryLock implements DistributedLock {
        WithLease(LockwardLock lock) {
            super(lock);
        }
    }

    /**
     * The locks of a client.
     *
     * @param prefix what stands before each key, in the key on the server
     */
    public LockwardLockRegistry(LockwardClient client, String prefix) {
        this.client = Objects.requireNonNull(client);
        this.prefix = Objects.requireNonNull(prefix);
    }

    /**
     * The lock of this name, always the same one.
     *
     * @param key a string
     */
    @Override
    public RegistryLock obtain(Object key) {
        if (!(key instanceof String name)) {
            throw new IllegalArgumentException("the key of a lock is a string: " + key);
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

    /** Does nothing: what nobody has any more is forgotten anyway, and what is held is kept by the client. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    /**
     * Does nothing but look whether the current thread holds the lock, as it is renewed by itself.
     *
     * @throws IllegalStateException when it does not
     * @throws java.util.ConcurrentModificationException when it has lost the lock
     */
    @Override
    public void renewLock(Object key) {
        obtain(key).checkHeld();
    }

    /**
     * Gives the lock that the current thread holds a lease from now, which it is renewed with from then on, if it is renewed.
     *
     * @throws IllegalStateException when the thread does not hold it
     * @throws java.util.ConcurrentModificationException when it has lost the lock
     */
    @Override
    public void renewLock(Object key, Duration lease) {
        obtain(key).renew(lease);
    }
}
