package lockward.peers;

import java.util.ArrayList;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator's locks on ZooKeeper. A CuratorFramework is one session. Many threads share it, as Curator advises. */
final class Curator {
    private static final int CLIENTS_A_SESSION = 50;

    private Curator() {}

    static Peer connect(String address, int clients) throws InterruptedException {
        List<CuratorFramework> sessions = new ArrayList<>();
        for (int first = 0; first < clients; first += CLIENTS_A_SESSION) {
            CuratorFramework session = CuratorFrameworkFactory.newClient(address, new ExponentialBackoffRetry(1_000, 3));
            session.start();
            session.blockUntilConnected();
            sessions.add(session);
        }
        return new Peer("curator", "a session of 60 s for " + CLIENTS_A_SESSION + " clients", (name, job, client) -> {
            CuratorFramework session = sessions.get(client / CLIENTS_A_SESSION);
            String path = "/" + name;
            return switch (job) {
                case UNCONTENDED, CONTENDED -> mutex(new InterProcessMutex(session, path));
                case READERS -> {
                    InterProcessReadWriteLock lock = new InterProcessReadWriteLock(session, path);
                    yield mutex(job.isWriter(client) ? lock.writeLock() : lock.readLock());
                }
                case PERMITS, WEIGHTS -> {
                    InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(session, path, Job.SEMAPHORE);
                    yield Peer.Lock.of(() -> semaphore.acquire(job.permits(client)), semaphore::returnAll);
                }
            };
        });
    }

    private static Peer.Lock mutex(InterProcessMutex mutex) {
        return new Peer.Lock(mutex::acquire, mutex::release);
    }
}
