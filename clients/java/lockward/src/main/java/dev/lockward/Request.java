package dev.lockward;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * A command. It may be sent any number of times, except a guarded one.
 *
 * @param isGuarded whether the reply may have any form: then it is the only element of a list
 */
record Request(String name, List<?> arguments, boolean isGuarded) {
    static final Request PING = of("PING");
    static final Request ASKING = of("ASKING");

    Request(String name, List<?> arguments) {
        this(name, arguments, false);
    }

    static Request of(String name, Object... arguments) {
        return new Request(name, List.of(arguments));
    }

    AsyncCommand<String, String, List<Object>> command() {
        CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
        for (Object argument : arguments) {
            if (argument instanceof byte[] bytes) {
                args.add(bytes);
            } else {
                args.add(argument.toString());
            }
        }
        ArrayOutput<String, String> output = isGuarded ? new WholeOutput() : new ArrayOutput<>(StringCodec.UTF8);
        return new AsyncCommand<>(new Command<>(new Keyword(name), output, args));
    }

    /** The reply as the only element of a list. Lettuce puts any reply but an array into a list. */
    private static final class WholeOutput extends ArrayOutput<String, String> {
        private boolean isArray;

        WholeOutput() {
            super(StringCodec.UTF8);
        }

        @Override
        public void multi(int count) {
            isArray = true;
            super.multi(count);
        }

        @Override
        public List<Object> get() {
            return isArray ? List.of(super.get()) : super.get();
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
}
