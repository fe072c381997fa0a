package dev.lockward;

import static dev.lockward.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;

/** A process that stands still for longer than its lease. */
class PauseTest {
    private static final Server SERVER = Server.shared();

    private final String name = "pause:" + UUID.randomUUID();

    /** What runs in a process of its own: says what it has, and does what it is told by a line. */
    static final class Program {
        private Program() {}

        public static void main(String[] args) throws Exception {
            CountDownLatch lost = new CountDownLatch(1);
            try (LockwardClient client = LockwardClient.builder(Server.uri(Integer.parseInt(args[0])))
                    .lease(Duration.ofMillis(500))
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
                            "-Drepository=" + System.getProperty("repository"),
                            "-cp",
                            System.getProperty("java.class.path"),
                            Program.class.getName(),
                            String.valueOf(SERVER.port),
                            name)
                    .redirectError(ProcessBuilder.Redirect.DISCARD)
                    .start();
            output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        }

        String says() throws IOException {
            return String.valueOf(output.readLine());
        }

        void signal(String signal) throws Exception {
            assertEquals(0, Server.signal(process, signal));
        }

        void goOn() throws Exception {
            signal("CONT");
            process.getOutputStream().write('\n');
            process.getOutputStream().flush();
        }

        @Override
        public void close() {
            process.destroyForcibly();
        }
    }

    @Test
    void itKnowsThatItHasLostTheLock() throws Exception {
        try (LockwardClient client = SERVER.client();
                Child child = new Child(name)) {
            assertEquals("asking", child.says());
            long token = Long.parseLong(child.says());
            child.signal("STOP");
            LockwardLock lock = client.getLock(name);
            lock.lock();
            assertTrue(lock.fencingToken() > token);
            child.goOn();
            assertEquals("false", child.says());
            assertEquals("lost", child.says());
            lock.unlock();
        }
    }

    @Test
    void itWaitsOnWhereWhatItWasGrantedIsOver() throws Exception {
        try (LockwardClient client = SERVER.client();
                Child child = new Child(name)) {
            LockwardLock lock = client.getLock(name);
            lock.lock();
            assertEquals("asking", child.says());
            eventually(() -> SERVER.waiters(name) == 1);
            child.signal("STOP");
            lock.unlock(); // hands over to the process, whose lease ends while it stands still
            lock.lock();
            long token = lock.fencingToken();
            child.goOn();
            eventually(() -> SERVER.waiters(name) == 1);
            lock.unlock();
            assertTrue(Long.parseLong(child.says()) > token);
        }
    }
}
