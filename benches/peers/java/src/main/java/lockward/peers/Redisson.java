package lockward.peers;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's locks: one RedissonClient, and a thread for each client, because each thread is an owner. */
final class Redisson implements Peer {
    private static final long LEASE_S = 30;

    enum Kind { LOCK, FAIR, READ_WRITE, SEMAPHORE, EXPIRABLE_SEMAPHORE }

    private final RedissonClient redisson;
    private final Kind kind;
    private final String notes;

    Redisson(String address, Kind kind) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        redisson = org.redisson.Redisson.create(config);
        this.kind = kind;
        notes = "one RedissonClient; "
                + switch (kind) {
                    case LOCK, FAIR, READ_WRITE -> "lease " + config.getLockWatchdogTimeout() / 1_000 + " s, renewed";
                    case SEMAPHORE -> "no lease";
                    case EXPIRABLE_SEMAPHORE -> "lease " + LEASE_S + " s, not renewed";
                };
    }

    @Override
    public Lock lock(String name, Job job, int client) {
        int permits = job.permits(client);
        return switch (kind) {
            case LOCK -> Lock.of(redisson.getLock(name));
            case FAIR -> Lock.of(redisson.getFairLock(name));
            case READ_WRITE -> Lock.of(redisson.getReadWriteLock(name), job.isWriter(client));
            case SEMAPHORE -> {
                RSemaphore semaphore = redisson.getSemaphore(name);
                semaphore.trySetPermits(Job.SEMAPHORE);
                yield Lock.of(
                        () -> {
                            semaphore.acquire(permits);
                            return permits;
                        },
                        semaphore::release);
            }
            case EXPIRABLE_SEMAPHORE -> {
                RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
                semaphore.trySetPermits(Job.SEMAPHORE);
                yield Lock.<List<String>>of(
                        () -> semaphore.acquire(permits, LEASE_S, TimeUnit.SECONDS), semaphore::release);
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
