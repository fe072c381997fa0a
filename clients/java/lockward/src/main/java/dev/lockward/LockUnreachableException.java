package dev.lockward;

import org.jspecify.annotations.Nullable;

/**
 * No server has answered for as long as the client's patience or the wait limit. What may have been granted ends with its lease
 * at the latest. A guarded command may have run.
 */
public final class LockUnreachableException extends LockwardException {
    private static final long serialVersionUID = 1;

    LockUnreachableException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
