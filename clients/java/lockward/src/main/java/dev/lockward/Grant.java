package dev.lockward;

/**
 * What the server has granted.
 *
 * @param lease milliseconds
 * @param deadline when the lease ends, by {@link Clock#now}
 */
record Grant(long token, long lease, long deadline) {}
