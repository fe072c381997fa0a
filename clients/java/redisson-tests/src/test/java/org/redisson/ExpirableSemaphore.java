package org.redisson;

import dev.lockward.HeldLock;
import dev.lockward.LockLostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.redisson.api.RFuture;
import org.redisson.client.RedisException;
import org.redisson.misc.CompletableFutureWrapper;

/** The methods of an RPermitExpirableSemaphore. A permit is a HeldLock, which this process finds by the permit's id. */
final class ExpirableSemaphore {
    private final Permits permits;

    ExpirableSemaphore(Permits permits) {
        this.permits = permits;
    }

    boolean trySetPermits(int slots) {
        return permits.trySet(slots);
    }

    void setPermits(int slots) {
        permits.add(slots - permits.slots());
    }

    void addPermits(int slots) {
        permits.add(slots);
    }

    int getPermits() {
        return permits.slots();
    }

    int acquiredPermits() {
        return permits.acquired();
    }

    int availablePermits() {
        return permits.slots() - permits.acquired();
    }

    String acquire() throws InterruptedException {
        return take(1, null, null).get(0);
    }

    String acquire(long lease, TimeUnit unit) throws InterruptedException {
        return take(1, null, lease(lease, unit)).get(0);
    }

    List<String> acquire(int count) throws InterruptedException {
        return take(count, null, null);
    }

    List<String> acquire(int count, long lease, TimeUnit unit) throws InterruptedException {
        return take(count, null, lease(lease, unit));
    }

    @Nullable String tryAcquire() throws InterruptedException {
        return first(take(1, Duration.ZERO, null));
    }

    @Nullable String tryAcquire(long wait, TimeUnit unit) throws InterruptedException {
        return first(take(1, Duration.of(wait, unit.toChronoUnit()), null));
    }

    @Nullable String tryAcquire(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return first(tryAcquire(1, wait, lease, unit));
    }

    List<String> tryAcquire(int count) throws InterruptedException {
        return take(count, Duration.ZERO, null);
    }

    List<String> tryAcquire(int count, long wait, long lease, TimeUnit unit) throws InterruptedException {
        return take(count, Duration.of(wait, unit.toChronoUnit()), lease(lease, unit));
    }

    RFuture<String> acquireAsync(long lease, TimeUnit unit) {
        return async(() -> acquire(lease, unit));
    }

    RFuture<List<String>> acquireAsync(int count) {
        return async(() -> acquire(count));
    }

    RFuture<Integer> tryReleaseAsync(List<String> ids) {
        return async(() -> tryRelease(ids));
    }

    boolean tryRelease(String id) {
        HeldLock held = permits.byId().remove(id);
        if (held == null) {
            return false;
        }
        try {
            held.release();
            return true;
        } catch (LockLostException expired) {
            return false;
        }
    }

    int tryRelease(List<String> ids) {
        return (int) ids.stream().filter(this::tryRelease).count();
    }

    void release(String id) {
        if (!tryRelease(id)) {
            throw new RedisException("there is no permit " + id);
        }
    }

    void release(List<String> ids) {
        for (String id : ids) {
            HeldLock held = permits.byId().get(id);
            if (held == null || !held.isHeld()) {
                throw new RedisException("there is no permit " + id);
            }
        }
        ids.forEach(this::release);
    }

    boolean updateLeaseTime(String id, long lease, TimeUnit unit) {
        HeldLock held = permits.byId().get(id);
        if (held == null) {
            return false;
        }
        try {
            held.renew(Duration.of(lease, unit.toChronoUnit()));
            return true;
        } catch (LockLostException expired) {
            return false;
        }
    }

    /** In Redisson -1 means a permit without a lease. */
    private static @Nullable Duration lease(long lease, TimeUnit unit) {
        return lease == -1 ? null : Duration.of(lease, unit.toChronoUnit());
    }

    private static @Nullable String first(List<String> ids) {
        return ids.isEmpty() ? null : ids.get(0);
    }

    /** Acquires one permit after the other, because each permit can be released alone. */
    private List<String> take(int count, @Nullable Duration wait, @Nullable Duration lease)
            throws InterruptedException {
        List<String> ids = new ArrayList<>();
        while (ids.size() < count) {
            Optional<HeldLock> held = permits.acquire(1, wait, lease);
            if (held.isEmpty()) {
                tryRelease(ids);
                return new ArrayList<>();
            }
            String id = UUID.randomUUID().toString().replace("-", "");
            permits.byId().put(id, held.get());
            ids.add(id);
        }
        return ids;
    }

    private static <T> RFuture<T> async(Callable<T> action) {
        return new CompletableFutureWrapper<>(CompletableFuture.supplyAsync(() -> {
            try {
                return action.call();
            } catch (Exception error) {
                throw new CompletionException(error);
            }
        }));
    }
}
