package dev.lockward;

import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * A lock that is held, of one key or several. The object holds it, not a thread: one thread may acquire it and another release
 * it. If it could not be renewed, or its key was deleted or broken, it is <em>lost</em>; of several keys, as soon as one is.
 *
 * <p>If the program drops the object without releasing it, it is renewed no more, and the lock is free when its lease ends.
 *
 * <p>Methods that send a request throw a {@link LockLostException} when the lock is lost, an {@link IllegalMonitorStateException} when
 * it has been released, a {@link LockRefusedException} when the server replies with another error, and a {@link
 * LockUnreachableException} when no server answers within the client's patience. An interrupt does not end them.
 */
public final class HeldLock implements AutoCloseable {
    private final List<Tenure> tenures;

    HeldLock(List<Tenure> tenures) {
        this.tenures = tenures;
    }

    /** The keys of the lock on the server, in the order of their bytes. */
    public List<String> keys() {
        return tenures.stream().map(tenure -> tenure.key).toList();
    }

    /** The owner that holds the lock, as LOCK.INFO shows it. */
    public String owner() {
        return tenures.get(0).owner;
    }

    /**
     * The fencing token, of the first key: larger than that of every earlier tenure of this lock. Send it along with every write, so
     * that what is written to can refuse a smaller token than the largest one seen.
     */
    public long fencingToken() {
        return tenures.get(0).token;
    }

    /** The fencing token of each key. */
    public List<Long> fencingTokens() {
        return tenures.stream().map(tenure -> tenure.token).toList();
    }

    /** Whether the lock is held: its lease runs by the clock of this process, and no server has denied it. Sends no request. */
    public boolean isHeld() {
        return tenures.stream().allMatch(Tenure::isHeld);
    }

    /**
     * Calls {@code listener} once if the lock is lost before it is released; at once, if it is lost already. The listener is called
     * in a thread of its own, at most 50 ms after the end of the lease.
     */
    public void onLost(Consumer<LockLostException> listener) {
        Tenure.onLost(tenures, listener);
    }

    /** Renews the lock now. That is rarely needed. */
    public void renew() {
        Clock.await(all(tenure -> tenure.renew(tenure.lease, null)));
    }

    /**
     * Sets a new lease from now, shorter or longer than before. If the lock is renewed, it is the lease of later renewals, too.
     *
     * @param lease more than 0, rounded up to milliseconds
     */
    public void renew(Duration lease) {
        long millis = Clock.positiveMillis(lease, "lease");
        Clock.await(all(tenure -> tenure.renew(millis, null)));
    }

    /** Lets readers in from now on. */
    public void downgradeToShared() {
        Clock.await(all(tenure -> tenure.renew(0, Request.SHARED)));
    }

    /** Lets others in from now on, up to so many slots: more than before. */
    public void downgradeToSlots(int slots) {
        Clock.await(all(tenure -> tenure.renew(0, List.of("SLOTS", slots))));
    }

    /**
     * Runs a command only while the server has this lock: LOCK.GUARD with the first key and its fencing token. Example: {@code
     * guarded("SET", "{order:42}:state", "paid")}. Without arguments it only checks the token.
     *
     * <p>The data must be on the lock's server. In a cluster its keys need the slot of the lock, by a common tag such as {@code
     * {order:42}}. The command is not repeated when its reply is missing, because it may have run.
     *
     * @param command its name and arguments: {@code byte[]}, or anything else as text
     * @return the reply: a String, a Long, a List of these and lists, or null
     * @throws LockLostException when the lock has been lost: the command did not run
     * @throws LockRefusedException when the server replies with another error. The lock stays held
     * @throws LockUnreachableException when no server has replied. The command may have run
     */
    public @Nullable Object guarded(Object... command) {
        tenures.forEach(Tenure::checkHeld);
        return Clock.await(tenures.get(0).guarded(true, command));
    }

    /**
     * A text from which another process goes on with the lock: {@link LockwardClient#resume}. This object does not hold the lock
     * any more and does not renew it, so that must happen within the lease.
     */
    public String handle() {
        return tenures.stream()
                .map(tenure -> tenure.handOver().stream()
                        .map(part -> URLEncoder.encode(part.toString(), StandardCharsets.UTF_8))
                        .collect(Collectors.joining(":")))
                .collect(Collectors.joining(","));
    }

    static HeldLock resume(LockwardClient client, String handle) {
        List<Tenure> tenures = Arrays.stream(handle.split(",", -1))
                .map(part -> tenure(client, part))
                .toList();
        Tenure.loseTogether(tenures);
        client.request(tenures.get(0).key).watchLoss(tenures);
        HeldLock held = new HeldLock(tenures);
        try {
            held.renew();
            return held;
        } catch (RuntimeException failed) {
            tenures.forEach(Tenure::end);
            throw failed;
        }
    }

    private static Tenure tenure(LockwardClient client, String handle) {
        List<String> parts = Arrays.stream(handle.split(":", -1))
                .map(part -> URLDecoder.decode(part, StandardCharsets.UTF_8))
                .toList();
        Tenure tenure = new Tenure(client.request(parts.get(0)), parts.get(0), parts.get(1), null);
        long token = Long.parseLong(parts.get(2));
        int holds = Integer.parseInt(parts.get(3));
        long lease = Long.parseLong(parts.get(4));
        tenure.granted(client.call(tenure.key), token, holds, lease, true, List.copyOf(parts.subList(5, parts.size())));
        return tenure;
    }

    /** Gives the lock back. What no server answers ends with its lease. */
    public void release() {
        Clock.await(all(tenure -> tenure.release(false)));
    }

    /** As {@link #release}, without a thread. */
    public CompletableFuture<Void> releaseAsync() {
        return tenures.get(0).client.async(all(tenure -> tenure.release(false)));
    }

    /**
     * Gives the lock back after a delay: until then no owner gets it, and then the first waiter does. This object does not hold it
     * any more, and its end is no loss.
     *
     * @param delay more than 0, rounded up to milliseconds
     */
    public void releaseAfter(Duration delay) {
        long millis = Clock.positiveMillis(delay, "delay");
        Clock.await(all(tenure -> tenure.releaseAfter(millis)));
    }

    /** As {@link #release}, if the lock has not been released. */
    @Override
    public void close() {
        if (tenures.get(0).holds > 0) {
            release();
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
