import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { after, describe, test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { Lockward, type RedisClient } from "../src/index.js";
import { LossyProxy } from "./proxy.js";
import { eventually, LIBRARIES, Server } from "./servers.js";

type Ask = (...command: (string | number)[]) => Promise<unknown>;

/** Asks on one connection that stays, and has every other one closed that does not wait. */
function admin(server: Server): { ask: Ask; place(): Promise<unknown>; closeOthers(): Promise<unknown> } {
  const client = server.ioredis();
  const ask: Ask = (name, ...rest) => client.call(name as string, ...(rest as string[]));
  const place = async () => {
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
  return { ask, place, closeOthers };
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

describe("who waits", { concurrency: 6 }, () => {
  for (const [name, client] of Object.entries(CLIENTS)) {
    for (const [setting, value, section, counts] of [
      ["maxclients", "1", "stats", /rejected_connections:(\d+)/],
      ["requirepass", "new", "stats", /total_error_replies:(\d+)/],
    ] as const) {
      test(`${name}: keeps its place where no other connection is let in for ${setting}`, async () => {
        const server = await Server.start();
        const { ask, place, closeOthers } = admin(server);
        await ask("CONFIG", "SET", "requirepass", "old");
        const lockward = new Lockward(await client(server));
        await ask("LOCK.ACQUIRE", "k", "another");
        const waiting = lockward.acquire("k");
        await eventually(place);
        const first = await place();
        await ask("CONFIG", "SET", setting, value);
        await closeOthers();
        const count = async () => Number(counts.exec(`${await ask("INFO", section)}`)?.[1]);
        const before = await count();
        const since = performance.now();
        await eventually(async () => performance.now() - since > 11_000 && (await count()) > before);
        assert.equal(await place(), first);
        await ask("LOCK.RELEASE", "k", "another");
        const lock = await waiting;
        assert(lock.held);
        await ask("CONFIG", "SET", "requirepass", "old");
        await ask("CONFIG", "SET", "maxclients", 100);
        await lock.release();
      });
    }
  }

  test("keeps its place where a Sentinel stands still", async () => {
    const server = await Server.start();
    const { ask, place, closeOthers } = admin(server);
    const sentinels: Server[] = [];
    for (const number of [1, 2]) {
      const file = `${server.folder}/sentinel-${number}.conf`;
      writeFileSync(file, "");
      const sentinel = await Server.start([file, "--sentinel"]);
      await sentinel.ask(["SENTINEL", "MONITOR", "it", "127.0.0.1", server.port, 2]);
      sentinels.push(sentinel);
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
    await eventually(place);
    const first = await place();
    for (const sentinel of sentinels) sentinel.stop();
    await closeOthers();
    const since = performance.now();
    await eventually(async () => {
      assert.equal(await place(), first);
      return performance.now() - since > 14_000;
    }, 30_000);
    await ask("LOCK.RELEASE", "k", "another");
    assert((await waiting).held);
    for (const sentinel of sentinels) sentinel.goOn();
  });

  for (const [name, client] of Object.entries(CLIENTS)) {
    test(`${name}: leaves a server that stands still, though a renewal is late before`, async () => {
      const server = await Server.start();
      const { ask, place } = admin(server);
      await ask("CONFIG", "SET", "requirepass", "old");
      const lockward = new Lockward(await client(server), { patience: 60_000 });
      const lock = await lockward.acquire("other", { lease: 3_000 });
      await ask("LOCK.ACQUIRE", "k", "another", "PX", 60_000);
      const waiting = lockward.acquire("k");
      await eventually(place);
      const first = await place();
      server.stop();
      await eventually(() => lock.signal.aborted);
      const since = performance.now();
      await eventually(() => performance.now() - since > 8_000); // longer than it takes to ask whether it is still there
      server.goOn();
      await eventually(async () => ![undefined, first].includes((await place()) as undefined));
      await ask("LOCK.RELEASE", "k", "another");
      await (await waiting).release();
    });
  }

  for (const library of LIBRARIES) {
    test(`${library.name}: bears an outage after a long wait as well`, async () => {
      const server = await Server.start();
      const proxy = await LossyProxy.start(server.port);
      after(() => proxy.close());
      const patience = 1_000;
      const lockward = new Lockward(await library.client(server, proxy.port), { patience });
      const { ask, place } = admin(server);
      await ask("LOCK.ACQUIRE", "k", "another");
      const waiting = lockward.acquire("k");
      await eventually(place);
      const first = await place();
      const since = performance.now();
      await eventually(() => performance.now() - since > 5 * patience);
      proxy.cut();
      await eventually(async () => ![undefined, first].includes((await place()) as undefined));
      await ask("LOCK.RELEASE", "k", "another");
      await (await waiting).release();
    });
  }
});
