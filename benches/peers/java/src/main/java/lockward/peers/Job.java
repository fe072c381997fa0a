package lockward.peers;

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

    boolean isWriter(int client) {
        return this == READERS && client % WRITERS == 0;
    }

    /** How many permits a client takes. */
    int permits(int client) {
        return this == WEIGHTS ? client % 3 + 1 : 1;
    }
}
