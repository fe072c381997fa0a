import { acquireAll, planOf } from "./acquire.js";
import type { RedisClient } from "./adapters.js";
import { LockBusyError, LockLostError } from "./errors.js";
import { checkOption, type KindOptions, Lock, refuseOthers } from "./lock.js";
import { type Key, keyOf, Servers } from "./servers.js";
import { type Kind, type Settings, Tenure, type Tenures } from "./tenure.js";
import { now, settleAll, UNLIMITED } from "./time.js";
import { WaitingConnections } from "./waiting.js";

/** Settings of a `Lockward`. Times are in milliseconds. */
export interface LockwardOptions {
  /**
   * How long the client repeats a request while no server answers: 5,000 by default. This limit does not end a wait in the
   * server's queue.
   */
  patience?: number;
  /** How long the client waits for a reply before it sends the request again: 2,000 by default. */
  responseLimit?: number;
  /**
   * How many connections may wait for locks at a time: 256 by default. Further callers queue for these connections. Until a
   * caller gets a connection, it polls at least once a second. A caller that gets the lock at once needs no such connection.
   */
  waitingConnections?: number;
}

/** How a lock is acquired. Times are in milliseconds. */
export interface AcquireOptions extends KindOptions {
  /** How long to wait for the lock: no limit (Infinity) by default. With 0 the call does not wait. */
  waitLimit?: number;
  /** The lease, a whole number. Without renewal, the lock lasts this long. The default is the server's `lock.default-lease`. */
  lease?: number;
  /**
   * When the signal aborts, the call leaves the queue, releases what the server has granted, and rejects with the signal's
   * reason. The call rejects at once, or within 200 ms if `owner` is given.
   */
  signal?: AbortSignal | undefined;
  /** Whether the client renews the lock: true by default. Without renewal, the lock ends with its lease. */
  renewal?: boolean;
  /**
   * The lock is lost when this time has passed since the grant. Until then the client renews the lock. A whole number; no
   * limit by default.
   */
  holdLimit?: number;
  /**
   * The name of the owner. By default each acquisition has a new owner. If the owner already holds the lock, the server grants
   * the lock again at once, with the same token. Then the first release ends the tenure. If a call fails, it releases what the
   * server may have granted, and waits for this release for at most 200 ms. After that this owner may acquire the lock again.
   */
  owner?: string;
  /**
   * Acquires the lock only if `count` replicas confirm the grant within `within` milliseconds. If fewer replicas confirm the
   * grant, the client releases the lock, and the error is `UnreplicatedError`.
   */
  replicas?: { count: number; within: number };
}

/** One key, or several keys that form one lock. */
export type Keys = string | Buffer | readonly (string | Buffer)[];

/** What `using` runs. The signal aborts when the lock is lost. */
export type Routine<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

/** What a leader runs. The term is the fencing token. The signal aborts when the leadership is lost. */
export type LeaderRoutine<T> = (term: number, signal: AbortSignal) => Promise<T> | T;

/** The last arguments of a method: a routine, or options and a routine. */
export type OptionsAnd<O, R> = [routine: R] | [options: O, routine: R];

/**
 * Locks on the servers of an ioredis or node-redis client. A Lockward opens its own connections with that client's options,
 * and closes these connections when that client is closed. The connections keep the process alive only while a call is in
 * progress.
 */
export class Lockward {
  readonly #settings: Settings;

  /** Throws a `TypeError` for a client of another library or an unknown option, and a `RangeError` for an option out of range. */
  constructor(client: RedisClient, options: LockwardOptions = {}) {
    const { patience = 5_000, responseLimit = 2_000, waitingConnections = 256, ...others } = options;
    refuseOthers(others);
    for (const each of Object.entries({ patience, responseLimit, waitingConnections })) checkOption(...each);
    const connections = new WaitingConnections(waitingConnections);
    this.#settings = { servers: Servers.of(client), connections, patience, responseLimit, waitingConnections };
  }

  /**
   * Acquires the lock. If the lock is held, waits in the server's queue: first come, first served.
   *
   * Rejects with `LockBusyError` when the wait limit is over, `UnreachableError` when no server answers, `LockRefusedError`
   * with the server's error, `UnreplicatedError` when too few replicas confirm, and the signal's reason when the signal aborts.
   * When the promise is rejected, the caller holds none of the keys. If the server may have granted the lock, but does not
   * answer, the lock ends with its lease.
   */
  async acquire(keys: Keys, options: AcquireOptions = {}): Promise<Lock> {
    // The program may change its objects while the call waits.
    const [name, waitLimit] = [[keys].flat().join(", "), options.waitLimit];
    const lock = await this.#acquire(keys, options);
    if (lock !== null) return lock;
    throw new LockBusyError(`others hold the lock or wait for it, and the wait limit of ${waitLimit} ms is over`, name);
  }

  /** Acquires the lock if it is free, and does not wait. Resolves with null if the lock is not free. */
  async tryAcquire(keys: Keys, options: Omit<AcquireOptions, "waitLimit"> = {}): Promise<Lock | null> {
    return await this.#acquire(keys, { ...options, waitLimit: 0 });
  }

  /**
   * Acquires the lock, as `acquire` does, runs the routine, and releases the lock. Settles like the routine. But if the lock
   * was lost before the routine returns, the promise rejects with `LockLostError`.
   */
  async using<T>(keys: Keys, ...rest: OptionsAnd<AcquireOptions, Routine<T>>): Promise<T> {
    const [options, routine] = optionsAnd(rest);
    return runAndRelease(await this.acquire(keys, options), routine);
  }

  /**
   * Waits without limit until this candidate leads, and runs the routine with the term. When the leadership is lost, the
   * routine's signal aborts. After the routine has settled, the candidate waits again. If the routine settles while the
   * candidate leads, `lead` settles like `using`. When `options.signal` aborts, the candidate leaves the queue. If the
   * routine is running, the routine's signal also aborts.
   */
  async lead<T>(key: string | Buffer, ...rest: OptionsAnd<LeadOptions, LeaderRoutine<T>>): Promise<T> {
    const [options, routine] = optionsAnd(rest);
    const { lease, signal, owner, replicas, ...others } = options;
    refuseOthers(others);
    this.#settings.servers.fullKey(key); // throws if there are several keys
    // The program may change its objects while the candidate waits.
    const copy = { ...options, ...(replicas && { replicas: { ...replicas } }) };
    for (;;) {
      const lock = (await this.#acquire(key, copy, UNLIMITED)) as Lock;
      const isOver = AbortSignal.any([lock.signal, signal ?? lock.signal]);
      const running = (async () => routine(lock.token, isOver))();
      const isLost = () => lock.signal.aborted;
      const isDeposed = running.then(isLost, isLost);
      try {
        return await runAndRelease(lock, () => running);
      } catch (error) {
        if (!(await isDeposed)) throw error;
      }
    }
  }

  /**
   * Continues a lock of another process. `handle` is the result of `Lock.handle` in that process. Rejects with `LockLostError`
   * if the lock is lost, with `UnreachableError` when no server answers within the patience, and with a `SyntaxError` if the
   * string is not a handle.
   */
  async resume(handle: string): Promise<Lock> {
    const [owner, renewal, holdLeft, ...parts] = partsOf(handle);
    const isHandle = parts.length > 0 && parts.every((part) => Number.isSafeInteger(part?.[2])); // the lease
    if (!isHandle) throw new SyntaxError("this is not the handle of a lock");
    const options = { owner, renewal, holdLimit: holdLeft ?? UNLIMITED };
    const plan = planOf(this.#settings, [], options, this.#settings.patience);
    const tenures = parts.map(([key, token, lease, kinds]: [string, number, number, Kind[]]) =>
      Object.assign(new Tenure(plan, owner, keyOf(Buffer.from(key, "base64"))), { token, lease, kinds }),
    );
    const lock = new Lock(tenures as unknown as Tenures);
    try {
      const begun = now();
      for (const each of tenures) each.begin(UNLIMITED);
      await lock.renew();
      for (const each of tenures) each.begun = begun; // the beginning of the hold limit
      lock.complete();
    } catch (error) {
      // If one key is lost, release the other keys.
      if (error instanceof LockLostError) await lock.release().catch(() => {});
      for (const each of tenures) each.abandon();
      throw error;
    }
    return lock;
  }

  /** Throws an error at once if a key or an option is wrong. */
  #acquire(keys: Keys, options: AcquireOptions, patience = this.#settings.patience): Promise<Lock | null> {
    return acquireAll(planOf(this.#settings, this.#fullKeys(keys), options, patience));
  }

  /** The distinct keys with the client's prefix, sorted by their bytes. */
  #fullKeys(keys: Keys): Key[] {
    const full = [keys].flat().map((key) => this.#settings.servers.fullKey(key));
    checkOption("the number of keys", full.length);
    const compare = (a: Key, b: Key) => Buffer.compare(Buffer.from(a as string), Buffer.from(b as string));
    return full.sort(compare).filter((key, at) => at === 0 || compare(key, full[at - 1] as Key) !== 0);
  }
}

/** The options of `lead`. */
export type LeadOptions = Pick<AcquireOptions, "lease" | "signal" | "owner" | "replicas">;

/** The options and the routine. Throws if the last argument is not a function, so that no lock is acquired for a wrong call. */
function optionsAnd<O, R>(rest: OptionsAnd<O, R>): [O, R] {
  const [options, routine] = rest.length === 1 ? [{} as O, rest[0]] : rest;
  if (typeof routine !== "function") throw new TypeError("the last argument must be a function, after the options");
  return [options, routine];
}

/** The parts of a handle. Empty if this is not JSON. */
function partsOf(handle: string) {
  try {
    return [JSON.parse(Buffer.from(handle, "base64url").toString())].flat();
  } catch {
    return [];
  }
}

async function runAndRelease<T>(lock: Lock, routine: Routine<T>): Promise<T> {
  const running = (async () => routine(lock.signal, lock))();
  // If both the routine and the release fail, the promise rejects with the routine's error.
  await settleAll<unknown>([running, running.catch(() => {}).then(() => lock[Symbol.asyncDispose]())]);
  return running;
}
