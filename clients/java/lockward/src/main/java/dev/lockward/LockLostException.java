package dev.lockward;

/**
 * The tenure ended before it was released: another owner may hold the lock now.
 *
 * <p>The lease ended before it was renewed, or the lock was deleted, broken or forgotten at the server, or the client was closed.
 */
public final class LockLostException extends IllegalMonitorStateException {
    private static final long serialVersionUID = 1;

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
