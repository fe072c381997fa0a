package lockward.peers;

import dev.lockward.HeldLock;
import dev.lockward.LockwardClient;
import dev.lockward.LockwardSemaphore;

/** Lockward's Java client: one LockwardClient, and a thread for each client, because each thread is an owner. */
final class Lockward {
    private Lockward() {}

    static Peer connect(String address) {
        LockwardClient lockward = LockwardClient.create("redis://" + address);
        return new Peer("lockward", "one LockwardClient; lease 30 s, renewed", (name, job, client) -> switch (job) {
            case UNCONTENDED, CONTENDED -> Peer.Lock.of(lockward.getLock(name));
            case READERS -> Peer.Lock.of(lockward.getReadWriteLock(name), job.isWriter(client));
            case PERMITS, WEIGHTS -> {
                LockwardSemaphore semaphore = lockward.getSemaphore(name, Job.SEMAPHORE);
                yield Peer.Lock.of(() -> semaphore.acquire(job.permits(client)), HeldLock::release);
            }
        });
    }
}
