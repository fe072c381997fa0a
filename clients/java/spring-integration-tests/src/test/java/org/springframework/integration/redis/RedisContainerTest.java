package org.springframework.integration.redis;

import dev.lockward.Server;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** Replaces Spring Integration's interface. It uses a server with the module instead of a container. */
public interface RedisContainerTest {
    static RedisConnectionFactory connectionFactory() {
        LettuceConnectionFactory connections = new LettuceConnectionFactory("127.0.0.1", Server.shared().port);
        connections.afterPropertiesSet();
        connections.start();
        return connections;
    }
}
