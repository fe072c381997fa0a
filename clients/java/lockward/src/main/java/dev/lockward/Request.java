package dev.lockward;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/** A command: its name and its arguments, each a {@code byte[]} or a String. Leases are in milliseconds. */
record Request(Keyword name, List<Object> arguments) {
    static final List<Object> EXCLUSIVE = List.of();
    static final List<Object> SHARED = List.of("SHARED");
    static final Request ASKING = of("ASKING");

    /** How many milliseconds the server keeps the position in the queue between two slices, or when a connection breaks. */
    private static final long KEEP = 5_000;

    record Keyword(String word) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return word.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return word;
        }
    }

    /** @param parts arguments, which may be of any type, and lists of them */
    private static Request of(String name, Object... parts) {
        List<Object> arguments = Stream.of(parts)
                .flatMap(part -> part instanceof List<?> several ? several.stream() : Stream.of(part))
                .map(argument -> argument instanceof byte[] ? argument : argument.toString())
                .toList();
        return new Request(new Keyword(name), arguments);
    }

    /**
     * Acquires so that the owner has {@code holds} holds.
     *
     * @param lease null: the server's default lease
     * @param waiting what {@link #waiting} returns; empty to try
     */
    static Request acquire(Tenure of, @Nullable Long lease, List<Object> waiting, int holds, List<Object> kind) {
        List<Object> px = lease == null ? List.of() : List.of("PX", lease);
        return of("LOCK.ACQUIRE", of.key, of.owner, px, waiting, "HOLDS", holds, kind);
    }

    /** Waits for so many milliseconds. The owner leaves the queue then if this is the last wait. */
    static List<Object> waiting(long millis, boolean isLast) {
        return isLast ? List.of("BLOCK", millis) : List.of("BLOCK", millis, "KEEP", KEEP);
    }

    /** Sets a lease. In quarantine this restores a tenure that the server has forgotten. */
    static Request renew(Tenure of, long lease, long token, int holds, List<Object> kind) {
        return of("LOCK.RENEW", of.key, of.owner, "PX", lease, "TOKEN", token, "HOLDS", holds, kind);
    }

    /** Gives holds back. */
    static Request release(Tenure of, int left) {
        return of("LOCK.RELEASE", of.key, of.owner, left == 0 ? "ALL" : List.of("HOLDS", left), "TOKEN", of.token());
    }

    /** Gives back what may have been granted since the owner had so many holds, and ends its waits. */
    static Request giveUp(Tenure of, int left) {
        return of("LOCK.RELEASE", of.key, of.owner, "HOLDS", left);
    }

    static Request guard(String key, long token, Object... command) {
        return of("LOCK.GUARD", key, token, List.of(command));
    }

    static Request info(String key) {
        return of("LOCK.INFO", key);
    }

    static Request waitForReplicas(int count, long within) {
        return of("WAIT", count, within);
    }

    /** A command to be sent once. Its reply is a Long, a String, a List of these and lists, or null. */
    AsyncCommand<String, String, Object> command() {
        CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
        for (Object argument : arguments) {
            if (argument instanceof byte[] bytes) {
                args.add(bytes);
            } else {
                args.add((String) argument);
            }
        }
        return new AsyncCommand<>(new Command<>(name, new Output(), args));
    }

    /** A reply of any form. Lettuce's own class takes no null in a list. */
    private static final class Output extends CommandOutput<String, String, Object> {
        private final Deque<Open> open = new ArrayDeque<>(2);

        /** A list that has fewer elements yet than it will have. */
        private record Open(List<@Nullable Object> list, int count) {}

        Output() {
            super(StringCodec.UTF8, null);
        }

        @Override
        public void set(@Nullable ByteBuffer bytes) {
            add(bytes == null ? null : codec.decodeValue(bytes));
        }

        @Override
        public void set(long number) {
            add(number);
        }

        @Override
        public void multi(int count) {
            if (count <= 0) {
                add(count < 0 ? null : new ArrayList<>());
                return;
            }
            List<@Nullable Object> list = new ArrayList<>(count);
            place(list);
            open.push(new Open(list, count));
        }

        private void add(@Nullable Object value) {
            place(value);
            for (Open last = open.peek(); last != null && last.list.size() == last.count; last = open.peek()) {
                open.pop();
            }
        }

        private void place(@Nullable Object value) {
            Open innermost = open.peek();
            if (innermost == null) {
                output = value;
            } else {
                innermost.list.add(value);
            }
        }
    }
}
