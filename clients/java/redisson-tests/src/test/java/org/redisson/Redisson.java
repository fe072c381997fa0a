package org.redisson;

import dev.lockward.LockwardClient;
import dev.lockward.LockwardException;
import dev.lockward.LockwardLock;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.config.Config;

/** Replaces Redisson's class: its clients return Lockward's locks. */
public class Redisson {
    private static final Map<RedisURI, StatefulRedisConnection<String, String>> CONNECTIONS = new ConcurrentHashMap<>();

    private Redisson() {}

    public static RedissonClient create(Config config) {
        RedisURI address = RedisURI.create(config.useSingleServer().getAddress());
        LockwardClient.Builder builder = LockwardClient.builder(address);
        if (config.getLockWatchdogTimeout() != new Config().getLockWatchdogTimeout()) {
            builder.lease(Duration.ofMillis(config.getLockWatchdogTimeout()));
        }
        LockwardClient client = builder.build();
        commands(address).ping(); // so that later requests need not connect
        return fake(RedissonClient.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "getLock", "getFairLock" -> lock(address, client.getLock((String) arguments[0]));
            case "getConfig" -> config;
            case "shutdown" -> {
                client.close();
                yield null;
            }
            default -> throw new UnsupportedOperationException(method.getName());
        });
    }

    public CommandAsyncExecutor getCommandExecutor() {
        throw new UnsupportedOperationException();
    }

    private static RLock lock(RedisURI address, LockwardLock lock) {
        return fake(RLock.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "remainTimeToLive" -> commands(address).pttl(lock.getName());
            case "forceUnlock" -> {
                if (!lock.isHeldByCurrentThread()) {
                    yield commands(address).del(lock.getName()) == 1;
                }
                while (lock.isHeldByCurrentThread()) {
                    lock.unlock();
                }
                yield true;
            }
            default -> delegate(lock, method, arguments);
        });
    }

    private static Object delegate(LockwardLock lock, Method method, Object[] arguments) throws Throwable {
        try {
            return LockwardLock.class
                    .getMethod(method.getName(), method.getParameterTypes())
                    .invoke(lock, arguments);
        } catch (NoSuchMethodException none) {
            throw new UnsupportedOperationException(method.toString());
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause() instanceof LockwardException ours
                    ? new RedisException(delegate.getMessage(), ours)
                    : thrown.getCause();
        }
    }

    private static RedisCommands<String, String> commands(RedisURI address) {
        return CONNECTIONS
                .computeIfAbsent(address, uri -> RedisClient.create(uri).connect())
                .sync();
    }

    private interface Answers {
        Object to(Object proxy, Method method, Object[] arguments) throws Throwable;
    }

    @SuppressWarnings("unchecked")
    private static <T> T fake(Class<T> type, Answers answers) {
        return (T) Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, answers::to);
    }
}
