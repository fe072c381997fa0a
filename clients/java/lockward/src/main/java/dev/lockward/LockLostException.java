package dev.lockward;

/**
 * The lock was held, and was lost before it was released: whoever goes on with the work may not be alone.
 *
 * <p>Its lease was over before it could be renewed, or the lock was deleted, broken or forgotten at the server, or the
 * client was closed.
 */
public final class LockLostException extends IllegalMonitorStateException {
    private static final long serialVersionUID = 1;

    /** The lock. */
    private final String name;

    /** The token of the tenure. */
    private final long fencingToken;

    LockLostException(String name, long fencingToken, String reason) {
        super("the lock " + name + " was lost: " + reason);
        this.name = name;
        this.fencingToken = fencingToken;
    }

    /** Which lock. */
    public String name() {
        return name;
    }

    /** The fencing token of the tenure that was lost. */
    public long fencingToken() {
        return fencingToken;
    }
}
