package dev.lockward;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;

/** The connections for waits, given in turn, first come, first served. A turn is a future that completes when it begins. */
final class WaitingConnections {
    // Guarded by this object's monitor.
    private final Queue<CompletableFuture<Void>> line = new ArrayDeque<>();
    private int free;

    WaitingConnections(int count) {
        free = count;
    }

    synchronized CompletableFuture<Void> enter() {
        CompletableFuture<Void> turn = new CompletableFuture<>();
        if (free > 0) {
            free--;
            turn.complete(null);
        } else {
            line.add(turn);
        }
        return turn;
    }

    /** Ends a turn, or gives it up before it has begun. */
    void end(CompletableFuture<Void> turn) {
        CompletableFuture<Void> next = null;
        synchronized (this) {
            if (!line.removeIf(each -> each == turn)) {
                next = line.poll();
                free += next == null ? 1 : 0;
            }
        }
        if (next != null) {
            next.complete(null);
        }
    }
}
