import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { Redis } from "ioredis";
import {
  type Lock,
  LockBusyError,
  LockLostError,
  LockRefusedError,
  Lockward,
  UnreachableError,
  UnreplicatedError,
} from "../src/index.js";
import { eventually, LIBRARIES, Server } from "./servers.js";

for (const library of LIBRARIES) {
  describe(library.name, () => {
    let server: Server;
    let lockward: Lockward;
    before(async () => {
      server = await Server.start();
      lockward = new Lockward(await library.client(server));
    });

    test("one caller holds the lock, others do not", async () => {
      const lock = await lockward.acquire("one");
      assert(lock.held);
      assert.equal(await lockward.tryAcquire("one"), null);
      await assert.rejects(lockward.acquire("one", { waitLimit: 20 }), LockBusyError);
      assert.equal((await server.info("one")).holders[0]?.owner, lock.owner);
      await lock.release();
      assert(!lock.held && !lock.signal.aborted);
      assert.equal(await server.ask(["EXISTS", "one"]), 0);
    });

    test("fencing tokens grow and are exact", async () => {
      const tokens: number[] = [];
      for (let round = 0; round < 3; round += 1) {
        await lockward.using("tokens", async (_, lock) => {
          const [holder] = (await server.info("tokens")).holders;
          assert.equal(lock.token, holder?.token);
          tokens.push(lock.token);
        });
      }
      assert(tokens.every((token, at) => Number.isSafeInteger(token) && token > (tokens[at - 1] ?? 0)));
    });

    test("waiters are served in order", async () => {
      const holder = await lockward.acquire("order");
      const served: number[] = [];
      const waiting: Promise<void>[] = [];
      for (let number = 0; number < 20; number += 1) {
        waiting.push(lockward.using("order", () => void served.push(number)));
        await eventually(async () => (await server.waiters("order")) === number + 1);
      }
      await holder.release();
      await Promise.all(waiting);
      assert.deepEqual(served, [...served.keys()]);
    });

    test("a waiter does not delay requests for other locks", async () => {
      const holder = await lockward.acquire("busy");
      const waiting = lockward.acquire("busy");
      await eventually(() => server.waiters("busy"));
      await (await lockward.acquire("free")).release();
      await holder.release();
      await (await waiting).release();
    });

    test("more waiters than waiting connections are served in order", async () => {
      const narrow = new Lockward(await library.client(server), { waitingConnections: 2 });
      const holder = await lockward.acquire("narrow");
      const served: number[] = [];
      const begin = (number: number) => narrow.using("narrow", () => void served.push(number));
      const first: Promise<void>[] = [];
      for (const number of [0, 1]) {
        first.push(begin(number));
        await eventually(async () => (await server.waiters("narrow")) === number + 1);
      }
      const late = begin(2);
      await assert.rejects(narrow.acquire("narrow", { waitLimit: 30 }), LockBusyError);
      const leaving = new AbortController();
      const left = assert.rejects(narrow.acquire("narrow", { signal: leaving.signal }), { name: "AbortError" });
      setImmediate(() => leaving.abort());
      await left;
      assert.equal(await server.waiters("narrow"), 2);
      await holder.release();
      await Promise.all([...first, late]);
      assert.deepEqual(served, [0, 1, 2]);
    });

    test("a holder gets another lock while waiters use all connections", async () => {
      const narrow = new Lockward(await library.client(server), { waitingConnections: 1 });
      const [held, other] = [await narrow.acquire("all"), await lockward.acquire("another")];
      const waiting = narrow.using("all", () => {});
      await eventually(() => server.waiters("all"));
      const busy = async () => Number(/lock_busy:(\d+)/.exec(`${await server.ask(["INFO", "lock"])}`)?.[1]);
      const before = await busy();
      const second = narrow.using("another", () => {});
      await eventually(async () => (await busy()) > before);
      await other.release();
      await second;
      await held.release();
      await waiting;
    });

    test("the lease is renewed only while the lock is held", async () => {
      const lock = await lockward.acquire("renewed", { lease: 2_000 });
      const before = await server.calls("lock.renew");
      await eventually(async () => (await server.calls("lock.renew")) > before + 3);
      assert(lock.held);
      await lock.release();
      const after = await server.calls("lock.renew");
      await lockward.acquire("renewed", { lease: 400, renewal: false });
      await eventually(async () => !(await server.ask(["EXISTS", "renewed"])));
      assert.equal(await server.calls("lock.renew"), after);
    });

    test("without renewal the lock is lost with its lease", async () => {
      const lock = await lockward.acquire("short", { lease: 50, renewal: false });
      await eventually(() => lock.signal.aborted);
      assert(lock.signal.reason instanceof LockLostError);
      assert(!lock.held);
      await assert.rejects(lock.release(), (error) => error === lock.signal.reason);
      await assert.rejects(lock.renew(), TypeError);
    });

    test("renew sets another lease", async () => {
      const lock = await lockward.acquire("longer", { lease: 1_000 });
      await lock.renew(100_000);
      assert(((await server.info("longer")).holders[0]?.["lease-left"] as number) > 90_000);
      await lock.renew();
      assert(((await server.info("longer")).holders[0]?.["lease-left"] as number) > 90_000);
      await lock.release();
    });

    test("one client renews hundreds of locks", async () => {
      const locks = await Promise.all(
        Array.from({ length: 300 }, (_, at) => lockward.acquire(`of ${at}`, { lease: 3_000 })),
      );
      const before = await server.calls("lock.renew");
      await eventually(async () => (await server.calls("lock.renew")) > before + 299);
      assert(locks.every((lock) => lock.held));
      await Promise.all(locks.map((lock) => lock.release()));
    });

    for (const theft of [
      ["DEL", "stolen"],
      ["SET", "stolen", "else"],
    ]) {
      test(`a lock taken away by ${theft[0]} is lost`, async () => {
        await server.ask(["DEL", "stolen"]);
        const lock = await lockward.acquire("stolen", { lease: 900 });
        await server.ask(theft);
        await eventually(() => lock.signal.aborted);
        assert(lock.signal.reason instanceof LockLostError && !lock.held);
        await assert.rejects(lock.release(), LockLostError);
        const another = await lockward.acquire("taken", { lease: 60_000 });
        await server.ask(["DEL", "taken"]);
        await assert.rejects(another.release(), LockLostError);
        await server.ask(["DEL", "stolen"]);
      });
    }

    test("a wait that is given up leaves the queue at once", async () => {
      const holder = await lockward.acquire("left");
      const leaving = new AbortController();
      const reason = new Error("no more");
      const waiting = assert.rejects(lockward.acquire("left", { signal: leaving.signal }), (error) => error === reason);
      await eventually(() => server.waiters("left"));
      leaving.abort(reason);
      await waiting;
      await eventually(async () => !(await server.waiters("left")));
      await holder.release();
      assert.equal(await server.ask(["EXISTS", "left"]), 0);
    });

    test("no request is sent when the signal has aborted before", async () => {
      const before = await server.calls("lock.acquire");
      await assert.rejects(lockward.acquire("before", { signal: AbortSignal.abort() }), { name: "AbortError" });
      assert.equal(await server.calls("lock.acquire"), before);
    });

    test("a wait that is given up at any moment leaves no lock held", async () => {
      for (let turn = 0; turn < 60; turn += 1) {
        const holder = turn % 2 === 0 ? await lockward.acquire("any") : undefined;
        const leaving = new AbortController();
        const waiting = lockward.acquire("any", { signal: leaving.signal });
        for (let step = 0; step < turn / 4; step += 1) await new Promise((resolve) => setImmediate(resolve));
        const released = holder?.release();
        if (turn % 3 === 0) await Promise.resolve();
        leaving.abort();
        const granted = await waiting.then(
          (lock: Lock) => lock,
          () => undefined,
        );
        await released;
        await granted?.release();
        await eventually(async () => !(await server.ask(["EXISTS", "any"])), 10_000);
      }
    });

    test("using settles like the routine, and always releases", async () => {
      assert.equal(await lockward.using("used", () => 42), 42);
      await assert.rejects(
        lockward.using("used", { lease: 5_000 }, () => Promise.reject(new RangeError("mine"))),
        RangeError,
      );
      assert.equal(await server.ask(["EXISTS", "used"]), 0);
      const lost = lockward.using("used", { lease: 900 }, async (signal, lock) => {
        assert.equal(signal, lock.signal);
        await server.ask(["DEL", "used"]);
        await eventually(() => signal.aborted);
      });
      await assert.rejects(lost, LockLostError);
      const thrown = lockward.using("used", async (signal) => {
        await server.ask(["DEL", "used"]);
        throw new RangeError(`${signal.aborted}`);
      });
      await assert.rejects(thrown, { name: "RangeError", message: "false" });
      await lockward.using("used", (_, lock) => lock.release());
    });

    test("await using releases the lock, and rejects when it was lost", async () => {
      {
        await using lock = await lockward.acquire("block");
        assert(lock.held);
      }
      assert.equal(await server.ask(["EXISTS", "block"]), 0);
      {
        await using lock = await lockward.acquire("block");
        await server.ask(["DEL", "block"]);
        await assert.rejects(lock.release(), LockLostError);
      }
      const losing = async () => {
        await using _ = await lockward.acquire("block");
        await server.ask(["DEL", "block"]);
      };
      await assert.rejects(losing(), LockLostError);
    });

    test("any string or Buffer is a key", async () => {
      for (const key of ["", "*", "grün", Buffer.from([0, 255, 13, 10])]) {
        const lock = await lockward.acquire(key);
        assert.equal(await lockward.tryAcquire(key), null);
        await lock.release();
      }
      const same = await lockward.acquire("same");
      assert.equal(await lockward.tryAcquire(Buffer.from("same")), null);
      await same.release();
      await assert.rejects(lockward.acquire(42 as unknown as string), TypeError);
    });

    test("long and short leases and limits", async () => {
      const YEAR = 365 * 24 * 3_600_000;
      const long = await lockward.acquire("long", { lease: 9 * YEAR });
      assert.equal(await lockward.tryAcquire("long"), null);
      const waiting = lockward.acquire("long", { waitLimit: 100 * YEAR });
      await eventually(() => server.waiters("long"));
      assert(long.held);
      await long.release();
      await (await waiting).release();
      const month = 30 * 24 * 3_600_000;
      const held = await lockward.acquire("month", { lease: 3 * month });
      const patient = lockward.acquire("month", { waitLimit: month });
      await eventually(() => server.waiters("month"));
      await held.release();
      await (await patient).release();
      const tiny = await lockward.acquire("tiny", { lease: 1, renewal: false });
      await eventually(() => tiny.signal.aborted);
      for (const lease of [0, -1, 1.5, Number.NaN]) {
        await assert.rejects(lockward.acquire("none", { lease }), RangeError);
      }
      for (const waitLimit of [-1, Number.NaN, "100" as unknown as number, null as unknown as number]) {
        await assert.rejects(lockward.acquire("none", { waitLimit }), RangeError);
      }
      for (const [count, within] of [[1, 0] as const, [1, Number.NaN] as const, [Number.NaN, 20] as const]) {
        await assert.rejects(lockward.acquire("none", { replicas: { count, within } }), RangeError);
      }
      await (await lockward.acquire("none", { lease: 11 * YEAR })).release(); // it has the largest one
    });

    test("LockRefusedError has the error of the server", async () => {
      await server.ask(["SET", "text", "x"]);
      await assert.rejects(lockward.acquire("text"), (error) => {
        assert(error instanceof LockRefusedError && error.key === "text");
        return error.code === "WRONGTYPE" && error.message.includes("WRONGTYPE ");
      });
      await server.ask(["CONFIG", "SET", "lock.max-waiters", "1"]);
      const holder = await lockward.acquire("full");
      const waiting = lockward.acquire("full");
      await eventually(() => server.waiters("full"));
      await assert.rejects(lockward.acquire("full"), { name: "LockRefusedError", code: "MAXWAITERS" });
      await holder.release();
      await (await waiting).release();
      await server.ask(["CONFIG", "SET", "lock.max-waiters", "10000"]);
    });

    test("a lock without enough replicas is given back", async () => {
      const replicas = { count: 1, within: 20 };
      await assert.rejects(lockward.acquire("replicated", { replicas }), UnreplicatedError);
      await eventually(async () => !(await server.ask(["EXISTS", "replicated"])));
      await (await lockward.acquire("replicated", { replicas: { count: 0, within: 20 } })).release();
    });

    test("many waiters with one signal cause no warning", async () => {
      const warnings: Error[] = [];
      const note = (warning: Error) => warnings.push(warning);
      process.on("warning", note);
      const holder = await lockward.acquire("many");
      const leaving = new AbortController();
      const waiting = Array.from({ length: 40 }, () =>
        assert.rejects(lockward.acquire("many", { signal: leaving.signal }), { name: "AbortError" }),
      );
      await eventually(async () => (await server.waiters("many")) === 40);
      leaving.abort();
      await Promise.all(waiting);
      await eventually(async () => (await server.waiters("many")) === 0);
      await holder.release();
      process.off("warning", note);
      assert.deepEqual(warnings, []);
    });
  });
}

describe("clients", () => {
  let server: Server;
  before(async () => {
    server = await Server.start();
  });

  test("the key prefix of the client applies", async () => {
    const clients = [server.ioredis({ keyPrefix: "app:" }), await server.nodeRedis({ keyPrefix: "app:" })];
    for (const client of clients) {
      await new Lockward(client).using("a", async () => assert.equal((await server.info("app:a")).holders.length, 1));
    }
  });

  test("other options of the client do not affect locks", async () => {
    const settings = { commandTimeout: 1, stringNumbers: true, enableAutoPipelining: true, connectionName: "mine" };
    const lockward = new Lockward(server.ioredis(settings));
    const holder = await lockward.acquire("b");
    const waiting = lockward.acquire("b");
    await eventually(() => server.waiters("b"));
    assert.equal(typeof holder.token, "number");
    await holder.release();
    await (await waiting).release();
    const subscriber = server.ioredis();
    await subscriber.subscribe("news");
    await new Lockward(subscriber).using("b", () => {});
    const node = await server.nodeRedis({ RESP: 3, commandOptions: { timeout: 1 }, pingInterval: 1_000 });
    await new Lockward(node).using("b", () => {});
  });

  test("a client of ioredis that is not connected yet works", async () => {
    const lazy = server.ioredis({ lazyConnect: true });
    await new Lockward(lazy).using("lazy", () => {});
  });

  test("a refused login or command fails at once", async () => {
    await server.ask(["ACL", "SETUSER", "guest", "on", ">secret", "~*", "+ping", "+select"]);
    const guest = { username: "guest", password: "secret" };
    const stranger = { username: "guest", password: "wrong" };
    for (const client of [server.ioredis(guest), await server.nodeRedis(guest)]) {
      await assert.rejects(new Lockward(client).acquire("a"), { name: "LockRefusedError", code: "NOPERM" });
    }
    // A command that is refused after the grant leaves no lock behind.
    await server.ask(["ACL", "SETUSER", "half", "on", ">secret", "~*", "+select", "+lock.acquire", "+lock.release"]);
    const half = new Lockward(server.ioredis({ username: "half", password: "secret" }));
    const replicas = { count: 0, within: 1 };
    await assert.rejects(half.acquire("half", { replicas }), { name: "LockRefusedError", code: "NOPERM" });
    await (await half.acquire("whole")).release();
    await eventually(async () => !(await server.ask(["EXISTS", "half"])));
    const refused = { name: "LockRefusedError", code: "WRONGPASS" };
    await assert.rejects(new Lockward(server.ioredis(stranger)).acquire("a"), refused);
  });

  test("the constructor refuses other clients and options out of range", () => {
    assert.throws(() => new Lockward({} as Redis), TypeError);
    assert.throws(() => new Lockward(server.ioredis(), { patience: 0 }), RangeError);
    assert.throws(() => new Lockward(server.ioredis(), { waitingConnections: 0 }), RangeError);
  });

  test("UnreachableError is thrown after the patience", async () => {
    const nobody = new Redis({ port: 1, lazyConnect: true });
    nobody.on("error", () => {});
    const lockward = new Lockward(nobody, { patience: 200 });
    for (const options of [{}, { waitLimit: 0 }, { waitLimit: 200 }]) {
      await assert.rejects(lockward.acquire("a", options), (error) => {
        assert(error instanceof UnreachableError && error.cause instanceof Error);
        return error.cause.message.includes("ECONNREFUSED");
      });
    }
    nobody.disconnect();
  });

  for (const library of LIBRARIES) {
    test(`${library.name}: closing the client ends waits and renewals`, async () => {
      const client = await library.client(server);
      const lockward = new Lockward(client);
      const lock = await lockward.acquire("closed", { lease: 900 });
      const waiting = assert.rejects(lockward.acquire("closed"), UnreachableError);
      await eventually(() => server.waiters("closed"));
      await (client as Redis).quit();
      await waiting;
      await eventually(async () => !(await server.waiters("closed")));
      await assert.rejects(lockward.acquire("closed"), UnreachableError);
      await eventually(() => lock.signal.aborted);
      await assert.rejects(lock.release(), LockLostError);
      await eventually(async () => !(await server.ask(["EXISTS", "closed"])));
    });
  }
});
