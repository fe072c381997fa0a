package dev.lockward;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/** A proxy for a server. It loses requests or replies, and then closes the connection; or it delays replies. */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
    private final int server;

    /** Whether to lose a request. */
    volatile Predicate<String> losesRequest = request -> false;

    /** Whether to lose the reply to a request. */
    volatile Predicate<String> losesReply = request -> false;

    /** The delay of replies, in milliseconds. */
    volatile long replyDelay;

    /** What the next connection waits for before it forwards anything. */
    final AtomicReference<@Nullable CountDownLatch> delays = new AtomicReference<>();

    final AtomicInteger pings = new AtomicInteger();
    final AtomicInteger lost = new AtomicInteger();

    Proxy(int server) throws IOException {
        this.server = server;
        start(() -> {
            for (; ; ) {
                serve(listener.accept());
            }
        });
    }

    int port() {
        return listener.getLocalPort();
    }

    private void serve(Socket client) throws IOException {
        Socket upstream;
        try {
            upstream = new Socket(InetAddress.getLoopbackAddress(), server);
        } catch (IOException down) {
            client.close();
            return;
        }
        CountDownLatch delay = delays.getAndSet(null);
        sockets.add(client);
        sockets.add(upstream);
        AtomicInteger lostReplies = new AtomicInteger();
        start(() -> {
            try (client;
                    upstream) {
                if (delay != null) {
                    delay.await();
                }
                InputStream from = client.getInputStream();
                byte[] bytes = new byte[65536];
                for (int n = from.read(bytes); n >= 0; n = from.read(bytes)) {
                    String request = new String(bytes, 0, n, StandardCharsets.UTF_8);
                    if (losesRequest.test(request)) {
                        lost.incrementAndGet();
                        return;
                    }
                    if (losesReply.test(request)) {
                        lostReplies.set(1);
                    }
                    upstream.getOutputStream().write(bytes, 0, n);
                    pings.addAndGet(request.contains("PING") ? 1 : 0);
                }
            }
        });
        start(() -> {
            try (client;
                    upstream) {
                OutputStream to = client.getOutputStream();
                InputStream from = upstream.getInputStream();
                byte[] bytes = new byte[65536];
                for (int n = from.read(bytes); n >= 0; n = from.read(bytes)) {
                    if (lostReplies.get() > 0) {
                        lost.incrementAndGet();
                        return;
                    }
                    Thread.sleep(replyDelay);
                    to.write(bytes, 0, n);
                }
            }
        });
    }

    /** Closes all connections. */
    void cut() throws IOException {
        for (Socket socket : sockets) {
            socket.close();
        }
        sockets.clear();
    }

    private interface Task {
        void run() throws IOException, InterruptedException;
    }

    private static void start(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (IOException | InterruptedException closed) {
                // by either side
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        cut();
    }
}
