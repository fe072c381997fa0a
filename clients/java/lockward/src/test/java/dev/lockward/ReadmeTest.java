package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The program in the README. */
class ReadmeTest {
    @Test
    void theProgramRuns(@TempDir Path folder) throws Exception {
        String readme = Files.readString(Path.of(System.getProperty("repository"), "clients/java/README.md"));
        int start = readme.indexOf("```java\n") + "```java\n".length();
        String program = readme.substring(start, readme.indexOf("```", start));
        // The first request of a process takes long on a busy machine.
        String patient = "LockwardClient.builder(io.lettuce.core.RedisURI.create(\"redis://localhost:"
                + Server.shared().port + "\")).patience(java.time.Duration.ofMinutes(1)).build()";
        Path file = Files.writeString(
                folder.resolve("Orders.java"),
                program.replace("LockwardClient.create(\"redis://localhost:6379\")", patient));
        String java = Path.of(System.getProperty("java.home"), "bin/java").toString();
        Process process = new ProcessBuilder(java, "-cp", System.getProperty("java.class.path"), file.toString())
                .redirectErrorStream(true)
                .start();
        String printed = new String(process.getInputStream().readAllBytes());
        assertTrue(process.waitFor() == 0 && printed.contains("held with token "), printed);
        assertEquals(List.of("paid"), Server.shared().call("GET", "state:42"));
    }
}
