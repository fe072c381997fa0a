package dev.lockward.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.lockward.LockUnreplicatedException;
import dev.lockward.LockwardClient;
import dev.lockward.LockwardLock;
import dev.lockward.Server;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.function.Consumer;
import java.util.stream.Stream;
import net.javacrumbs.shedlock.core.LockProvider;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.context.annotation.ImportCandidates;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.ApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.RedisSentinelConfiguration;
import org.springframework.data.redis.connection.RedisStaticMasterReplicaConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceClientConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.lettuce.RedisCredentialsProviderFactory;
import org.springframework.integration.support.locks.DefaultLockRegistry;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.util.ClassUtils;

/** The beans of a context, and the servers that they connect to. */
class AutoConfigurationTest {
    private static final Server SERVER = Server.shared();

    private final String name = "lock:" + UUID.randomUUID();
    private final ApplicationContextRunner application = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(
                    LockwardAutoConfiguration.class,
                    LockwardLockProviderAutoConfiguration.class,
                    LockwardLockRegistryAutoConfiguration.class,
                    redisAutoConfiguration()));
    private final ApplicationContextRunner connected =
            application.withPropertyValues("spring.data.redis.port=" + SERVER.port);

    /** The auto-configuration of Spring Boot 4, or of Spring Boot 3. */
    private static Class<?> redisAutoConfiguration() {
        return Stream.of(
                        "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration",
                        "org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration")
                .filter(each -> ClassUtils.isPresent(each, null))
                .map(each -> ClassUtils.resolveClassName(each, null))
                .findFirst()
                .orElseThrow();
    }

    @Test
    void springBootFindsTheAutoConfigurations() {
        assertThat(ImportCandidates.load(AutoConfiguration.class, null))
                .contains(
                        LockwardAutoConfiguration.class.getName(),
                        LockwardLockProviderAutoConfiguration.class.getName(),
                        LockwardLockRegistryAutoConfiguration.class.getName());
    }

    @Test
    void theClientUsesTheServerOfSpringData() {
        connected.run(context -> {
            LockwardLock lock = context.getBean(LockwardClient.class).getLock(name);
            lock.lock();
            assertThat(SERVER.isLocked(name)).isTrue();
            lock.unlock();
        });
    }

    @Test
    void theClientIsClosedWithTheContext() {
        LockwardClient[] client = new LockwardClient[1];
        connected.run(context -> client[0] = context.getBean(LockwardClient.class));
        assertThrows(IllegalStateException.class, client[0].getLock(name)::lock);
    }

    @Test
    void theUriPropertyTakesPrecedence() {
        application
                .withPropertyValues("spring.data.redis.port=1", "lockward.uri=redis://127.0.0.1:" + SERVER.port)
                .run(context -> assertThat(context.getBean(LockwardClient.class)
                                .getLock(name)
                                .isLocked())
                        .isFalse());
    }

    @Test
    void withoutSpringDataTheUriPropertyIsNeededForAClient() {
        ApplicationContextRunner without =
                application.withClassLoader(new FilteredClassLoader("org.springframework.data"));
        without.run(context -> assertThat(context)
                .hasNotFailed()
                .doesNotHaveBean(LockwardClient.class)
                .doesNotHaveBean(LockRegistry.class)
                .doesNotHaveBean(LockProvider.class));
        without.withPropertyValues("lockward.uri=redis://127.0.0.1:" + SERVER.port)
                .run(context -> assertThat(context.getBean(LockwardClient.class)
                                .getLock(name)
                                .isLocked())
                        .isFalse());
    }

    @Test
    void aDriverOtherThanLettuceIsAnError() {
        application
                .withUserConfiguration(OtherDriver.class)
                .run(context ->
                        assertThat(context).getFailure().rootCause().hasMessageStartingWith("lockward.uri is not set"));
    }

    @Test
    void nodesOfAMasterAndItsReplicasAreAnError() {
        assumeTrue(
                ClassUtils.isPresent(
                        "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration", null),
                "before Spring Boot 4 there is no such property");
        application
                .withPropertyValues("spring.data.redis.masterreplica.nodes=one:1,two:2")
                .run(context ->
                        assertThat(context).getFailure().rootCause().hasMessageStartingWith("lockward.uri is not set"));
    }

    @Configuration
    static class MasterAndReplicas {
        @Bean
        LettuceConnectionFactory connections() {
            return new LettuceConnectionFactory(new RedisStaticMasterReplicaConfiguration("one"));
        }
    }

    @Test
    void aConnectionFactoryForAMasterAndItsReplicasIsAnError() {
        application
                .withUserConfiguration(MasterAndReplicas.class)
                .run(context ->
                        assertThat(context).getFailure().rootCause().hasMessageStartingWith("lockward.uri is not set"));
    }

    @Test
    void beansForSpringIntegrationAndShedlockAreDefined() {
        connected.run(context -> {
            assertThat(context.getBean(LockRegistry.class)).isInstanceOf(LockwardLockRegistry.class);
            assertThat(context.getBean(LockProvider.class)).isInstanceOf(LockwardLockProvider.class);
        });
        connected
                .withClassLoader(new FilteredClassLoader("org.springframework.integration"))
                .run(context -> assertThat(context).hasNotFailed().hasSingleBean(LockProvider.class));
        connected
                .withClassLoader(new FilteredClassLoader("net.javacrumbs"))
                .run(context -> assertThat(context).hasNotFailed().hasSingleBean(LockRegistry.class));
    }

    @Test
    void theRegistryIsInjectedWithAnyTypeParameter() {
        assumeTrue(
                LockRegistry.class.getTypeParameters().length == 1,
                "before Spring Integration 7 there is no type parameter");
        connected.withUserConfiguration(Injected.class).run(context -> assertThat(context)
                .hasNotFailed());
    }

    @Test
    void beansOfTheApplicationTakePrecedence() {
        connected.withUserConfiguration(Own.class).run(context -> {
            assertThat(context).hasSingleBean(LockwardClient.class).hasBean("own");
            assertThat(context.getBean(LockRegistry.class)).isInstanceOf(DefaultLockRegistry.class);
            assertThat(context.getBean(LockProvider.class)).isNotInstanceOf(LockwardLockProvider.class);
        });
    }

    @Test
    void propertiesAndCustomizersConfigureTheClient() {
        ApplicationContextRunner lasting = connected.withPropertyValues("lockward.lease=10m");
        lasting.run(context -> assertThat(leaseIn(context)).isBetween(500_000L, 600_000L));
        lasting.withBean(LockwardClientCustomizer.class, () -> builder -> builder.lease(Duration.ofMinutes(20)))
                .run(context -> assertThat(leaseIn(context)).isBetween(1_000_000L, 1_200_000L));
        connected
                .withPropertyValues("lockward.replicas.count=1", "lockward.replicas.within=10ms")
                .run(context -> {
                    LockwardLock lock = context.getBean(LockwardClient.class).getLock(name);
                    assertThrows(LockUnreplicatedException.class, lock::lock);
                });
    }

    @Test
    void aNegativeNumberOfReplicasIsAnError() {
        connected.withPropertyValues("lockward.replicas.count=-1").run(context -> assertThat(context)
                .getFailure()
                .rootCause()
                .hasMessage("the number of replicas must be 0 or more: -1"));
    }

    private long leaseIn(ApplicationContext context) {
        LockwardLock lock = context.getBean(LockwardClient.class).getLock(name);
        lock.lock();
        try {
            return (Long) SERVER.call("PTTL", name).get(0);
        } finally {
            lock.unlock();
        }
    }

    @Test
    void keysHavePrefixes() {
        connected.run(context -> {
            RegistryLock lock = context.getBean(LockwardLockRegistry.class).obtain(name);
            lock.lock();
            assertThat(SERVER.isLocked("integration:" + name)).isTrue();
            lock.unlock();
        });
        connected.withPropertyValues("lockward.lock-registry.prefix=").run(context -> {
            RegistryLock lock = context.getBean(LockwardLockRegistry.class).obtain(name);
            lock.lock();
            assertThat(SERVER.isLocked(name)).isTrue();
            lock.unlock();
        });
    }

    @Test
    void allPropertiesOfOneServerAreUsed() {
        uris(
                List.of(
                        "host=one",
                        "port=7",
                        "database=3",
                        "username=me",
                        "password=word",
                        "ssl.enabled=true",
                        "timeout=7s",
                        "client-name=us"),
                uris -> {
                    assertThat(uris).hasSize(1);
                    RedisURI uri = uris.get(0);
                    assertThat(uri.getHost()
                                    + uri.getPort()
                                    + uri.getDatabase()
                                    + uri.getClientName()
                                    + uri.isSsl()
                                    + uri.isVerifyPeer()
                                    + uri.getTimeout())
                            .isEqualTo("one73ustruetruePT7S");
                    var who = Objects.requireNonNull(
                            uri.getCredentialsProvider().resolveCredentials().block());
                    assertThat(who.getUsername() + new String(who.getPassword()))
                            .isEqualTo("meword");
                });
    }

    @Test
    void propertiesOfSentinelsAreUsed() {
        uris(
                List.of(
                        "sentinel.master=main",
                        "sentinel.nodes=one:1,two:2",
                        "sentinel.password=theirs",
                        "password=word",
                        "database=3"),
                uris -> {
                    assertThat(uris).hasSize(1);
                    RedisURI uri = uris.get(0);
                    assertThat(uri.getSentinelMasterId() + uri.getDatabase()).isEqualTo("main3");
                    assertThat(uri.getSentinels())
                            .extracting(RedisURI::getHost)
                            .containsExactlyInAnyOrder("one", "two");
                    assertThat(password(uri)).isEqualTo("word");
                    assertThat(uri.getSentinels())
                            .extracting(AutoConfigurationTest::password)
                            .containsOnly("theirs");
                });
    }

    @Test
    void aCredentialsProviderIsUsedForSentinelsToo() {
        RedisCredentialsProviderFactory given = new RedisCredentialsProviderFactory() {
            @Override
            public RedisCredentialsProvider createSentinelCredentialsProvider(RedisSentinelConfiguration sentinels) {
                return RedisCredentialsProvider.from(() -> RedisCredentials.just(null, "given"));
            }
        };
        LettuceConnectionFactory connections = new LettuceConnectionFactory(
                new RedisSentinelConfiguration("main", Set.of("one:1")),
                LettuceClientConfiguration.builder()
                        .redisCredentialsProviderFactory(given)
                        .build());
        RedisURI uri = new LettuceConnections(connections).uris().get(0);
        assertThat(uri.getSentinels())
                .extracting(AutoConfigurationTest::password)
                .containsExactly("given");
    }

    @Test
    void propertiesOfAClusterAreUsed() {
        uris(List.of("cluster.nodes=one:1,two:2", "password=word"), uris -> {
            assertThat(uris).extracting(RedisURI::getHost).containsExactlyInAnyOrder("one", "two");
            assertThat(uris).extracting(AutoConfigurationTest::password).containsOnly("word");
        });
    }

    private static String password(RedisURI uri) {
        return new String(Objects.requireNonNull(
                        uri.getCredentialsProvider().resolveCredentials().block())
                .getPassword());
    }

    private void uris(List<String> properties, Consumer<List<RedisURI>> check) {
        application
                .withPropertyValues(
                        properties.stream().map("spring.data.redis."::concat).toArray(String[]::new))
                .run(context ->
                        check.accept(new LettuceConnections(context.getBean(LettuceConnectionFactory.class)).uris()));
    }

    @Test
    void thePasswordIsUsed() {
        try (Server guarded = new Server()) {
            guarded.call("CONFIG", "SET", "requirepass", "word");
            application
                    .withPropertyValues("spring.data.redis.port=" + guarded.port, "spring.data.redis.password=word")
                    .run(context -> assertThat(context.getBean(LockwardClient.class)
                                    .getLock(name)
                                    .tryLock())
                            .isTrue());
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class OtherDriver {
        @Bean
        RedisConnectionFactory other() {
            return (RedisConnectionFactory) Proxy.newProxyInstance(
                    getClass().getClassLoader(),
                    new Class<?>[] {RedisConnectionFactory.class},
                    (proxy, method, args) -> switch (method.getName()) {
                        case "hashCode" -> 0;
                        case "equals" -> proxy == args[0];
                        case "toString" -> "other";
                        default -> throw new UnsupportedOperationException(method.getName());
                    });
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class Injected {
        @Bean
        String injected(LockRegistry<?> any, LockRegistry<DistributedLock> some) {
            return any + "" + some;
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class Own {
        @Bean
        LockwardClient own() {
            return SERVER.client();
        }

        @Bean
        DefaultLockRegistry ownRegistry() {
            return new DefaultLockRegistry();
        }

        @Bean
        LockProvider ownProvider() {
            return configuration -> Optional.empty();
        }
    }
}
