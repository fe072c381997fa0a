package dev.lockward.spring;

import dev.lockward.LockwardClient;
import io.lettuce.core.RedisURI;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * A {@link LockwardClient}, closed with the context; with Spring Integration a {@link LockwardLockRegistry}; with ShedLock a {@link
 * LockwardLockProvider}. A bean of the application's own takes the place of each. None connects before it is used.
 */
@AutoConfiguration(
        // Of Spring Boot 3, and of 4.
        afterName = {
            "org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration",
            "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration"
        })
@EnableConfigurationProperties(LockwardProperties.class)
public class LockwardAutoConfiguration {
    LockwardAutoConfiguration() {}

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnMissingBean(LockwardClient.class)
    @ConditionalOnProperty("lockward.uri")
    static class ByUri {
        @Bean
        LockwardClient lockwardClient(
                LockwardProperties properties, ObjectProvider<LockwardClientCustomizer> customizers) {
            return client(LockwardClient.builder(RedisURI.create(properties.uri())), properties, customizers);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(RedisConnectionFactory.class)
    @ConditionalOnMissingBean(LockwardClient.class)
    @ConditionalOnSingleCandidate(RedisConnectionFactory.class)
    static class BySpringData {
        @Bean
        LockwardClient lockwardClient(
                RedisConnectionFactory connections,
                LockwardProperties properties,
                ObjectProvider<LockwardClientCustomizer> customizers) {
            if (connections instanceof LettuceConnectionFactory lettuce) {
                return client(new LettuceConnections(lettuce).builder(), properties, customizers);
            }
            throw new IllegalStateException(
                    "lockward.uri is not set, and Spring Data Redis does not connect by Lettuce, but by "
                            + connections.getClass().getName());
        }
    }

    private static LockwardClient client(
            LockwardClient.Builder builder,
            LockwardProperties properties,
            ObjectProvider<LockwardClientCustomizer> customizers) {
        builder.patience(properties.patience()).waitingConnections(properties.waitingConnections());
        if (properties.lease() != null) {
            builder.lease(properties.lease());
        }
        if (properties.replicas().count() > 0) {
            builder.replicas(
                    properties.replicas().count(), properties.replicas().within());
        }
        customizers.orderedStream().forEach(customizer -> customizer.customize(builder));
        return builder.build();
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockRegistry.class)
    @ConditionalOnBean(LockwardClient.class)
    @ConditionalOnMissingBean(LockRegistry.class)
    static class ForIntegration {
        @Bean
        LockwardLockRegistry lockwardLockRegistry(LockwardClient client, LockwardProperties properties) {
            return new LockwardLockRegistry(client, properties.lockRegistry().prefix());
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockProvider.class)
    @ConditionalOnBean(LockwardClient.class)
    @ConditionalOnMissingBean(LockProvider.class)
    static class ForShedlock {
        @Bean
        LockwardLockProvider lockwardLockProvider(LockwardClient client, LockwardProperties properties) {
            return new LockwardLockProvider(client, properties.shedlock().prefix());
        }
    }
}
