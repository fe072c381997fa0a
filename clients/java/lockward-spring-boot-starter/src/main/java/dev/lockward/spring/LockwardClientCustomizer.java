package dev.lockward.spring;

import dev.lockward.LockwardClient;

/**
 * A bean that changes the builder of the client, for settings without a property, such as onLost. The {@code lockward.*} properties
 * are applied before the bean is called.
 */
@FunctionalInterface
public interface LockwardClientCustomizer {
    /** Called once, before the client is created. */
    void customize(LockwardClient.Builder builder);
}
