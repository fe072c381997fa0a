import { setMaxListeners } from "node:events";
import { acquireAll, planOf } from "./acquire.js";
import type { RedisClient } from "./adapters.js";
import { LockBusyError } from "./errors.js";
import { checkOption, type KindOptions, Lock } from "./lock.js";
import { Servers } from "./servers.js";
import { type Kind, type Settings, Tenure } from "./tenure.js";
import { WaitingConnections } from "./waiting.js";

/** Settings of a `Lockward`. Times are in milliseconds. */
export interface LockwardOptions {
  /**
   * How long the client repeats a request while no server answers. The default is 5,000. The patience does not end a wait in the
   * queue.
   */
  patience?: number;
  /** How long the client waits for a reply before it sends the request again. The default is 2,000. */
  responseLimit?: number;
  /**
   * How many connections may wait for locks at the same time. The default is 256. While all of them are in use, further callers
   * poll, at least once a second, until they get a connection in turn. A caller that gets its lock at once needs no such
   * connection.
   */
  waitingConnections?: number;
}

/** How a lock is acquired. Times are in milliseconds. */
export interface AcquireOptions extends KindOptions {
  /** How long to wait for the lock. The default is no limit (Infinity). With 0 the call does not wait. */
  waitLimit?: number;
  /** How long the lock stays held after this process dies, a whole number. The default is the server's `lock.default-lease`. */
  lease?: number;
  /**
   * When this signal aborts, the call leaves the queue, releases what it was granted, and rejects with the signal's reason. It
   * rejects at once, or within 200 ms if the program names the `owner`.
   */
  signal?: AbortSignal | undefined;
  /**
   * Whether the client renews the lock each time a third of its lease has passed. The default is true. Without renewal the lock is
   * lost when its lease ends.
   */
  renewal?: boolean;
  /**
   * How long the lock is held at most, in spite of renewals, a whole number. When this time has passed since the grant, the lock is
   * lost. The default is no limit.
   */
  holdLimit?: number;
  /**
   * The name of the owner. By default each acquisition has a new owner. If the named owner already holds the lock, the server grants
   * the lock again at once, in the same tenure, and the first release ends the tenure.
   *
   * If a call for a named owner fails, it first releases what it may have been granted. This takes at most 200 ms. After it, the owner may
   * acquire the lock again.
   */
  owner?: string;
  /**
   * Acquires the lock only if `count` replicas confirm the grant in the time `within`, in milliseconds. If they do not, the client
   * releases the lock, and the error is `UnreplicatedError`.
   */
  replicas?: { count: number; within: number };
}

/** One key, or several distinct keys that form one lock. */
export type Keys = string | Buffer | readonly (string | Buffer)[];

/** The function that `using` runs. The signal aborts when the lock is lost. */
export type Routine<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

/** The function that a leader runs. The term is the fencing token. The signal aborts when the leadership is lost. */
export type LeaderRoutine<T> = (term: number, signal: AbortSignal) => Promise<T> | T;

/** Arguments of which the options may be left out. */
export type OptionsAnd<O, R> = [routine: R] | [options: O, routine: R];

const UNLIMITED = Number.POSITIVE_INFINITY;

/**
 * Acquires locks on the servers of an ioredis or node-redis client. A Lockward opens its own connections with the options of that
 * client. When the client is closed, these connections are closed too. They keep the process running only while a call is under way.
 */
export class Lockward {
  readonly #settings: Settings;

  /** Throws a `TypeError` if the client is of another library, and a `RangeError` if an option is out of range. */
  constructor(client: RedisClient, options: LockwardOptions = {}) {
    const { patience = 5_000, responseLimit = 2_000, waitingConnections = 256 } = options;
    checkOption("patience", patience);
    checkOption("responseLimit", responseLimit);
    checkOption("waitingConnections", waitingConnections);
    const connections = new WaitingConnections(waitingConnections);
    this.#settings = { servers: Servers.of(client), connections, patience, responseLimit };
  }

  /**
   * Acquires the lock. If the lock is held, waits in the server's queue: first come, first served.
   *
   * Rejects with `LockBusyError` when the wait limit is over, with `UnreachableError` if no server answers, with `LockRefusedError`
   * if the server replies with an error, and with `UnreplicatedError` if too few replicas confirm. When the signal aborts, rejects with
   * the signal's reason. After a rejection the caller does not hold the lock. If a server has granted the lock but does not answer,
   * that grant ends with its lease.
   */
  async acquire(keys: Keys, options: AcquireOptions = {}): Promise<Lock> {
    const lock = await this.#acquire(keys, options);
    if (lock !== null) return lock;
    const message = `others hold the lock or wait for it, and the wait limit of ${options.waitLimit} ms is over`;
    throw new LockBusyError(message, `${Array.isArray(keys) ? keys.join(", ") : keys}`);
  }

  /** Acquires the lock like `acquire`, but without waiting. Resolves with null if the lock is busy. */
  tryAcquire(keys: Keys, options: Omit<AcquireOptions, "waitLimit"> = {}): Promise<Lock | null> {
    return this.#acquire(keys, { ...options, waitLimit: 0 });
  }

  /**
   * Acquires the lock as `acquire` does, runs the routine, and releases the lock. Settles like the routine. But if the lock is lost
   * and the routine returns nevertheless, rejects with `LockLostError`.
   */
  async using<T>(keys: Keys, ...rest: OptionsAnd<AcquireOptions, Routine<T>>): Promise<T> {
    const [options, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    return runAndRelease(await this.acquire(keys, options), routine);
  }

  /**
   * Waits without limit until this candidate is the leader, and then runs the routine with the term. When the leadership is lost,
   * the routine's signal aborts. After the routine has settled, the candidate waits again. If the leadership is not lost, `lead`
   * settles like the routine. When `options.signal` aborts, the candidate stops waiting, or the signal of the running routine aborts.
   */
  async lead<T>(key: string | Buffer, ...rest: OptionsAnd<LeadOptions, LeaderRoutine<T>>): Promise<T> {
    const [options, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    for (;;) {
      const lock = (await this.#acquire(key, options, UNLIMITED)) as Lock;
      let isDeposed = false;
      const run = async () => {
        try {
          return await routine(lock.token, AbortSignal.any([lock.signal, options.signal ?? lock.signal]));
        } finally {
          isDeposed = lock.signal.aborted;
        }
      };
      try {
        return await runAndRelease(lock, run);
      } catch (error) {
        if (!isDeposed) throw error;
      }
    }
  }

  /**
   * Continues the tenure of a lock on which another process has called `handle`. Rejects with `LockLostError` if the lock is lost,
   * with `UnreachableError` if no server answers within the patience, and with `SyntaxError` if the text is not a handle.
   */
  async resume(handle: string): Promise<Lock> {
    const [owner, ...parts] = JSON.parse(Buffer.from(handle, "base64url").toString());
    if (parts.length === 0) throw new SyntaxError("this is not the handle of a lock");
    const plan = { settings: this.#settings, owner, renewal: true, holdLimit: UNLIMITED };
    const tenures = parts.map(([key, token, holds, lease, kind]: [string, number, number, number, Kind]) =>
      Object.assign(new Tenure(plan, owner, Buffer.from(key, "base64"), kind, lease), { token, holds }),
    );
    const lock = new Lock(tenures);
    try {
      for (const each of tenures) each.begin(UNLIMITED);
      await lock.renew();
      lock.complete();
    } catch (error) {
      for (const each of tenures) each.abandon();
      throw error;
    }
    return lock;
  }

  async #acquire(keys: Keys, options: AcquireOptions, patience = this.#settings.patience): Promise<Lock | null> {
    const plan = planOf(this.#settings, this.#fullKeys(keys), options, patience);
    plan.signal?.throwIfAborted();
    // Many callers may wait with the same signal. Node.js would report so many listeners as a possible memory leak.
    if (plan.signal !== undefined) setMaxListeners(UNLIMITED, plan.signal);
    return acquireAll(plan);
  }

  /** The keys with the client's prefix, distinct and sorted by their bytes. */
  #fullKeys(keys: Keys): Buffer[] {
    const list = Array.isArray(keys) ? (keys as readonly (string | Buffer)[]) : [keys as string | Buffer];
    checkOption("the number of keys", list.length);
    const full = list.map((key) => this.#settings.servers.fullKey(key)).sort(Buffer.compare);
    return full.filter((key, at) => at === 0 || !key.equals(full[at - 1] as Buffer));
  }
}

/** The options of `lead`. */
export type LeadOptions = Pick<AcquireOptions, "lease" | "signal" | "owner" | "replicas">;

async function runAndRelease<T>(lock: Lock, routine: Routine<T>): Promise<T> {
  try {
    return await routine(lock.signal, lock);
  } catch (error) {
    await lock[Symbol.asyncDispose]().catch(() => {}); // the routine's error matters more
    throw error;
  } finally {
    await lock[Symbol.asyncDispose]();
  }
}
