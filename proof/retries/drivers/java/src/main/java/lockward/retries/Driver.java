package lockward.retries;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;

/** Executes the commands from standard input with Jedis or Lettuce: see ../README.md. */
final class Driver {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    interface Library {
        String version() throws IOException;

        Object call(int connection, String name, List<String> arguments);

        /** Whether the error comes from the server, and not from the network. */
        boolean isRefusal(Exception error);
    }

    record Order(long id, int connection, List<String> command) {}

    public static void main(String[] arguments) throws IOException {
        var port = Integer.parseInt(arguments[1]);
        var library = arguments[0].equals("Jedis") ? new OnJedis(port) : new OnLettuce(port);
        var threads = Executors.newCachedThreadPool();
        tell(Map.of("client", arguments[0], "version", library.version()));
        var orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = orders.readLine()) != null; ) {
            var order = GSON.fromJson(line, Order.class);
            threads.execute(() -> tell(call(library, order)));
        }
        System.exit(0);
    }

    private static Map<String, Object> call(Library library, Order order) {
        var outcome = new LinkedHashMap<String, Object>(); // a value may be null
        outcome.put("id", order.id);
        try {
            var command = order.command;
            outcome.put("reply", library.call(order.connection, command.get(0), command.subList(1, command.size())));
        } catch (RuntimeException error) {
            outcome.put(library.isRefusal(error) ? "refused" : "failed", error.toString());
        }
        return outcome;
    }

    private static synchronized void tell(Map<String, Object> line) {
        System.out.println(GSON.toJson(line));
    }
}
