// The worker of the conformance suite: clients/conformance/README.md describes its lines. With --node-redis the worker
// uses node-redis.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster, createSentinel } from "redis";
import {
  type AcquireOptions,
  type Keys,
  type Lock,
  LockBusyError,
  LockError,
  Lockward,
  type RedisClient,
} from "../src/index.js";

type Settings = Record<string, string>;

const isNodeRedis = process.argv.includes("--node-redis");
let lockward: Lockward;
let locks: Map<string, Lock>;
let calls: Map<string, AbortController>;
let resignations: Map<string, () => void>;
let closeClient: () => void;
/** Counts the clients that were opened. The worker prints nothing about the locks of an earlier client. */
let latest = 0;

createInterface({ input: process.stdin })
  .on("line", (line) => void answer(line.split(" ")))
  .on("close", () => process.exit());

function open([address = "", ...rest]: string[]): string {
  const settings = settingsOf(rest);
  const number = (word: string, name: string) => (settings[word] ? { [name]: Number(settings[word]) } : {});
  lockward = new Lockward(isNodeRedis ? nodeRedis(address, settings) : ioredis(address, settings), {
    ...number("patience", "patience"),
    ...number("response-limit", "responseLimit"),
    ...number("waiting-connections", "waitingConnections"),
  });
  [locks, calls, resignations] = [new Map(), new Map(), new Map()];
  latest += 1;
  return "ok";
}

function close(): string {
  latest += 1;
  closeClient();
  return "ok";
}

function certificates(settings: Settings): Settings {
  const tls: Settings = {};
  for (const name of ["ca", "cert", "key"]) if (settings[name]) tls[name] = readFileSync(settings[name], "utf8");
  return tls;
}

function ioredis(address: string, settings: Settings): RedisClient {
  const onError = { retryStrategy: () => 100 };
  const [, scheme, hosts = "", name] = /^(\w+):\/\/([^/]*)\/?(.*)$/.exec(address) ?? [];
  const each = addresses(hosts);
  const tls = certificates(settings);
  const redis =
    scheme === "cluster"
      ? new Cluster(each)
      : scheme === "sentinel"
        ? new Redis({ sentinels: each, name: name ?? "", ...onError })
        : new Redis(address, { ...onError, ...(scheme === "rediss" ? { tls } : {}) });
  redis.on("error", () => {});
  closeClient = () => redis.disconnect();
  return redis;
}

function nodeRedis(address: string, settings: Settings): RedisClient {
  const [, scheme, hosts = "", name] = /^(\w+):\/\/([^/]*)\/?(.*)$/.exec(address) ?? [];
  const each = addresses(hosts);
  const tls = certificates(settings);
  const redis =
    scheme === "cluster"
      ? createCluster({ rootNodes: each.map((socket) => ({ socket })) })
      : scheme === "sentinel"
        ? createSentinel({ name: name ?? "", sentinelRootNodes: each, scanInterval: 500 })
        : createClient({ url: address, socket: scheme === "rediss" ? { tls: true, ...tls } : {} });
  redis.on("error", () => {});
  const connecting = redis.connect().catch(() => {});
  closeClient = () => void connecting.then(() => redis.destroy());
  return redis as RedisClient;
}

function addresses(hosts: string): { host: string; port: number }[] {
  return hosts.split(",").map((each) => {
    const [host = "", port] = each.split(":");
    return { host, port: Number(port) };
  });
}

async function answer([id = "", command = "", ...words]: string[]): Promise<void> {
  if (command === "open" || command === "close") {
    process.stdout.write(`${id} ${command === "open" ? open(words) : close()}\n`);
    return;
  }
  const print = printer();
  try {
    print(`${id} ${await run(id, command, words)}`);
  } catch (error) {
    print(`${id} ${failure(error)}`);
  }
}

async function run(id: string, command: string, words: string[]): Promise<string> {
  const [name = "", text = "", ...rest] = words;
  const print = printer();
  const lock = () => {
    const found = locks.get(name);
    if (found === undefined) throw new Error(`there is no lock ${name}`);
    return found;
  };
  switch (command) {
    case "acquire": {
      const options = settingsOf(rest);
      const acquired = await acquire(id, text.includes(",") ? text.split(",") : text, options);
      if (acquired === null) return "busy";
      return hold(name, acquired, Number(options["slow-lost"] ?? 0));
    }
    case "cancel":
      calls.get(name)?.abort(new Error("cancelled"));
      return "ok";
    case "release":
      await lock().release();
      return "ok";
    case "renew":
      await lock().renew();
      return "ok";
    case "downgrade":
      await lock().downgrade(text === "shared" ? { shared: true } : { slots: Number(text.slice("slots=".length)) });
      return "ok";
    case "status":
      return lock().held ? "held" : "lost";
    case "guarded": {
      const reply = await lock().guarded(text, ...rest);
      return `reply ${reply}`;
    }
    case "handle":
      return `handle ${lock().handle()}`;
    case "resume":
      return hold(name, await lockward.resume(text));
    case "lead":
      await lockward.lead(text, options(settingsOf(rest)), async (term, signal) => {
        print(`event leading ${name} ${term}`);
        const resigned = new Promise<void>((resolve) => resignations.set(name, resolve));
        const deposed = once(signal, "abort").then(() => Promise.reject(signal.reason));
        await Promise.race([resigned, deposed]).catch((reason) => {
          print(`event deposed ${name}`);
          throw reason;
        });
      });
      return "ok";
    case "resign":
      resignations.get(name)?.();
      return "ok";
    case "pairs":
      return `pairs ${await pairs(name, Number(text))}`;
    default:
      return "unsupported";
  }
}

async function acquire(id: string, keys: Keys, words: Settings): Promise<Lock | null> {
  const controller = new AbortController();
  calls.set(id, controller);
  const wanted = { ...options(words), signal: controller.signal };
  try {
    return await lockward.acquire(keys, wanted);
  } catch (error) {
    if (error instanceof LockBusyError) return null;
    throw error;
  } finally {
    calls.delete(id);
  }
}

function hold(name: string, lock: Lock, slowness = 0): string {
  const print = printer();
  locks.set(name, lock);
  // A slow listener must not block the event loop, because that would stop the whole process.
  const onLost = async () => {
    print(`event lost ${name}`);
    await sleep(slowness);
  };
  lock.signal.addEventListener("abort", onLost);
  if (lock.signal.aborted) void onLost();
  return `held ${lock.tokens.join(",")}`;
}

async function pairs(key: string, seconds: number): Promise<number> {
  let count = 0;
  for (const end = performance.now() + 1_000 * seconds; performance.now() < end; count += 1) {
    await (await lockward.acquire(key)).release();
  }
  return count;
}

function options(words: Settings): AcquireOptions {
  const options: AcquireOptions = {};
  if (words.wait !== undefined) options.waitLimit = Number(words.wait);
  if (words.lease !== undefined) options.lease = Number(words.lease);
  if (words.shared !== undefined) options.shared = true;
  if (words.slots !== undefined) options.slots = Number(words.slots);
  if (words.weight !== undefined) options.weight = Number(words.weight);
  if (words.owner !== undefined) options.owner = words.owner;
  if (words["hold-limit"] !== undefined) options.holdLimit = Number(words["hold-limit"]);
  if (words["no-renewal"] !== undefined) options.renewal = false;
  const [count, within] = words.replicas?.split(":").map(Number) ?? [];
  if (count !== undefined && within !== undefined) options.replicas = { count, within };
  return options;
}

function failure(error: unknown): string {
  if (error instanceof Error && error.message === "cancelled") return "cancelled";
  const text = `${error}`.replaceAll(/\s+/g, " ");
  const kind = error instanceof LockError ? error.name.replace(/^Lock|Error$/g, "").toLowerCase() : "other";
  return `error ${kind} ${text}`;
}

function settingsOf(words: string[]): Settings {
  return Object.fromEntries(
    words.map((word) => {
      const [name = "", ...value] = word.split("=");
      return [name, value.join("=")];
    }),
  );
}

/** Returns a function that prints lines until another client is opened. */
function printer(): (line: string) => void {
  const client = latest;
  return (line) => {
    if (client === latest) process.stdout.write(`${line}\n`);
  };
}
