package org.redisson;

import dev.lockward.LockwardClient;
import dev.lockward.LockwardException;
import dev.lockward.LockwardLock;
import dev.lockward.LockwardReadWriteLock;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.config.Config;

/** Replaces Redisson's class: its clients return Lockward's locks. */
public class Redisson {
    private static final Map<RedisURI, StatefulRedisConnection<String, String>> CONNECTIONS = new ConcurrentHashMap<>();

    private static final List<Runnable> RENEWALS = new CopyOnWriteArrayList<>();

    private Redisson() {}

    public static RedissonClient create(Config config) {
        RedisURI address = RedisURI.create(config.useSingleServer().getAddress());
        LockwardClient.Builder builder = LockwardClient.builder(address);
        if (config.getLockWatchdogTimeout() != new Config().getLockWatchdogTimeout()) {
            builder.lease(Duration.ofMillis(config.getLockWatchdogTimeout()));
        }
        AtomicReference<LockwardClient> current = new AtomicReference<>(builder.build());
        RENEWALS.add(() -> current.getAndSet(builder.build()).close());
        commands(address).ping(); // this call opens the connection for later requests
        return fake(
                RedissonClient.class, (proxy, method, arguments) -> answer(current.get(), address, config, method, arguments));
    }

    /** Replaces the client that was created first: it may still have locks whose keys a test has deleted. */
    static void renewFirst() {
        RENEWALS.get(0).run();
    }

    private static Object answer(
            LockwardClient client, RedisURI address, Config config, Method method, Object[] arguments) {
        return switch (method.getName()) {
            case "getLock", "getFairLock" -> lock(client, address, client.getLock((String) arguments[0]));
            case "getReadWriteLock" -> {
                LockwardReadWriteLock both = client.getReadWriteLock((String) arguments[0]);
                yield fake(RReadWriteLock.class, (of, kind, none) -> lock(
                        client, address, kind.getName().equals("readLock") ? both.readLock() : both.writeLock()));
            }
            case "getMultiLock" -> lock(client, address, new RedissonMultiLock((RLock[]) arguments[0]).lock);
            case "getSemaphore" -> {
                Permits permits = Permits.of(client, address, (String) arguments[0]);
                yield fake(RSemaphore.class, (of, call, values) -> delegate(new Semaphore(permits), call, values));
            }
            case "getPermitExpirableSemaphore" -> {
                Permits permits = Permits.of(client, address, (String) arguments[0]);
                yield fake(
                        RPermitExpirableSemaphore.class,
                        (of, call, values) -> delegate(new ExpirableSemaphore(permits), call, values));
            }
            case "getConfig" -> config;
            case "shutdown" -> {
                client.close();
                yield null;
            }
            default -> throw new UnsupportedOperationException(method.getName());
        };
    }

    public CommandAsyncExecutor getCommandExecutor() {
        throw new UnsupportedOperationException();
    }

    /** An RLock that RedissonMultiLock can combine with others into one lock. */
    interface OwnLock extends RLock {
        LockwardClient client();
    }

    static RLock lock(LockwardClient client, RedisURI address, LockwardLock lock) {
        return fake(OwnLock.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "client" -> client;
            case "remainTimeToLive" -> commands(address).pttl(lock.getName());
            case "isHeldByThread" -> lock.isHeldByCurrentThread();
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

    private static Object delegate(Object target, Method method, Object[] arguments) throws Throwable {
        try {
            return target.getClass()
                    .getDeclaredMethod(method.getName(), method.getParameterTypes())
                    .invoke(target, arguments);
        } catch (NoSuchMethodException none) {
            throw new UnsupportedOperationException(method.toString());
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause() instanceof LockwardException ours
                    ? new RedisException(ours.getMessage(), ours)
                    : thrown.getCause();
        }
    }

    static RedisCommands<String, String> commands(RedisURI address) {
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
