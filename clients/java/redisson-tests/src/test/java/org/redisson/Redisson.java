package org.redisson;

import dev.lockward.LockwardClient;
import dev.lockward.LockwardLock;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RMap;
import org.redisson.api.RedissonClient;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.config.Config;

/** In the place of Redisson's own class: clients whose locks are Lockward's. */
public class Redisson {
    private Redisson() {}

    public static RedissonClient create(Config config) {
        String address = config.useSingleServer().getAddress();
        LockwardClient.Builder builder = LockwardClient.builder(RedisURI.create(address));
        if (config.getLockWatchdogTimeout() != new Config().getLockWatchdogTimeout()) {
            builder.lease(Duration.ofMillis(config.getLockWatchdogTimeout()));
        }
        LockwardClient client = builder.build();
        return fake(RedissonClient.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "getLock", "getFairLock" -> lock(address, client.getLock((String) arguments[0]));
            case "getMap" -> fake(RMap.class, (map, asked, none) -> asked.getName().equals("isExists")
                    && (Long) call(address, "EXISTS", (String) arguments[0]) == 1);
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

    private static RLock lock(String address, LockwardLock lock) {
        return fake(RLock.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "forceUnlock" -> (Long) call(address, "DEL", lock.getName()) == 1;
            case "remainTimeToLive" -> call(address, "PTTL", lock.getName());
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
            throw thrown.getCause();
        }
    }

    private static Object call(String address, String command, String key) {
        RedisClient redis = RedisClient.create(address);
        try {
            var commands = redis.connect().sync();
            return switch (command) {
                case "DEL" -> commands.del(key);
                case "PTTL" -> commands.pttl(key);
                default -> commands.exists(key);
            };
        } finally {
            redis.shutdown(0, 0, TimeUnit.SECONDS);
        }
    }

    private interface Answers {
        Object to(Object proxy, Method method, Object[] arguments) throws Throwable;
    }

    @SuppressWarnings("unchecked")
    private static <T> T fake(Class<T> type, Answers answers) {
        return (T) Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, answers::to);
    }
}
