package dev.lockward.spring;

import dev.lockward.LockwardClient;
import io.lettuce.core.RedisURI;
import org.springframework.beans.DirectFieldAccessor;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.annotation.Order;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.RedisStaticMasterReplicaConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/**
 * Defines a {@link LockwardClient}, unless the application defines one. The client uses {@code lockward.uri}. Without this
 * property, the client uses the servers that Spring Data Redis connects to with Lettuce. The client connects in the background. The
 * context closes the client.
 */
@AutoConfiguration(
        // The first class is in Spring Boot 3. The second class is in Spring Boot 4.
        afterName = {
            "org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration",
            "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration"
        })
@EnableConfigurationProperties(LockwardProperties.class)
public class LockwardAutoConfiguration {
    LockwardAutoConfiguration() {}

    @Configuration(proxyBeanMethods = false)
    @Order(1)
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
    @Order(2)
    @ConditionalOnClass(RedisConnectionFactory.class)
    @ConditionalOnMissingBean(LockwardClient.class)
    @ConditionalOnSingleCandidate(RedisConnectionFactory.class)
    static class BySpringData {
        @Bean
        LockwardClient lockwardClient(
                RedisConnectionFactory connections,
                LockwardProperties properties,
                ObjectProvider<LockwardClientCustomizer> customizers) {
            // No method of the connection factory tells the nodes of a master and its replicas. The methods say that
            // the
            // server is localhost.
            DirectFieldAccessor fields = new DirectFieldAccessor(connections);
            boolean hasReplicas = fields.isReadableProperty("configuration")
                    && fields.getPropertyValue("configuration") instanceof RedisStaticMasterReplicaConfiguration;
            if (!hasReplicas && connections instanceof LettuceConnectionFactory lettuce) {
                return client(new LettuceConnections(lettuce).builder(), properties, customizers);
            }
            throw new IllegalStateException(
                    "lockward.uri is not set, and Spring Data Redis does not use Lettuce, or uses"
                            + " RedisStaticMasterReplicaConfiguration (spring.data.redis.masterreplica.nodes): "
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
        if (properties.replicas().count() != 0) {
            builder.replicas(
                    properties.replicas().count(), properties.replicas().within());
        }
        customizers.orderedStream().forEach(customizer -> customizer.customize(builder));
        return builder.build();
    }
}
