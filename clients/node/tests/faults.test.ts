import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { LockBusyError, LockLostError, Lockward, UnreachableError } from "../src/index.js";
import { eventually, LIBRARIES, LossyProxy, Server } from "./servers.js";

for (const library of LIBRARIES) {
  describe(library.name, () => {
    let server: Server;
    before(async () => {
      server = await Server.start();
    });

    async function through(): Promise<{ lockward: Lockward; proxy: LossyProxy }> {
      const proxy = await LossyProxy.start(server.port);
      return { lockward: new Lockward(await library.client(server, proxy.port)), proxy };
    }

    for (const fate of ["reply", "request"]) {
      test(`${fate} lost: no hold is counted twice`, async () => {
        const { lockward, proxy } = await through();
        const losing = async <T>(command: string, action: () => Promise<T>): Promise<T> => {
          const before = await proxy.losses();
          await proxy.tell(`plan ${fate} ${command} 1`);
          const result = await action();
          assert.equal(await proxy.losses(), before + 1);
          return result;
        };
        const holds = async () => (await server.info("lost")).holders[0]?.holds;
        const outer = await losing("LOCK.ACQUIRE", () => lockward.acquire("lost", { lease: 20_000 }));
        await losing("LOCK.RENEW", () => outer.renew());
        assert.equal(await holds(), 1);
        await losing("LOCK.RELEASE", () => outer.release());
        assert.equal(await holds(), undefined);
      });
    }

    test("random losses: all holds are counted right", async () => {
      const { lockward, proxy } = await through();
      await proxy.tell("random 7 100 100 LOCK.*");
      for (let round = 0; round < 40; round += 1) {
        const lock = await lockward.acquire("random", { lease: 20_000 });
        assert.equal((await server.info("random")).holders[0]?.holds, 1);
        await lock.release();
        assert.equal(await server.ask(["EXISTS", "random"]), 0);
      }
      assert((await proxy.losses()) > 0);
    });

    test("a waiter whose connection is cut waits again", async () => {
      const { lockward, proxy } = await through();
      const holder = await new Lockward(server.ioredis()).acquire("cut");
      const limited = assert.rejects(lockward.acquire("cut", { waitLimit: 4_000 }), LockBusyError);
      const waiting = lockward.acquire("cut");
      for (let round = 0; round < 3; round += 1) {
        await eventually(async () => (await server.waiters("cut")) >= 1);
        await proxy.tell("cut");
      }
      await limited;
      await eventually(() => server.waiters("cut"));
      await holder.release();
      await (await waiting).release();
    });

    test("a repeated request finds a grant whose reply was lost", async () => {
      const { lockward, proxy } = await through();
      const holder = await new Lockward(server.ioredis()).acquire("found");
      await proxy.tell("plan reply BLOCK");
      const waiting = lockward.acquire("found");
      await eventually(() => server.waiters("found"));
      await proxy.tell("plan");
      await holder.release();
      const lock = await waiting;
      assert.equal(await proxy.losses(), 1);
      assert.equal((await server.info("found")).holders[0]?.owner, lock.owner);
      await lock.release();
    });

    test("a grant whose reply is lost is given back when the repetition is refused", async () => {
      const { lockward, proxy } = await through();
      await proxy.tell("plan reply LOCK.ACQUIRE 1, request LOCK.ACQUIRE");
      try {
        const refused = assert.rejects(lockward.acquire("full"), { name: "LockRefusedError", code: "OOM" });
        await eventually(() => proxy.losses());
        await server.ask(["CONFIG", "SET", "maxmemory", "1"]);
        await proxy.tell("plan");
        await refused;
        await eventually(async () => !(await server.ask(["EXISTS", "full"])));
      } finally {
        await server.ask(["CONFIG", "SET", "maxmemory", "0"]);
      }
    });

    test("a wait that is given up while its connection is cut leaves nothing behind", async () => {
      const { lockward, proxy } = await through();
      const holder = await new Lockward(server.ioredis()).acquire("both");
      const leaving = new AbortController();
      const waiting = assert.rejects(lockward.acquire("both", { signal: leaving.signal }), { name: "AbortError" });
      await eventually(() => server.waiters("both"));
      await proxy.tell("cut");
      leaving.abort();
      await waiting;
      await holder.release();
      await eventually(async () => !(await server.ask(["EXISTS", "both"])));
    });

    test("a shorter lease counts from its request, also when the reply is lost", async () => {
      const { lockward, proxy } = await through();
      await proxy.tell("plan reply 300 1, request *");
      const lock = await lockward.acquire("shorter", { lease: 20_000 });
      const renewal = assert.rejects(lock.renew(300), LockLostError);
      const next = await new Lockward(server.ioredis()).acquire("shorter");
      assert(!lock.held);
      await renewal;
      await eventually(() => lock.signal.aborted);
      await next.release();
    });

    test("a broken connection renews all held locks at once", async () => {
      const { lockward, proxy } = await through();
      const locks = [
        await lockward.acquire("first"),
        await lockward.acquire("second", { renewal: false, lease: 60_000 }),
      ];
      const before = await server.calls("lock.renew");
      await proxy.tell("cut");
      await eventually(async () => (await server.calls("lock.renew")) >= before + 2);
      const [info] = (await server.info("second")).holders;
      assert((info?.["lease-left"] as number) <= 60_000);
      for (const lock of locks) await lock.release();
    });
  });
}

describe("servers", { concurrency: 4 }, () => {
  test("a tenure and its waiters survive a restart of the server", async () => {
    for (const config of [["appendonly yes", "appendfsync always"], []]) {
      const own = await Server.start(...config);
      const lockward = new Lockward(own.ioredis(), { patience: 20_000 });
      const lock = await lockward.acquire("kept", { lease: 6_000 });
      const waiting = lockward.acquire("kept", { waitLimit: 60_000 });
      await eventually(() => own.waiters("kept"));
      await own.tell("kill");
      // A server without persistence restores the tenure in quarantine.
      await own.tell("module quarantine 6000");
      await own.tell("start");
      await eventually(async () => (await own.info("kept")).holders[0]?.token === lock.token);
      assert(lock.held);
      await lock.release();
      const next = await waiting;
      assert(next.token > lock.token);
      await next.release();
    }
  });

  test("a lock is lost when the server has forgotten it", async () => {
    const own = await Server.start();
    const lock = await new Lockward(own.ioredis()).acquire("forgotten");
    await own.tell("kill");
    await own.tell("start");
    await eventually(() => lock.signal.aborted);
    await assert.rejects(lock.release(), LockLostError);
  });

  test("a lock at a stopped server is lost when its lease ends", async () => {
    const own = await Server.start();
    const lockward = new Lockward(own.ioredis(), { patience: 2_000 });
    const lock = await lockward.acquire("silent", { lease: 1_000 });
    const long = await lockward.acquire("long", { lease: 60_000 });
    await own.tell("pause");
    await eventually(() => lock.signal.aborted);
    assert(!lock.held && long.held);
    await assert.rejects(lock.release(), LockLostError);
    await assert.rejects(long.renew(), UnreachableError);
    await assert.rejects(long.release(), UnreachableError);
    await assert.rejects(lockward.acquire("other", { waitLimit: 300 }), UnreachableError);
    await own.tell("resume");
    // The acquisition that failed is withdrawn when the server continues.
    await eventually(async () => !(await own.ask(["EXISTS", "other"])));
  });
});
