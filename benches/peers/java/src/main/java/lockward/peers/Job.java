package lockward.peers;

import java.util.Locale;

/** What the clients do: benches/peers/README.md describes the jobs. */
enum Job {
    UNCONTENDED,
    CONTENDED,
    READERS,
    PERMITS,
    WEIGHTS;

    /** The permits of a semaphore. */
    static final int SEMAPHORE = 10;

    private static final int WRITERS = 10;

    static Job of(String name) {
        for (Job job : values()) {
            if (job.toString().equals(name)) {
                return job;
            }
        }
        throw new IllegalArgumentException("there is no job " + name);
    }

    /** Whether several clients may hold the lock at once. */
    boolean isShared() {
        return this == READERS || this == PERMITS || this == WEIGHTS;
    }

    boolean isWriter(int client) {
        return this == READERS && client % WRITERS == 0;
    }

    /** How many permits a client takes. */
    int permits(int client) {
        return this == WEIGHTS ? client % 3 + 1 : 1;
    }

    /** How much of the lock's limit a client takes. */
    long weight(int client) {
        return isWriter(client) ? limit() : permits(client);
    }

    long limit() {
        return switch (this) {
            case UNCONTENDED, CONTENDED -> 1;
            case READERS -> Integer.MAX_VALUE;
            case PERMITS, WEIGHTS -> SEMAPHORE;
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
