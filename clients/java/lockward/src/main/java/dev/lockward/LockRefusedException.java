package dev.lockward;

import org.jspecify.annotations.Nullable;

/** The server has replied with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE. The refused request has not changed the lock. */
public final class LockRefusedException extends LockwardException {
    private final String code;

    LockRefusedException(String key, String message) {
        super("the server refuses a request about the lock " + key + ": " + message, null);
        code = new ServerError(message).code();
    }

    static void throwIfError(String key, @Nullable Object reply) {
        if (reply instanceof ServerError error) {
            throw new LockRefusedException(key, error.message());
        }
    }

    /** The first word of the error, such as {@code WRONGTYPE}. */
    public String code() {
        return code;
    }
}
