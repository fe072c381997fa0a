package dev.lockward;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/** The connections for waits, given in turn, first come, first served. A turn is a future that completes when it begins. */
final class WaitingConnections {
    // Guarded by this object's monitor.
    private final Queue<CompletableFuture<Void>> line = new ArrayDeque<>();
    private int free;

    WaitingConnections(int count) {
        free = count;
    }

    synchronized CompletableFuture<Void> enter() {
        if (free > 0) {
            free--;
            return CompletableFuture.completedFuture(null);
        }
        CompletableFuture<Void> turn = new CompletableFuture<>();
        line.add(turn);
        return turn;
    }

    /** Ends a turn, or gives it up before it has begun. */
    void end(CompletableFuture<Void> turn) {
        CompletableFuture<Void> next = endTurn(turn);
        if (next != null) {
            next.complete(null);
        }
    }

    private synchronized @Nullable CompletableFuture<Void> endTurn(CompletableFuture<Void> turn) {
        if (line.removeIf(each -> each == turn)) {
            return null;
        }
        CompletableFuture<Void> next = line.poll();
        free += next == null ? 1 : 0;
        return next;
    }
}
