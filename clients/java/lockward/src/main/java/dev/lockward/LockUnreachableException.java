package dev.lockward;

import org.jspecify.annotations.Nullable;

/**
 * No server has answered within the client's patience or the wait limit. If the server has granted the lock, the lock ends with its
 * lease at the latest. A guarded command may have run.
 */
public final class LockUnreachableException extends LockwardException {
    LockUnreachableException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
