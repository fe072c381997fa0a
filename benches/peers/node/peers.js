// Peers: lock libraries written in JavaScript, as peer programs of `make bench-peers`.
//
//   peers.js <peer> <job> <address> --clients N --seconds S
//
// The peer is lockward-node or node-redlock. A Redis server listens at the address. ../README.md describes the jobs.
// The program prints its answer as one line of JSON. If the program fails, it prints the reason to standard error.
//
// All clients run in one process and share one ioredis client, as the callers in a Node.js program do.

import { readFileSync } from "node:fs";
import { setImmediate, setTimeout } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Redis } from "ioredis";
import Redlock, { ExecutionError } from "redlock";
// This program runs in target/peers/node. The script build copies this program to that folder.
import { Lockward } from "../../clients/node/dist/index.js";

const EXCLUSIVE = ["uncontended", "contended"];
const SHARED = ["readers", "permits", "weights"];
const PERMITS = 10; // the permits of a semaphore
const WRITERS = 10; // one of 10 clients writes
const READERS = 2 ** 31; // the limit of a read-write lock: a reader takes 1, a writer takes all
const HOLD = 1; // how long a client holds a shared lock, in milliseconds
const WARM_UP = 2_500; // in milliseconds; during the warm-up the JIT compiler compiles the code
const LEASE = 30_000; // the lease for node-redlock, which has no default, in milliseconds

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { clients: { type: "string", default: "50" }, seconds: { type: "string", default: "10" } },
});
const [name, job, address] = positionals;
const clients = Number(values.clients);
const duration = Number(values.seconds) * 1_000;

/** The libraries, with their entries in the table, and the functions that acquire a lock. */
const peers = {
  "lockward-node": (redis) => {
    const lockward = new Lockward(redis);
    return {
      jobs: [...EXCLUSIVE, ...SHARED],
      version: `${versionOf("../../clients/node")}, ioredis ${versionOf("node_modules/ioredis")}`,
      notes: "one client object; lease 30 s, renewed",
      acquire: (key, client) => lockward.acquire(key, kindOf(client)),
    };
  },
  "node-redlock": (redis) => {
    const redlock = new Redlock([redis]);
    const { retryCount, retryDelay, retryJitter } = redlock.settings;
    return {
      jobs: EXCLUSIVE,
      version: `redlock ${versionOf("node_modules/redlock")}, ioredis ${versionOf("node_modules/ioredis")}`,
      notes: `one client object, one server; lease ${LEASE / 1_000} s, not renewed; ${retryCount + 1} tries ${
        retryDelay - retryJitter
      } to ${retryDelay + retryJitter} ms apart, and then a new call`,
      acquire: (key) => redlock.acquire([key], LEASE),
    };
  },
};

function versionOf(folder) {
  return JSON.parse(readFileSync(new URL(`${folder}/package.json`, import.meta.url), "utf8")).version.replace(/^v/, "");
}

const writes = (client) => job === "readers" && client % WRITERS === 0;
const limit = job === "readers" ? READERS : PERMITS;
/** How much of the lock's limit a client takes. */
const weightOf = (client) => (writes(client) ? limit : job === "weights" ? (client % 3) + 1 : 1);

/** The options with which a client acquires a lock of Lockward. */
function kindOf(client) {
  if (!SHARED.includes(job) || writes(client)) return {};
  return job === "readers" ? { shared: true } : { slots: PERMITS, weight: weightOf(client) };
}

const tallies = Array.from({ length: clients }, () => ({ waits: [], gaveUp: 0 }));
// Only the lock protects these variables.
let counter = 0;
let warmUp = 0;
let holder = -1;
let handoffs = 0;
// In the jobs with several holders: the sum of the holders' weights, and the number of grants that kept this sum within the
// limit.
let held = 0;
let allowed = 0;

/** The work of a client that holds the lock alone. */
async function count(client, isCounted) {
  const read = isCounted ? counter : warmUp;
  await setImmediate();
  if (isCounted) counter = read + 1;
  else warmUp = read + 1;
  if (isCounted && holder !== client) handoffs += 1;
  holder = client;
}

/** The work of a client that shares the lock. */
async function hold(client, isCounted) {
  const weight = weightOf(client);
  held += weight;
  if (isCounted && held <= limit) allowed += 1;
  await setTimeout(HOLD);
  held -= weight;
}

/** Waits for the lock. Returns undefined if the library gave up after the end of the job. */
async function acquire(peer, key, client, isCounted, end) {
  for (;;) {
    try {
      return await peer.acquire(key, client);
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
      const now = performance.now();
      if (now >= end) return undefined;
      if (isCounted(now)) tallies[client].gaveUp += 1;
    }
  }
}

async function run(peer, client, begin) {
  const end = begin + duration;
  const isCounted = (instant) => instant >= begin && instant < end;
  // The process id makes the name unique: the server may still hold the locks of an earlier run.
  const key = `lock:${process.pid}:${job === "uncontended" ? client : 0}`;
  for (;;) {
    const asked = performance.now();
    if (asked >= end) return;
    const lock = await acquire(peer, key, client, isCounted, end);
    if (lock === undefined) return;
    const granted = performance.now();
    const counts = isCounted(granted);
    // A client that gets the lock after the end of the job only releases it.
    if (granted < end) {
      if (SHARED.includes(job)) await hold(client, counts);
      else if (job === "contended") await count(client, counts);
    }
    await lock.release();
    if (counts) tallies[client].waits.push(Math.round(1_000 * (granted - asked)));
  }
}

async function main() {
  const [host, port] = address.split(":");
  const redis = new Redis(Number(port), host);
  await redis.ping();
  const peer = peers[name]?.(redis);
  if (!peer?.jobs.includes(job)) throw new Error(`${name} has no job ${job}`);
  const begin = performance.now() + WARM_UP;
  const began = Date.now() + WARM_UP;
  await Promise.all(tallies.map((_, client) => run(peer, client, begin)));
  return {
    version: peer.version,
    notes: peer.notes,
    began_unix_ms: began,
    waits_us: tallies.map(({ waits }) => waits),
    ...(SHARED.includes(job) ? { counter: allowed } : {}),
    ...(job === "contended" ? { counter, handoffs } : {}),
    gave_up: tallies.reduce((sum, { gaveUp }) => sum + gaveUp, 0),
  };
}

try {
  console.log(JSON.stringify(await main()));
  process.exit(0);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exit(1);
}
