package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * Limits how many callers wait on connections of their own. Each of these callers needs a turn. A turn is a future that completes when the
 * turn begins.
 */
final class WaitingConnections {
    private final int count;

    /** The turns that have not ended, in the order in which they begin. Guarded by this object's monitor. */
    private final List<CompletableFuture<Void>> turns = new ArrayList<>();

    WaitingConnections(int count) {
        this.count = count;
    }

    synchronized CompletableFuture<Void> enter() {
        CompletableFuture<Void> turn = new CompletableFuture<>();
        turns.add(turn);
        if (turns.size() <= count) {
            turn.complete(null);
        }
        return turn;
    }

    /** Ends a turn, even if the turn has not begun. */
    void end(CompletableFuture<Void> turn) {
        Optional<CompletableFuture<Void>> last;
        synchronized (this) {
            turns.removeIf(each -> each == turn);
            last = turns.stream().skip(count - 1).findFirst();
        }
        last.ifPresent(next -> next.complete(null)); // has no effect if the next turn has already begun
    }
}
