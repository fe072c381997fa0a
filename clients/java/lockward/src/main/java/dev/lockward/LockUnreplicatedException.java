package dev.lockward;

/** Fewer replicas than wanted have confirmed the grant in time. The client releases the lock. */
public final class LockUnreplicatedException extends LockwardException {
    LockUnreplicatedException(String message) {
        super(message, null);
    }
}
