package dev.lockward;

import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * A lock that is held. It has one key or several keys. The object holds the lock, not a thread: one thread may acquire the lock, and
 * another thread may release it. The lock is <em>lost</em> when its lease ends without a renewal, or when somebody deletes or overwrites a
 * key. A lock of several keys is lost as soon as one key is lost.
 *
 * <p>If the program drops this object without a release, the client stops renewing the lock, and the lock ends with its lease.
 *
 * <p>Methods that send a request throw a {@link LockLostException} when the lock is lost, an {@link IllegalMonitorStateException} when
 * the lock was released before, a {@link LockRefusedException} when the server replies with another error, and a {@link
 * LockUnreachableException} when no server answers within the client's patience. An interrupt does not end these methods.
 */
public final class HeldLock implements AutoCloseable {
    /** The part of a handle for one key: see {@link Tenure#handOver}. */
    private static final Pattern HANDLE =
            Pattern.compile("[^:]*:[^:]+(:[1-9][0-9]*){4}:(true|false)(:SHARED|:SLOTS:[0-9]+(:WEIGHT:[0-9]+)?)?");

    private final List<Tenure> tenures;

    HeldLock(List<Tenure> tenures) {
        this.tenures = tenures;
    }

    /** The keys of the lock on the server, in the order of their bytes. */
    public List<String> keys() {
        return tenures.stream().map(tenure -> tenure.key).toList();
    }

    /** The owner that holds the lock. LOCK.INFO shows this name. */
    public String owner() {
        return tenures.get(0).owner;
    }

    /**
     * The fencing token of the first key. It is larger than the token of every earlier tenure of this lock. Send the token with every
     * write, so that the store can refuse a token that is smaller than an earlier token.
     */
    public long fencingToken() {
        return tenures.get(0).token;
    }

    /** The fencing token of each key. */
    public List<Long> fencingTokens() {
        return tenures.stream().map(tenure -> tenure.token).toList();
    }

    /** Whether the lock is held: its lease is not over by this process's clock, and no server has reported a loss. Sends no request. */
    public boolean isHeld() {
        return tenures.stream().allMatch(Tenure::isHeld);
    }

    boolean isLost() {
        return tenures.stream().anyMatch(Tenure::isLost);
    }

    /**
     * Calls {@code listener} once if the lock is lost before the program releases it. If the lock is already lost, calls the listener at
     * once. The listener runs in a thread of its own. When the lease ends, the listener starts within 50 ms.
     */
    public void onLost(Consumer<LockLostException> listener) {
        Tenure.onLost(tenures, listener);
    }

    /** Renews the lock now. Programs rarely need this method, because the client renews the lock by itself. */
    public void renew() {
        Clock.await(all(tenure -> tenure.renew(tenure.lease, null)));
    }

    /**
     * Sets a new lease, which starts now. It may be shorter or longer than before. Later renewals by the client also use the new lease.
     *
     * @param lease at least 2 ms, rounded up to milliseconds
     */
    public void renew(Duration lease) {
        long millis = Clock.span(lease, Clock.SHORTEST_LEASE, "lease");
        Clock.await(all(tenure -> tenure.renew(millis, null)));
    }

    /** Makes this lock a read lock. From now on, other readers may also hold the lock. */
    public void downgradeToShared() {
        Clock.await(all(tenure -> tenure.renew(0, tenure.withWeight(Request.SHARED))));
    }

    /** Makes the lock a semaphore from now on, with more slots than before. */
    public void downgradeToSlots(int slots) {
        Clock.await(all(tenure -> tenure.renew(0, tenure.withWeight(List.of("SLOTS", slots)))));
    }

    /**
     * Runs a command only while the server has this tenure: sends LOCK.GUARD with the key and the fencing token. Example: {@code
     * guarded("SET", "{order:42}:state", "paid")}. Without arguments the server only checks the token.
     *
     * <p>The data must be on the lock's server. In a cluster, the keys of the data must be in the slot of the lock: give all keys a common
     * tag such as {@code {order:42}}. If the reply is lost, the client does not repeat the command, because the server may have run the
     * command.
     *
     * @param command the name and the arguments. The client sends a {@code byte[]} unchanged, and any other object as text
     * @return the reply: a String, a Long, null, or a List of replies
     * @throws LockLostException when the lock is lost. The command did not run
     * @throws LockRefusedException when the server replies with another error. The lock stays held
     * @throws LockUnreachableException when no server has replied. The command may have run
     * @throws UnsupportedOperationException when the lock has several keys: the server checks only one token
     */
    public @Nullable Object guarded(Object... command) {
        if (tenures.size() > 1) {
            throw new UnsupportedOperationException("a guarded command needs a lock of one key, not of " + keys());
        }
        return Clock.await(tenures.get(0).guarded(true, command));
    }

    /**
     * Returns a text. Another process passes this text to {@link LockwardClient#resume} to continue the lock. This object does not hold
     * the lock any more, and the client does not renew the lock. So the other process must resume the lock before the lease ends. The text
     * contains how much is left of the hold limit. The other process counts this time from the call of {@code resume}.
     */
    public String handle() {
        tenures.forEach(Tenure::checkHeld);
        return tenures.stream()
                .map(tenure -> tenure.handOver().stream()
                        .map(part -> URLEncoder.encode(part.toString(), StandardCharsets.UTF_8))
                        .collect(Collectors.joining(":")))
                .collect(Collectors.joining(","));
    }

    static HeldLock resume(LockwardClient client, String handle) {
        List<Tenure> tenures;
        try {
            tenures = Arrays.stream(Objects.requireNonNull(handle, "handle").split(",", -1))
                    .map(part -> tenure(client, part))
                    .toList();
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException("this is not the handle of a lock", error);
        }
        tenures.forEach(client::watch);
        client.request(tenures.get(0).key).watchLoss(tenures, tenures);
        HeldLock held = new HeldLock(tenures);
        try {
            held.renew();
            return held;
        } catch (LockLostException lost) {
            Clock.await(held.all(Tenure::releaseAll).exceptionally(failed -> null));
            throw lost;
        } catch (RuntimeException failed) {
            tenures.forEach(Tenure::end);
            throw failed;
        }
    }

    private static Tenure tenure(LockwardClient client, String handle) {
        if (!HANDLE.matcher(handle).matches()) {
            throw new IllegalArgumentException(handle);
        }
        List<String> parts = Arrays.stream(handle.split(":", -1))
                .map(part -> URLDecoder.decode(part, StandardCharsets.UTF_8))
                .toList();
        LockRequest request = client.request(parts.get(0));
        request.holdLimit = Long.parseLong(parts.get(5));
        Tenure tenure = new Tenure(request, parts.get(0), parts.get(1), null);
        long token = Long.parseLong(parts.get(2));
        int holds = Integer.parseInt(parts.get(3));
        long lease = Long.parseLong(parts.get(4));
        boolean isRenewed = Boolean.parseBoolean(parts.get(6));
        List<Object> kind = List.copyOf(parts.subList(7, parts.size()));
        tenure.granted(client.call(tenure.key), token, holds, lease, isRenewed, kind);
        return tenure;
    }

    /** Releases the lock, with all holds. If no server answers, the lock ends with its lease. */
    public void release() {
        Clock.await(all(Tenure::releaseAll));
    }

    /** Does what {@link #release} does, but does not block the thread. If the release fails, the future fails. */
    public CompletableFuture<Void> releaseAsync() {
        return tenures.get(0).client.async(all(Tenure::releaseAll));
    }

    /**
     * Frees the lock after a delay. The server grants the lock to no other owner before the delay is over. This object does not hold
     * the lock any more, and does not report a loss when the delay is over.
     *
     * @param delay more than 0, rounded up to milliseconds
     */
    public void releaseAfter(Duration delay) {
        long millis = Clock.span(delay, 1, "delay");
        Clock.await(all(tenure -> tenure.releaseAfter(millis)));
    }

    /** Releases the lock. If the lock was already released, does nothing. */
    @Override
    public void close() {
        try {
            release();
        } catch (LockLostException lost) {
            throw lost;
        } catch (IllegalMonitorStateException released) {
            // Another thread, or an earlier call, has released the lock.
        }
    }

    private CompletableFuture<Void> all(Function<Tenure, CompletableFuture<Void>> action) {
        return Clock.all(tenures.stream().map(action));
    }

    @Override
    public String toString() {
        return "HeldLock" + keys();
    }
}
