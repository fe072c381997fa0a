import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { LockRefusedError, Lockward } from "../src/index.js";
import { eventually, LIBRARIES, Server } from "./servers.js";

for (const library of LIBRARIES) {
  describe(`${library.name}: readers and permits`, () => {
    test("readers hold together, and a writer waits", async () => {
      const server = await Server.start();
      const lockward = new Lockward(await library.client(server));
      const shared = { shared: true };
      const readers = [await lockward.acquire("k", shared), await lockward.acquire("k", shared)];
      await server.tell("kill");
      await server.tell("module quarantine 60000");
      await server.tell("start"); // it has forgotten the readers, and restores them as readers
      for (const reader of readers) await reader.renew();
      await server.ask(["CONFIG", "SET", "lock.quarantine", 0]);
      const writing = lockward.acquire("k");
      await eventually(async () => (await server.waiters("k")) === 1);
      assert.equal(await lockward.tryAcquire("k", shared), null, "a reader has overtaken a writer");
      assert.equal((await server.info("k")).holders.length, 2);
      for (const reader of readers) await reader.release();
      await (await writing).release();
    });

    test("two of three permits", async () => {
      const lockward = new Lockward(await library.client(await Server.start()));
      const two = await lockward.acquire("k", { slots: 3, weight: 2 });
      const one = await lockward.acquire("k", { slots: 3 });
      assert.equal(await lockward.tryAcquire("k", { slots: 3 }), null);
      await two.release();
      await (await lockward.acquire("k", { slots: 3, weight: 2 })).release();
      await one.release();
      await assert.rejects(lockward.acquire("k", { slots: 3, weight: 4 }), LockRefusedError);
    });
  });
}
