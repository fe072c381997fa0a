package org.redisson;

import dev.lockward.LockwardLock;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.redisson.Redisson.OwnLock;
import org.redisson.api.RLock;

/** Replaces Redisson's class: several keys of one client form one lock. */
public class RedissonMultiLock {
    final LockwardLock lock;

    public RedissonMultiLock(RLock... locks) {
        OwnLock first = (OwnLock) locks[0];
        if (Stream.of(locks).anyMatch(each -> ((OwnLock) each).client() != first.client())) {
            throw new UnsupportedOperationException("locks of several servers");
        }
        lock = first.client().getMultiLock(Arrays.stream(locks).map(RLock::getName).toArray(String[]::new));
    }

    public void lock() {
        lock.lock();
    }

    public boolean tryLock() {
        return lock.tryLock();
    }

    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return lock.tryLock(wait, lease, unit);
    }

    public void unlock() {
        lock.unlock();
    }
}
