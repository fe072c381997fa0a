/// <reference lib="esnext.disposable" preserve="true" />
export type { RedisClient } from "./adapters.js";
export {
  LockBusyError,
  LockError,
  LockLostError,
  LockRefusedError,
  UnreachableError,
  UnreplicatedError,
} from "./errors.js";
export type { KindOptions, Lock } from "./lock.js";
export {
  type AcquireOptions,
  type Keys,
  type LeaderRoutine,
  type LeadOptions,
  Lockward,
  type LockwardOptions,
  type Routine,
} from "./lockward.js";
