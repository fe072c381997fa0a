// Servers and proxies for the tests. The servers and proxies end with the tests, even if a test fails.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { syncBuiltinESMExports } from "node:module";
import { createServer, type Socket } from "node:net";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { after, type TestContext } from "node:test";
import timers, { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";
import type { RedisClient } from "../src/index.js";

const PROGRAM = process.env.LOCKWARD_TEST_SERVER ?? resolve("../../target/release/lockward-test-server");

/** Waits until the condition is true, and returns its value. An error of a server that is down does not end the wait. */
export async function eventually<T>(condition: () => T | Promise<T>, within = 20_000): Promise<T> {
  const until = performance.now() + within;
  for (;;) {
    const found = await (async () => condition())().catch((error) => {
      if (error instanceof assert.AssertionError) throw error;
    });
    if (found) return found;
    assert(performance.now() < until, "the condition is still false");
    await sleep(5);
  }
}

/**
 * Until the test ends, timers of 100 ms or more fire only after days. Returns a function that counts: it returns how many
 * calls of the global `setTimeout` asked for 100 ms or more, but for less than a second.
 */
export function lengthenTimers(t: TestContext): () => number {
  const [start, rest] = [globalThis.setTimeout, timers.setTimeout];
  let brief = 0;
  const lengthen = (milliseconds = 0) => (milliseconds < 100 ? milliseconds : 2 ** 31 - 1);
  globalThis.setTimeout = ((run: () => void, milliseconds = 0, ...more: []) => {
    if (milliseconds >= 100 && milliseconds < 1_000) brief += 1;
    return start(run, lengthen(milliseconds), ...more);
  }) as typeof start;
  timers.setTimeout = ((milliseconds?: number, ...more: []) => rest(lengthen(milliseconds), ...more)) as typeof rest;
  syncBuiltinESMExports(); // for the modules that have imported the function
  t.after(() => {
    [globalThis.setTimeout, timers.setTimeout] = [start, rest];
    syncBuiltinESMExports();
  });
  return () => brief;
}

const ends: (() => unknown)[] = [];
const processes: TestProcess[] = [];
after(async () => {
  for (const end of ends) end();
  await Promise.all(processes.map((process) => process.end()));
});

/** Runs the program of tests/src/bin/lockward-test-server.rs, which describes its protocol. */
class TestProcess {
  readonly #child;
  readonly #answers;

  private constructor(options: string[]) {
    this.#child = spawn(PROGRAM, options, { stdio: ["pipe", "pipe", "inherit"] });
    this.#answers = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
    processes.push(this);
  }

  /** Returns the process and its ports. */
  static async start(...options: string[]): Promise<{ process: TestProcess; ports: number[] }> {
    const process = new TestProcess(options);
    const { port, ports } = await process.#answer<{ port: number; ports?: number[] }>();
    return { process, ports: ports ?? [port] };
  }

  ask<T>(command: string): Promise<T> {
    this.#child.stdin.write(`${command}\n`);
    return this.#answer();
  }

  async #answer<T>(): Promise<T> {
    const { value } = await this.#answers.next();
    assert(value !== undefined, "the server has ended: see the error output");
    return JSON.parse(value);
  }

  async end(): Promise<void> {
    const ended = once(this.#child, "exit");
    this.#child.stdin.end();
    if (this.#child.exitCode === null) await ended;
    assert.equal(this.#child.exitCode, 0, "the server has crashed: see the error output");
  }
}

/** A proxy for the server on a port. It loses requests or their replies, and then closes the connection. */
export class LossyProxy {
  readonly #process: TestProcess;
  readonly port: number;

  private constructor(process: TestProcess, port: number) {
    this.#process = process;
    this.port = port;
  }

  static async start(port: number): Promise<LossyProxy> {
    const { process, ports } = await TestProcess.start("proxy", `${port}`);
    return new LossyProxy(process, ports[0] as number);
  }

  /** Sends `plan` with steps, `random` with shares, `delay` with milliseconds, or `cut`. */
  async tell(command: string): Promise<void> {
    await this.#process.ask(command);
  }

  /** How many requests and replies have been lost. */
  async losses(): Promise<number> {
    const { requests, replies } = await this.#process.ask<{ requests: number; replies: number }>("losses");
    return requests + replies;
  }

  /** How many requests have been held back. */
  async held(): Promise<number> {
    return (await this.#process.ask<{ held: number }>("losses")).held;
  }
}

export class Server {
  readonly #process: TestProcess;
  readonly #node: string;
  readonly port: number;

  private constructor(process: TestProcess, port: number, node = "") {
    this.#process = process;
    this.#node = node;
    this.port = port;
  }

  /** Starts a server with these lines of redis.conf. */
  static async start(...config: string[]): Promise<Server> {
    const { process, ports } = await TestProcess.start("server", ...config);
    return new Server(process, ports[0] as number);
  }

  static async startSentinel(...config: string[]): Promise<Server> {
    const { process, ports } = await TestProcess.start("sentinel", ...config);
    return new Server(process, ports[0] as number);
  }

  /** Starts three nodes, each with a third of the slots. */
  static async startCluster(): Promise<[Server, Server, Server]> {
    const { process, ports } = await TestProcess.start("cluster");
    return ports.map((port, node) => new Server(process, port, `${node} `)) as [Server, Server, Server];
  }

  /** A client of ioredis, closed with the test. */
  ioredis(options: object = {}, port = this.port): Redis {
    const client = new Redis(port, "127.0.0.1", options);
    client.on("error", () => {});
    ends.push(() => client.disconnect());
    return client;
  }

  /** A client of node-redis, closed with the test. */
  async nodeRedis(options: object = {}, port = this.port) {
    const client = createClient({ socket: { port, host: "127.0.0.1" }, ...options });
    client.on("error", () => {});
    ends.push(() => client.isOpen && client.destroy());
    await client.connect();
    return client;
  }

  /** Sends one command on a new connection. */
  async ask(command: (string | number)[]): Promise<unknown> {
    const client = new Redis({
      port: this.port,
      lazyConnect: true,
      retryStrategy: () => null,
      disableClientInfo: true,
    });
    client.on("error", () => {});
    try {
      await client.connect();
      return await client.call(...(command as [string, ...string[]]));
    } finally {
      client.disconnect();
    }
  }

  async info(key: string): Promise<Info> {
    const info = asMap(await this.ask(["LOCK.INFO", key, "WAITERS", 100]));
    const each = (name: string) => ((info[name] ?? []) as unknown[]).map(asMap);
    return { holders: each("holders"), queue: each("queue") };
  }

  async waiters(key: string): Promise<number> {
    return (await this.info(key)).queue.length;
  }

  /** How long the first holder has held a lock, in milliseconds. */
  async heldFor(key: string): Promise<number> {
    return (await this.info(key)).holders[0]?.["held-for"] as number;
  }

  /** How often a command was called. */
  async calls(command: string): Promise<number> {
    const stats = (await this.ask(["INFO", "commandstats"])) as string;
    return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0);
  }

  /** Sends `kill`, `start`, `pause`, `resume`, or `module` with arguments for the next start. */
  async tell(command: string): Promise<void> {
    await this.#process.ask(`${this.#node}${command}`);
  }
}

/**
 * Starts a server on a free port, and returns the port. The function gives the reply to each command, as the server sends it.
 * Without a reply the server is silent. `isFirst` is true for the commands of the first connection.
 */
export async function scripted(
  reply: (command: string[], isFirst: boolean) => string | undefined | Promise<string | undefined>,
  onConnection = () => {},
): Promise<number> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    const isFirst = sockets.push(socket) === 1;
    onConnection();
    let text = "";
    const answer = async (command: string[]) => {
      const answered = await reply(command, isFirst);
      if (answered !== undefined) socket.write(`${answered}\r\n`);
    };
    socket.on("error", () => {});
    socket.on("data", (data) => {
      const lines = `${text}${data}`.split("\r\n");
      for (;;) {
        const end = 2 * Number(lines[0]?.slice(1)) + 1;
        if (!(end < lines.length)) break;
        void answer(lines.splice(0, end).filter((_, at) => at > 0 && at % 2 === 0));
      }
      text = lines.join("\r\n");
    });
  });
  ends.push(() => {
    server.close();
    for (const each of sockets) each.destroy();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  return (server.address() as { port: number }).port;
}

export interface Info {
  holders: Record<string, unknown>[];
  queue: Record<string, unknown>[];
}

function asMap(reply: unknown): Record<string, unknown> {
  const list = (reply ?? []) as unknown[];
  return Object.fromEntries(list.flatMap((name, at) => (at % 2 === 0 ? [[`${name}`, list[at + 1]]] : [])));
}

/** The client libraries. Each test runs with each library. */
export const LIBRARIES: { name: string; client(server: Server, port?: number): Promise<RedisClient> }[] = [
  { name: "ioredis", client: async (server, port = server.port) => server.ioredis({}, port) },
  { name: "node-redis", client: (server, port = server.port) => server.nodeRedis({}, port) },
];
