// Issues the commands it is told to with ioredis or node-redis, as they come: see ../README.md.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [, , library, port] = process.argv;

// Whoever listens to no errors is ended by the first: both libraries say so.
const libraries = {
  ioredis: async () => {
    const { Redis, ReplyError } = await import("ioredis");
    const connect = () => new Redis(Number(port)).on("error", () => {});
    return { name: "ioredis", module: "ioredis", connect, call: (client, command) => client.call(...command), Refusal: ReplyError };
  },
  "node-redis": async () => {
    const { createClient, ErrorReply } = await import("redis");
    const connect = async () => createClient({ url: `redis://127.0.0.1:${port}` }).on("error", () => {}).connect();
    return { name: "node-redis", module: "redis", connect, call: (client, command) => client.sendCommand(command), Refusal: ErrorReply };
  },
};

const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const { name, module, connect, call, Refusal } = await libraries[library]();
const { version } = JSON.parse(readFileSync(createRequire(import.meta.url).resolve(`${module}/package.json`)));
const connections = new Map();

tell({ client: name, version });
for await (const line of createInterface({ input: process.stdin })) {
  const { id, connection, command } = JSON.parse(line);
  if (!connections.has(connection)) connections.set(connection, connect());
  Promise.resolve(connections.get(connection))
    .then((client) => call(client, command))
    .then(
      (reply) => tell({ id, reply }),
      (error) => tell({ id, [error instanceof Refusal ? "refused" : "failed"]: `${error}` }),
    );
}
process.exit();
