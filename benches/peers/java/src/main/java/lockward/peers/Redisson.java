package lockward.peers;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's locks: one RedissonClient and a thread for each client, since a thread is who owns a lock there. */
final class Redisson implements Peer {
    private final RedissonClient redisson;
    private final boolean fair;
    private final String notes;

    Redisson(String address, boolean fair) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        redisson = org.redisson.Redisson.create(config);
        this.fair = fair;
        notes = "one RedissonClient, a thread for each client; lease "
                + config.getLockWatchdogTimeout() / 1_000 + " s, renewed by the watchdog; pools of "
                + config.useSingleServer().getConnectionPoolSize() + " connections and "
                + config.useSingleServer().getSubscriptionConnectionPoolSize() + " for "
                + config.useSingleServer().getSubscriptionsPerConnection() + " subscriptions each"
                + (fair ? ", too few for 500 waiters with a channel each" : "");
    }

    @Override
    public Lock lock(String name, int client) {
        RLock lock = fair ? redisson.getFairLock(name) : redisson.getLock(name);
        return new Lock() {
            @Override
            public void acquire() throws InterruptedException {
                lock.lockInterruptibly();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    @Override
    public String version() {
        return Main.version("redisson");
    }

    @Override
    public String notes() {
        return notes;
    }
}
