package lockward.peers;

import java.util.ArrayList;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator's lock on ZooKeeper. A CuratorFramework, which is one session, serves many threads, as it is meant to. */
final class Curator implements Peer {
    private static final int CLIENTS_A_SESSION = 50;

    private final List<CuratorFramework> sessions = new ArrayList<>();

    Curator(String address, int clients) throws InterruptedException {
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
    public Lock lock(String name, int client) {
        InterProcessMutex mutex = new InterProcessMutex(sessions.get(client / CLIENTS_A_SESSION), "/" + name);
        return new Lock() {
            @Override
            public void acquire() throws Exception {
                mutex.acquire();
            }

            @Override
            public void release() throws Exception {
                mutex.release();
            }
        };
    }

    @Override
    public String version() {
        return Main.version("curator");
    }

    @Override
    public String notes() {
        return "a CuratorFramework (one session of 60 s) for " + CLIENTS_A_SESSION + " clients, a thread for each client; one"
                + " ZooKeeper server, which writes each change to disk before it answers";
    }
}
