package dev.lockward;

/** The server refuses, in its own words: MAXWAITERS, OOM, NOPERM, WRONGTYPE... Nothing has changed. */
public final class LockRefusedException extends LockwardException {
    private static final long serialVersionUID = 1;

    LockRefusedException(String words) {
        super(words, null);
    }

    /** The first word of what the server said, such as {@code WRONGTYPE}. */
    public String code() {
        return Refusal.code(String.valueOf(getMessage()));
    }
}
