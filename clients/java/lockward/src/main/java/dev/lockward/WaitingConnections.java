package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** The connections for waits, given out first come, first served. A turn is a future that completes when the turn begins. */
final class WaitingConnections {
    private final int count;

    /** First the turns that have begun, then the turns that have not. Guarded by this object's monitor. */
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

    /** Ends a turn, which may not have begun. */
    void end(CompletableFuture<Void> turn) {
        Optional<CompletableFuture<Void>> last;
        synchronized (this) {
            turns.removeIf(each -> each == turn);
            last = turns.stream().skip(count - 1).findFirst();
        }
        last.ifPresent(next -> next.complete(null)); // does nothing if this turn has already begun
    }
}
