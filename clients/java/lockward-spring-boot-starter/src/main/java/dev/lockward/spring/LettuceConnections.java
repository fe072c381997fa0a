package dev.lockward.spring;

import dev.lockward.LockwardClient;
import io.lettuce.core.RedisURI;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;
import org.springframework.data.redis.connection.RedisClusterConfiguration;
import org.springframework.data.redis.connection.RedisConfiguration;
import org.springframework.data.redis.connection.RedisSentinelConfiguration;
import org.springframework.data.redis.connection.RedisSocketConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceClientConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConverters;
import org.springframework.data.redis.connection.lettuce.RedisCredentialsProviderFactory;

/** Reads the addresses and settings of Spring Data Redis's Lettuce connections. */
final class LettuceConnections {
    private final LettuceConnectionFactory connections;
    private final LettuceClientConfiguration settings;
    private final RedisCredentialsProviderFactory credentials;

    LettuceConnections(LettuceConnectionFactory connections) {
        this.connections = connections;
        settings = connections.getClientConfiguration();
        credentials =
                settings.getRedisCredentialsProviderFactory().orElseGet(() -> new RedisCredentialsProviderFactory() {});
    }

    LockwardClient.Builder builder() {
        List<RedisURI> uris = uris();
        LockwardClient.Builder builder =
                LockwardClient.builder(uris.get(0), uris.subList(1, uris.size()).toArray(RedisURI[]::new));
        settings.getClientResources().ifPresent(builder::resources);
        settings.getClientOptions().ifPresent(builder::options);
        return builder;
    }

    List<RedisURI> uris() {
        RedisClusterConfiguration cluster = connections.getClusterConfiguration();
        if (cluster != null) {
            return cluster.getClusterNodes().stream()
                    .map(node -> uri(
                            RedisURI.create(
                                    Objects.requireNonNull(node.getHost()), Objects.requireNonNull(node.getPort())),
                            cluster))
                    .toList();
        }
        RedisSentinelConfiguration sentinels = connections.getSentinelConfiguration();
        if (sentinels != null) {
            RedisURI uri = uri(LettuceConverters.sentinelConfigurationToRedisURI(sentinels), sentinels);
            uri.getSentinels()
                    .forEach(sentinel ->
                            sentinel.setCredentialsProvider(credentials.createSentinelCredentialsProvider(sentinels)));
            return List.of(uri);
        }
        RedisSocketConfiguration socket = connections.getSocketConfiguration();
        if (socket != null) {
            return List.of(uri(RedisURI.Builder.socket(socket.getSocket()).build(), socket));
        }
        return List.of(uri(
                RedisURI.create(connections.getHostName(), connections.getPort()),
                connections.getStandaloneConfiguration()));
    }

    private RedisURI uri(RedisURI uri, RedisConfiguration configuration) {
        uri.setDatabase(connections.getDatabase());
        uri.setCredentialsProvider(credentials.createCredentialsProvider(configuration));
        Stream.concat(Stream.of(uri), uri.getSentinels().stream()).forEach(each -> {
            settings.getClientName().ifPresent(each::setClientName);
            each.setSsl(settings.isUseSsl());
            each.setVerifyPeer(settings.getVerifyMode());
            each.setStartTls(settings.isStartTls());
            each.setTimeout(settings.getCommandTimeout());
        });
        return uri;
    }
}
