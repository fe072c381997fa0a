package org.redisson;

import dev.lockward.HeldLock;
import dev.lockward.LockRequest;
import dev.lockward.LockwardClient;
import dev.lockward.ServerContainer;
import io.lettuce.core.RedisURI;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.jspecify.annotations.Nullable;

/**
 * The permits of a semaphore. Redisson stores their number at the server, and a permit of an RSemaphore has no owner. Here this process
 * stores the number and the acquired permits, for all its clients.
 */
final class Permits {
    private static final Map<String, Shared> ALL = new ConcurrentHashMap<>();

    private final LockwardClient client;
    private final RedisURI address;
    private final String name;
    private final Shared shared;

    private static final class Shared {
        private @Nullable Integer slots;
        private final Deque<Taken> taken = new ArrayDeque<>();
        private final Map<String, HeldLock> byId = new ConcurrentHashMap<>();
    }

    private record Taken(int count, HeldLock held) {}

    private Permits(LockwardClient client, RedisURI address, String name) {
        this.client = client;
        this.address = address;
        this.name = name;
        shared = ALL.computeIfAbsent(address + " " + name, key -> new Shared());
    }

    static Permits of(LockwardClient client, RedisURI address, String name) {
        return new Permits(client, address, name);
    }

    static void reset() {
        ALL.clear();
    }

    int slots() {
        synchronized (shared) {
            return shared.slots == null ? 0 : shared.slots;
        }
    }

    boolean trySet(int slots) {
        synchronized (shared) {
            boolean isFirst = shared.slots == null;
            shared.slots = isFirst ? Integer.valueOf(slots) : shared.slots;
            return isFirst;
        }
    }

    void add(int slots) {
        synchronized (shared) {
            shared.slots = slots() + slots;
        }
    }

    int acquired() {
        return (int) ServerContainer.weight(Redisson.commands(address), name);
    }

    Map<String, HeldLock> byId() {
        return shared.byId;
    }

    /** @param lease null for a permit that is renewed until it is released */
    Optional<HeldLock> acquire(int count, @Nullable Duration wait, @Nullable Duration lease)
            throws InterruptedException {
        LockRequest request = client.request(name).slots(slots());
        if (count > 1) {
            request.weight(count);
        }
        if (lease != null) {
            request.lease(lease).renewal(false);
        }
        return wait == null ? Optional.of(request.acquire()) : request.tryAcquire(wait);
    }

    void take(int count, HeldLock held) {
        synchronized (shared) {
            shared.taken.add(new Taken(count, held));
        }
    }

    /** Releases this many permits, the oldest acquisitions first. Cannot release a part of an acquisition. */
    void release(int count) {
        int left = count;
        while (left > 0) {
            Taken first;
            synchronized (shared) {
                first = shared.taken.peek();
                if (first == null || first.count > left) {
                    throw new UnsupportedOperationException("no part of what was acquired together can be released");
                }
                shared.taken.remove();
            }
            first.held.release();
            left -= first.count;
        }
    }
}
