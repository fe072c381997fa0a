package lockward.peers;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's locks: one RedissonClient, and a thread for each client, because each thread is an owner. */
final class Redisson {
    private static final long LEASE_S = 30;

    enum Kind { LOCK, FAIR, READ_WRITE, SEMAPHORE, EXPIRABLE_SEMAPHORE }

    private Redisson() {}

    static Peer connect(String address, Kind kind) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        RedissonClient redisson = org.redisson.Redisson.create(config);
        String lease = switch (kind) {
            case LOCK, FAIR, READ_WRITE -> "lease " + config.getLockWatchdogTimeout() / 1_000 + " s, renewed";
            case SEMAPHORE -> "no lease";
            case EXPIRABLE_SEMAPHORE -> "lease " + LEASE_S + " s, not renewed";
        };
        return new Peer("redisson", "one RedissonClient; " + lease, (name, job, client) -> {
            int permits = job.permits(client);
            return switch (kind) {
                case LOCK -> Peer.Lock.of(redisson.getLock(name));
                case FAIR -> Peer.Lock.of(redisson.getFairLock(name));
                case READ_WRITE -> Peer.Lock.of(redisson.getReadWriteLock(name), job.isWriter(client));
                case SEMAPHORE -> {
                    RSemaphore semaphore = redisson.getSemaphore(name);
                    semaphore.trySetPermits(Job.SEMAPHORE);
                    yield new Peer.Lock(() -> semaphore.acquire(permits), () -> semaphore.release(permits));
                }
                case EXPIRABLE_SEMAPHORE -> {
                    RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
                    semaphore.trySetPermits(Job.SEMAPHORE);
                    yield Peer.Lock.<List<String>>of(
                            () -> semaphore.acquire(permits, LEASE_S, TimeUnit.SECONDS), semaphore::release);
                }
            };
        });
    }
}
