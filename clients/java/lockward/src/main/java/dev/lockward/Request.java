package dev.lockward;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** A command. It may be sent any number of times. */
record Request(String name, List<?> arguments) {
    static final Request PING = of("PING");
    static final Request ASKING = of("ASKING");

    static Request of(String name, Object... arguments) {
        return new Request(name, List.of(arguments));
    }

    AsyncCommand<String, String, List<Object>> command() {
        CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
        arguments.forEach(argument -> args.add(argument.toString()));
        return new AsyncCommand<>(new Command<>(new Keyword(name), new ArrayOutput<>(StringCodec.UTF8), args));
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
