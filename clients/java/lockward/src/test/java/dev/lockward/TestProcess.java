package dev.lockward;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Runs the program of tests/src/bin/lockward-test-server.rs, which describes its protocol. It ends when the tests end. */
final class TestProcess implements AutoCloseable {
    private static final String PROGRAM = Path.of(
                    System.getProperty("repository"), "target/release/lockward-test-server")
            .toString();
    private static final Pattern NUMBER = Pattern.compile("\\d+");

    final List<Integer> ports;
    private final Process process;
    private final BufferedReader output;
    private final BufferedWriter input;

    TestProcess(String kind, String... arguments) {
        try {
            process = new ProcessBuilder(Stream.concat(Stream.of(PROGRAM, kind), Stream.of(arguments))
                            .toList())
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        output = process.inputReader();
        input = process.outputWriter();
        ports = answer();
    }

    /** Sends a line. Returns the numbers in the answer. */
    synchronized List<Integer> ask(String line) {
        try {
            input.write(line + "\n");
            input.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return answer();
    }

    private List<Integer> answer() {
        try {
            String line = output.readLine();
            if (line == null) {
                throw new IllegalStateException("the server has ended: see the error output");
            }
            return NUMBER.matcher(line)
                    .results()
                    .map(number -> Integer.valueOf(number.group()))
                    .toList();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void close() {
        try {
            input.close();
            assertEquals(0, process.waitFor(), "the server has crashed: see the error output");
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
