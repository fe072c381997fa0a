package dev.lockward;

import java.util.Set;
import org.jspecify.annotations.Nullable;

/** An error that a server has replied. */
record ServerError(String message) {
    /** The owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was overwritten.) */
    private static final Set<String> DENIALS = Set.of("HOLDS", "NOTHELD", "WRONGTYPE");

    private static final Set<String> TRANSIENT =
            Set.of("ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "TRYAGAIN", "UNBLOCKED");

    /** Throws the error of a reply, if it is one. */
    static void throwIfError(@Nullable Object reply) {
        if (reply instanceof ServerError error) {
            throw new LockRefusedException(error.message);
        }
    }

    boolean deniesTenure() {
        return DENIALS.contains(code());
    }

    /** Whether a server may accept the same request later. */
    boolean isTransient() {
        return TRANSIENT.contains(code());
    }

    /** Whether the server refuses a lease because of its length. Its limit may have changed meanwhile. */
    boolean isLeaseTooLong() {
        return message.contains("invalid expire time");
    }

    /** The first word. */
    String code() {
        return code(message);
    }

    static String code(String message) {
        int end = message.indexOf(' ');
        return end < 0 ? message : message.substring(0, end);
    }
}
