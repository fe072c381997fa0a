import assert from "node:assert/strict";
import { beforeEach, describe, test } from "node:test";
import { type Lock, LockLostError, LockRefusedError, Lockward, UnreachableError } from "../src/index.js";
import { eventually, LIBRARIES, LossyProxy, Server } from "./servers.js";

const LONG = 600_000;

for (const library of LIBRARIES) {
  describe(library.name, () => {
    let server: Server;
    beforeEach(async () => {
      server = await Server.start();
    });

    const acquire = async (port = server.port, options = {}): Promise<Lock> =>
      new Lockward(await library.client(server, port)).acquire("k", { lease: LONG, ...options });

    async function overtake(): Promise<void> {
      await server.ask(["DEL", "k"]);
      await server.ask(["LOCK.ACQUIRE", "k", "another", "PX", LONG]);
    }

    async function checkUnwritten(): Promise<void> {
      assert.equal(await server.ask(["EXISTS", "data"]), 0);
    }

    test("a guarded command runs", async () => {
      const lock = await acquire();
      assert.equal(await lock.guarded("SET", "data", 1), "OK");
      assert.equal(await lock.guarded("INCR", Buffer.from("data")), 2);
      assert.equal(await server.ask(["GET", "data"]), "2");
    });

    test("strings in the reply to a guarded command are text", async () => {
      const lock = await acquire();
      await lock.guarded("RPUSH", "list", "one", "zwei");
      assert.deepEqual(await lock.guarded("LRANGE", "list", 0, -1), ["one", "zwei"]);
    });

    test("a forgotten tenure is restored before a guarded command runs", async () => {
      const empty = await Server.start();
      const lock = await acquire();
      // The connection stays open, so the client notices nothing.
      await server.ask(["REPLICAOF", "127.0.0.1", empty.port]);
      await eventually(async () => (await server.ask(["EXISTS", "k"])) === 0);
      await server.ask(["CONFIG", "SET", "lock.quarantine", LONG]);
      await server.ask(["REPLICAOF", "NO", "ONE"]);
      assert.equal(await lock.guarded("SET", "data", 1), "OK");
      assert.equal(await server.calls("lock.guard"), 2);
    });

    test("guarded checks the token without a command", async () => {
      const lock = await acquire();
      assert.equal(await lock.guarded(), "OK");
      await overtake();
      await assert.rejects(lock.guarded(), LockLostError);
    });

    test("a guarded command of a former holder does not run", async () => {
      const lock = await acquire();
      await overtake();
      const refusal = { name: "LockLostError", message: /NOTHELD the lock is held by another owner/ };
      await assert.rejects(lock.guarded("SET", "data", 1), refusal);
      await checkUnwritten();
    });

    test("a refused guarded command marks the lock as lost", async () => {
      const lock = await acquire();
      await overtake();
      assert(lock.held);
      await assert.rejects(lock.guarded("SET", "data", 1), LockLostError);
      assert(!lock.held && lock.signal.aborted);
      await assert.rejects(lock.guarded("SET", "data", 1), LockLostError);
      assert.equal(await server.calls("lock.guard"), 1, "the second one was sent");
    });

    test("an error of the guarded command keeps the lock", async () => {
      const lock = await acquire();
      await assert.rejects(lock.guarded("LPUSH", "k", "x"), (error) => {
        return error instanceof LockRefusedError && error.code === "WRONGTYPE";
      });
      assert(lock.held);
      await lock.release();
    });

    test("a guarded command is not sent after the lease", async () => {
      const lock = await acquire(server.port, { lease: 50, renewal: false });
      await eventually(() => !lock.held);
      await assert.rejects(lock.guarded("SET", "data", 1), LockLostError);
      assert.equal(await server.calls("lock.guard"), 0);
    });

    test("a guarded command that arrives after the lease does not run", async () => {
      const proxy = await LossyProxy.start(server.port);
      const lock = await acquire(proxy.port, { lease: 500, renewal: false });
      await proxy.tell("plan hold LOCK.GUARD");
      const refused = assert.rejects(lock.guarded("SET", "data", 1), LockLostError);
      await eventually(async () => (await server.ask(["EXISTS", "k"])) === 0);
      await overtake();
      await proxy.tell("plan");
      await refused;
      await checkUnwritten();
      assert.equal(await server.calls("lock.guard"), 1);
    });

    test("a guarded command is not repeated when its reply is lost", async () => {
      const proxy = await LossyProxy.start(server.port);
      const lock = await acquire(proxy.port);
      await proxy.tell("plan reply LOCK.GUARD");
      await assert.rejects(lock.guarded("INCR", "data"), UnreachableError);
      assert.equal(await server.ask(["GET", "data"]), "1");
      assert(lock.held);
    });

    test("a guarded command is sent again when a replica has refused it", async () => {
      const lock = await acquire();
      await server.ask(["REPLICAOF", "127.0.0.1", 1]);
      const written = lock.guarded("SET", "data", 1);
      await eventually(async () => `${await server.ask(["INFO", "errorstats"])}`.includes("errorstat_READONLY"));
      await server.ask(["REPLICAOF", "NO", "ONE"]);
      assert.equal(await written, "OK");
    });

    test("a released lock guards nothing", async () => {
      const lock = await acquire();
      await lock.release();
      await assert.rejects(lock.guarded("SET", "data", 1), TypeError);
      await checkUnwritten();
    });
  });
}
