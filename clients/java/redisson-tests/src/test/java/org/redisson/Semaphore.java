package org.redisson;

import java.time.Duration;

/** The methods of an RSemaphore. */
final class Semaphore {
    private final Permits permits;

    Semaphore(Permits permits) {
        this.permits = permits;
    }

    boolean trySetPermits(int slots) {
        return permits.trySet(slots);
    }

    void addPermits(int slots) {
        permits.add(slots);
    }

    int availablePermits() {
        return permits.slots() - permits.acquired();
    }

    void acquire() throws InterruptedException {
        acquire(1);
    }

    void acquire(int count) throws InterruptedException {
        permits.take(count, permits.acquire(count, null, null).orElseThrow());
    }

    boolean tryAcquire() throws InterruptedException {
        return tryAcquire(1);
    }

    boolean tryAcquire(int count) throws InterruptedException {
        return tryAcquire(count, Duration.ZERO);
    }

    boolean tryAcquire(int count, Duration wait) throws InterruptedException {
        return permits.acquire(count, wait, null)
                .map(held -> {
                    permits.take(count, held);
                    return true;
                })
                .orElse(false);
    }

    int drainPermits() throws InterruptedException {
        int free = availablePermits();
        return free > 0 && tryAcquire(free) ? free : 0;
    }

    boolean releaseIfExists(int count) {
        if (permits.slots() == 0) {
            return false;
        }
        release(count);
        return true;
    }

    void release() {
        release(1);
    }

    void release(int count) {
        permits.release(count);
    }
}
