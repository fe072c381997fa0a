package lockward.peers;

import java.io.IOException;
import java.io.InputStream;
import java.util.Locale;
import java.util.Properties;

/** A peer program: PEER JOB ADDRESS CLIENTS BEGIN SECONDS, see benches/peers/README.md. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
        int status = 0;
        try {
            run(arguments);
        } catch (Throwable problem) {
            System.err.println(problem.getMessage() == null ? problem.toString() : problem.getMessage());
            status = 1;
        }
        System.out.flush();
        // halt() does not wait for the threads and shutdown hooks of the libraries.
        Runtime.getRuntime().halt(status);
    }

    private static void run(String[] arguments) throws Exception {
        if (arguments.length != 6) {
            throw new IllegalArgumentException("usage: PEER JOB ADDRESS CLIENTS BEGIN SECONDS");
        }
        Job job = Job.valueOf(arguments[1].toUpperCase(Locale.ROOT));
        int clients = Integer.parseInt(arguments[3]);
        Peer peer = connect(arguments[0], arguments[2], clients);
        JobRun jobRun = new JobRun(job, Long.parseLong(arguments[4]), Long.parseLong(arguments[5]));
        // The text of a Java list of numbers is a JSON array.
        System.out.printf(
                "{\"version\":\"%s\",\"notes\":\"%s\",\"tenures_us\":%s}%n",
                version(peer.library()), peer.notes(), jobRun.run(peer, clients));
    }

    private static Peer connect(String name, String address, int clients) throws Exception {
        return switch (name.split("-")[0]) {
            case "lockward" -> Lockward.connect(address);
            case "redisson" -> Redisson.connect(address, name);
            case "curator" -> Curator.connect(address, clients);
            default -> throw new IllegalArgumentException("there is no peer " + name);
        };
    }

    /** The version of a library in this build. */
    private static String version(String library) throws IOException {
        Properties versions = new Properties();
        try (InputStream file = Main.class.getResourceAsStream("/versions.properties")) {
            versions.load(file);
        }
        return versions.getProperty(library);
    }
}
