package lockward.peers;

import dev.lockward.HeldLock;
import dev.lockward.LockwardClient;
import dev.lockward.LockwardSemaphore;

/** Lockward's Java client: one LockwardClient, and a thread for each client, because each thread is an owner. */
final class Lockward implements Peer {
    private final LockwardClient lockward;

    Lockward(String address) {
        lockward = LockwardClient.create("redis://" + address);
    }

    @Override
    public Lock lock(String name, Job job, int client) {
        return switch (job) {
            case UNCONTENDED, CONTENDED -> Lock.of(lockward.getLock(name));
            case READERS -> Lock.of(lockward.getReadWriteLock(name), job.isWriter(client));
            case PERMITS, WEIGHTS -> {
                LockwardSemaphore semaphore = lockward.getSemaphore(name, Job.SEMAPHORE);
                yield Lock.of(() -> semaphore.acquire(job.permits(client)), HeldLock::release);
            }
        };
    }

    @Override
    public String version() {
        return Main.version("lockward");
    }

    @Override
    public String notes() {
        return "one LockwardClient; lease 30 s, renewed";
    }
}
