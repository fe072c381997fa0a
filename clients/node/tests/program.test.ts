import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { eventually, Server } from "./servers.js";

const server = await Server.start();

/** Runs a program that imports the package by its name. */
function run(program: string, extension = "mjs") {
  const file = `build/program-${Math.random().toString(36).slice(2)}.${extension}`;
  writeFileSync(file, program);
  const child = spawn(process.execPath, ["--unhandled-rejections=strict", file], { stdio: ["ignore", "pipe", "pipe"] });
  const output = { out: "", err: "" };
  child.stdout.setEncoding("utf8").on("data", (text) => {
    output.out += text;
  });
  child.stderr.setEncoding("utf8").on("data", (text) => {
    output.err += text;
  });
  after(() => child.kill("SIGKILL"));
  return { child, output, ended: once(child, "close").then(([code]) => code as number | null) };
}

const BEGIN = `
  import { Redis } from "ioredis";
  import { Lockward } from "lockward";
  const redis = new Redis(${server.port});
  const lockward = new Lockward(redis);
`;

test("the program in the README runs", async () => {
  const [, program = ""] = /```js\n(.*?)```/s.exec(readFileSync("README.md", "utf8")) ?? [];
  const { output, ended } = run(program.replace("6379", `${server.port}`));
  assert.equal(await ended, 0, output.err);
  assert.match(output.out, /^held with token \d+\n$/);
  const other = run(
    program
      .replace('import { Redis } from "ioredis"', 'import { createClient } from "redis"')
      .replace("new Redis(6379)", `await createClient({ url: "redis://127.0.0.1:${server.port}" }).connect()`)
      .replace("disconnect", "destroy"),
  );
  assert.equal(await other.ended, 0, other.output.err);
  assert.match(other.output.out, /^held with token \d+\n$/);
  assert.equal(await server.ask(["GET", "state:42"]), "paid");
});

test("the install line in the README works from a clean folder", async () => {
  const [, install = ""] = /```sh\n(.*?)```/s.exec(readFileSync("README.md", "utf8")) ?? [];
  const folder = mkdtempSync(join(tmpdir(), "lockward-"));
  after(() => rmSync(folder, { recursive: true }));
  for (const file of ["src", "package.json", "package-lock.json", "tsconfig.json", "tsconfig.build.json", ".npmrc"]) {
    cpSync(file, join(folder, "lockward/clients/node", file), { recursive: true });
  }
  const env = { ...process.env, npm_config_prefer_offline: "true", npm_config_audit: "false" };
  const cwd = join(folder, "program");
  mkdirSync(cwd);
  writeFileSync(
    join(cwd, "program.mjs"),
    'import { Redis } from "ioredis"; import { Lockward } from "lockward"; console.log(typeof Redis, typeof Lockward)',
  );
  const check = `${install}node program.mjs`;
  const { status, stdout, stderr } = spawnSync("bash", ["-ec", check], { cwd, env, encoding: "utf8" });
  assert.equal(status, 0, stderr);
  assert.match(stdout, /^function function$/m);
});

test("require works", async () => {
  const { output, ended } = run('console.log(typeof require("lockward").Lockward)', "cjs");
  assert.equal(await ended, 0, output.err);
  assert.equal(output.out, "function\n");
});

test("a program can end while it holds a lock", async () => {
  const { output, ended } = run(`${BEGIN}
    await lockward.acquire("held", { lease: 60_000 });
    redis.disconnect();
  `);
  assert.equal(await ended, 0, output.err);
  assert.equal((await server.info("held")).holders.length, 1);
});

test("a program that holds a lock can end although its server hangs", async () => {
  const own = await Server.start();
  const { child, output, ended } = run(`${BEGIN.replace(`${server.port}`, `${own.port}`)}
    const impatient = new Lockward(redis, { responseLimit: 50, patience: 500 });
    const lock = await impatient.acquire("held", { lease: 2_000 });
    process.on("SIGUSR2", async () => {
      console.log(await lock.renew().catch((error) => error.name));
      redis.stream.unref();
      process.on("exit", () => console.log(lock.held));
    });
    console.log("ready");
  `);
  await eventually(() => output.out === "ready\n");
  await own.tell("pause");
  child.kill("SIGUSR2");
  assert.equal(await ended, 0, output.err);
  // `true`: the process has ended before its lease. It has not waited for the server to close a connection, as ioredis does by
  // default.
  assert.equal(output.out, "ready\nUnreachableError\ntrue\n");
});

test("a program does not end while it waits for a lock", async () => {
  await server.ask(["LOCK.ACQUIRE", "waited", "somebody"]);
  const { output, ended } = run(`${BEGIN}
    redis.on("ready", () => redis.stream.unref());
    await lockward.using("waited", () => console.log("granted"));
    process.exit();
  `);
  await eventually(() => server.waiters("waited"));
  await server.ask(["LOCK.RELEASE", "waited", "somebody"]);
  assert.equal(await ended, 0, output.err);
  assert.equal(output.out, "granted\n");
});

test("a process that was stopped for longer than its lease knows that the lock is lost", async () => {
  const { child, output, ended } = run(`${BEGIN}
    const lock = await lockward.acquire("stopped", { lease: 1_000 });
    process.on("SIGUSR2", async () => {
      console.log(lock.held, await lock.guarded("SET", "written", 1).catch((error) => error.name));
      console.log(await lock.release().catch((error) => error.name), lock.signal.aborted);
      process.exit();
    });
    console.log("held");
  `);
  await eventually(() => output.out === "held\n");
  child.kill("SIGSTOP");
  await eventually(async () => !(await server.ask(["EXISTS", "stopped"])));
  child.kill("SIGUSR2");
  child.kill("SIGCONT");
  assert.equal(await ended, 0, output.err);
  assert.equal(output.out, "held\nfalse LockLostError\nLockLostError true\n");
  assert.equal(await server.ask(["EXISTS", "written"]), 0);
});

test("a waiter that was stopped for longer than its granted lease waits again", async () => {
  await server.ask(["LOCK.ACQUIRE", "late", "somebody", "PX", 60_000]);
  const { child, output, ended } = run(`${BEGIN}
    const lock = await lockward.acquire("late", { lease: 1_000 });
    console.log(lock.held, lock.token);
    process.exit();
  `);
  await eventually(() => server.waiters("late"));
  child.kill("SIGSTOP");
  await server.ask(["LOCK.RELEASE", "late", "somebody"]);
  await eventually(async () => (await server.ask(["EXISTS", "late"])) === 0);
  const [token] = (await server.ask(["LOCK.ACQUIRE", "late", "other", "PX", 60_000])) as [number];
  child.kill("SIGCONT");
  await eventually(() => server.waiters("late"));
  assert.equal(output.out, "");
  await server.ask(["LOCK.RELEASE", "late", "other"]);
  assert.equal(await ended, 0, output.err);
  const [held, next] = output.out.split(" ");
  assert.equal(held, "true");
  assert(Number(next) > token);
});

test("a killed server and a closed client cause no unhandled rejection", async () => {
  const own = await Server.start();
  const { output, ended } = run(`${BEGIN.replace(`${server.port}`, `${own.port}`)}
    redis.on("error", () => {});
    const held = [];
    for (const key of ["a", "b", "c"]) held.push(await lockward.acquire(key, { lease: 3_000 }));
    const waiting = ["a", "b"].map((key) => lockward.acquire(key).catch((error) => error.name));
    const leaving = new AbortController();
    const left = lockward.acquire("c", { signal: leaving.signal }).catch((error) => error.name);
    console.log("ready");
    await Promise.all(held.map((lock) => new Promise((resolve) => lock.signal.addEventListener("abort", resolve))));
    leaving.abort();
    redis.disconnect();
    console.log(await left, ...(await Promise.all(waiting)));
    await Promise.all(held.map((lock) => lock.release().catch((error) => console.log(error.name))));
  `);
  await eventually(() => output.out === "ready\n");
  await eventually(() => own.waiters("c"));
  await own.tell("kill");
  assert.equal(await ended, 0, output.err);
  assert.match(
    output.out,
    /^ready\nAbortError UnreachableError UnreachableError\nLockLostError\nLockLostError\nLockLostError\n$/,
  );
});
