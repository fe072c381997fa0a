package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** A process that is stopped for longer than its lease. */
class PauseTest {
    private static final Server SERVER = Server.shared();

    private final String name = "pause:" + UUID.randomUUID();

    /** Runs in another process. It prints what it finds, and continues after a line of input. */
    static final class Program {
        private Program() {}

        public static void main(String[] args) throws Exception {
            CountDownLatch lost = new CountDownLatch(1);
            try (LockwardClient client = LockwardClient.builder(Server.uri(Integer.parseInt(args[0])))
                    .lease(Duration.ofMillis(1500))
                    .patience(Duration.ofMinutes(1))
                    .build()) {
                LockwardLock lock = client.getLock(args[1]);
                System.out.println("asking");
                lock.lock();
                lock.onLost(loss -> lost.countDown());
                System.out.println(lock.fencingToken());
                System.in.read();
                System.out.println(lock.isHeldByCurrentThread());
                lost.await();
                try {
                    lock.guarded("SET", args[1] + ":written", 1);
                } catch (LockLostException loss) {
                    System.out.println("refused");
                }
                try {
                    lock.unlock();
                    System.out.println("released");
                } catch (LockLostException loss) {
                    System.out.println("lost");
                }
            }
        }
    }

    private static final class Child implements AutoCloseable {
        private final Process process;
        private final BufferedReader output;

        Child(String name) throws IOException {
            process = new ProcessBuilder(
                            Path.of(System.getProperty("java.home"), "bin/java").toString(),
                            "-cp",
                            System.getProperty("java.class.path"),
                            Program.class.getName(),
                            String.valueOf(SERVER.port),
                            name)
                    .redirectError(ProcessBuilder.Redirect.DISCARD)
                    .start();
            output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        }

        String readLine() throws IOException {
            return String.valueOf(output.readLine());
        }

        /** Waits until all threads are stopped. On a busy machine that takes a while after the signal. */
        void stop() throws Exception {
            signal("STOP");
            eventually(() -> {
                try (Stream<Path> threads = Files.list(Path.of("/proc", String.valueOf(process.pid()), "task"))) {
                    return threads.allMatch(PauseTest::isStopped);
                }
            });
        }

        void resume() throws Exception {
            signal("CONT");
            process.getOutputStream().write('\n');
            process.getOutputStream().flush();
        }

        private void signal(String name) throws Exception {
            Process kill = new ProcessBuilder("kill", "-" + name, String.valueOf(process.pid())).start();
            assertEquals(0, kill.waitFor());
        }

        @Override
        public void close() {
            process.destroyForcibly();
        }
    }

    private static boolean isStopped(Path thread) {
        try {
            String state = Files.readString(thread.resolve("stat"));
            return state.startsWith(") T", state.lastIndexOf(')'));
        } catch (IOException ended) {
            return false; // read again
        }
    }

    @Test
    void aPausedProcessKnowsThatTheLockIsLost() throws Exception {
        try (LockwardClient client = SERVER.client();
                Child child = new Child(name)) {
            assertEquals("asking", child.readLine());
            long token = Long.parseLong(child.readLine());
            child.stop();
            LockwardLock lock = client.getLock(name);
            lock.lock();
            assertTrue(lock.fencingToken() > token);
            child.resume();
            assertEquals("false", child.readLine());
            assertEquals("refused", child.readLine());
            assertEquals("lost", child.readLine());
            assertEquals(List.of(0L), SERVER.call("EXISTS", name + ":written"));
            lock.unlock();
        }
    }

    @Test
    void aProcessPausedPastItsGrantedLeaseWaitsAgain() throws Exception {
        try (LockwardClient client = SERVER.client();
                Child child = new Child(name)) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            assertEquals("asking", child.readLine());
            eventually(() -> SERVER.waiters(name) == 1);
            child.stop();
            lock.unlock(); // grants the lock to the stopped process, whose lease ends
            lock.lock();
            long token = lock.fencingToken();
            child.resume();
            eventually(() -> SERVER.waiters(name) == 1);
            lock.unlock();
            assertTrue(Long.parseLong(child.readLine()) > token);
        }
    }
}
