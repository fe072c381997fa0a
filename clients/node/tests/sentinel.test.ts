import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Redis } from "ioredis";
import { createSentinel } from "redis";
import { Lockward, type RedisClient } from "../src/index.js";
import { eventually, Server } from "./servers.js";

interface Deployment {
  primary: Server;
  replica: Server;
  sentinel: Server;
}

/** A primary, its replica, and a Sentinel. */
async function start(): Promise<Deployment> {
  const primary = await Server.start();
  const replica = await Server.start();
  await replica.ask(["REPLICAOF", "127.0.0.1", primary.port]);
  await eventually(async () => `${await replica.ask(["INFO", "replication"])}`.includes("master_link_status:up"));
  const sentinel = await Server.startSentinel();
  await sentinel.ask(["SENTINEL", "MONITOR", "it", "127.0.0.1", primary.port, 1]);
  await sentinel.ask(["SENTINEL", "SET", "it", "failover-timeout", "10000"]);
  return { primary, replica, sentinel };
}

const CLIENTS: { name: string; client(sentinel: Server): Promise<RedisClient> }[] = [
  {
    name: "ioredis",
    async client({ port }) {
      const client = new Redis({ name: "it", sentinels: [{ host: "127.0.0.1", port }] });
      client.on("error", () => {});
      after(() => client.disconnect());
      return client;
    },
  },
  {
    name: "node-redis",
    async client({ port }) {
      const client = createSentinel({
        name: "it",
        sentinelRootNodes: [{ host: "127.0.0.1", port }],
        scanInterval: 500,
      });
      client.on("error", () => {});
      await client.connect();
      after(() => client.destroy());
      return client;
    },
  },
];

describe("a failover", { concurrency: 2 }, () => {
  for (const { name, client } of CLIENTS) {
    test(`${name}: holders and waiters survive it`, { timeout: 120_000 }, async () => {
      const { primary, replica, sentinel } = await start();
      const lockward = new Lockward(await client(sentinel), { patience: 60_000 });
      const lock = await lockward.acquire("a", { replicas: { count: 1, within: 10_000 } });
      assert.equal((await replica.info("a")).holders.length, 1);
      const waiting = lockward.acquire("a");
      await eventually(() => primary.waiters("a"));
      const isPrimary = async () => `${await replica.ask(["INFO", "replication"])}`.includes("role:master");
      await eventually(async () => {
        if (await isPrimary()) return true;
        // Refused while the Sentinel does not know the replica yet, or a failover is under way.
        await sentinel.ask(["SENTINEL", "FAILOVER", "it"]).catch(() => {});
        return false;
      }, 60_000);
      await eventually(() => replica.waiters("a"), 60_000);
      assert(lock.held);
      await lock.renew();
      await lock.release();
      await (await waiting).release();
    });
  }
});
