package dev.lockward;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** The program that the conformance suite drives: clients/conformance/README.md describes it. */
final class Worker {
    private final LockwardClient client;
    private final Map<String, Named> names = new ConcurrentHashMap<>();
    private final Map<String, Future<?>> running = new ConcurrentHashMap<>();
    private final ExecutorService threads = Executors.newCachedThreadPool(Worker::daemon);
    private boolean isClosed;

    /** A lock that the suite has named, and the thread that holds it. */
    private static final class Named {
        private final ExecutorService thread = Executors.newSingleThreadExecutor(Worker::daemon);
        private final CountDownLatch resigned = new CountDownLatch(1);
        private LockwardLock lock;
        private volatile HeldLock held;
    }

    private interface Action {
        String run() throws Exception;
    }

    private Worker(LockwardClient client) {
        this.client = client;
    }

    private static Thread daemon(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    }

    public static void main(String[] args) throws Exception {
        warmUp();
        Worker worker = null;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<String> words = List.of(line.split(" "));
            switch (words.get(1)) {
                case "open" -> worker = new Worker(client(words.get(2), options(words.subList(3, words.size()))));
                case "close" -> worker.close();
                default -> {
                    worker.accept(words);
                    continue;
                }
            }
            System.out.println(words.get(0) + " ok");
        }
        System.exit(0);
    }

    /** Loads the classes with a server that grants everything, so that the first command is not slow. */
    private static void warmUp() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            daemon(() -> grantAll(server)).start();
            String address = "redis://" + server.getInetAddress().getHostAddress() + ":" + server.getLocalPort();
            // On a busy machine the first request may take long.
            Duration limit = Duration.ofSeconds(60);
            try (LockwardClient client = LockwardClient.builder(RedisURI.create(address))
                    .responseLimit(limit)
                    .patience(limit)
                    .build()) {
                for (int i = 0; i < 50; i++) {
                    client.getLock("k").lock();
                    client.getLock("k").held().renew();
                    client.getLock("k").unlock();
                }
            }
        }
    }

    private static void grantAll(ServerSocket server) {
        try (Socket connection = server.accept()) {
            BufferedReader requests = new BufferedReader(new InputStreamReader(connection.getInputStream()));
            for (String line = requests.readLine(); line != null; line = requests.readLine()) {
                String reply =
                        switch (line) {
                            case "LOCK.ACQUIRE" -> "*3\r\n:1\r\n:1\r\n:30000\r\n";
                            case "LOCK.RENEW", "LOCK.RELEASE" -> ":1\r\n";
                            case "PING", "CLIENT" -> "+PONG\r\n";
                            default -> "";
                        };
                connection.getOutputStream().write(reply.getBytes(StandardCharsets.US_ASCII));
            }
        } catch (IOException closed) {
            // The client has ended.
        }
    }

    private static Map<String, String> options(List<String> words) {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            int equals = word.indexOf('=');
            options.put(equals < 0 ? word : word.substring(0, equals), word.substring(equals + 1));
        }
        return options;
    }

    private static Duration millis(String text) {
        return Duration.ofMillis(Long.parseLong(text));
    }

    private static LockwardClient client(String address, Map<String, String> options) {
        String[] parts = address.split("://", 2);
        List<RedisURI> uris =
                switch (parts[0]) {
                    case "cluster" ->
                        Arrays.stream(parts[1].split(","))
                                .map(node -> RedisURI.create("redis://" + node))
                                .toList();
                    case "sentinel" -> {
                        String[] named = parts[1].split("/", 2);
                        yield List.of(RedisURI.create("redis-sentinel://" + named[0] + "/0#" + named[1]));
                    }
                    default -> List.of(RedisURI.create(address));
                };
        LockwardClient.Builder builder =
                LockwardClient.builder(uris.get(0), uris.subList(1, uris.size()).toArray(RedisURI[]::new));
        if (options.containsKey("patience")) {
            builder.patience(millis(options.get("patience")));
        }
        if (options.containsKey("response-limit")) {
            builder.responseLimit(millis(options.get("response-limit")));
        }
        if (options.containsKey("waiting-connections")) {
            builder.waitingConnections(Integer.parseInt(options.get("waiting-connections")));
        }
        if (options.containsKey("ca")) {
            SslOptions.Builder ssl = SslOptions.builder().trustManager(new File(options.get("ca")));
            if (options.containsKey("cert")) {
                ssl.keyManager(new File(options.get("cert")), new File(options.get("key")), new char[0]);
            }
            builder.options(ClientOptions.builder().sslOptions(ssl.build()).build());
        }
        return builder.build();
    }

    private synchronized void print(String line) {
        if (!isClosed) {
            System.out.println(line);
        }
    }

    /** Stops printing, and closes the client. */
    private void close() {
        synchronized (this) {
            isClosed = true;
        }
        client.close();
        threads.shutdownNow();
        names.values().forEach(named -> named.thread.shutdownNow());
    }

    private void accept(List<String> words) {
        String id = words.get(0);
        String command = words.get(1);
        List<String> arguments = words.subList(2, words.size());
        if (command.equals("cancel")) {
            print(id + " ok");
            Future<?> cancelled = running.get(arguments.get(0));
            if (cancelled != null) {
                cancelled.cancel(true);
            }
            return;
        }
        Named named = names.computeIfAbsent(arguments.get(0), name -> new Named());
        Action action = action(command, arguments, named);
        if (action == null) {
            print(id + " unsupported");
            return;
        }
        // A thread holds the lock, so the same thread must release it.
        boolean isOwners = List.of("acquire", "reenter", "release", "lead").contains(command);
        running.put(id, (isOwners ? named.thread : threads).submit(() -> answer(id, action)));
    }

    private void answer(String id, Action action) {
        String reply;
        try {
            reply = action.run();
        } catch (InterruptedException cancelled) {
            reply = "cancelled";
        } catch (LockLostException error) {
            reply = "error lost " + error.getMessage();
        } catch (LockRefusedException error) {
            reply = "error refused " + error.getMessage();
        } catch (LockUnreachableException error) {
            reply = "error unreachable " + error.getMessage();
        } catch (LockUnreplicatedException error) {
            reply = "error unreplicated " + error.getMessage();
        } catch (Exception error) {
            reply = "error other " + error;
        }
        print(id + " " + reply.replace('\n', ' '));
        running.remove(id);
    }

    private Action action(String command, List<String> arguments, Named named) {
        String name = arguments.get(0);
        return switch (command) {
            case "acquire" -> () -> acquire(named, name, arguments.get(1), options(arguments));
            case "reenter" -> () -> lock(named, options(arguments));
            case "release" ->
                () -> {
                    if (named.lock != null) {
                        named.lock.unlock();
                    } else {
                        named.held.release();
                    }
                    return "ok";
                };
            case "renew" ->
                () -> {
                    named.held.renew();
                    return "ok";
                };
            case "downgrade" ->
                () -> {
                    String slots = options(arguments).get("slots");
                    if (slots == null) {
                        named.held.downgradeToShared();
                    } else {
                        named.held.downgradeToSlots(Integer.parseInt(slots));
                    }
                    return "ok";
                };
            case "status" -> () -> named.held.isHeld() ? "held" : "lost";
            case "guarded" ->
                () -> "reply "
                        + named.held.guarded(
                                arguments.subList(1, arguments.size()).toArray());
            case "handle" -> () -> "handle " + named.held.handle();
            case "resume" ->
                () -> {
                    named.held = client.resume(arguments.get(1));
                    named.held.onLost(loss -> print("event lost " + name));
                    return held(named);
                };
            case "lead" -> () -> lead(named, name, arguments.get(1), options(arguments));
            case "resign" ->
                () -> {
                    named.resigned.countDown();
                    return "ok";
                };
            case "pairs" -> () -> pairs(arguments);
            default -> null;
        };
    }

    private String acquire(Named named, String name, String keys, Map<String, String> options) throws Exception {
        LockRequest request = client.request(keys.split(",")).renewal(!options.containsKey("no-renewal"));
        options.forEach((option, value) -> {
            switch (option) {
                case "lease" -> request.lease(millis(value));
                case "shared" -> request.shared();
                case "slots" -> request.slots(Integer.parseInt(value));
                case "weight" -> request.weight(Integer.parseInt(value));
                case "owner" -> request.owner(value);
                case "hold-limit" -> request.holdLimit(millis(value));
                case "replicas" -> request.replicas(Integer.parseInt(value.split(":")[0]), millis(value.split(":")[1]));
                default -> {}
            }
        });
        request.onLost(loss -> {
            print("event lost " + name);
            try {
                Thread.sleep(Long.parseLong(options.getOrDefault("slow-lost", "0")));
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        });
        named.lock = request.asLock();
        return lock(named, options);
    }

    private static String lock(Named named, Map<String, String> options) throws InterruptedException {
        if (!options.containsKey("wait")) {
            named.lock.lockInterruptibly();
        } else if (!named.lock.tryLock(Long.parseLong(options.get("wait")), TimeUnit.MILLISECONDS)) {
            return "busy";
        }
        named.held = named.lock.held();
        return held(named);
    }

    private static String held(Named named) {
        return "held "
                + named.held.fencingTokens().stream().map(String::valueOf).collect(Collectors.joining(","));
    }

    private String lead(Named named, String name, String key, Map<String, String> options) throws Exception {
        LockRequest request = client.request(key);
        if (options.containsKey("lease")) {
            request.lease(millis(options.get("lease")));
        }
        request.lead(term -> {
            named.held = term;
            print("event leading " + name + " " + term.fencingToken());
            try {
                named.resigned.await();
            } catch (InterruptedException deposed) {
                print("event deposed " + name);
                throw deposed;
            }
        });
        return "ok";
    }

    private String pairs(List<String> arguments) throws Exception {
        LockwardLock lock = client.getLock(arguments.get(0));
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments.get(1)) * 1e9);
        int pairs = 0;
        while (System.nanoTime() < end) {
            lock.lock();
            lock.unlock();
            pairs++;
        }
        return "pairs " + pairs;
    }
}
