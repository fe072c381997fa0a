package dev.lockward;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * A semaphore on the server. The server grants permits in the order of the requests. An acquired object holds the permits until the
 * program closes it. A process that dies loses its permits when their lease ends. The methods throw the same exceptions as the methods of
 * {@link LockRequest}.
 */
public record LockwardSemaphore(LockwardClient client, String name, int slots) {
    /** Acquires a permit, and waits for it without limit. */
    public HeldLock acquire() throws InterruptedException {
        return request(1).acquire();
    }

    /** Acquires several permits together, and waits for them without limit. */
    public HeldLock acquire(int permits) throws InterruptedException {
        return request(permits).acquire();
    }

    /** Acquires several permits together. Returns empty if the permits are not free within {@code timeout}, which may be 0. */
    public Optional<HeldLock> tryAcquire(int permits, Duration timeout) throws InterruptedException {
        return request(permits).tryAcquire(timeout);
    }

    /** Does what {@link #acquire(int)} does, but does not block the thread. If the future is cancelled, the caller leaves the queue. */
    public CompletableFuture<HeldLock> acquireAsync(int permits) {
        return request(permits).acquireAsync();
    }

    private LockRequest request(int permits) {
        LockRequest request = client.request(name).slots(slots);
        return permits == 1 ? request : request.weight(permits);
    }
}
