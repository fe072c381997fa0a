// Peers: lock libraries written in JavaScript, as peer programs of `make bench-peers`.
//
//   peers.js <peer> <job> <address> <clients> <begin> <seconds>
//
// The peer is lockward-node or node-redlock. A Redis server listens at the address. ../README.md describes the rest.
//
// All clients run in one process and share one ioredis client, as the callers in a Node.js program do.

import { readFileSync } from "node:fs";
import { setImmediate, setTimeout } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock, { ExecutionError } from "redlock";
// This program runs in target/peers/node. The script ../build copies this program to that folder.
import { Lockward } from "../../clients/node/dist/index.js";

const PERMITS = 10; // the permits of a semaphore
const WRITERS = 10; // one of 10 clients writes
const HOLD = 1; // how long a client holds a shared lock, in milliseconds
const LEASE = 30_000; // the lease for node-redlock, which has no default, in milliseconds

const [name, job, address, ...numbers] = process.argv.slice(2);
const [count, beginUnixMs, seconds] = numbers.map(Number);
/** When the job begins and ends to count, by performance.now(). */
const begin = performance.now() + beginUnixMs - Date.now();
const end = begin + seconds * 1_000;

/** The libraries, with their entries in the table, and the functions that acquire a lock. */
const peers = {
  "lockward-node": (redis) => {
    const lockward = new Lockward(redis);
    return {
      version: `${versionOf("../../clients/node")}, ioredis ${versionOf("node_modules/ioredis")}`,
      notes: "one client object; lease 30 s, renewed",
      acquire: (key, client) => lockward.acquire(key, kindOf(client)),
    };
  },
  "node-redlock": (redis) => {
    const redlock = new Redlock([redis]);
    const { retryCount, retryDelay, retryJitter } = redlock.settings;
    return {
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

/** The options with which a client acquires a lock of Lockward. */
function kindOf(client) {
  if (job === "readers" && client % WRITERS !== 0) return { shared: true };
  if (job === "permits") return { slots: PERMITS };
  if (job === "weights") return { slots: PERMITS, weight: (client % 3) + 1 };
  return {};
}

let gaveUp = 0;

/** Waits for the lock. Returns undefined if the library gave up after the end of the job. */
async function acquire(peer, key, client) {
  for (;;) {
    try {
      return await peer.acquire(key, client);
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
      if (performance.now() >= end) return undefined;
      gaveUp += 1;
    }
  }
}

/** Acquires and releases until the end of the job. Returns three numbers for each tenure: see ../README.md. */
async function run(peer, client) {
  // The process id makes the name unique: the server may still hold the locks of an earlier run.
  const key = `lock:${process.pid}:${job === "uncontended" ? client : 0}`;
  const tenures = [];
  for (;;) {
    const asked = performance.now();
    if (asked >= end) return tenures;
    const lock = await acquire(peer, key, client);
    if (lock === undefined) return tenures;
    const granted = performance.now();
    if (job === "contended") await setImmediate();
    else if (job !== "uncontended") await setTimeout(HOLD);
    for (const instant of [asked, granted, performance.now()]) tenures.push(Math.round(1_000 * (instant - begin)));
    await lock.release();
  }
}

async function main() {
  const [host, port] = address.split(":");
  const redis = new Redis(Number(port), host);
  await redis.ping();
  const peer = peers[name](redis);
  const tenures = await Promise.all(Array.from({ length: count }, (_, client) => run(peer, client)));
  return { version: peer.version, notes: peer.notes, tenures_us: tenures, gave_up: gaveUp };
}

try {
  console.log(JSON.stringify(await main()));
  process.exit(0);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exit(1);
}
