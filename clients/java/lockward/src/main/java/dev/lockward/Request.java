package dev.lockward;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** A command that is sent once. Its reply is a Long, a String, null, or a List of replies. */
final class Request extends AsyncCommand<String, String, List<Object>> {
    static final List<Object> EXCLUSIVE = List.of();
    static final List<Object> SHARED = List.of("SHARED");

    final String name;

    /** @param parts the arguments, or lists of arguments. The client sends a {@code byte[]} unchanged, and any other object as text */
    Request(String name, Object... parts) {
        super(new Command<>(new Keyword(name), new Output(), arguments(parts)));
        this.name = name;
    }

    private static CommandArgs<String, String> arguments(Object... parts) {
        CommandArgs<String, String> arguments = new CommandArgs<>(StringCodec.UTF8);
        for (Object part : parts) {
            for (Object argument : part instanceof List<?> several ? several : List.of(part)) {
                if (argument instanceof byte[] bytes) {
                    arguments.add(bytes);
                } else {
                    arguments.add(argument.toString());
                }
            }
        }
        return arguments;
    }

    /**
     * A request that acquires or renews.
     *
     * @param lease the lease in milliseconds; 0 means the server's default
     * @param arguments the arguments between the lease and the number of holds
     */
    static Request withHolds(String name, Tenure of, long lease, List<Object> arguments, int holds, List<Object> kind) {
        List<Object> px = lease == 0 ? List.of() : List.of("PX", lease);
        return new Request(name, of.key, of.owner, px, arguments, "HOLDS", holds, kind);
    }

    /** The reply, which has arrived. It may be a {@link ServerError}. */
    @Nullable
    Object reply() {
        try {
            return getNow(List.of()).get(0);
        } catch (RuntimeException error) {
            return new ServerError(String.valueOf(Clock.cause(error).getMessage()));
        }
    }

    private record Keyword(String word) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return word.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return word;
        }
    }

    /** A reply of any type, as the only element of a list. Lettuce's class reads a null list as an empty list. */
    private static final class Output extends NestedMultiOutput<String, String> {
        Output() {
            super(StringCodec.UTF8);
            super.multi(1);
        }

        @Override
        public void multi(int count) {
            if (count < 0) {
                set((ByteBuffer) null);
            } else {
                super.multi(count);
            }
        }

        /** @param depth how many lists of the reply are not complete now */
        @Override
        public void complete(int depth) {
            super.complete(depth + 1);
        }
    }
}
