import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Lockward } from "../src/index.js";
import { eventually, LIBRARIES, LossyProxy, Server } from "./servers.js";

/** Waits until the lease is at most 4 s, and has been renewed once more. */
async function isRenewed(server: Server, key: string): Promise<void> {
  const left = async () => (await server.info(key)).holders[0]?.["lease-left"] as number;
  await eventually(async () => (await left()) <= 4_000);
  let before = await left();
  await eventually(async () => {
    const now = await left();
    const has = now > before;
    before = now;
    return has;
  });
}

for (const library of LIBRARIES) {
  describe(`${library.name}: leases that are too long`, { concurrency: 4 }, () => {
    for (const setting of ["lock.max-lease", "lock.quarantine"]) {
      test(`${setting}: a lease that becomes too long is shortened`, async () => {
        const server = await Server.start();
        await server.ask(["CONFIG", "SET", "lock.default-lease", 7_000]);
        const lockward = new Lockward(await library.client(server));
        const locks = {
          named: await lockward.acquire("named", { lease: 6_000 }),
          unnamed: await lockward.acquire("unnamed"),
          asked: await lockward.acquire("asked", { lease: 3_600_000 }),
        };
        const fixed = await lockward.acquire("fixed", { lease: 3_600_000, renewal: false });
        await server.ask(["CONFIG", "SET", setting, 4_000]);
        await locks.asked.renew();
        for (const [key, lock] of Object.entries(locks)) {
          await isRenewed(server, key);
          assert(lock.held);
          assert.equal((await server.info(key)).holders[0]?.token, lock.token);
        }
        assert(fixed.held && ((await server.info("fixed")).holders[0]?.["lease-left"] as number) > 3_000_000);
        for (const lock of [...Object.values(locks), fixed]) await lock.release();
      });
    }

    test("a tenure is restored with a shorter lease", async () => {
      const server = await Server.start();
      const lockward = new Lockward(await library.client(server));
      const entered = await lockward.acquire("entered", { lease: 60_000 });
      await server.tell("kill");
      await server.tell("module quarantine 4000");
      await server.tell("start");
      await entered.renew();
      const [holder] = (await server.info("entered")).holders;
      assert.equal(holder?.token, entered.token);
      assert.equal(holder?.holds, 1);
      await isRenewed(server, "entered");
      assert(entered.held);
    });

    test("tryAcquire returns when replies take longer than the lease", async () => {
      const server = await Server.start();
      await server.ask(["CONFIG", "SET", "lock.default-lease", 40]);
      const proxy = await LossyProxy.start(server.port);
      await proxy.tell("delay 60");
      const lockward = new Lockward(await library.client(server, proxy.port));
      const lock = await lockward.tryAcquire("k");
      assert(lock !== null && !lock.held);
      await eventually(() => lock.signal.aborted);
    });
  });
}
