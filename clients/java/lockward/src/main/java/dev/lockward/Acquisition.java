package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * The acquisition of one or several keys as one lock. Several are tried together first. If that fails, they are acquired one after
 * the other, in the same order by all clients, so that no two wait for each other. If one key is lost before all are held, the client
 * gives all keys back and starts over.
 */
final class Acquisition {
    /** True: granted; false: busy. */
    final CompletableFuture<Boolean> result = new CompletableFuture<>();

    /** How long to wait before starting over. Without a pause it would never rest if the lease is shorter than a round trip. */
    private static final long PAUSE_AFTER_LOSS = TimeUnit.MILLISECONDS.toNanos(50);

    /** The tenures that are held when the result is true. */
    final List<Tenure> tenures;

    final LockwardClient client;
    final LockRequest request;
    final @Nullable Long lease;
    final boolean isRenewed;
    final long waitEnd;
    private final boolean isWaiting;
    private final boolean isReentry;

    // The following is guarded by this object's monitor.
    private final List<KeyAcquisition> begun = new ArrayList<>();
    private final List<Tenure> granted = new ArrayList<>();
    private boolean isCancelled;
    private boolean hasLostOne;

    /**
     * Begins the acquisition.
     *
     * @param tenures those that the caller has are re-entered
     * @param lease in milliseconds; null for the server's
     * @param wait the wait limit in nanoseconds; 0 does not wait
     */
    Acquisition(LockRequest request, List<Tenure> tenures, @Nullable Long lease, boolean isRenewed, long wait) {
        this.client = request.client;
        this.request = request;
        this.tenures = new ArrayList<>(tenures);
        this.lease = lease;
        this.isRenewed = isRenewed;
        isWaiting = wait > 0;
        isReentry = tenures.stream().anyMatch(tenure -> tenure.holds() > 0);
        waitEnd = Clock.now() + (isWaiting ? wait : client.patience);
    }

    Acquisition start() {
        client.servers.checkOpen();
        if (hasSeveral()) {
            tryTogether();
        } else {
            acquireNext(0);
        }
        return this;
    }

    /** Starts, and waits for the result. An interrupt cancels the acquisition. */
    boolean run(boolean isInterruptible) throws InterruptedException {
        start();
        if (!isInterruptible) {
            return Clock.await(result);
        }
        try {
            return Clock.awaitInterruptibly(result);
        } catch (InterruptedException interrupt) {
            Clock.await(cancel());
            throw interrupt;
        }
    }

    boolean hasSeveral() {
        return tenures.size() > 1;
    }

    /** Leaves. The future completes when what was granted has been given back, or after 200 ms. */
    CompletableFuture<?> cancel() {
        synchronized (this) {
            isCancelled = true;
        }
        cancelBegun();
        return result.handle((isGranted, error) -> giveBack(false)).thenCompose(given -> given);
    }

    private void cancelBegun() {
        List<KeyAcquisition> open;
        synchronized (this) {
            open = List.copyOf(begun);
        }
        open.forEach(KeyAcquisition::cancel);
    }

    private CompletableFuture<Boolean> acquire(Tenure tenure, boolean waits) {
        KeyAcquisition one = new KeyAcquisition(this, tenure, waits);
        synchronized (this) {
            begun.add(one);
            if (isCancelled) {
                one.cancel();
            }
        }
        CompletableFuture<Boolean> noted = one.result.whenComplete((isGranted, error) -> {
            synchronized (this) {
                if (error == null && isGranted) {
                    granted.add(tenure);
                }
            }
        });
        one.start();
        return noted;
    }

    private void tryTogether() {
        List<CompletableFuture<Boolean>> tries;
        client.pipeline.lock(); // otherwise two threads of this client could take a key each, and both fail
        try {
            tries = tenures.stream().map(tenure -> acquire(tenure, false)).toList();
        } finally {
            client.pipeline.unlock();
        }
        Clock.all(tries.stream()).whenComplete((all, error) -> {
            if (error != null) {
                fail(error);
            } else if (tries.stream().allMatch(CompletableFuture::join)) {
                succeed();
            } else if (isWaiting) {
                acquireAnew();
            } else {
                fail(null);
            }
        });
    }

    /** Gives all keys back, and acquires them one after the other. */
    private void acquireAnew() {
        giveBack(true).thenRun(() -> {
            // A release that arrives late must not end the next grant.
            String owner = request.newOwner();
            synchronized (this) {
                begun.clear();
                hasLostOne = false;
                tenures.replaceAll(
                        tenure -> tenure.holds() > 0 ? tenure : request.newTenure(tenure.key, owner, tenure.thread));
            }
            if (!isReentry) {
                tenures.forEach(tenure -> tenure.onLost(loss -> loseOne(tenure)));
            }
            acquireNext(0);
        });
    }

    private void startOver() {
        new CompletableFuture<Void>()
                .completeOnTimeout(null, PAUSE_AFTER_LOSS, TimeUnit.NANOSECONDS)
                .thenRun(this::acquireAnew);
    }

    /** One key is lost. If that is so before all are held, the wait for the next one ends. */
    private void loseOne(Tenure tenure) {
        synchronized (this) {
            if (!tenures.contains(tenure)) {
                return; // it has been given back
            }
            hasLostOne = true;
        }
        cancelBegun();
    }

    private synchronized boolean isToBeAcquiredAnew() {
        return hasLostOne && !isCancelled;
    }

    private void acquireNext(int index) {
        if (index == tenures.size()) {
            succeed();
            return;
        }
        acquire(tenures.get(index), isWaiting).whenComplete((isGranted, error) -> {
            if (isToBeAcquiredAnew()) {
                startOver();
            } else if (error == null && isGranted) {
                acquireNext(index + 1);
            } else {
                fail(error);
            }
        });
    }

    private void succeed() {
        try {
            if (hasSeveral()) {
                tenures.forEach(Tenure::checkHeld); // one may be lost while the next one is waited for
            }
        } catch (LockLostException lost) {
            if (isWaiting && !isReentry) {
                startOver();
            } else {
                fail(lost);
            }
            return;
        }
        List<Tenure> begunNow =
                tenures.stream().filter(tenure -> tenure.holds() == 1).toList();
        if (!begunNow.isEmpty()) {
            Tenure.loseTogether(tenures);
            request.watchLoss(begunNow);
        }
        result.complete(true);
    }

    /** Ends without a grant: busy, if there is no error. */
    private void fail(@Nullable Throwable error) {
        Throwable cause = error == null ? null : Clock.cause(error);
        boolean mayWait = cause != null && !(cause instanceof LockUnreachableException);
        giveBack(mayWait).thenRun(() -> Clock.complete(result, false, cause));
    }

    /**
     * Gives back what was granted. The future completes when that is done, or after 200 ms: the rest goes on in the background.
     *
     * @param withUnheard whether to wait for what may have been granted, too
     */
    private CompletableFuture<Void> giveBack(boolean withUnheard) {
        List<CompletableFuture<?>> given = new ArrayList<>();
        synchronized (this) {
            granted.forEach(tenure -> given.add(tenure.release(request.isShared())));
            granted.clear();
            if (withUnheard) {
                begun.forEach(each -> given.add(each.gaveUp));
            }
        }
        return Clock.all(given.stream())
                .exceptionally(failed -> null)
                .completeOnTimeout(null, KeyAcquisition.GIVE_UP_LIMIT, TimeUnit.NANOSECONDS);
    }
}
