import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { Lockward, type RedisClient } from "../src/index.js";
import { eventually, LIBRARIES, LossyProxy, Server } from "./servers.js";

type Send = (...command: (string | number)[]) => Promise<unknown>;

/** Sends commands on one connection that stays open. `closeOthers` closes all others that do not wait. */
function admin(server: Server): { ask: Send; waiter(): Promise<unknown>; closeOthers(): Promise<unknown> } {
  const client = server.ioredis();
  const ask: Send = (name, ...rest) => client.call(name as string, ...(rest as string[]));
  const waiter = async () => {
    const lock = (await ask("LOCK.INFO", "k", "WAITERS", 1)) as unknown[] | null;
    const [first] = (lock?.[lock.indexOf("queue") + 1] ?? []) as unknown[][];
    return first?.[first.indexOf("client-id") + 1];
  };
  const closeOthers = async () => {
    const own = await ask("CLIENT", "ID");
    for (const [, id] of `${await ask("CLIENT", "LIST")}`.matchAll(/^id=(\d+) .* flags=(?!b)/gm)) {
      if (id !== `${own}`) await ask("CLIENT", "KILL", "ID", id as string);
    }
  };
  return { ask, waiter, closeOthers };
}

const CLIENTS: Record<string, (server: Server) => Promise<RedisClient>> = {
  ioredis: async (server) => server.ioredis({ password: "old" }),
  "node-redis": async (server) => {
    const client = createClient({ socket: { port: server.port, host: "127.0.0.1" }, password: "old" });
    client.on("error", () => {});
    await client.connect();
    after(() => client.isOpen && client.destroy());
    return client;
  },
};

describe("a waiter", { concurrency: 6 }, () => {
  for (const [name, client] of Object.entries(CLIENTS)) {
    for (const [setting, value, section, counts] of [
      ["maxclients", "1", "stats", /rejected_connections:(\d+)/],
      ["requirepass", "new", "stats", /total_error_replies:(\d+)/],
    ] as const) {
      test(`${name}: keeps its position when ${setting} prevents new connections`, async () => {
        const server = await Server.start();
        const { ask, waiter, closeOthers } = admin(server);
        await ask("CONFIG", "SET", "requirepass", "old");
        const lockward = new Lockward(await client(server));
        await ask("LOCK.ACQUIRE", "k", "another");
        const waiting = lockward.acquire("k");
        await eventually(waiter);
        const first = await waiter();
        await ask("CONFIG", "SET", setting, value);
        await closeOthers();
        const count = async () => Number(counts.exec(`${await ask("INFO", section)}`)?.[1]);
        const before = await count();
        const since = performance.now();
        await eventually(async () => performance.now() - since > 11_000 && (await count()) > before);
        assert.equal(await waiter(), first);
        await ask("LOCK.RELEASE", "k", "another");
        const lock = await waiting;
        assert(lock.held);
        await ask("CONFIG", "SET", "requirepass", "old");
        await ask("CONFIG", "SET", "maxclients", 100);
        await lock.release();
      });
    }
  }

  test("keeps its position when the Sentinels are stopped", async () => {
    const server = await Server.start();
    const { ask, waiter, closeOthers } = admin(server);
    const sentinels = [await Server.startSentinel(), await Server.startSentinel()];
    for (const sentinel of sentinels) {
      await sentinel.ask(["SENTINEL", "MONITOR", "it", "127.0.0.1", server.port, 2]);
    }
    const client = new Redis({
      name: "it",
      sentinels: sentinels.map(({ port }) => ({ host: "127.0.0.1", port })),
    });
    client.on("error", () => {});
    after(() => client.disconnect());
    const lockward = new Lockward(client);
    await ask("LOCK.ACQUIRE", "k", "another");
    const waiting = lockward.acquire("k");
    await eventually(waiter);
    const first = await waiter();
    for (const sentinel of sentinels) await sentinel.tell("pause");
    await closeOthers();
    const since = performance.now();
    await eventually(async () => {
      assert.equal(await waiter(), first);
      return performance.now() - since > 14_000;
    }, 30_000);
    await ask("LOCK.RELEASE", "k", "another");
    assert((await waiting).held);
    for (const sentinel of sentinels) await sentinel.tell("resume");
  });

  for (const library of LIBRARIES) {
    test(`${library.name}: survives an outage after a long wait`, async () => {
      const server = await Server.start();
      const proxy = await LossyProxy.start(server.port);
      const patience = 1_000;
      const lockward = new Lockward(await library.client(server, proxy.port), { patience });
      const { ask, waiter } = admin(server);
      await ask("LOCK.ACQUIRE", "k", "another");
      const waiting = lockward.acquire("k");
      await eventually(waiter);
      const first = await waiter();
      const since = performance.now();
      await eventually(() => performance.now() - since > 5 * patience);
      await proxy.tell("cut");
      await eventually(async () => ![undefined, first].includes((await waiter()) as undefined));
      await ask("LOCK.RELEASE", "k", "another");
      await (await waiting).release();
    });
  }
});
