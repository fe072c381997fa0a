package dev.lockward;

import java.util.List;

/** A proxy for a server. It loses requests or replies, and then closes the connection; or it delays replies. */
final class Proxy implements AutoCloseable {
    private final TestProcess process;

    Proxy(int server) {
        process = new TestProcess("proxy", String.valueOf(server));
    }

    int port() {
        return process.ports.get(0);
    }

    /** {@code plan} and its steps, {@code random} and its shares, or {@code delay} and milliseconds. */
    void tell(String command) {
        process.ask(command);
    }

    /** How many requests and replies have been lost. */
    int lost() {
        List<Integer> losses = process.ask("losses");
        return losses.get(0) + losses.get(1);
    }

    /** How many requests have been held back. */
    int held() {
        return process.ask("losses").get(2);
    }

    @Override
    public void close() {
        process.close();
    }
}
