package dev.lockward.spring;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.Server;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.api.async.RedisClusterAsyncCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.data.redis.RedisSystemException;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.RedisCallback;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.data.redis.core.script.RedisScript;

/** Ways in which a plain StringRedisTemplate can and cannot send the commands. */
class StringRedisTemplateTest {
    private static final Server SERVER = Server.shared();
    private static final LettuceConnectionFactory CONNECTIONS = new LettuceConnectionFactory("127.0.0.1", SERVER.port);
    private static final StringRedisTemplate REDIS = new StringRedisTemplate();

    private final String key = "lock:" + UUID.randomUUID();

    @BeforeAll
    static void connect() {
        CONNECTIONS.afterPropertiesSet();
        CONNECTIONS.start();
        REDIS.setConnectionFactory(CONNECTIONS);
        REDIS.afterPropertiesSet();
    }

    @AfterAll
    static void disconnect() {
        CONNECTIONS.destroy();
    }

    private static byte[][] words(String... words) {
        return Arrays.stream(words)
                .map(word -> word.getBytes(StandardCharsets.UTF_8))
                .toArray(byte[][]::new);
    }

    @Test
    void executeCannotReadTheReplyOfAGrant() {
        RedisCallback<Object> acquire = connection -> connection.execute("LOCK.ACQUIRE", words(key, "me"));
        RedisSystemException failure = assertThrows(RedisSystemException.class, () -> REDIS.execute(acquire));
        assertInstanceOf(UnsupportedOperationException.class, failure.getCause());
        assertTrue(SERVER.isLocked(key));

        RedisCallback<Object> release = connection -> connection.execute("LOCK.RELEASE", words(key, "me"));
        assertThrows(RedisSystemException.class, () -> REDIS.execute(release));
        assertFalse(SERVER.isLocked(key));
    }

    @Test
    @SuppressWarnings("rawtypes")
    void aScriptCanAcquireButDoesNotWait() {
        RedisScript<List> acquire =
                RedisScript.of("return redis.call('LOCK.ACQUIRE', KEYS[1], unpack(ARGV))", List.class);
        RedisScript<Long> release =
                RedisScript.of("return redis.call('LOCK.RELEASE', KEYS[1], unpack(ARGV))", Long.class);

        List<?> grant = REDIS.execute(acquire, List.of(key), "me", "PX", "30000", "HOLDS", "1");
        assertInstanceOf(Long.class, grant.get(0));
        assertEquals(1L, grant.get(1));
        assertEquals(
                Collections.singletonList(null),
                REDIS.execute(acquire, List.of(key), "you", "PX", "30000", "HOLDS", "1", "BLOCK", "0"));
        assertEquals(0L, REDIS.execute(release, List.of(key), "me", "ALL", "TOKEN", String.valueOf(grant.get(0))));
        RedisSystemException refused =
                assertThrows(RedisSystemException.class, () -> REDIS.execute(release, List.of(key), "me", "ALL"));
        assertTrue(assertInstanceOf(RedisCommandExecutionException.class, refused.getCause())
                .getMessage()
                .startsWith("NOTHELD "));
    }

    /** Sends a command on the template's Lettuce connection, where {@code output} names the type of the reply. */
    @SuppressWarnings("unchecked")
    private static <T> T dispatch(String command, CommandOutput<byte[], byte[], T> output, String... words) {
        return REDIS.execute((RedisCallback<T>) connection -> {
            RedisClusterAsyncCommands<byte[], byte[]> lettuce =
                    (RedisClusterAsyncCommands<byte[], byte[]>) connection.getNativeConnection();
            CommandArgs<byte[], byte[]> arguments = new CommandArgs<>(ByteArrayCodec.INSTANCE).addKeys(words(words));
            return lettuce.dispatch(new Name(command), output, arguments)
                    .toCompletableFuture()
                    .join();
        });
    }

    @Test
    void theLettuceConnectionCanSendTheCommands() {
        List<?> grant = dispatch("LOCK.ACQUIRE", new ArrayOutput<>(ByteArrayCodec.INSTANCE), key, "me");
        assertInstanceOf(Long.class, grant.get(0));
        assertEquals(
                Collections.singletonList(null),
                dispatch("LOCK.ACQUIRE", new ArrayOutput<>(ByteArrayCodec.INSTANCE), key, "you"));
        assertEquals(0L, dispatch("LOCK.RELEASE", new IntegerOutput<>(ByteArrayCodec.INSTANCE), key, "me"));
    }

    @Test
    void aWaiterOnTheSharedConnectionBlocksAllRequests() throws Exception {
        dispatch("LOCK.ACQUIRE", new ArrayOutput<>(ByteArrayCodec.INSTANCE), key, "me");
        CompletableFuture<List<Object>> waiter = CompletableFuture.supplyAsync(() ->
                dispatch("LOCK.ACQUIRE", new ArrayOutput<>(ByteArrayCodec.INSTANCE), key, "you", "BLOCK", "20000"));
        eventually(() -> SERVER.waiters(key) == 1);
        CompletableFuture<Boolean> other = CompletableFuture.supplyAsync(() -> REDIS.hasKey(key));
        CompletableFuture<Long> release = CompletableFuture.supplyAsync(
                () -> dispatch("LOCK.RELEASE", new IntegerOutput<>(ByteArrayCodec.INSTANCE), key, "me"));
        // The server replies to requests on other connections. The two requests on the shared connection get no reply:
        // even the release is queued behind the waiter.
        assertEquals(1, SERVER.waiters(key));
        assertFalse(other.isDone() || release.isDone());
        SERVER.call("DEL", key);
        assertInstanceOf(Long.class, waiter.get(30, TimeUnit.SECONDS).get(0));
        assertTrue(other.get(30, TimeUnit.SECONDS));
        assertThrows(Exception.class, () -> release.get(30, TimeUnit.SECONDS));
    }

    @Test
    void aWaiterNeedsADedicatedConnection() throws Exception {
        dispatch("LOCK.ACQUIRE", new ArrayOutput<>(ByteArrayCodec.INSTANCE), key, "me");
        RedisClient client = (RedisClient) CONNECTIONS.getRequiredNativeClient();
        try (StatefulRedisConnection<String, String> own = client.connect()) {
            CommandArgs<String, String> words = new CommandArgs<>(StringCodec.UTF8)
                    .addKey(key)
                    .add("you")
                    .add("BLOCK")
                    .add(20_000);
            CompletableFuture<List<Object>> waiter = CompletableFuture.supplyAsync(
                    () -> own.sync().dispatch(new Name("LOCK.ACQUIRE"), new ArrayOutput<>(StringCodec.UTF8), words));
            eventually(() -> SERVER.waiters(key) == 1);
            assertEquals(0L, dispatch("LOCK.RELEASE", new IntegerOutput<>(ByteArrayCodec.INSTANCE), key, "me"));
            assertInstanceOf(Long.class, waiter.get(30, TimeUnit.SECONDS).get(0));
        }
    }

    private record Name(String word) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return word.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return word;
        }
    }
}
