package dev.lockward;

import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/** An error that a server has replied. */
record ServerError(String message) {
    /** The errors which mean that the owner does not hold the lock any more. WRONGTYPE means that the key was overwritten. */
    private static final Set<String> DENIALS = Set.of("HOLDS", "NOTHELD", "WRONGTYPE");

    /** The errors after which this server or another server may accept the same request later. */
    private static final Set<String> TRANSIENT =
            Set.of("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY");

    /** Further transient errors, but not for a guarded command: its script may reply these errors itself, after it has written. */
    private static final Set<String> ENDED_WAIT = Set.of("NOREPLICAS", "SUPERSEDED", "TRYAGAIN", "UNBLOCKED");

    /** The errors that do not count as answers, because they do not show that a primary accepts writes. */
    private static final Set<String> NO_ANSWERS = Set.of("ASK", "MOVED", "NOREPLICAS", "READONLY");

    private static final Pattern LONGEST_LEASE = Pattern.compile("invalid expire time .*: at most (\\d+)");

    /** Whether a reply is the error with this first word. */
    static boolean is(@Nullable Object reply, String code) {
        return reply instanceof ServerError error && error.code().equals(code);
    }

    boolean deniesTenure() {
        return DENIALS.contains(code());
    }

    boolean isAnswer() {
        return !NO_ANSWERS.contains(code());
    }

    /** Whether a server may accept the request later. A release is repeated even while the server cannot write to its disk. */
    boolean isTransient(Request request, boolean isRepeatable) {
        return TRANSIENT.contains(code())
                || message.startsWith("ERR max number of clients")
                || (isRepeatable && ENDED_WAIT.contains(code()))
                || (request.name.equals("LOCK.RELEASE") && code().equals("MISCONF"));
    }

    /** The longest lease in milliseconds that the server accepts. 0 if the reply is not the refusal of a longer lease. */
    static long longestLease(@Nullable Object reply) {
        Matcher named = LONGEST_LEASE.matcher(reply instanceof ServerError error ? error.message : "");
        return named.find() ? Long.parseLong(named.group(1)) : 0;
    }

    /** The first word of the message. */
    String code() {
        return message.split(" ", 2)[0];
    }
}
