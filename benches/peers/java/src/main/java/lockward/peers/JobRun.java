package lockward.peers;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** Clients of a peer that acquire and release for a while. */
final class JobRun {
    /** The length of the warm-up, in nanoseconds. During the warm-up the JIT compiler compiles the code. */
    private static final long WARM_UP = 4_000_000_000L;
    /** How long, in nanoseconds, clients may still wait after the end of the job. Then run() interrupts them. */
    private static final long LAST_GRANTS = 3_000_000_000L;
    /** How long, in nanoseconds, a client may take to end after an interrupt. */
    private static final long AFTER_INTERRUPT = 5_000_000_000L;

    private final Peer peer;
    private final Job job;
    private final long seconds;
    private final List<Client> clients = new ArrayList<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    /** When the measurement begins, in milliseconds since 1970. */
    private long beganUnixMs;
    /** When the measurement begins, by {@link System#nanoTime}. */
    private long from;
    /** When the measurement ends, by {@link System#nanoTime}. */
    private long to;

    // Only a client that holds an exclusive lock changes these four fields. The client reads counter, yields, and writes
    // the number plus 1. During the warm-up, the client uses warmUp in place of counter.
    private volatile long counter;
    private volatile long warmUp;
    private volatile int last = -1;
    private volatile long handOffs;
    /** In the jobs with several holders: the sum of the holders' weights. */
    private final AtomicLong held = new AtomicLong();
    /** In the jobs with several holders: the number of grants that kept the sum of the weights within the limit. */
    private final AtomicLong allowed = new AtomicLong();

    JobRun(Peer peer, Job job, long seconds) {
        this.peer = peer;
        this.job = job;
        this.seconds = seconds;
    }

    /** Runs the job with {@code count} clients, and returns the answer as fields of a JSON object. */
    String run(int count) throws Exception {
        // The process id makes the name unique: the server may still hold the locks of an earlier run.
        String name = "lock-" + ProcessHandle.current().pid();
        for (int index = 0; index < count; index++) {
            clients.add(new Client(index, peer.locks().lock(job == Job.UNCONTENDED ? name + "-" + index : name, job, index)));
        }
        from = System.nanoTime() + WARM_UP;
        beganUnixMs = System.currentTimeMillis() + WARM_UP / 1_000_000;
        to = from + seconds * 1_000_000_000L;
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
        return answer();
    }

    private void join(long deadline) throws InterruptedException {
        for (Client client : clients) {
            client.join(Math.max(1, (deadline - System.nanoTime()) / 1_000_000));
        }
    }

    private String answer() {
        // The text of a Java list of numbers is a JSON array.
        return "\"began_unix_ms\":" + beganUnixMs
                + ",\"waits_us\":" + clients.stream().map(client -> client.times).toList()
                + (job.isShared() ? ",\"counter\":" + allowed.get() : "")
                + (job == Job.CONTENDED ? ",\"counter\":" + counter + ",\"handoffs\":" + handOffs : "");
    }

    /** The work of a client that shares the lock. */
    private void hold(int client, boolean counted) throws InterruptedException {
        long weight = job.weight(client);
        if (held.addAndGet(weight) <= job.limit() && counted) {
            allowed.incrementAndGet();
        }
        Thread.sleep(1);
        held.addAndGet(-weight);
    }

    /** The work of a client that holds the lock alone. */
    private void count(int client, boolean counted) {
        long read = counted ? counter : warmUp;
        Thread.yield();
        if (counted) {
            counter = read + 1;
            if (last != client) {
                handOffs = handOffs + 1;
            }
        } else {
            warmUp = read + 1;
        }
        last = client;
    }

    private final class Client extends Thread {
        private final int index;
        private final Peer.Lock lock;
        /** How long the client's acquisitions took, in microseconds. */
        private final List<Long> times = Collections.synchronizedList(new ArrayList<>());

        Client(int index, Peer.Lock lock) {
            super("client-" + index);
            setDaemon(true);
            this.index = index;
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
            while (true) {
                long asked = System.nanoTime();
                if (asked - to >= 0 || failure.get() != null) {
                    return;
                }
                lock.acquire();
                long granted = System.nanoTime();
                boolean counted = granted - from >= 0 && granted - to < 0;
                // A client that gets the lock after the end of the job only releases it.
                if (granted - to < 0) {
                    if (job.isShared()) {
                        hold(index, counted);
                    } else if (job == Job.CONTENDED) {
                        count(index, counted);
                    }
                }
                if (counted) {
                    times.add((granted - asked) / 1_000);
                }
                lock.release();
            }
        }
    }
}
