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

/** Between clients and a server: cuts connections before requests arrive, or before their replies do, or holds replies back. */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
    private final int server;

    /** Whether to cut the connection instead of passing on what a client has sent. */
    volatile Predicate<String> losesRequest = request -> false;

    /** Whether to cut the connection instead of passing on the reply to what a client has sent. */
    volatile Predicate<String> losesReply = request -> false;

    /** How many milliseconds replies are under way. */
    volatile long replyTakes;

    /** For what the next connection waits before anything passes. */
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
        AtomicInteger doomed = new AtomicInteger();
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
                        doomed.set(1);
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
                    if (doomed.get() > 0) {
                        lost.incrementAndGet();
                        return;
                    }
                    Thread.sleep(replyTakes);
                    to.write(bytes, 0, n);
                }
            }
        });
    }

    /** Cuts all connections. */
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
