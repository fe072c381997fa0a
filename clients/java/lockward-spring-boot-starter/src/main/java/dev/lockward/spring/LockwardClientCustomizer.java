package dev.lockward.spring;

import dev.lockward.LockwardClient;

/**
 * Changes the builder of the client after the {@code lockward.*} properties are applied: a bean for settings without a property,
 * such as onLost.
 */
@FunctionalInterface
public interface LockwardClientCustomizer {
    /** Called once, before the client is created. */
    void customize(LockwardClient.Builder builder);
}
