package dev.lockward.spring;

import dev.lockward.LockwardClient;

/**
 * A bean that changes the builder of the client, for settings without a property, such as onLost. The starter first applies the {@code
 * lockward.*} properties, and then calls the bean.
 */
@FunctionalInterface
public interface LockwardClientCustomizer {
    /** Called once, before the client is created. */
    void customize(LockwardClient.Builder builder);
}
