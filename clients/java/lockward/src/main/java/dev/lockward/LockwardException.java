package dev.lockward;

import org.jspecify.annotations.Nullable;

/** A request to the servers has failed. */
public abstract sealed class LockwardException extends RuntimeException
        permits LockRefusedException, LockUnreachableException, LockUnreplicatedException {
    LockwardException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
