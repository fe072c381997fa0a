/// <reference lib="esnext.disposable" preserve="true" />
export type { RedisClient } from "./adapters.js";
export { LockBusy, LockError, LockLost, LockRefused, Unreachable, Unreplicated } from "./errors.js";
export {
  type AcquireOptions,
  type Lock,
  Lockward,
  type LockwardOptions,
  type Routine,
  type TryOptions,
} from "./lockward.js";
