package dev.lockward;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** The connections for waits, given in turn, first come, first served. A turn is a future that completes when it begins. */
final class WaitingConnections {
    private final int count;

    /** Those that have begun, and then those that wait for it. Guarded by this object's monitor. */
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

    /** Ends a turn, or gives it up before it has begun. */
    void end(CompletableFuture<Void> turn) {
        Optional<CompletableFuture<Void>> last;
        synchronized (this) {
            turns.removeIf(each -> each == turn);
            last = turns.stream().skip(count - 1).findFirst();
        }
        last.ifPresent(next -> next.complete(null)); // it may have begun before
    }
}
