import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Cluster } from "ioredis";
import { createCluster } from "redis";
import { Lockward, type RedisClient } from "../src/index.js";
import { eventually, Server } from "./servers.js";

const nodes = await Server.startCluster();
const [first, second, third] = nodes;

const CLIENTS: { name: string; client(): Promise<RedisClient> }[] = [
  {
    name: "ioredis",
    async client() {
      const cluster = new Cluster([{ host: "127.0.0.1", port: first.port }]);
      after(() => cluster.disconnect());
      return cluster;
    },
  },
  {
    name: "node-redis",
    async client() {
      const cluster = createCluster({ rootNodes: [{ socket: { host: "127.0.0.1", port: first.port } }] });
      cluster.on("error", () => {});
      await cluster.connect();
      after(() => cluster.destroy());
      return cluster;
    },
  },
];

for (const { name, client } of CLIENTS) {
  describe(name, () => {
    test("locks are on the nodes of their slots", async () => {
      const lockward = new Lockward(await client());
      // In the slots 15495, 3300 and 7365.
      const locks = await Promise.all(["a", "b", "c"].map((key) => lockward.acquire(key, { lease: 5_000 })));
      const at = async (key: string, node: Server) => (await node.info(key)).holders.length;
      assert.deepEqual(await Promise.all([at("a", third), at("b", first), at("c", second)]), [1, 1, 1]);
      const waiting = lockward.acquire("a");
      await eventually(() => third.waiters("a"));
      const counts = await Promise.all(nodes.map((node) => node.calls("lock.renew")));
      for (const [number, node] of nodes.entries()) {
        await eventually(async () => (await node.calls("lock.renew")) > (counts[number] as number) + 1);
      }
      for (const lock of locks) await lock.release();
      await (await waiting).release();
    });

    test("a guarded command runs on the node of the lock", async () => {
      const lock = await new Lockward(await client()).acquire("{b}guarded");
      assert.equal(await lock.guarded("SET", "{b}data", name), "OK");
      assert.equal(await first.ask(["GET", "{b}data"]), name);
      await lock.release();
    });

    test("a lock moves with its slot", async () => {
      const lockward = new Lockward(await client());
      const [key, slot] = ["{a}moving", 15_495];
      const lock = await lockward.acquire(key, { lease: 5_000 });
      const waiting = lockward.acquire(key);
      await eventually(() => third.waiters(key));
      const [source, target] = await Promise.all([third, first].map((node) => node.ask(["CLUSTER", "MYID"])));
      await first.ask(["CLUSTER", "SETSLOT", slot, "IMPORTING", source as string]);
      await third.ask(["CLUSTER", "SETSLOT", slot, "MIGRATING", target as string]);
      await third.ask(["MIGRATE", "127.0.0.1", first.port, key, 0, 5_000]);
      await lock.renew(); // redirected by ASK
      assert.equal(await lock.guarded(), "OK"); // the same
      for (const node of [first, third]) await node.ask(["CLUSTER", "SETSLOT", slot, "NODE", target as string]);
      await eventually(() => first.waiters(key));
      const before = await first.calls("lock.renew");
      await eventually(async () => (await first.calls("lock.renew")) > before + 1);
      assert(lock.held);
      assert.equal(await lock.guarded("SET", "{a}data", name), "OK");
      assert.equal(await first.ask(["GETDEL", "{a}data"]), name);
      await lock.release();
      await (await waiting).release();
      // Move the slot back for the next test.
      for (const node of [third, first, second]) await node.ask(["CLUSTER", "SETSLOT", slot, "NODE", source as string]);
    });
  });
}
