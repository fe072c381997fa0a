package lockward.retries;

import java.io.IOException;
import java.util.List;
import java.util.Properties;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.exceptions.JedisDataException;

/** Sends the commands with Jedis. */
final class OnJedis implements Driver.Library {
    private final RedisClient client;

    OnJedis(int port) {
        client = RedisClient.create("127.0.0.1", port);
    }

    @Override
    public String version() throws IOException {
        var properties = new Properties();
        try (var file = RedisClient.class.getResourceAsStream("/META-INF/maven/redis.clients/jedis/pom.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }

    @Override
    public Object call(int connection, String name, List<String> arguments) {
        return client.sendCommand(name::getBytes, arguments.toArray(String[]::new));
    }

    @Override
    public boolean isRefusal(Exception error) {
        return error instanceof JedisDataException;
    }
}
