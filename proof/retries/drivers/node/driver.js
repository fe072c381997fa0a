// Executes the commands from standard input with ioredis or node-redis: see ../README.md.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Redis, ReplyError } from "ioredis";
import { createClient, ErrorReply } from "redis";

const [, , client, port] = process.argv;
const url = `redis://127.0.0.1:${port}`;

// Without a listener for errors, both clients end the program at the first lost connection.
const ignore = () => {};
const libraries = {
  ioredis: {
    folder: "ioredis",
    connect: () => new Redis(url).on("error", ignore),
    call: (connection, command) => connection.call(...command),
    Refusal: ReplyError,
  },
  "node-redis": {
    folder: "redis",
    connect: () => createClient({ url }).on("error", ignore).connect(),
    call: (connection, command) => connection.sendCommand(command),
    Refusal: ErrorReply,
  },
};
const { folder, connect, call, Refusal } = libraries[client];
const connections = new Map();

const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function carryOut({ id, connection, command }) {
  if (!connections.has(connection)) connections.set(connection, connect());
  try {
    tell({ id, reply: await call(await connections.get(connection), command) });
  } catch (error) {
    tell({ id, [error instanceof Refusal ? "refused" : "failed"]: `${error}` });
  }
}

const manifest = new URL(`node_modules/${folder}/package.json`, import.meta.url);
tell({ client, version: JSON.parse(readFileSync(manifest)).version });
for await (const line of createInterface({ input: process.stdin })) carryOut(JSON.parse(line));
process.exit();
