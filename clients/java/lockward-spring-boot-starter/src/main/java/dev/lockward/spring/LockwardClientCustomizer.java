package dev.lockward.spring;

import dev.lockward.LockwardClient;

/** Changes how the client is made, after {@code lockward.*} has been applied: a bean for what has no property, such as onLost. */
@FunctionalInterface
public interface LockwardClientCustomizer {
    /** Is called once, before the client is made. */
    void customize(LockwardClient.Builder builder);
}
