package dev.lockward;

/** Fewer replicas than wanted have confirmed the grant in time. The client releases the lock. */
public final class LockUnreplicatedException extends LockwardException {
    private static final long serialVersionUID = 1;

    LockUnreplicatedException(String message) {
        super(message, null);
    }
}
