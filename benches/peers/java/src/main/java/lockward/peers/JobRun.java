package lockward.peers;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Clients of a peer that acquire and release for a while. Each client is a thread. */
final class JobRun {
    /** How long, in nanoseconds, clients may still wait after the end of the job. Then they are interrupted. */
    private static final long LAST_GRANTS = 3_000_000_000L;

    private final Job job;
    /** When the measurement begins and ends, by {@link System#nanoTime}. */
    private final long from;
    private final long to;

    JobRun(Job job, long beginUnixMs, long seconds) {
        this.job = job;
        from = System.nanoTime() + (beginUnixMs - System.currentTimeMillis()) * 1_000_000;
        to = from + seconds * 1_000_000_000L;
    }

    /** Runs the job with {@code count} clients, and returns their tenures. */
    List<List<Long>> run(Peer peer, int count) throws Exception {
        // The process id makes the name unique: the server may still hold the locks of an earlier run.
        String name = "lock-" + ProcessHandle.current().pid();
        List<List<Long>> tenures = new ArrayList<>();
        List<Callable<Void>> clients = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            Peer.Lock lock = peer.locks().lock(job == Job.UNCONTENDED ? name + "-" + index : name, job, index);
            List<Long> own = Collections.synchronizedList(new ArrayList<>());
            tenures.add(own);
            clients.add(() -> {
                work(lock, own);
                return null;
            });
        }
        long patience = to + LAST_GRANTS - System.nanoTime();
        for (Future<Void> client : Executors.newFixedThreadPool(count).invokeAll(clients, patience, TimeUnit.NANOSECONDS)) {
            if (!client.isCancelled()) {
                client.get();
            }
        }
        return tenures;
    }

    /** Acquires and releases until the end of the job. Adds three numbers for each tenure: see benches/peers/README.md. */
    private void work(Peer.Lock lock, List<Long> tenures) throws Exception {
        for (long asked = System.nanoTime(); asked - to < 0; asked = System.nanoTime()) {
            lock.acquire().run();
            long granted = System.nanoTime();
            switch (job) {
                case UNCONTENDED -> {}
                case CONTENDED -> Thread.yield();
                case READERS, PERMITS, WEIGHTS -> Thread.sleep(1);
            }
            long released = System.nanoTime();
            tenures.addAll(List.of((asked - from) / 1_000, (granted - from) / 1_000, (released - from) / 1_000));
            lock.release().run();
        }
    }
}
