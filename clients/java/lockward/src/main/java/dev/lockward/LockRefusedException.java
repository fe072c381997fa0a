package dev.lockward;

/** The server has replied with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE. Nothing has changed. */
public final class LockRefusedException extends LockwardException {
    private static final long serialVersionUID = 1;

    LockRefusedException(String message) {
        super(message, null);
    }

    /** The first word of the error, such as {@code WRONGTYPE}. */
    public String code() {
        return ServerError.code(String.valueOf(getMessage()));
    }
}
