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
final class Curator implements Peer {
    private static final int CLIENTS_A_SESSION = 50;

    enum Kind { MUTEX, READ_WRITE, SEMAPHORE }

    private final List<CuratorFramework> sessions = new ArrayList<>();
    private final Kind kind;

    Curator(String address, int clients, Kind kind) throws InterruptedException {
        this.kind = kind;
        for (int first = 0; first < clients; first += CLIENTS_A_SESSION) {
            CuratorFramework session = CuratorFrameworkFactory.newClient(address, new ExponentialBackoffRetry(1_000, 3));
            session.start();
            sessions.add(session);
        }
        for (CuratorFramework session : sessions) {
            session.blockUntilConnected();
        }
    }

    @Override
    public Lock lock(String name, Job job, int client) {
        CuratorFramework session = sessions.get(client / CLIENTS_A_SESSION);
        String path = "/" + name;
        if (kind == Kind.SEMAPHORE) {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(session, path, Job.SEMAPHORE);
            return Lock.of(() -> semaphore.acquire(job.permits(client)), semaphore::returnAll);
        }
        if (kind == Kind.READ_WRITE) {
            InterProcessReadWriteLock lock = new InterProcessReadWriteLock(session, path);
            return mutex(job.isWriter(client) ? lock.writeLock() : lock.readLock());
        }
        return mutex(new InterProcessMutex(session, path));
    }

    private static Lock mutex(InterProcessMutex mutex) {
        return Lock.of(
                () -> {
                    mutex.acquire();
                    return mutex;
                },
                InterProcessMutex::release);
    }

    @Override
    public String version() {
        return Main.version("curator");
    }

    @Override
    public String notes() {
        return "a session of 60 s for " + CLIENTS_A_SESSION + " clients";
    }
}
