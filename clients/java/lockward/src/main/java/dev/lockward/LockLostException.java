package dev.lockward;

/**
 * The tenure ended before the program released the lock. Another owner may hold the lock now.
 *
 * <p>The lease ended without a renewal, or somebody deleted or overwrote the key, or the server has forgotten the lock, or the program has
 * closed the client.
 */
public final class LockLostException extends IllegalMonitorStateException {
    private final String name;

    private final long fencingToken;

    LockLostException(String name, long fencingToken, String reason) {
        super("the lock " + name + " was lost: " + reason);
        this.name = name;
        this.fencingToken = fencingToken;
    }

    /** The key of the lock. */
    public String name() {
        return name;
    }

    /** The fencing token of the tenure that was lost. */
    public long fencingToken() {
        return fencingToken;
    }
}
