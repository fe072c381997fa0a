package dev.lockward;

import dev.lockward.Servers.Node;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.AsyncCommand;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The requests about one key that belong to one call of the program. Each is sent until a server answers: the reply to an earlier
 * attempt may be lost, so each request names the count of holds that it leads to, or the token of its tenure.
 *
 * <p>The steps follow one after the other, in the threads that read replies and in the timer's. None of them blocks.
 */
final class Call {
    /** After an attempt that has lasted longer, pauses start again from the shortest. */
    private static final long LONG_ATTEMPT = TimeUnit.SECONDS.toNanos(1);

    /** How long a node may take to redirect a request, if the client does not know which node has the key. Another may be silent. */
    private static final long GUESS_LIMIT = TimeUnit.MILLISECONDS.toNanos(250);

    private static final Set<String> LOGIN_ERRORS = Set.of("NOAUTH", "NOPERM", "WRONGPASS");

    /** How a request is sent. */
    enum Manner {
        /** On the shared connection, until the patience is over. */
        SHARED,
        /** On the shared connection, and not again if it may have been carried out. */
        ONCE,
        /** On the shared connection, for as long as the call lasts. */
        PATIENT,
        /** On a connection of its own, until the patience is over. */
        OWN,
        /** On a connection of its own, for as long as the call lasts. */
        WAITING;

        private boolean isOwn() {
            return this == OWN || this == WAITING;
        }
    }

    private final Servers servers;
    private final String key;
    private final long patience;

    /** When the last reply can arrive. */
    private final long end;

    private long silentSince = Clock.now();
    private int failures;
    private @Nullable Node importing;
    private @Nullable Node silent;
    private @Nullable Node ownNode;
    private @Nullable StatefulRedisConnection<String, String> own;
    private @Nullable CompletableFuture<Object> pending;
    private volatile boolean isCancelled;

    /** Whether a server has answered, with a reply of any kind. */
    volatile boolean isHeard;

    /** Whether a request whose reply was lost may have been carried out. */
    volatile boolean mayHaveRun;

    /** When the request was sent that was answered, and by which node. */
    volatile long sent;

    volatile @Nullable Node node;

    Call(Servers servers, String key, long patience, long end) {
        this.servers = servers;
        this.key = key;
        this.patience = patience;
        this.end = end;
    }

    CompletableFuture<Object> ask(Manner manner, Supplier<Request> request) {
        return ask(manner, servers.responseLimit, request, List.of()).thenApply(replies -> replies.get(0));
    }

    /**
     * Sends a request, and others that follow it in the same pipeline. The future completes with the replies, each of which may be a
     * {@link ServerError}; or with an {@link LockUnreachableException}, or what the supplier throws before an attempt.
     *
     * @param limit how long a reply may take
     */
    CompletableFuture<List<Object>> ask(Manner manner, long limit, Supplier<Request> request, List<Request> following) {
        Asked asked = new Asked(manner, limit, request, following);
        silentSince = Clock.now();
        asked.attempt();
        return asked.replies;
    }

    /** Ends the call: nothing more is sent, and what is asked completes with a CancellationException. */
    void cancel() {
        isCancelled = true;
        CompletableFuture<Object> open;
        synchronized (this) {
            open = pending;
        }
        if (open != null) {
            open.completeExceptionally(new CancellationException());
        }
        closeOwn(false);
    }

    /** Gives up the connection of its own. */
    void closeOwn(boolean isIdle) {
        StatefulRedisConnection<String, String> connection;
        Node of;
        synchronized (this) {
            connection = own;
            of = ownNode;
            own = null;
        }
        if (connection != null && of != null) {
            servers.giveBack(of, connection, isIdle);
        }
    }

    /** @param attempt the attempt that wants it */
    private CompletableFuture<StatefulRedisConnection<String, String>> ownConnection(
            Node target, CompletableFuture<Object> attempt) {
        StatefulRedisConnection<String, String> present;
        synchronized (this) {
            present = target == ownNode && own != null && own.isOpen() ? own : null;
        }
        if (present != null) {
            return CompletableFuture.completedFuture(present);
        }
        closeOwn(true);
        return servers.waiting(target).thenApply(connection -> {
            boolean isLate;
            synchronized (this) {
                isLate = pending != attempt;
                if (!isLate) {
                    ownNode = target;
                    own = connection;
                }
            }
            if (isLate) { // a later attempt may have one already
                servers.giveBack(target, connection, true);
            } else if (isCancelled) {
                closeOwn(false);
            }
            return connection;
        });
    }

    private synchronized boolean isLatest(CompletableFuture<Object> attempt) {
        return pending == attempt;
    }

    /** One request of the call, with its attempts. */
    private final class Asked {
        private final Manner manner;
        private final long limit;
        private final Supplier<Request> request;
        private final List<Request> following;
        private final CompletableFuture<List<Object>> replies = new CompletableFuture<>();
        private Node target;
        private long began;
        private boolean isSent;
        private boolean isGuess;
        private volatile @Nullable StatefulRedisConnection<String, String> used;
        private List<AsyncCommand<String, String, Object>> commands = List.of();

        Asked(Manner manner, long limit, Supplier<Request> request, List<Request> following) {
            this.manner = manner;
            this.limit = limit;
            this.request = request;
            this.following = following;
            this.target = servers.nodeFor(key, silent);
        }

        private long giveUpAt() {
            long patient = silentSince + patience;
            return manner == Manner.PATIENT || manner == Manner.WAITING || end - patient < 0 ? end : patient;
        }

        private void attempt() {
            List<Request> requests = new ArrayList<>(2 + following.size());
            try {
                if (isCancelled) {
                    throw new CancellationException();
                }
                if (servers.closed) {
                    throw new IllegalStateException("the client is closed");
                }
                if (importing != null) {
                    requests.add(Request.ASKING);
                }
                requests.add(request.get());
                requests.addAll(following);
            } catch (RuntimeException | Error reason) {
                replies.completeExceptionally(reason);
                return;
            }
            target = importing == null ? servers.nodeFor(key, silent) : importing;
            isGuess = importing == null && manner != Manner.ONCE && servers.isGuess(key);
            began = Clock.now();
            isSent = false;
            used = null;
            CompletableFuture<Object> last = new CompletableFuture<>();
            synchronized (Call.this) {
                pending = last;
            }
            long latest = began + (isGuess ? Math.min(limit, GUESS_LIMIT) : limit);
            Timer.Task timeout = servers.timer.at(
                    latest - giveUpAt() < 0 ? latest : giveUpAt(),
                    () -> last.completeExceptionally(new TimeoutException("no reply in time")));
            Servers.User user = (connection, error) -> {
                if (connection == null) {
                    last.completeExceptionally(error);
                } else if (!last.isDone()) {
                    send(connection, requests, last);
                } else if (manner.isOwn() && isLatest(last)) {
                    closeOwn(true);
                }
            };
            if (manner.isOwn()) {
                ownConnection(target, last).whenComplete(user::accept);
            } else {
                servers.withShared(target, user);
            }
            last.whenComplete((reply, error) -> {
                servers.timer.cancel(timeout);
                try {
                    answered(error);
                } catch (RuntimeException | Error fault) {
                    replies.completeExceptionally(fault); // otherwise the caller would wait for ever
                }
            });
        }

        private void send(
                StatefulRedisConnection<String, String> connection,
                List<Request> requests,
                CompletableFuture<Object> last) {
            used = connection;
            isSent = true;
            sent = Clock.now();
            try {
                commands = Servers.send(connection, requests);
            } catch (RuntimeException | Error failure) {
                last.completeExceptionally(failure); // otherwise the caller would wait for ever
                return;
            }
            commands.get(commands.size() - 1).whenComplete((reply, error) -> {
                if (error == null || error instanceof RedisCommandExecutionException) {
                    last.complete(this);
                } else {
                    last.completeExceptionally(error);
                }
            });
        }

        private void answered(@Nullable Throwable error) {
            Throwable cause = error;
            if (error == null) {
                int first = importing == null ? 0 : 1;
                List<@Nullable Object> values = new ArrayList<>();
                commands.subList(first, commands.size()).forEach(command -> values.add(value(command)));
                isHeard = true;
                silentSince = Clock.now();
                target.answered(silentSince);
                if (!(values.get(0) instanceof ServerError refusal) || !refusal.isTransient()) {
                    node = target;
                    failures = 0;
                    silent = null;
                    if (importing == null) {
                        servers.has(target, key);
                    }
                    replies.complete(values);
                    return;
                }
                follow(refusal);
                cause = new RedisCommandExecutionException(refusal.message());
            } else {
                lost(error);
            }
            if (cause != null) {
                repeat(cause);
            }
        }

        private static @Nullable Object value(AsyncCommand<String, String, Object> command) {
            try {
                return command.getNow(null);
            } catch (RuntimeException error) {
                return new ServerError(String.valueOf(Clock.cause(error).getMessage()));
            }
        }

        private void follow(ServerError refusal) {
            importing = null;
            switch (refusal.code()) {
                case "MOVED" -> servers.moved(target, key, refusal);
                case "ASK" -> importing = servers.redirected(target, refusal);
                case "READONLY", "MASTERDOWN" -> replace();
                default -> {}
            }
        }

        private void lost(Throwable error) {
            mayHaveRun |= isSent;
            importing = null;
            silent = isGuess ? target : null;
            if (error instanceof TimeoutException && isSent) {
                checkSilence();
            }
            if (manner.isOwn()) {
                closeOwn(false);
            }
        }

        /** Gives the connection up if it stays silent, even if the call has ended earlier. */
        private void checkSilence() {
            if (commands.isEmpty()) {
                return; // it is being sent just now
            }
            AsyncCommand<String, String, Object> command = commands.get(0);
            Node silent = target;
            StatefulRedisConnection<String, String> connection = used;
            Runnable check = () -> {
                if (!command.isDone() && connection != null) {
                    servers.replace(silent, connection);
                }
            };
            if (Clock.left(began + limit) <= 0) {
                check.run();
            } else {
                servers.timer.at(began + limit, check);
            }
        }

        private void replace() {
            StatefulRedisConnection<String, String> connection = used;
            if (connection != null) {
                servers.replace(target, connection);
            }
        }

        private void repeat(Throwable cause) {
            if (servers.closed) {
                replies.completeExceptionally(new IllegalStateException("the client is closed"));
                return;
            }
            if (isCancelled) {
                replies.completeExceptionally(new CancellationException());
                return;
            }
            for (Throwable each = cause; each != null; each = each.getCause()) {
                String message = String.valueOf(each.getMessage());
                if (each instanceof RedisCommandExecutionException
                        && LOGIN_ERRORS.contains(ServerError.code(message))) {
                    replies.completeExceptionally(new LockRefusedException(key, message));
                    return;
                }
            }
            if (manner == Manner.ONCE && mayHaveRun) {
                replies.completeExceptionally(new LockUnreachableException(
                        "no reply to the command guarded by the lock " + key + ": it may have run", cause));
                return;
            }
            long now = Clock.now();
            long left = giveUpAt() - now;
            if (left <= 0) {
                replies.completeExceptionally(new LockUnreachableException(
                        "no server answers for the lock " + key + ": " + cause.getMessage() + "; try again later",
                        cause));
                return;
            }
            if (now - began > LONG_ATTEMPT) {
                failures = 0;
            }
            long pause = Math.min(left, Clock.backOff(failures++));
            if (pause == 0) {
                attempt();
            } else {
                servers.timer.at(now + pause, this::attempt);
            }
        }
    }
}
