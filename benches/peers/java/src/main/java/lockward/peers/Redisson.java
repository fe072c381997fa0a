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

    private Redisson() {}

    static Peer connect(String address, String peer) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        RedissonClient redisson = org.redisson.Redisson.create(config);
        String lease = switch (peer) {
            case "redisson-semaphore" -> "no lease";
            case "redisson-permits" -> "lease " + LEASE_S + " s, not renewed";
            default -> "lease " + config.getLockWatchdogTimeout() / 1_000 + " s, renewed";
        };
        return new Peer("redisson", "one RedissonClient; " + lease, (name, job, client) -> {
            int permits = job.permits(client);
            return switch (peer) {
                case "redisson-rlock" -> Peer.Lock.of(redisson.getLock(name));
                case "redisson-fair" -> Peer.Lock.of(redisson.getFairLock(name));
                case "redisson-rw" -> Peer.Lock.of(redisson.getReadWriteLock(name), job.isWriter(client));
                case "redisson-semaphore" -> {
                    RSemaphore semaphore = redisson.getSemaphore(name);
                    semaphore.trySetPermits(Job.SEMAPHORE);
                    yield new Peer.Lock(() -> semaphore.acquire(permits), () -> semaphore.release(permits));
                }
                case "redisson-permits" -> {
                    RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
                    semaphore.trySetPermits(Job.SEMAPHORE);
                    yield Peer.Lock.<List<String>>of(
                            () -> semaphore.acquire(permits, LEASE_S, TimeUnit.SECONDS), semaphore::release);
                }
                default -> throw new IllegalArgumentException("there is no peer " + peer);
            };
        });
    }
}
