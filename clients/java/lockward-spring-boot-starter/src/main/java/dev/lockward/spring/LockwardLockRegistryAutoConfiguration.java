package dev.lockward.spring;

import dev.lockward.LockwardClient;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.integration.support.locks.LockRegistry;

/** A {@link LockwardLockRegistry} for Spring Integration, unless the application defines a lock registry. */
@AutoConfiguration(after = LockwardAutoConfiguration.class)
@EnableConfigurationProperties(LockwardProperties.class)
@ConditionalOnClass(LockRegistry.class)
@ConditionalOnBean(LockwardClient.class)
@ConditionalOnMissingBean(LockRegistry.class)
public class LockwardLockRegistryAutoConfiguration {
    LockwardLockRegistryAutoConfiguration() {}

    @Bean
    LockwardLockRegistry lockwardLockRegistry(LockwardClient client, LockwardProperties properties) {
        return new LockwardLockRegistry(client, properties.lockRegistry().prefix());
    }
}
