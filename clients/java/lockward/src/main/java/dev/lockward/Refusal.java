package dev.lockward;

import java.util.Set;

/** What a server answers instead of a result. */
record Refusal(String words) {
    /** The lock is not there any more as this owner had it. (WRONGTYPE: it was overwritten.) */
    private static final Set<String> GONE = Set.of("HOLDS", "NOTHELD", "WRONGTYPE");

    boolean denies() {
        return GONE.contains(code());
    }

    /** The server takes no lease as long as this, or no longer does. */
    boolean isOfLease() {
        return words.contains("invalid expire time");
    }

    String code() {
        return code(words);
    }

    static String code(String words) {
        int end = words.indexOf(' ');
        return end < 0 ? words : words.substring(0, end);
    }
}
