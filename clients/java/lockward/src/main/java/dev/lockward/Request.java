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
import org.jspecify.annotations.Nullable;

/** A command: its name and its arguments, which are {@code byte[]} or anything else as text. */
record Request(Keyword name, List<?> arguments) {
    static final Request ASKING = new Request(new Keyword("ASKING"), List.of());
    static final Keyword ACQUIRE = new Keyword("LOCK.ACQUIRE");
    static final Keyword RENEW = new Keyword("LOCK.RENEW");
    static final Keyword RELEASE = new Keyword("LOCK.RELEASE");
    static final Keyword GUARD = new Keyword("LOCK.GUARD");
    static final Keyword INFO = new Keyword("LOCK.INFO");
    static final Keyword WAIT = new Keyword("WAIT");

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

    /** A command to be sent once. Its reply is a Long, a String, a List of these and lists, or null. */
    AsyncCommand<String, String, Object> command() {
        CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
        for (Object argument : arguments) {
            if (argument instanceof byte[] bytes) {
                args.add(bytes);
            } else if (argument instanceof Long number) {
                args.add(number.longValue()); // Lettuce 6.6 does not take an Object
            } else {
                args.add(argument.toString());
            }
        }
        return new AsyncCommand<>(new Command<>(name, new Output(), args));
    }

    /** A reply of any form. */
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
            closeFull();
        }

        @Override
        public void set(long number) {
            add(number);
            closeFull();
        }

        @Override
        public void multi(int count) {
            List<@Nullable Object> list = new ArrayList<>(Math.max(0, count));
            add(count < 0 ? null : list);
            if (count > 0) {
                open.push(new Open(list, count));
            }
            closeFull();
        }

        private void add(@Nullable Object value) {
            Open innermost = open.peek();
            if (innermost == null) {
                output = value;
            } else {
                innermost.list.add(value);
            }
        }

        private void closeFull() {
            for (Open last = open.peek(); last != null && last.list.size() == last.count; last = open.peek()) {
                open.pop();
            }
        }
    }
}
