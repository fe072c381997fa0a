package lockward.retries;

import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

/** Sends the commands with Lettuce. */
final class OnLettuce implements Driver.Library {
    private record Keyword(String name) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return name.getBytes();
        }
    }

    /**
     * A grant, or null. Lettuce's own ArrayOutput is not sufficient: if a connection is cut within a reply and the
     * command is sent again, ArrayOutput continues at the old position. Instead of [token, holds, lease] it then returns
     * [[token], holds, lease] or another list.
     */
    private static final class GrantOutput extends CommandOutput<String, String, List<Object>> {
        GrantOutput() {
            super(StringCodec.UTF8, null);
        }

        @Override
        public void multi(int count) {
            output = new ArrayList<>();
        }

        @Override
        public void set(long number) {
            output.add(number);
        }

        @Override
        public void set(ByteBuffer nothing) {
            output = null;
        }
    }

    private final RedisClient client;
    private final ConcurrentHashMap<Integer, RedisCommands<String, String>> connections = new ConcurrentHashMap<>();

    OnLettuce(int port) {
        client = RedisClient.create("redis://127.0.0.1:" + port);
    }

    @Override
    public String version() {
        return LettuceVersion.getVersion().replaceFirst("\\.RELEASE.*", "");
    }

    @Override
    public Object call(int connection, String name, List<String> arguments) {
        var commands = connections.computeIfAbsent(connection, number -> client.connect().sync());
        var args = new CommandArgs<>(StringCodec.UTF8);
        arguments.forEach(args::add);
        if (name.equals("LOCK.ACQUIRE")) {
            return commands.dispatch(new Keyword(name), new GrantOutput(), args);
        }
        return commands.dispatch(new Keyword(name), new IntegerOutput<>(StringCodec.UTF8), args);
    }

    @Override
    public boolean isRefusal(Exception error) {
        return error instanceof RedisCommandExecutionException;
    }
}
