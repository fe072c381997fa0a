package lockward.peers;

/** What the clients do: benches/peers/README.md describes the jobs. */
enum Job {
    UNCONTENDED,
    CONTENDED,
    READERS,
    PERMITS,
    WEIGHTS;

    static final int SEMAPHORE = 10;

    private static final int WRITERS = 10;

    boolean isWriter(int client) {
        return this == READERS && client % WRITERS == 0;
    }

    int permits(int client) {
        return this == WEIGHTS ? client % 3 + 1 : 1;
    }
}
