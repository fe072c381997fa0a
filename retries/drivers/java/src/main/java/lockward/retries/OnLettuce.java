package lockward.retries;

import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ObjectOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

final class OnLettuce implements Driver.Library {
    private record Keyword(String name) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return name.getBytes();
        }
    }

    private final RedisClient client;
    private final ConcurrentHashMap<Integer, RedisCommands<String, String>> connections = new ConcurrentHashMap<>();

    OnLettuce(int port) {
        client = RedisClient.create("redis://127.0.0.1:" + port);
    }

    @Override
    public String version() {
        return LettuceVersion.getVersion();
    }

    @Override
    public Object call(int connection, String name, List<String> arguments) {
        var commands = connections.computeIfAbsent(connection, number -> client.connect().sync());
        var args = new CommandArgs<>(StringCodec.UTF8);
        arguments.forEach(args::add);
        return commands.dispatch(new Keyword(name), new ObjectOutput<>(StringCodec.UTF8), args);
    }

    @Override
    public boolean isRefusal(Exception error) {
        return error instanceof RedisCommandExecutionException;
    }
}
