package dev.lockward;

import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** A server whose replies to LOCK.* and WAIT come from a function. */
final class ScriptedServer implements AutoCloseable {
    static final String NULL = "*-1";

    /** A value in place of a reply: the server then closes the connection. */
    static final String CUT = "cut";

    /** The received requests, with single spaces between the words. */
    final List<String> requests = new CopyOnWriteArrayList<>();

    /** How many connections are open. */
    final AtomicInteger connections = new AtomicInteger();

    /** New connections get no reply until this latch is open. */
    volatile CountDownLatch admission = new CountDownLatch(0);

    private final ServerSocket listener;
    private final Function<String, @Nullable String> replies;

    /** @param replies returns the reply without the line end, or null for no reply */
    ScriptedServer(Function<String, @Nullable String> replies) {
        this.replies = replies;
        try {
            listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        Clock.daemon(this::accept, "scripted-server").start();
    }

    static String grant(long token, long lease) {
        return "*3\r\n:" + token + "\r\n:1\r\n:" + lease;
    }

    RedisURI uri() {
        return Server.uri(listener.getLocalPort());
    }

    /** How many received requests begin with this text. */
    long count(String prefix) {
        return requests.stream().filter(request -> request.startsWith(prefix)).count();
    }

    private void accept() {
        try {
            for (; ; ) {
                Socket connection = listener.accept();
                Clock.daemon(() -> serve(connection), "scripted-connection").start();
            }
        } catch (IOException closed) {
            // The test has ended.
        }
    }

    private void serve(Socket connection) {
        connections.incrementAndGet();
        try (connection) {
            admission.await();
            BufferedReader input =
                    new BufferedReader(new InputStreamReader(connection.getInputStream(), StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                List<String> words = new ArrayList<>();
                for (int left = Integer.parseInt(line.substring(1)); left > 0; left--) {
                    input.readLine(); // the length
                    words.add(input.readLine());
                }
                String reply = "+OK";
                if (words.get(0).startsWith("LOCK.") || words.get(0).equals("WAIT")) {
                    String request = String.join(" ", words);
                    requests.add(request);
                    reply = replies.apply(request);
                }
                if (CUT.equals(reply)) {
                    return;
                }
                if (reply != null) {
                    connection.getOutputStream().write((reply + "\r\n").getBytes(StandardCharsets.US_ASCII));
                }
            }
        } catch (IOException | InterruptedException closed) {
            // The client has ended.
        } finally {
            connections.decrementAndGet();
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }
}
