package lockward.peers;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/** Clients of a peer that acquire and release for a while. */
final class JobRun {
    /** The length of the warm-up, in nanoseconds. During the warm-up the JIT compiler compiles the code. */
    private static final long WARM_UP = 4_000_000_000L;
    /** How long, in nanoseconds, clients may still wait after the end of the job. Then run() interrupts them. */
    private static final long LAST_GRANTS = 3_000_000_000L;
    /** How long, in nanoseconds, a client may take to end after an interrupt. */
    private static final long AFTER_INTERRUPT = 5_000_000_000L;

    private final Job job;
    private final List<Client> clients = new ArrayList<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    /** When the measurement begins and ends, by {@link System#nanoTime}. */
    private final long from = System.nanoTime() + WARM_UP;
    private final long to;

    JobRun(Job job, long seconds) {
        this.job = job;
        to = from + seconds * 1_000_000_000L;
    }

    /** Runs the job with {@code count} clients, and returns the answer as fields of a JSON object. */
    String run(Peer peer, int count) throws Exception {
        long beganUnixMs = System.currentTimeMillis() + (from - System.nanoTime()) / 1_000_000;
        // The process id makes the name unique: the server may still hold the locks of an earlier run.
        String name = "lock-" + ProcessHandle.current().pid();
        for (int index = 0; index < count; index++) {
            clients.add(new Client(peer.locks().lock(job == Job.UNCONTENDED ? name + "-" + index : name, job, index)));
        }
        clients.forEach(Thread::start);
        while (System.nanoTime() - to < 0 && failure.get() == null) {
            Thread.sleep(20);
        }
        join(System.nanoTime() + LAST_GRANTS);
        clients.forEach(Thread::interrupt);
        join(System.nanoTime() + AFTER_INTERRUPT);
        if (failure.get() != null) {
            throw new Exception("a client failed: " + failure.get(), failure.get());
        }
        // The text of a Java list of numbers is a JSON array.
        return "\"began_unix_ms\":" + beganUnixMs + ",\"tenures_us\":" + clients.stream().map(client -> client.tenures).toList();
    }

    private void join(long deadline) throws InterruptedException {
        for (Client client : clients) {
            client.join(Math.max(1, (deadline - System.nanoTime()) / 1_000_000));
        }
    }

    private final class Client extends Thread {
        private final Peer.Lock lock;
        /** Three numbers for each tenure: see benches/peers/README.md. */
        private final List<Long> tenures = Collections.synchronizedList(new ArrayList<>());

        Client(Peer.Lock lock) {
            setDaemon(true);
            this.lock = lock;
        }

        @Override
        public void run() {
            try {
                work();
            } catch (Exception problem) {
                // After the end of the job, run() interrupts the clients that still wait. Such an interrupt is no failure.
                if (System.nanoTime() - to < 0) {
                    failure.compareAndSet(null, problem);
                }
            }
        }

        private void work() throws Exception {
            for (long asked = System.nanoTime(); asked - to < 0 && failure.get() == null; asked = System.nanoTime()) {
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
}
