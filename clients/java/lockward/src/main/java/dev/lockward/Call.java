package dev.lockward;

import dev.lockward.Servers.Node;
import io.lettuce.core.RedisCommandExecutionException;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The requests about one key that belong to one call of the program, one after the other. Each is sent until a server answers: the reply
 * to an earlier attempt may be lost, so each request names the count of holds that it leads to, or the token of its tenure.
 *
 * <p>The steps run in the threads that read replies and in the timer's. None of them blocks.
 */
final class Call {
    /** After an attempt that has lasted longer, pauses start again from the shortest. */
    private static final long LONG_ATTEMPT = TimeUnit.SECONDS.toNanos(1);

    /** How long a node may take to redirect a request, if the client does not know which node has the key. Another may be silent. */
    private static final long GUESS_LIMIT = TimeUnit.MILLISECONDS.toNanos(250);

    private static final Set<String> LOGIN_ERRORS = Set.of("NOAUTH", "NOPERM", "WRONGPASS");

    /** False: a request is not sent again if it may have been carried out. */
    boolean isRepeatable = true;

    /** Whether a server has answered, with a reply of any kind. */
    volatile boolean isHeard;

    /** Whether a request whose reply was lost may have been carried out. */
    volatile boolean mayHaveRun;

    /** When the request was sent that was answered, and by which node. */
    volatile long sent = Clock.now();

    volatile @Nullable Node node;

    private final Servers servers;
    private final String key;
    private final long patience;

    /** When the last reply can arrive. */
    private final long end;

    private int failures;
    private @Nullable Node importing;
    private @Nullable Node silent;

    // The following is guarded by this object's monitor.
    /** The connection of this call alone. */
    private @Nullable Connection own;

    /** What the call waits for: a reply, or the end of a pause. */
    private CompletableFuture<?> pending = CompletableFuture.completedFuture(null);

    private boolean isCancelled;

    /** @param patience how long to try while no server answers */
    Call(Servers servers, String key, long patience, long end) {
        this.servers = servers;
        this.key = key;
        this.patience = patience;
        this.end = end;
    }

    /** Sends a request on the shared connection. */
    CompletableFuture<@Nullable Object> ask(Supplier<Request> request) {
        return ask(servers.responseLimit, request);
    }

    /** @param limit how long a reply may take */
    CompletableFuture<@Nullable Object> ask(long limit, Supplier<Request> request) {
        return ask(false, patience, limit, () -> List.of(request.get())).thenApply(replies -> replies.get(0));
    }

    /**
     * Sends requests in one pipeline. The future completes with the replies, each of which may be a {@link ServerError}; or with a {@link
     * LockUnreachableException}, or what the supplier throws before an attempt.
     *
     * @param isOwn whether to send on a connection of this call alone
     * @param limit how long a reply may take
     */
    CompletableFuture<List<@Nullable Object>> ask(
            boolean isOwn, long patience, long limit, Supplier<List<Request>> requests) {
        Exchange exchange = new Exchange(isOwn, patience, limit, requests);
        exchange.attempt();
        return exchange.replies;
    }

    /** Completes after so many nanoseconds, or exceptionally when the call is cancelled. */
    CompletableFuture<Void> pause(long nanos) {
        CompletableFuture<Void> pause = begin();
        Future<?> alarm = servers.timer.at(Clock.now() + nanos, () -> pause.complete(null));
        return pause.whenComplete((done, cancelled) -> alarm.cancel(false));
    }

    /** Ends the call: nothing more is sent, and what is asked completes with a CancellationException. */
    void cancel() {
        CompletableFuture<?> open;
        synchronized (this) {
            isCancelled = true;
            open = pending;
        }
        open.completeExceptionally(new CancellationException());
        closeOwn(false);
    }

    /** Gives up the connection of its own. */
    void closeOwn(boolean isIdle) {
        Connection connection;
        synchronized (this) {
            connection = own;
            own = null;
        }
        if (connection != null) {
            servers.giveBack(connection, isIdle);
        }
    }

    private synchronized <T> CompletableFuture<T> begin() {
        CompletableFuture<T> next = new CompletableFuture<>();
        pending = next;
        if (isCancelled) {
            next.completeExceptionally(new CancellationException());
        }
        return next;
    }

    /** @param attempt the attempt that wants it. When it has ended, a later one may have another connection */
    private void withOwn(
            Node target, CompletableFuture<?> attempt, BiConsumer<@Nullable Connection, @Nullable Throwable> user) {
        Connection present;
        synchronized (this) {
            present = own;
        }
        if (present != null && present.node() == target && present.isOpen()) {
            user.accept(present, null);
            return;
        }
        closeOwn(true);
        servers.own(target).whenComplete((connection, error) -> {
            boolean isLate;
            synchronized (this) {
                isLate = pending != attempt || attempt.isDone();
                own = isLate ? own : connection;
            }
            if (!isLate) {
                user.accept(connection, error);
            } else if (connection != null) {
                servers.giveBack(connection, true);
            }
        });
    }

    /** A pipeline of requests, with its attempts. */
    private final class Exchange {
        private final CompletableFuture<List<@Nullable Object>> replies = new CompletableFuture<>();
        private final boolean isOwn;
        private final long patience;
        private final long limit;
        private final Supplier<List<Request>> requests;
        private long heardAt = Clock.now();
        private long began;
        private boolean isGuess;
        private Node target = servers.nodeFor(key, silent);
        private volatile @Nullable Connection used;
        private volatile CompletableFuture<?> reply = CompletableFuture.completedFuture(null);

        Exchange(boolean isOwn, long patience, long limit, Supplier<List<Request>> requests) {
            this.isOwn = isOwn;
            this.patience = patience;
            this.limit = limit;
            this.requests = requests;
        }

        private void attempt() {
            List<Request> pipeline = new ArrayList<>();
            try {
                servers.checkOpen();
                if (importing != null) {
                    pipeline.add(Request.asking());
                }
                pipeline.addAll(requests.get());
            } catch (RuntimeException | Error reason) {
                replies.completeExceptionally(reason);
                return;
            }
            target = importing == null ? servers.nodeFor(key, silent) : importing;
            isGuess = importing == null && isRepeatable && servers.isGuess(key);
            began = Clock.now();
            used = null;
            reply = CompletableFuture.completedFuture(null);
            CompletableFuture<List<@Nullable Object>> attempt = begin();
            long latest = began + (isGuess ? Math.min(limit, GUESS_LIMIT) : limit);
            Future<?> timeout = servers.timer.at(
                    Clock.earlier(latest, giveUpAt()),
                    () -> attempt.completeExceptionally(new TimeoutException("no reply in time")));
            BiConsumer<@Nullable Connection, @Nullable Throwable> user = (connection, error) -> {
                if (connection == null) {
                    attempt.completeExceptionally(error);
                } else if (!attempt.isDone()) {
                    send(connection, pipeline, attempt);
                }
            };
            if (isOwn) {
                withOwn(target, attempt, user);
            } else {
                servers.withShared(target, user);
            }
            attempt.whenComplete((values, error) -> {
                timeout.cancel(false);
                try {
                    if (error == null) {
                        answered(values);
                    } else {
                        lost(error);
                    }
                } catch (RuntimeException | Error fault) {
                    replies.completeExceptionally(fault); // otherwise the caller would wait for ever
                }
            });
        }

        private long giveUpAt() {
            return Clock.earlier(end, heardAt + patience);
        }

        private void send(
                Connection connection, List<Request> pipeline, CompletableFuture<List<@Nullable Object>> attempt) {
            sent = Clock.now();
            used = connection;
            try {
                CompletableFuture<List<@Nullable Object>> sending = connection.send(pipeline);
                reply = sending;
                sending.whenComplete(
                        (values, error) -> Clock.complete(attempt, values, error == null ? null : Clock.cause(error)));
            } catch (RuntimeException | Error failure) {
                attempt.completeExceptionally(failure); // otherwise the caller would wait for ever
            }
        }

        private void answered(List<@Nullable Object> values) {
            List<@Nullable Object> answers = importing == null ? values : values.subList(1, values.size());
            isHeard = true;
            heardAt = Clock.now();
            target.answered();
            if (answers.get(0) instanceof ServerError refusal && refusal.isTransient()) {
                follow(refusal);
                repeat(new RedisCommandExecutionException(refusal.message()));
                return;
            }
            if (importing == null) {
                servers.has(target, key);
            }
            node = target;
            failures = 0;
            silent = null;
            replies.complete(answers);
        }

        private void follow(ServerError refusal) {
            importing = null;
            switch (refusal.code()) {
                case "MOVED" -> servers.moved(target, key, refusal);
                case "ASK" -> importing = servers.redirected(target, refusal);
                case "READONLY", "MASTERDOWN" -> servers.replace(Objects.requireNonNull(used));
                default -> {}
            }
        }

        private void lost(Throwable error) {
            mayHaveRun |= used != null;
            importing = null;
            silent = isGuess ? target : null;
            if (error instanceof TimeoutException) {
                checkSilence(used, reply);
            }
            if (isOwn) {
                closeOwn(false);
            }
            repeat(error);
        }

        /** Gives the connection up if it stays silent, even if the call has ended earlier. */
        private void checkSilence(@Nullable Connection connection, CompletableFuture<?> awaited) {
            if (Clock.left(began + limit) > 0) {
                servers.timer.at(began + limit, () -> checkSilence(connection, awaited));
            } else if (connection != null && !awaited.isDone()) {
                servers.replace(connection);
            }
        }

        private void repeat(Throwable cause) {
            long now = Clock.now();
            long left = giveUpAt() - now;
            RuntimeException reason = reasonToEnd(cause, left);
            if (reason != null) {
                replies.completeExceptionally(reason);
                return;
            }
            if (now - began > LONG_ATTEMPT) {
                failures = 0;
            }
            pause(Math.min(left, Clock.backOff(failures++))).whenComplete((done, cancelled) -> {
                if (cancelled == null) {
                    attempt();
                } else {
                    replies.completeExceptionally(cancelled);
                }
            });
        }

        private @Nullable RuntimeException reasonToEnd(Throwable cause, long left) {
            if (cause instanceof CancellationException cancelled) {
                return cancelled;
            }
            if (servers.isClosed) {
                return new IllegalStateException("the client is closed");
            }
            for (Throwable each = cause; each != null; each = each.getCause()) {
                String message = String.valueOf(each.getMessage());
                if (each instanceof RedisCommandExecutionException
                        && LOGIN_ERRORS.contains(ServerError.code(message))) {
                    return new LockRefusedException(key, message);
                }
            }
            if (!isRepeatable && mayHaveRun) {
                return new LockUnreachableException(
                        "no reply to the command guarded by the lock " + key + ": it may have run", cause);
            }
            return left > 0
                    ? null
                    : new LockUnreachableException(
                            "no server answers for the lock " + key + ": " + cause.getMessage() + "; try again later",
                            cause);
        }
    }
}
