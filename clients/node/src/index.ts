/// <reference lib="esnext.disposable" preserve="true" />
export type { RedisClient } from "./adapters.js";
export * from "./errors.js";
export type { KindOptions, Lock } from "./lock.js";
export * from "./lockward.js";
