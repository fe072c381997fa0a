package dev.lockward;

import org.jspecify.annotations.Nullable;

/** Why the servers could not do what was asked of them. */
public abstract sealed class LockwardException extends RuntimeException
        permits LockRefusedException, LockUnreachableException, LockUnreplicatedException {
    private static final long serialVersionUID = 1;

    LockwardException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
