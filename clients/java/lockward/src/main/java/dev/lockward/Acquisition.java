package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/**
 * The acquisition of one or several keys as one lock. Several are tried together first. If that fails, they are acquired one after
 * the other, in the same order by all clients, so that no two wait for each other.
 */
final class Acquisition {
    /** True: granted; false: busy. */
    final CompletableFuture<Boolean> result = new CompletableFuture<>();

    /** When nothing is under way any more. */
    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    private final LockwardClient client;
    private final List<Tenure> tenures;
    private final LockRequest request;
    private final @Nullable Long lease;
    private final boolean isRenewed;
    private final boolean isWaiting;
    private final long waitEnd;

    // The following is guarded by this object's monitor.
    private final List<KeyAcquisition> running = new ArrayList<>();
    private final List<Tenure> granted = new ArrayList<>();
    private boolean isCancelled;

    /**
     * @param tenures those that the caller has are re-entered
     * @param lease in milliseconds; null for the client's, or the server's
     * @param wait the wait limit in nanoseconds; 0 does not wait
     */
    Acquisition(
            LockwardClient client,
            List<Tenure> tenures,
            LockRequest request,
            @Nullable Long lease,
            boolean isRenewed,
            long wait) {
        this.client = client;
        this.tenures = tenures;
        this.request = request;
        this.lease = lease;
        this.isRenewed = isRenewed;
        isWaiting = wait > 0;
        waitEnd = Clock.now() + (isWaiting ? wait : client.patience);
    }

    Acquisition start() {
        if (client.servers.closed) {
            throw new IllegalStateException("the client is closed");
        }
        if (tenures.size() == 1) {
            acquireNext(0);
        } else {
            tryTogether();
        }
        return this;
    }

    /** Leaves. The future completes when what was granted has been given back, or after 200 ms. */
    CompletableFuture<?> cancel() {
        List<KeyAcquisition> open;
        synchronized (this) {
            isCancelled = true;
            open = List.copyOf(running);
        }
        boolean isEnded = !result.completeExceptionally(new CancellationException());
        List<CompletableFuture<?>> left = new ArrayList<>(List.of(isEnded ? giveBack() : ended));
        open.forEach(each -> left.add(each.cancel()));
        CompletableFuture<Void> all =
                CompletableFuture.allOf(left.toArray(CompletableFuture[]::new)).exceptionally(failed -> null);
        client.timer.at(Clock.now() + KeyAcquisition.GIVE_UP_LIMIT, () -> all.complete(null));
        return all;
    }

    private CompletableFuture<Boolean> acquire(Tenure tenure, boolean waits) {
        KeyAcquisition one = new KeyAcquisition(client, tenure, request, lease, isRenewed, waits, waitEnd);
        synchronized (this) {
            running.add(one);
            if (isCancelled) {
                one.cancel();
                return one.result;
            }
        }
        CompletableFuture<Boolean> noted = one.result.thenApply(isGranted -> {
            synchronized (this) {
                running.remove(one);
                if (isGranted) {
                    granted.add(tenure);
                }
            }
            return isGranted;
        });
        one.start();
        return noted;
    }

    private void tryTogether() {
        List<CompletableFuture<Boolean>> tries =
                tenures.stream().map(tenure -> acquire(tenure, false)).toList();
        CompletableFuture.allOf(tries.toArray(CompletableFuture[]::new)).whenComplete((all, error) -> {
            if (error == null && tries.stream().allMatch(CompletableFuture::join)) {
                succeed();
            } else {
                giveBack().whenComplete((done, failed) -> {
                    if (error == null && isWaiting) {
                        acquireNext(0);
                    } else {
                        fail(error);
                    }
                });
            }
        });
    }

    private void acquireNext(int index) {
        if (index == tenures.size()) {
            succeed();
            return;
        }
        acquire(tenures.get(index), isWaiting).whenComplete((isGranted, error) -> {
            if (error == null && isGranted) {
                acquireNext(index + 1);
            } else {
                giveBack().whenComplete((done, failed) -> fail(error));
            }
        });
    }

    /** Ends without a grant: busy, if there is no error. */
    private void fail(@Nullable Throwable error) {
        if (error == null) {
            result.complete(false);
        } else {
            result.completeExceptionally(Clock.cause(error));
        }
        ended.complete(null);
    }

    private void succeed() {
        try {
            if (tenures.size() > 1) {
                tenures.forEach(Tenure::checkHeld); // one may be lost while the next one is waited for
            }
        } catch (LockLostException lost) {
            giveBack().whenComplete((done, failed) -> fail(lost));
            return;
        }
        Tenure.loseTogether(tenures);
        if (result.complete(true)) {
            ended.complete(null);
        } else {
            giveBack().whenComplete((done, failed) -> ended.complete(null));
        }
    }

    /** Gives back what was granted. What no server answers ends with its lease. */
    private CompletableFuture<Void> giveBack() {
        List<Tenure> all;
        synchronized (this) {
            all = List.copyOf(granted);
            granted.clear();
        }
        return CompletableFuture.allOf(all.stream()
                        .map(tenure -> tenure.release(request.isShared()))
                        .toArray(CompletableFuture[]::new))
                .exceptionally(failed -> null);
    }
}
