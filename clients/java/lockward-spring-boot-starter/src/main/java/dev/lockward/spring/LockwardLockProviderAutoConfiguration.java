package dev.lockward.spring;

import dev.lockward.LockwardClient;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

/** A {@link LockwardLockProvider} for ShedLock, unless the application defines a lock provider. */
@AutoConfiguration(after = LockwardAutoConfiguration.class)
@EnableConfigurationProperties(LockwardProperties.class)
@ConditionalOnClass(LockProvider.class)
@ConditionalOnBean(LockwardClient.class)
@ConditionalOnMissingBean(LockProvider.class)
public class LockwardLockProviderAutoConfiguration {
    LockwardLockProviderAutoConfiguration() {}

    @Bean
    LockwardLockProvider lockwardLockProvider(LockwardClient client, LockwardProperties properties) {
        return new LockwardLockProvider(client, properties.shedlock().prefix());
    }
}
