package dev.lockward;

/**
 * What the server grants.
 *
 * @param lease milliseconds
 * @param deadline when the lease ends
 */
record Grant(long token, long lease, long deadline) {}
