// Runs node-redlock's own tests against this client, from the given folder with its sources. In the copy that runs, a
// duration of 28,000 years becomes an hour, because a lease is at most a thousand years.

import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { eventually, Server } from "../tests/servers.js";

const sources = process.argv[2];
if (sources === undefined) throw new Error("usage: npm run peers -- FOLDER (with node-redlock's sources)");

const single = await Server.start();
const nodes = [];
for (let number = 0; number < 3; number += 1)
  nodes.push(await Server.start(["--cluster-enabled", "yes", "--save", ""]));
const [first, ...others] = nodes as [Server, Server, Server];
for (const [number, node] of nodes.entries()) {
  await node.ask(["CLUSTER", "ADDSLOTSRANGE", number * 5_461, number === 2 ? 16_383 : number * 5_461 + 5_460]);
}
for (const other of others) await first.ask(["CLUSTER", "MEET", "127.0.0.1", other.port]);
for (const node of nodes) {
  await eventually(async () => ((await node.ask(["CLUSTER", "SLOTS"])) as unknown[]).length === 3);
  await eventually(async () => `${await node.ask(["CLUSTER", "INFO"])}`.includes("cluster_state:ok"));
}
process.env.PEER_PORTS = JSON.stringify({
  "redis-single-instance": single.port,
  "redis-single-cluster-1": first.port,
});

const folder = resolve("build/redlock");
mkdirSync(folder, { recursive: true });
const test = readFileSync(join(sources, "src/single.test.ts"), "utf8")
  .replace('"ava"', '"../peers/ava.js"')
  .replace('"ioredis"', '"../peers/ioredis.js"')
  .replace('"./index.js"', '"../peers/redlock.js"')
  .replaceAll(" fail(t, error);", " await fail(t, error);") // ava fails a test on an unhandled rejection
  .replaceAll("Math.floor(Number.MAX_SAFE_INTEGER / 10)", "3_600_099");
const file = join(folder, "single.test.ts");
writeFileSync(file, test);
const compiler = ["tsc", file, "--ignoreConfig", "--noCheck", "--target", "es2022", "--module", "esnext"];
const { stdout } = spawnSync("npx", compiler, { encoding: "utf8" });
if (stdout !== "") console.error(stdout);
await import(join(folder, "single.test.js"));
