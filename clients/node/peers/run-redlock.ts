// Runs node-redlock's own tests against this client. The argument is a folder with node-redlock's sources. The tests ask for a
// lease of 28,000 years, but Lockward's longest lease is a thousand years. So this script runs a copy of the tests that asks
// for an hour.

import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { Server } from "../tests/servers.js";

const sources = process.argv[2];
if (sources === undefined) throw new Error("usage: npm run peers -- FOLDER (with node-redlock's sources)");

const single = await Server.start();
const [first] = await Server.startCluster();
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
