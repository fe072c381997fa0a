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

    /** The kind of lock. */
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
        return switch (kind) {
            case LOCK -> Lock.of(redisson.getLock(name));
            case FAIR -> Lock.of(redisson.getFairLock(name));
            case READ_WRITE -> Lock.of(redisson.getReadWriteLock(name), job.isWriter(client));
            case SEMAPHORE -> {
                RSemaphore semaphore = redisson.getSemaphore(name);
                semaphore.trySetPermits(Job.SEMAPHORE);
                yield permits(semaphore, job.permits(client));
            }
            case EXPIRABLE_SEMAPHORE -> {
                RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
                semaphore.trySetPermits(Job.SEMAPHORE);
                yield permits(semaphore, job.permits(client));
            }
        };
    }

    private static Lock permits(RSemaphore semaphore, int permits) {
        return new Lock() {
            @Override
            public void acquire() throws InterruptedException {
                semaphore.acquire(permits);
            }

            @Override
            public void release() {
                semaphore.release(permits);
            }
        };
    }

    private static Lock permits(RPermitExpirableSemaphore semaphore, int permits) {
        return new Lock() {
            private List<String> ids;

            @Override
            public void acquire() throws InterruptedException {
                ids = semaphore.acquire(permits, LEASE_S, TimeUnit.SECONDS);
            }

            @Override
            public void release() {
                semaphore.release(ids);
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
