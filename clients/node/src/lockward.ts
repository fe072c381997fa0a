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
  /** How long a request is repeated while no server answers: 5,000 unless given. A caller that waits in the queue goes on. */
  patience?: number;
  /** How long a server may take for a reply before the request is sent again: 2,000 unless given. */
  responseLimit?: number;
  /**
   * How many connections may wait for locks at a time: 256 by default. Further callers get one in turn. Until then they ask
   * for their locks again and again, at least once a second. A caller that gets the lock at once needs no such connection.
   */
  waitingConnections?: number;
}

/** How a lock is acquired. Times are in milliseconds. */
export interface AcquireOptions extends KindOptions {
  /** How long to wait for the lock: no limit (Infinity) unless given. 0 only tries. */
  waitLimit?: number;
  /** How long the lock stays held after this process dies: a whole number; the server's `lock.default-lease` unless given. */
  lease?: number;
  /**
   * When it aborts, the call leaves the queue, gives back what it is granted, and rejects with the signal's reason: at once, or
   * within 200 ms if `owner` is given.
   */
  signal?: AbortSignal | undefined;
  /** Whether the lock is renewed at each third of its lease: true unless given. If not, the lock is lost with its lease. */
  renewal?: boolean;
  /** The lock is renewed no longer than so long after it was granted, and is lost then: a whole number; no limit unless given. */
  holdLimit?: number;
  /**
   * The owner that the server sees. Each acquisition has its own unless given. A lock that this owner has already is granted
   * again at once, with the same token, and the first release ends it. A call that fails first gives back what it may have been
   * granted, for at most 200 ms: then this owner may acquire the lock again.
   */
  owner?: string;
  /**
   * Acquires the lock only if `count` replicas confirm the grant within so many milliseconds. Otherwise the lock is given
   * back, and the error is `UnreplicatedError`.
   */
  replicas?: { count: number; within: number };
}

/** One key, or several distinct ones, which become one lock. */
export type Keys = string | Buffer | readonly (string | Buffer)[];

/** What `using` runs. The signal aborts when the lock is lost. */
export type Routine<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

/** What a leader runs. The term is the fencing token. The signal aborts when the leadership is lost. */
export type LeaderRoutine<T> = (term: number, signal: AbortSignal) => Promise<T> | T;

/** The options may be left out. */
export type OptionsAnd<O, R> = [routine: R] | [options: O, routine: R];

const UNLIMITED = Number.POSITIVE_INFINITY;

/**
 * Locks on the servers of a client of ioredis or node-redis. A Lockward opens its own connections with that client's
 * options. They are closed with the client. They keep the process from ending only while a call is under way.
 */
export class Lockward {
  readonly #settings: Settings;

  /** Throws a `TypeError` for any other client, and a `RangeError` for options out of range. */
  constructor(client: RedisClient, options: LockwardOptions = {}) {
    const { patience = 5_000, responseLimit = 2_000, waitingConnections = 256 } = options;
    checkOption("patience", patience);
    checkOption("responseLimit", responseLimit);
    checkOption("waitingConnections", waitingConnections);
    const connections = new WaitingConnections(waitingConnections);
    this.#settings = { servers: Servers.of(client), connections, patience, responseLimit };
  }

  /**
   * Acquires the lock. If it is held, waits in the server's queue: first come, first served.
   *
   * Rejects with `LockBusyError` when the wait limit is over, `UnreachableError` when no server answers, `LockRefusedError`
   * with the server's error, `UnreplicatedError` when too few replicas confirm, and the signal's reason when that aborts. A
   * call that rejects leaves nothing behind, but what a silent server may have granted; that ends with its lease.
   */
  async acquire(keys: Keys, options: AcquireOptions = {}): Promise<Lock> {
    const lock = await this.#acquire(keys, options);
    if (lock !== null) return lock;
    const message = `others hold the lock or wait for it, and the wait limit of ${options.waitLimit} ms is over`;
    throw new LockBusyError(message, `${Array.isArray(keys) ? keys.join(", ") : keys}`);
  }

  /** Acquires the lock if it is free, as `acquire` does without a wait. Resolves with null if it is not. */
  tryAcquire(keys: Keys, options: Omit<AcquireOptions, "waitLimit"> = {}): Promise<Lock | null> {
    return this.#acquire(keys, { ...options, waitLimit: 0 });
  }

  /**
   * Acquires the lock, as `acquire` does, runs the routine, and releases the lock. Settles like the routine. If the lock is
   * lost and the routine returns nevertheless, the promise rejects with `LockLostError`.
   */
  async using<T>(keys: Keys, ...rest: OptionsAnd<AcquireOptions, Routine<T>>): Promise<T> {
    const [options, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    return runAndRelease(await this.acquire(keys, options), routine);
  }

  /**
   * Waits until this candidate leads, without limit, and runs the routine with the term. When the leadership is lost, the
   * routine's signal aborts; when the routine has settled then, the candidate waits again. Otherwise settles like the
   * routine. When `options.signal` aborts, the candidate leaves, and a routine that runs is told by its signal.
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
   * Goes on with a lock that another process has handed over by `handle`. Rejects with `LockLostError` if the lock is lost,
   * and with `UnreachableError` when no server answers for as long as the patience.
   * A text that is no handle is a `SyntaxError`.
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
    // Many callers may wait with one signal. Node.js would take that for a leak, and warn.
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
    await lock[Symbol.asyncDispose]().catch(() => {}); // the routine's error goes first
    throw error;
  } finally {
    await lock[Symbol.asyncDispose]();
  }
}
