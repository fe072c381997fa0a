// Servers for the tests, each with a folder and a port of its own. They end with the tests, also when those fail.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";
import type { RedisClient } from "../src/index.js";

const SERVER = process.env.LOCKWARD_SERVER ?? "redis-server";
const MODULE = process.env.LOCKWARD_MODULE ?? resolve("../../target/release/liblockward.so");

/** The condition's value, once it is true. An error of a server that is down does not end the wait. */
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

const servers: Server[] = [];
after(() => Promise.all(servers.map((server) => server.end())));
process.once("exit", () => {
  for (const server of servers) void server.kill();
});

/** A port below the system's ephemeral ports. A cluster node also uses the port 10,000 above it. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 12_000);
    const taken = await new Promise((resolve) => {
      const probe = connect(port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
      probe.unref();
    });
    if (!taken) return port;
  }
}

export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), "lockward-"));
  readonly #arguments: string[];
  readonly #module: string[] = [];
  readonly #ends: (() => unknown)[] = [];
  #process: ChildProcess | undefined;
  port = 0;

  private constructor(options: string[]) {
    this.#arguments = options;
  }

  static async start(options = ["--save", "", "--appendonly", "no"]): Promise<Server> {
    const server = new Server(options);
    servers.push(server);
    server.port = await freePort();
    await server.start();
    return server;
  }

  async start(): Promise<void> {
    const log = openSync(join(this.folder, "log"), "a");
    const address = ["--port", `${this.port}`, "--bind", "127.0.0.1", "--dir", this.folder];
    // Arguments that begin with a file are for a Sentinel, which loads no module.
    const all = this.#arguments[0]?.startsWith("--")
      ? [...address, ...this.#arguments, "--loadmodule", MODULE, ...this.#module]
      : [...this.#arguments, ...address];
    const child = spawn(SERVER, all, { stdio: ["ignore", log, log] });
    this.#process = child;
    await eventually(async () => {
      assert.equal(child.exitCode, null, readFileSync(join(this.folder, "log"), "utf8"));
      return (await this.ask(["PING"]).catch(() => undefined)) === "PONG";
    });
  }

  /** A client of ioredis, closed with the test. */
  ioredis(options: object = {}, port = this.port): Redis {
    const client = new Redis(port, "127.0.0.1", options);
    client.on("error", () => {});
    this.#ends.push(() => client.disconnect());
    return client;
  }

  /** A client of node-redis, closed with the test. */
  async nodeRedis(options: object = {}, port = this.port) {
    const client = createClient({ socket: { port, host: "127.0.0.1" }, ...options });
    client.on("error", () => {});
    this.#ends.push(() => client.isOpen && client.destroy());
    await client.connect();
    return client;
  }

  /** One command on a connection of its own. */
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

  /** How often a command was called. */
  async calls(command: string): Promise<number> {
    const stats = (await this.ask(["INFO", "commandstats"])) as string;
    return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0);
  }

  /** More arguments for the module, from the next start on. */
  addModuleArguments(settings: string[]): void {
    this.#module.push(...settings);
  }

  stop(): void {
    this.#process?.kill("SIGSTOP");
  }

  resume(): void {
    this.#process?.kill("SIGCONT");
  }

  async kill(): Promise<void> {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }

  async end(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true });
    for (const end of this.#ends) end();
  }
}

export interface Info {
  holders: Record<string, unknown>[];
  queue: Record<string, unknown>[];
}

function asMap(reply: unknown): Record<string, unknown> {
  const list = (reply ?? []) as unknown[];
  return Object.fromEntries(list.flatMap((name, at) => (at % 2 === 0 ? [[`${name}`, list[at + 1]]] : [])));
}

/** Each test runs with these. */
export const LIBRARIES: { name: string; client(server: Server, port?: number): Promise<RedisClient> }[] = [
  { name: "ioredis", client: async (server, port = server.port) => server.ioredis({}, port) },
  { name: "node-redis", client: (server, port = server.port) => server.nodeRedis({}, port) },
];
