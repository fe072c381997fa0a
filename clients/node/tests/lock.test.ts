import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import calculateSlot from "cluster-key-slot";
import { Cluster, Redis } from "ioredis";
import { createCluster } from "redis";
import {
  type Lock,
  LockBusyError,
  LockLostError,
  Lockward,
  type RedisClient,
  UnreachableError,
  UnreplicatedError,
} from "../src/index.js";
import { eventually, LIBRARIES, LossyProxy, lengthenTimers, Server, scripted } from "./servers.js";

/** The options of a client of node-redis whose login a scripted server understands. */
const RESP2 = { RESP: 2, disableClientInfo: true };

/** The options of a test that would wait forever if the client had a defect. */
const MAY_HANG = { timeout: 30_000 };

/** Acquires a lock with a lease of this many milliseconds, and waits until the lease has ended and the lock is lost. */
async function waitForLoss(lockward: Lockward, lease: number): Promise<void> {
  const lock = await lockward.acquire("brief", { lease, renewal: false });
  await eventually(() => lock.signal.aborted);
}

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
      await assert.rejects(lockward.acquire("one", { waitLimit: 500 }), LockBusyError);
      assert.equal((await server.info("one")).holders[0]?.owner, lock.owner);
      await lock.release();
      assert(!lock.held && !lock.signal.aborted);
      assert.equal(await server.ask(["EXISTS", "one"]), 0);
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
      await assert.rejects(narrow.acquire("narrow", { waitLimit: 500 }), LockBusyError);
      const leaving = new AbortController();
      const left = assert.rejects(narrow.acquire("narrow", { signal: leaving.signal }), { name: "AbortError" });
      setImmediate(() => leaving.abort());
      await left;
      assert.equal(await server.waiters("narrow"), 2);
      await holder.release();
      await Promise.all([...first, late]);
      assert.deepEqual(served, [0, 1, 2]);
    });

    test("300 callers that acquire one lock repeatedly take turns", async () => {
      const holder = await lockward.acquire("crowd");
      const grants = new Array<number>(300).fill(0);
      const callers = grants.map(async (_, caller) => {
        while (Math.min(...grants) < 3 && Math.max(...grants) <= 5) {
          await lockward.using("crowd", () => {
            grants[caller] = (grants[caller] as number) + 1;
          });
        }
      });
      await eventually(async () => /blocked_clients:256\r/.test(`${await server.ask(["INFO", "clients"])}`));
      await holder.release();
      await Promise.all(callers);
      assert(Math.min(...grants) >= 3 && Math.max(...grants) <= 5, `${grants}`);
    });

    test("renew sets a new lease", async () => {
      const lock = await lockward.acquire("longer", { lease: 10_000 });
      await lock.renew(100_000);
      assert(((await server.info("longer")).holders[0]?.["lease-left"] as number) > 90_000);
      await lock.renew();
      assert(((await server.info("longer")).holders[0]?.["lease-left"] as number) > 90_000);
      await lock.release();
    });

    test("a cancelled wait leaves the queue at once", async () => {
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

    test("no request is sent if the signal has already aborted", async () => {
      const before = await server.calls("lock.acquire");
      await assert.rejects(lockward.acquire("before", { signal: AbortSignal.abort() }), { name: "AbortError" });
      assert.equal(await server.calls("lock.acquire"), before);
    });

    test("a wait that is cancelled at any moment leaves no lock held", async () => {
      for (let turn = 0; turn < 60; turn += 1) {
        const holder = turn % 2 === 0 ? await lockward.acquire("any") : undefined;
        const leaving = new AbortController();
        const owner = turn % 4 < 2 ? {} : { owner: "named" };
        const waiting = lockward.acquire("any", { signal: leaving.signal, ...owner });
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
        await (await lockward.resume(lock.handle())).release();
        const next = await lockward.tryAcquire(key);
        assert(next !== null);
        await next.release();
      }
      const same = await lockward.acquire("same");
      assert.equal(await lockward.tryAcquire(Buffer.from("same")), null);
      await same.release();
      await assert.rejects(lockward.acquire(42 as unknown as string), TypeError);
    });

    test("long and short leases and limits are accepted, and others are refused", async () => {
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
      const tiny = await lockward.acquire("tiny", { lease: 50, renewal: false });
      await eventually(() => tiny.signal.aborted);
      for (const lease of [0, -1, 1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
        await assert.rejects(lockward.acquire("none", { lease }), RangeError);
        await assert.rejects(tiny.renew(lease), RangeError);
      }
      await assert.rejects(lockward.acquire("none", { owner: "*" }), RangeError); // the server would make up an owner
      for (const waitLimit of [-1, Number.NaN, "100" as unknown as number, null as unknown as number]) {
        await assert.rejects(lockward.acquire("none", { waitLimit }), RangeError);
      }
      for (const [count, within] of [[1, 0] as const, [1, Number.NaN] as const, [Number.NaN, 20] as const]) {
        await assert.rejects(lockward.acquire("none", { replicas: { count, within } }), RangeError);
      }
      await (await lockward.acquire("none", { lease: 11 * YEAR })).release(); // the client takes the longest lease that the server accepts
    });

    test("a reply that arrives after the end of the lease does not revive the lock", async () => {
      const proxy = await LossyProxy.start(server.port);
      const lock = await new Lockward(await library.client(server, proxy.port)).acquire("blocked", { lease: 900 });
      await proxy.tell("delay 700");
      const before = await server.calls("lock.renew");
      const renewing = assert.rejects(lock.renew(60_000), LockLostError);
      await eventually(async () => (await server.calls("lock.renew")) > before);
      // Block the event loop. Meanwhile the reply arrives, and then the lease ends.
      while (lock.held) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
      await renewing;
      assert(lock.signal.reason instanceof LockLostError);
      await server.ask(["DEL", "blocked"]);
    });

    test("several keys are one lock", async () => {
      const other = await lockward.acquire("several 2");
      assert.equal(await lockward.tryAcquire(["several 1", "several 2"]), null);
      const waiting = lockward.acquire(["several 2", Buffer.from("several 1"), "several 2"]);
      await eventually(() => server.waiters("several 2"));
      await other.release();
      const lock = await waiting;
      assert.equal(lock.tokens.length, 2);
      assert.equal(lock.token, (await server.info("several 1")).holders[0]?.token);
      await assert.rejects(lock.guarded("SET", "data", 1), TypeError);
      await server.ask(["DEL", "several 2"]);
      await assert.rejects(lock.renew(), LockLostError);
      assert(lock.signal.aborted && !lock.held);
      await assert.rejects(lock.release(), LockLostError);
      assert.equal(await server.ask(["EXISTS", "several 1"]), 0);
    });

    test("after a loss the leader's signal aborts, and its routine runs again", async () => {
      const terms: number[] = [];
      const leaving = new AbortController();
      const led = lockward.lead("led", { lease: 900, signal: leaving.signal }, async (term, signal) => {
        terms.push(term);
        if (terms.length === 1) await server.ask(["DEL", "led"]);
        else setImmediate(() => leaving.abort(new RangeError("enough")));
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        signal.throwIfAborted();
      });
      await assert.rejects(led, RangeError);
      const [first = 0, second = 0] = terms;
      assert(second > first);
      assert.equal(await lockward.lead("led", (term) => term > second), true);
      assert.equal(await server.ask(["EXISTS", "led"]), 0);
    });

    test("leadership of several keys is refused", async () => {
      await assert.rejects(
        lockward.lead(["one", "two"] as never, () => {}),
        TypeError,
      );
    });

    test("another client resumes a lock", async () => {
      const lock = await lockward.acquire("handed", { slots: 4, weight: 2, lease: 60_000 });
      const handle = lock.handle();
      assert(!lock.held);
      await lock.release();
      await assert.rejects(lock.renew(), TypeError);
      const resumed = await new Lockward(await library.client(server)).resume(handle);
      assert.deepEqual([resumed.token, resumed.owner, resumed.held], [lock.token, lock.owner, true]);
      await resumed.downgrade({ slots: 5, weight: 2 });
      await resumed.release();
      await assert.rejects(lockward.resume(handle), LockLostError);
      await assert.rejects(lockward.resume("no handle"), SyntaxError);
    });

    test("strings in the reply to a guarded command are text", async () => {
      const lock = await lockward.acquire("{g}lock");
      await lock.guarded("RPUSH", "{g}list", "one", Buffer.from("zwei"), 3);
      await assert.rejects(lock.guarded("SET", "{g}data", undefined as unknown as string), TypeError);
      assert.deepEqual(await lock.guarded("LRANGE", "{g}list", 0, -1), ["one", "zwei", "3"]);
      assert.equal(await lock.guarded(), "OK");
      await lock.release();
      await assert.rejects(lock.guarded("SET", "{g}data", 1), TypeError);
    });

    test("many waiters with one signal, and many keys of one lock, cause no warning", async () => {
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
      const keys = Array.from({ length: 40 }, (_, at) => `many ${at}`);
      await lockward.using(keys, { signal: leaving.signal }, () => {}).catch(() => {});
      await lockward.using(keys, { signal: new AbortController().signal }, () => {});
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
    const options = { RESP: 3, commandOptions: { timeout: 1 }, pingInterval: 1_000, commandsQueueMaxLength: 5 };
    await new Lockward(await server.nodeRedis(options)).using("b", async (_, lock) => {
      await Promise.all(Array.from({ length: 20 }, () => lock.guarded()));
    });
  });

  test("a client of ioredis that is not connected yet works", async () => {
    const lazy = server.ioredis({ lazyConnect: true });
    await new Lockward(lazy).using("lazy", () => {});
  });

  test("a client of ioredis that was closed while it reconnected works when it is connected again", async () => {
    const client = server.ioredis({ retryStrategy: () => 3_000_000 });
    const id = await client.client("ID");
    await server.ask(["CLIENT", "KILL", "ID", id]);
    await eventually(() => client.status === "reconnecting");
    const lockward = new Lockward(client);
    client.disconnect();
    await assert.rejects(lockward.acquire("reopened"), UnreachableError);
    await client.connect();
    await lockward.using("reopened", () => {});
  });

  test("a refused login or command fails at once", async () => {
    await server.ask(["ACL", "SETUSER", "guest", "on", ">secret", "~*", "+ping", "+select"]);
    const guest = { username: "guest", password: "secret" };
    const stranger = { username: "guest", password: "wrong" };
    for (const client of [server.ioredis(guest), await server.nodeRedis(guest)]) {
      await assert.rejects(new Lockward(client).acquire("a"), { name: "LockRefusedError", code: "NOPERM" });
    }
    // If the server refuses a command after the grant, the client releases the lock.
    await server.ask(["ACL", "SETUSER", "half", "on", ">secret", "~*", "+select", "+lock.acquire", "+lock.release"]);
    const half = new Lockward(server.ioredis({ username: "half", password: "secret" }));
    const replicas = { count: 0, within: 1 };
    await assert.rejects(half.acquire("half", { replicas }), { name: "LockRefusedError", code: "NOPERM" });
    await (await half.acquire("whole")).release();
    await eventually(async () => !(await server.ask(["EXISTS", "half"])));
    const refused = { name: "LockRefusedError", code: "WRONGPASS" };
    await assert.rejects(new Lockward(server.ioredis(stranger)).acquire("a"), refused);
  });

  test("a connection that the server closes gives up its credentials", async () => {
    const subscriptions = new Set<unknown>();
    const credentialsProvider = {
      type: "streaming-credentials-provider",
      subscribe: async (listener: unknown) => {
        subscriptions.add(listener);
        return [{}, { dispose: () => subscriptions.delete(listener) }];
      },
      onReAuthenticationError: () => {},
    };
    const lock = await new Lockward(await server.nodeRedis({ credentialsProvider })).acquire("credentials");
    const clients = `${await server.ask(["CLIENT", "LIST"])}`;
    for (const [, id = ""] of clients.matchAll(/id=(\d+) .* cmd=lock/g)) await server.ask(["CLIENT", "KILL", "ID", id]);
    await lock.renew();
    await eventually(() => subscriptions.size === 2); // one for the program's client, and one for the new connection
    await lock.release();
  });

  test("locks go to the primary although the client of ioredis reads from replicas", async () => {
    const replica = await Server.start(`replicaof 127.0.0.1 ${server.port}`);
    await eventually(async () => /master_link_status:up/.test(`${await replica.ask(["INFO", "replication"])}`));
    const sentinel = await Server.startSentinel(`sentinel monitor main 127.0.0.1 ${server.port} 1`);
    await eventually(async () => ((await sentinel.ask(["SENTINEL", "REPLICAS", "main"])) as unknown[]).length === 1);
    const sentinels = [{ host: "127.0.0.1", port: sentinel.port }];
    await new Lockward(server.ioredis({ sentinels, name: "main", role: "slave" })).using("primary", () => {});
  });

  for (const library of ["ioredis", "node-redis"]) {
    test(`${library}: each address of a cluster node is mapped once`, async (t) => {
      const nodes = await Server.startCluster();
      const proxies = await Promise.all(nodes.map((node) => LossyProxy.start(node.port)));
      const port = (announced: string) =>
        proxies[nodes.findIndex((node) => announced.endsWith(`:${node.port}`))]?.port ?? 1;
      const map = (announced: string) => ({ host: "127.0.0.1", port: port(announced) });
      const socket = { host: "127.0.0.1", port: nodes[0].port };
      const cluster =
        library === "ioredis"
          ? new Cluster([socket], { natMap: map })
          : await createCluster({ rootNodes: [{ socket }], nodeAddressMap: map }).connect();
      t.after(() => (cluster instanceof Cluster ? cluster.disconnect() : cluster.destroy()));
      const lockward = new Lockward(cluster as RedisClient);
      for (const key of ["a", "b", "c"]) await (await lockward.acquire(key, { waitLimit: 0 })).release();
      await Promise.all(proxies.map((proxy) => proxy.tell("cut")));
      for (const key of ["a", "b", "c"]) await (await lockward.acquire(key, { waitLimit: 0 })).release();
    });
  }

  test("node-redis: a silent cluster node does not stop locks on the others before a connection is open", async (t) => {
    const nodes = await Server.startCluster();
    const rootNodes = [{ socket: { host: "127.0.0.1", port: nodes[1].port } }];
    const cluster = await createCluster({ rootNodes, minimizeConnections: true }).connect();
    t.after(() => cluster.destroy());
    const silent = nodes.find(({ port }) => port === cluster.masters[0]?.port);
    const portOf = (key: string) => cluster.slots[calculateSlot(key)]?.master.port;
    const key = ["a", "b", "c"].find((each) => portOf(each) !== silent?.port) as string;
    await silent?.tell("pause");
    await new Lockward(cluster as RedisClient).using(key, { waitLimit: 0 }, () => {});
    await silent?.tell("resume");
  });

  for (const library of LIBRARIES) {
    test(`${library.name}: a cluster node refuses a client that is not for clusters`, async () => {
      const nodes = await Server.startCluster();
      const lockwards = await Promise.all(nodes.map(async (node) => new Lockward(await library.client(node))));
      const calls = await Promise.allSettled(lockwards.map((each) => each.acquire("a", { waitLimit: 1_000 })));
      const [first, second] = calls.flatMap((each) => (each.status === "rejected" ? [each.reason] : []));
      for (const { name, code, reply, message } of [first, second]) {
        assert.deepEqual([name, code], ["LockRefusedError", "MOVED"]);
        assert.match(reply, /^MOVED \d+ [\d.:]+$/);
        assert.match(message, /use a cluster client/);
      }
    });
  }

  test("ioredis: calls and renewals do not wait for clusterRetryStrategy", async (t) => {
    const nodes = await Server.startCluster();
    const startup = nodes.map(({ port }) => ({ host: "127.0.0.1", port }));
    const cluster = new Cluster(startup, { clusterRetryStrategy: () => 3_000_000 });
    cluster.on("error", () => {});
    t.after(() => cluster.disconnect());
    const lockward = new Lockward(cluster);
    await Promise.all(["1", "2", "3", "4", "5"].map((key) => cluster.get(key)));
    await Promise.all(nodes.map((node) => node.ask(["CLIENT", "KILL", "TYPE", "normal"])));
    await eventually(() => cluster.status === "reconnecting");
    for (const key of ["a", "b", "c"]) await (await lockward.acquire(key, { waitLimit: 0 })).release();
    await nodes[1].tell("kill");
    const lock = await lockward.acquire("a", { waitLimit: 0 });
    await lock.renew();
    await lock.release();
  });

  test("the client follows ASK at once, because the cluster may move the slot again", MAY_HANG, async (t) => {
    const GRANT = "*3\r\n:7\r\n:1\r\n:60000";
    const to = await scripted(([name]) => (name === "LOCK.ACQUIRE" ? GRANT : "+OK"));
    let requests = 0;
    const port: number = await scripted(([name, word]) => {
      if (word === "SLOTS") return `*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:${port}`;
      if (name !== "LOCK.ACQUIRE") return "+OK";
      requests += 1;
      if (requests === 5) lengthenTimers(t); // so a pause after this reply would not end
      return requests > 4 ? `-ASK 1 127.0.0.1:${to}` : "-TRYAGAIN"; // after each TRYAGAIN the next pause is longer
    });
    const redisOptions = { protocol: 2, disableClientInfo: true } as const;
    const cluster = new Cluster([{ host: "127.0.0.1", port }], { redisOptions });
    t.after(() => cluster.disconnect());
    const lockward = new Lockward(cluster, { patience: 60_000 });
    await eventually(() => cluster.status === "ready");
    assert.equal((await lockward.acquire("asked")).token, 7);
  });

  test("a redirection to a node that cannot be reached does not count as an answer", MAY_HANG, async (t) => {
    const port: number = await scripted(([name, word]) => {
      if (word === "SLOTS") return `*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:${port}`;
      return name === "LOCK.ACQUIRE" ? "-MOVED 1 127.0.0.1:1" : "+OK";
    });
    const redisOptions = { protocol: 2, disableClientInfo: true } as const;
    const cluster = new Cluster([{ host: "127.0.0.1", port }], { redisOptions });
    t.after(() => cluster.disconnect());
    const lockward = new Lockward(cluster, { patience: 500 });
    await eventually(() => cluster.status === "ready");
    for (const options of [{}, { waitLimit: 300 }])
      await assert.rejects(lockward.acquire("k", options), UnreachableError);
  });

  test("the constructor refuses other clients and options out of range", () => {
    const other = {} as Redis;
    for (let turn = 0; turn < 2; turn += 1) assert.throws(() => new Lockward(other), TypeError);
    assert.throws(() => new Lockward("redis://localhost" as unknown as Redis), /one of ioredis or node-redis/);
    assert.throws(() => new Lockward(server.ioredis(), { patience: 0 }), RangeError);
    assert.throws(() => new Lockward(server.ioredis(), { waitingConnections: 0 }), RangeError);
  });

  test("a routine that is not the last argument is refused before the lock is acquired", async () => {
    const lockward = new Lockward(server.ioredis()) as unknown as Record<
      "using" | "lead",
      (...rest: unknown[]) => Promise<unknown>
    >;
    const before = await server.calls("lock.acquire");
    for (const rest of [[], [{}], [() => {}, {}]]) {
      await assert.rejects(lockward.using("confused", ...rest), /the last argument must be a function/);
      await assert.rejects(lockward.lead("confused", ...rest), /the last argument must be a function/);
    }
    assert.equal(await server.calls("lock.acquire"), before);
  });

  test("unknown options are refused", async () => {
    const lockward = new Lockward(server.ioredis());
    const named = (name: string) => ({ name: "TypeError", message: new RegExp(`\\b${name}\\b`) });
    assert.throws(() => new Lockward(server.ioredis(), { patince: 1 } as object), named("patince"));
    const options: object = { leese: 5_000 };
    await assert.rejects(lockward.acquire("unknown", options), named("leese"));
    await assert.rejects(lockward.tryAcquire("unknown", options), named("leese"));
    await assert.rejects(
      lockward.using("unknown", options, () => {}),
      named("leese"),
    );
    await assert.rejects(
      lockward.lead("unknown", { waitLimit: 1 } as object, () => {}),
      named("waitLimit"),
    );
    const lock = await lockward.acquire("unknown", { slots: 4, weight: 2 });
    for (const shared of [true, false]) {
      await assert.rejects(lock.downgrade({ shared, slot: 8 } as object), named("slot"));
    }
    await lock.release();
  });

  test("a downgrade names a kind", async () => {
    const lock = await new Lockward(server.ioredis()).acquire("kind", { shared: true });
    await assert.rejects(lock.downgrade({}), TypeError);
    await lock.release();
  });

  test("UnreachableError is thrown after the patience", async () => {
    const nobody = new Redis({ port: 1, lazyConnect: true });
    nobody.on("error", () => {});
    const lockward = new Lockward(nobody, { patience: 1_000 });
    for (const options of [{}, { waitLimit: 0 }, { waitLimit: 1_000 }]) {
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
      const lock = await lockward.acquire("closed", { lease: 2_000 });
      const waiting = assert.rejects(lockward.acquire("closed"), UnreachableError);
      await eventually(() => server.waiters("closed"));
      if (client instanceof Redis) client.disconnect();
      else await (client as Redis).quit();
      await assert.rejects(lockward.acquire("closed 2"), UnreachableError);
      await waiting;
      await eventually(async () => !(await server.waiters("closed")));
      await assert.rejects(lockward.acquire("closed"), UnreachableError);
      await eventually(() => lock.signal.aborted);
      await assert.rejects(lock.release(), LockLostError);
      await eventually(async () => !(await server.ask(["EXISTS", "closed"])));
    });
  }
});

describe("a closed client ends its calls", () => {
  function close(client: RedisClient): void {
    if (client instanceof Redis) client.disconnect();
    else (client as unknown as { destroy(): void }).destroy();
  }

  for (const library of LIBRARIES) {
    test(`${library.name}: a call that pauses`, MAY_HANG, async (t) => {
      const server = await Server.start();
      const client = await library.client(server);
      // If ioredis is closed during this pause, it emits no event.
      if (client instanceof Redis) client.options.retryStrategy = () => 3_000;
      const pauses = lengthenTimers(t);
      await server.tell("kill");
      const call = new Lockward(client, { patience: 60_000 }).acquire("a");
      await eventually(() => pauses() === 1);
      close(client);
      await assert.rejects(call, UnreachableError);
    });
  }

  for (const library of ["ioredis", "node-redis"]) {
    test(`${library}: a call that connects`, MAY_HANG, async (t) => {
      const server = await Server.start();
      let isConnecting = false;
      const port = await scripted((_, isFirst) => {
        isConnecting ||= !isFirst;
        return isFirst && library === "node-redis" ? "+OK" : undefined;
      });
      const client =
        library === "ioredis"
          ? server.ioredis({ password: "secret" }, port)
          : ((await server.nodeRedis({ RESP: 2, password: "secret" }, port)) as RedisClient);
      lengthenTimers(t);
      const call = new Lockward(client).acquire("a");
      await eventually(() => isConnecting);
      close(client);
      await assert.rejects(call, UnreachableError);
    });
  }
});

describe("faults", () => {
  let server: Server;
  let lockward: Lockward;
  before(async () => {
    server = await Server.start();
    lockward = new Lockward(server.ioredis());
  });

  test("a late release does not end a later grant of several keys", async () => {
    const proxy = await LossyProxy.start(server.port);
    const slow = new Lockward(server.ioredis({}, proxy.port));
    const other = await lockward.acquire("late 2");
    await proxy.tell("plan hold LOCK.RELEASE 1");
    const waiting = slow.acquire(["late 1", "late 2"], { lease: 60_000 });
    await eventually(async () => (await proxy.held()) === 1);
    const [first] = (await server.info("late 1")).holders;
    await eventually(() => server.waiters("late 2"));
    const before = await server.calls("lock.release");
    await proxy.tell("plan");
    await eventually(async () => (await server.calls("lock.release")) > before);
    const [second] = (await server.info("late 1")).holders;
    assert(first && second && first.owner !== second.owner);
    await other.release();
    await (await waiting).release();
  });

  test("the loss of one key ends the wait for the next one, and all keys are acquired again", async () => {
    const other = await lockward.acquire("next 2", { lease: 60_000 });
    const waiting = lockward.acquire(["next 1", "next 2"], { lease: 3_000 });
    await eventually(() => server.waiters("next 2"));
    await server.ask(["DEL", "next 1"]);
    const [stranger] = (await server.ask(["LOCK.ACQUIRE", "next 1", "stranger", "PX", 60_000])) as [number];
    await eventually(() => server.waiters("next 1"));
    assert.equal(await server.waiters("next 2"), 0);
    await server.ask(["LOCK.RELEASE", "next 1", "stranger"]);
    await other.release();
    const lock = await waiting;
    assert(lock.held && lock.token > stranger);
    await lock.release();
  });

  test("keys are renewed during the wait for the next key, even without renewal", async () => {
    const other = await lockward.acquire("renewed 2", { lease: 60_000 });
    const waiting = lockward.acquire(["renewed 1", "renewed 2"], { lease: 2_000, renewal: false });
    await eventually(() => server.waiters("renewed 2"));
    const [first] = (await server.info("renewed 1")).holders;
    await eventually(async () => (await server.heldFor("renewed 1")) > 2_500);
    await other.release();
    const lock = await waiting;
    assert.equal(lock.token, first?.token);
    await eventually(() => lock.signal.aborted);
  });

  test("the hold limit of several keys counts from the last grant", async () => {
    const other = await lockward.acquire("limited 2", { lease: 60_000 });
    const waiting = lockward.acquire(["limited 1", "limited 2"], { holdLimit: 3_000 });
    await eventually(() => server.waiters("limited 2"));
    await eventually(async () => (await server.heldFor("limited 1")) > 1_000);
    const [{ owner } = {}] = (await server.info("limited 1")).holders;
    const released = performance.now();
    await other.release();
    const lock = await waiting;
    assert.equal(lock.owner, owner);
    await eventually(() => lock.signal.aborted);
    assert(performance.now() > released + 2_990); // the client subtracts a thousandth and a millisecond from a lease
  });

  test("replicas may take longer than the patience", async () => {
    const hasty = new Lockward(server.ioredis(), { patience: 1_500 });
    const replicas = { count: 1, within: 2_000 };
    const trying = assert.rejects(hasty.acquire("tried", { replicas, waitLimit: 0 }), UnreplicatedError);
    await assert.rejects(hasty.acquire("replicas", { replicas, waitLimit: 20_000 }), UnreplicatedError);
    await trying;
  });

  test("a lease shorter than a round trip is not requested in a busy loop", async () => {
    const proxy = await LossyProxy.start(server.port);
    await proxy.tell("delay 20");
    const slow = new Lockward(server.ioredis({}, proxy.port));
    const before = (await server.calls("lock.acquire")) + (await server.calls("lock.renew"));
    await assert.rejects(slow.acquire("tiny", { lease: 2, waitLimit: 400 }), LockBusyError);
    assert((await server.calls("lock.acquire")) + (await server.calls("lock.renew")) < before + 25);
  });

  test("a leader that has returned does not lead again, even if its release finds a loss", async () => {
    let terms = 0;
    const led = lockward.lead("done", async () => {
      terms += 1;
      await server.ask(["DEL", "done"]);
    });
    await assert.rejects(led, LockLostError);
    assert.equal(terms, 1);
  });

  test("the release after a cancelled acquire is repeated in the background", async () => {
    const proxy = await LossyProxy.start(server.port);
    const lossy = new Lockward(server.ioredis({}, proxy.port), { patience: 60_000 });
    await proxy.tell("plan hold LOCK.*");
    const leaving = new AbortController();
    const left = assert.rejects(lossy.acquire("given up", { lease: 60_000, signal: leaving.signal }), {
      name: "AbortError",
    });
    await eventually(async () => (await proxy.held()) === 1);
    leaving.abort();
    await left;
    // Seven attempts take longer than a cancelled call waits. So the client must repeat the release in the background.
    await proxy.tell("plan request LOCK.RELEASE 6, reply LOCK.RELEASE 1");
    assert(await server.ask(["LOCK.ACQUIRE", "given up", "other", "PX", 60_000, "BLOCK", 20_000]));
  });

  for (const keys of ["owned", ["owned", "owned too"]]) {
    for (const ending of ["unreachable", "left"]) {
      test(`a named owner keeps what it acquires after a failed call: ${keys}, ${ending}`, MAY_HANG, async () => {
        const proxy = await LossyProxy.start(server.port);
        const lossy = new Lockward(server.ioredis({}, proxy.port), { patience: 60_000 });
        const leaving = new AbortController();
        const waitLimit = ending === "left" ? Number.POSITIVE_INFINITY : 300;
        const options = { owner: "named", lease: 60_000, signal: leaving.signal, waitLimit };
        await proxy.tell("plan reply LOCK.ACQUIRE until LOCK.RELEASE, request LOCK.RELEASE");
        const failing = assert.rejects(lossy.acquire(keys, options));
        if (ending === "left") {
          await eventually(() => server.ask(["EXISTS", "owned"]));
          leaving.abort();
        }
        await failing; // this call fails before the patience is over
        const early = await proxy.losses();
        await proxy.tell("plan request LOCK.RELEASE");
        const lock = await lossy.acquire(keys, { owner: "named", lease: 60_000 });
        await waitForLoss(lockward, 300);
        const losses = await proxy.losses();
        assert(losses <= early + [keys].flat().length); // for each key one release may have been under way
        await waitForLoss(lockward, 1_500); // this time is longer than each pause between two attempts
        assert.equal(await proxy.losses(), losses);
        await proxy.tell("plan");
        await lock.release();
      });
    }
  }

  test("a call with a named owner ends in time even if its release gets no reply", MAY_HANG, async () => {
    const own = await Server.start();
    const client = new Lockward(own.ioredis(), { patience: 3_600_000 });
    const other = await client.acquire("in time", { lease: 3_600_000 });
    const waiting = assert.rejects(client.acquire("in time", { owner: "named", waitLimit: 3_000 }), LockBusyError);
    await eventually(() => own.waiters("in time"));
    await own.tell("pause");
    await waiting; // this call fails before the patience is over
    await own.tell("resume");
    await other.release();
  });

  test("a call for several keys fails as busy if a server has answered before it stops", async () => {
    const own = await Server.start();
    const client = new Lockward(own.ioredis());
    const other = await new Lockward(own.ioredis()).acquire("answered 2", { lease: 60_000 });
    const waiting = assert.rejects(client.acquire(["answered 1", "answered 2"], { waitLimit: 3_000 }), LockBusyError);
    await eventually(() => own.waiters("answered 2"));
    await own.tell("pause");
    await waiting;
    await own.tell("resume");
    await other.release();
  });

  test("the release of a lost lock of several keys goes on only until the program gets its result", async () => {
    const releases: string[] = [];
    const port = await scripted(([name, key = ""]) => {
      if (name === "LOCK.ACQUIRE") return "*3\r\n:7\r\n:1\r\n:60000";
      if (name !== "LOCK.RELEASE") return "+OK";
      releases.push(key);
      return key === "lost" ? "-NOTHELD the lock is free" : undefined;
    });
    const client = new Lockward(server.ioredis({}, port), { responseLimit: 100, patience: 2_000 });
    const lock = await client.acquire(["lost", "other"], { owner: "named", lease: 60_000 });
    await assert.rejects(lock.release(), LockLostError);
    const before = releases.length;
    assert(before > 3);
    await waitForLoss(client, 1_500); // this time is longer than each pause between two attempts
    assert.equal(releases.length, before);
  });

  test("a late grant to a named owner is not given back after the call has ended", async (t) => {
    let [isWaiting, releases, lead] = [false, 0, 0];
    let grant = () => {};
    const port = await scripted(([name, ...command]) => {
      if (name === "LOCK.RELEASE") releases += 1;
      if (name === "LOCK.RELEASE") return ":0";
      if (name !== "LOCK.ACQUIRE") return "+OK";
      if (!command.includes("BLOCK")) return "$-1";
      isWaiting = true;
      return new Promise((resolve) => {
        grant = () => resolve("*3\r\n:7\r\n:1\r\n:3000");
      });
    });
    const now = performance.now.bind(performance);
    t.mock.method(performance, "now", () => now() + lead);
    lengthenTimers(t); // so no time limit of the client ends
    const client = new Lockward(server.ioredis({}, port));
    const leaving = new AbortController();
    const [begun, waitLimit] = [now(), 60_000];
    const call = client.acquire("late", { owner: "named", waitLimit, signal: leaving.signal });
    const left = assert.rejects(call, { name: "AbortError" });
    await eventually(() => isWaiting);
    lead = begun + waitLimit + 100 - now(); // only 75 ms are left for the release
    leaving.abort();
    await left;
    grant();
    for (let turn = 0; turn < 3; turn += 1) assert.equal(await client.tryAcquire("late"), null);
    assert(releases <= 1, `${releases} releases`);
  });

  test("two downgrades at once that the server refuses do not change the lock", async () => {
    const lock = await lockward.acquire("refused", { slots: 4, lease: 3_000 });
    const both = [lock.downgrade({ slots: 2 }), lock.downgrade({ slots: 2 })];
    for (const each of await Promise.allSettled(both)) assert.equal(each.status, "rejected");
    await lock.renew();
    await lock.release();
  });

  test("renewals that overlap keep the lock", async () => {
    const replies: (() => void)[] = [];
    const port = await scripted(([name]) => {
      if (name === "LOCK.ACQUIRE") return "*3\r\n:7\r\n:1\r\n:3000";
      if (name !== "LOCK.RENEW") return ":0";
      if (replies.length === 3) replies.shift()?.(); // the reply comes after three later renewals
      return new Promise((resolve) => {
        replies.push(() => resolve(":7"));
      });
    });
    const lock = await new Lockward(server.ioredis({}, port)).acquire("overlap", { lease: 3_000 });
    const renewing = setInterval(() => lock.renew().catch(() => {}), 20);
    await waitForLoss(lockward, 3_500);
    clearInterval(renewing);
    assert(lock.held);
    await lock.release();
  });

  test("the hold limit ends a lease of the server, even without renewal", async () => {
    const lock = await lockward.acquire("hold limit", { holdLimit: 1_000, renewal: false });
    await eventually(() => lock.signal.aborted);
    await eventually(async () => !(await server.ask(["EXISTS", "hold limit"])), 15_000); // the server's default lease is 30 s
  });

  test("a resumed lock has the rest of its hold limit", async () => {
    const lock = await lockward.acquire("limited handle", { holdLimit: 3_000, lease: 60_000 });
    await sleep(1_000);
    const [resumed, begun] = [await lockward.resume(lock.handle()), performance.now()];
    await eventually(() => resumed.signal.aborted);
    assert(performance.now() - begun < 2_200);
    assert.equal(await server.ask(["EXISTS", "limited handle"]), 0);
  });

  test("a lock without renewal is resumed without renewal", async () => {
    const lock = await lockward.acquire("resumed once", { renewal: false, lease: 1_500 });
    const resumed = await lockward.resume(lock.handle());
    await eventually(() => resumed.signal.aborted);
  });

  test("a handle names the kind that each key has after a refused downgrade", async () => {
    const port = await scripted(async ([name, key, ...command]) => {
      if (name === "LOCK.ACQUIRE") return "*3\r\n:7\r\n:1\r\n:60000";
      if (name !== "LOCK.RENEW") return ":0";
      if (key === "slow") await sleep(100);
      return command.includes("SHARED") ? "-LIMIT the owner has SLOTS 1" : ":7";
    });
    const client = new Lockward(server.ioredis({}, port));
    const lock = await client.acquire(["quick", "slow"]);
    await assert.rejects(lock.downgrade({ shared: true }), { code: "LIMIT" });
    await (await client.resume(lock.handle())).release();
  });

  test("a server that does not block gets few requests", async () => {
    let waits = 0;
    const port = await scripted(([name, ...command]) => {
      if (name === "LOCK.ACQUIRE" && command.includes("BLOCK")) waits += 1;
      return name === "LOCK.ACQUIRE" ? "$-1" : ":0";
    });
    const leaving = new AbortController();
    const call = new Lockward(server.ioredis({}, port)).acquire("unblocked", { signal: leaving.signal });
    await eventually(() => waits > 2);
    await sleep(1_000);
    assert(waits < 10, `${waits} requests`);
    leaving.abort();
    await assert.rejects(call, { name: "AbortError" });
  });

  test("a call does not use options that the program changes during the call", async () => {
    const waits: string[][] = [];
    const port = await scripted(([name, ...command]) => {
      if (name === "WAIT") waits.push(command);
      if (name === "WAIT") return ":2";
      return name === "LOCK.ACQUIRE" ? "$-1" : ":0";
    });
    const keys = ["changed"];
    const options = { waitLimit: 300, replicas: { count: 2, within: 100 } };
    const call = new Lockward(server.ioredis({}, port)).acquire(keys, options);
    keys.push("other");
    Object.assign(options, { waitLimit: 7 });
    Object.assign(options.replicas, { count: 9, within: 900 });
    await assert.rejects(call, /300 ms is over \(lock "changed"\)/);
    assert.deepEqual(waits, [["2", "100"]]);
  });

  test("a late grant to a cancelled request for replicas is given back", async () => {
    let [releases, isAsked] = [0, false];
    let grant = () => {};
    const port = await scripted(([name]) => {
      if (name === "LOCK.RELEASE") releases += 1;
      if (name === "WAIT") return undefined;
      if (name !== "LOCK.ACQUIRE") return ":0";
      isAsked = true;
      return new Promise((resolve) => {
        grant = () => resolve("*3\r\n:7\r\n:1\r\n:60000\r\n:1"); // with the reply to WAIT
      });
    });
    const leaving = new AbortController();
    const options = { replicas: { count: 1, within: 100 }, signal: leaving.signal };
    const call = new Lockward(server.ioredis({}, port)).acquire("overtaken", options);
    await eventually(() => isAsked);
    leaving.abort();
    await assert.rejects(call, { name: "AbortError" });
    await eventually(() => releases === 1);
    await sleep(500);
    grant();
    await eventually(() => releases === 2);
  });

  test("no key of a lost lock is renewed", async () => {
    const lock = await lockward.acquire(["unrenewed 1", "unrenewed 2"], { lease: 60_000 });
    await server.ask(["DEL", "unrenewed 1"]);
    await assert.rejects(lock.renew(), LockLostError);
    const before = await eventually(() => server.calls("lock.renew"));
    await assert.rejects(lock.renew(), LockLostError);
    await server.ask(["PING"]);
    assert.equal(await server.calls("lock.renew"), before);
    await assert.rejects(lock.release(), LockLostError);
    assert.equal(await server.ask(["EXISTS", "unrenewed 2"]), 0);
  });

  test("if a handle turns out lost, its other keys are released", async () => {
    const keys = ["resumed 1", "resumed 2", "resumed 3"];
    for (const lost of keys) {
      const handle = (await lockward.acquire(keys, { lease: 60_000 })).handle();
      await server.ask(["DEL", lost]);
      await assert.rejects(lockward.resume(handle), LockLostError);
      assert.equal(await server.ask(["EXISTS", ...keys]), 0);
    }
  });

  for (const nonsense of ["+OK", ":7", "*1\r\n:7", "*3\r\n+a\r\n+b\r\n+c", "*3\r\n*0\r\n:1\r\n$-1"]) {
    for (const waitLimit of [0, 10_000]) {
      test(`a reply that is no grant is refused: ${JSON.stringify(nonsense)}, ${waitLimit}`, async () => {
        let releases = 0;
        const port = await scripted(([name, ...command]) => {
          if (name === "LOCK.RELEASE") releases += 1;
          if (name !== "LOCK.ACQUIRE") return ":0";
          return waitLimit === 0 || command.includes("BLOCK") ? nonsense : "$-1";
        });
        const call = new Lockward(server.ioredis({}, port)).acquire("nonsense", { waitLimit, lease: 60_000 });
        await assert.rejects(call, { name: "LockRefusedError", code: "unexpected" });
        await eventually(() => releases === 1);
      });
    }
  }

  for (const library of LIBRARIES) {
    test(`${library.name}: one WAIT serves all keys of a pipeline`, async () => {
      const requests: string[][] = [];
      const port = await scripted(([name = "", key = "", ...rest]) => {
        if (name === "LOCK.ACQUIRE" || name === "WAIT") requests.push([name, key, ...rest.slice(1)]);
        if (name === "LOCK.ACQUIRE") return `*3\r\n:${requests.length}\r\n:1\r\n:60000`;
        return name === "WAIT" || name.startsWith("LOCK.") ? ":2" : "+OK";
      });
      const client = library.name === "ioredis" ? server.ioredis({}, port) : await server.nodeRedis(RESP2, port);
      const replicas = { count: 2, within: 500 };
      const lock = await new Lockward(client).acquire(["b", "c", "a"], { replicas, lease: 60_000, shared: true });
      assert.deepEqual(lock.tokens, [1, 2, 3]);
      const acquire = (key: string) => ["LOCK.ACQUIRE", key, "PX", "60000", "HOLDS", "1", "SHARED"];
      assert.deepEqual(requests, [acquire("a"), acquire("b"), acquire("c"), ["WAIT", "2"]]);
    });
  }

  test("if the server refuses one key of a pipeline, the other keys are released", async () => {
    await server.ask(["SET", "pipeline 1", "text"]);
    const keys = ["pipeline 0", "pipeline 1", "pipeline 2"];
    await assert.rejects(lockward.acquire(keys, { lease: 60_000 }), { code: "WRONGTYPE", key: "pipeline 1" });
    await eventually(async () => (await server.ask(["EXISTS", ...keys])) === 1);
  });

  test("a grant that arrives after a cancelled try with replicas is given back", async () => {
    const proxy = await LossyProxy.start(server.port);
    const slow = new Lockward(server.ioredis({}, proxy.port));
    await slow.using("late try", () => {});
    const before = await server.calls("lock.release");
    await proxy.tell("plan hold LOCK.ACQUIRE 1");
    const leaving = new AbortController();
    const options = { signal: leaving.signal, lease: 60_000, replicas: { count: 0, within: 10 } };
    const left = assert.rejects(slow.acquire(["late try", "late too"], options), { name: "AbortError" });
    await eventually(async () => (await proxy.held()) === 1);
    leaving.abort();
    await left;
    await eventually(async () => (await server.calls("lock.release")) >= before + 2);
    await proxy.tell("plan"); // the server gets ACQUIRE after RELEASE
    await eventually(async () => (await server.calls("lock.release")) >= before + 4);
    assert.equal(await server.ask(["EXISTS", "late try", "late too"]), 0);
  });

  test("a reply to WAIT that is no number counts as no replica", async () => {
    const port = await scripted(([name]) => (name === "LOCK.ACQUIRE" ? "*3\r\n:7\r\n:1\r\n:60000" : "+OK"));
    const client = new Lockward(server.ioredis({}, port));
    const replicas = { count: 1, within: 100 };
    await assert.rejects(client.acquire("nonsense", { replicas }), UnreplicatedError);
  });

  test("a connection that hangs while it opens is replaced within the patience", async () => {
    let logins = 0;
    const port = await scripted(([name]) => {
      if (name === "LOCK.ACQUIRE") return "*3\r\n:7\r\n:1\r\n:60000";
      if (name === "AUTH") logins += 1;
      return logins === 2 ? undefined : "+OK"; // the second connection is the lock's first connection
    });
    const client = await server.nodeRedis({ ...RESP2, password: "secret" }, port);
    // This patience is shorter than the limit for one connection.
    const lock = await new Lockward(client, { responseLimit: 300, patience: 1_900 }).acquire("hangs");
    assert.equal(lock.token, 7);
  });

  test("a connection whose SELECT fails sends no request", async () => {
    const [databases, grants]: [string[], string[]] = [[], []];
    const port = await scripted(([name, database = ""]) => {
      if (name === "LOCK.ACQUIRE") grants.push(databases.at(-1) ?? "0");
      if (name === "LOCK.ACQUIRE") return "*3\r\n:7\r\n:1\r\n:60000";
      if (name === "select") databases.push(databases.length < 2 ? "none" : database);
      return name === "select" && databases.at(-1) === "none" ? "-BUSY Redis is busy running a script." : "+OK";
    });
    await new Lockward(server.ioredis({ db: 1 }, port)).acquire("selected");
    assert.deepEqual(grants, ["1"]);
  });

  test("refused renewals open few connections", async () => {
    const [locks, refusals] = [100, 300];
    let [connections, refused] = [0, 0];
    const port = await scripted(
      ([name]) => {
        if (name === "LOCK.ACQUIRE") return "*3\r\n:7\r\n:1\r\n:3000";
        if (name !== "LOCK.RENEW") return "+OK";
        refused += 1;
        return refused > refusals ? ":7" : "-READONLY You can't write against a read only replica.";
      },
      () => {
        connections += 1;
      },
    );
    const client = new Lockward(server.ioredis({}, port));
    const held = await Promise.all(Array.from({ length: locks }, (_, at) => client.acquire(`refused ${at}`)));
    await eventually(() => refused >= refusals + locks);
    assert(held.every((lock) => lock.held));
    assert(connections < locks / 4, `${connections} connections`);
  });

  test("a text that is not the handle of a key is refused", async () => {
    await assert.rejects(lockward.resume(null as unknown as string), SyntaxError);
    for (const text of ["", "{", "null", "5", "{}", '["owner"]', '["owner", 5]', '["owner", ["a2V5"]]']) {
      await assert.rejects(lockward.resume(Buffer.from(text).toString("base64url")), SyntaxError, text);
    }
  });
});
