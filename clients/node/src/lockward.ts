import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { acquireAll, type WaitingConnections } from "./acquire.js";
import type { RedisClient } from "./adapters.js";
import { LockBusyError } from "./errors.js";
import { checkLease, checkRange, isPositiveInteger, type KindOptions, kindArguments, Lock } from "./lock.js";
import { Servers } from "./servers.js";
import { type Settings, Tenure } from "./tenure.js";
import { now } from "./time.js";

/** Settings of a `Lockward`. Times are in milliseconds. */
export interface LockwardOptions {
  /** How long a request is repeated while no server answers: 5,000 unless given. A caller that waits in the queue goes on. */
  patience?: number;
  /** How long a server may take for a reply before the request is sent again: 2,000 unless given. */
  responseLimit?: number;
  /**
   * How many connections may wait for locks at a time: 256 unless given. A caller beyond that asks for its lock once a second
   * or more often. A caller that finds the lock free needs none.
   */
  waitingConnections?: number;
}

/** How a lock is acquired. Times are in milliseconds. */
export interface AcquireOptions extends KindOptions {
  /** How long to wait for the lock: no limit (Infinity) unless given. 0 only tries. */
  waitLimit?: number;
  /** How long the lock stays held after this process dies: a whole number; the server's `lock.default-lease` unless given. */
  lease?: number;
  /** When it aborts, the call rejects with its reason at once. It leaves the queue, and gives back what it is granted. */
  signal?: AbortSignal | undefined;
  /** Whether the lock is renewed at each third of its lease: true unless given. If not, the lock is lost with its lease. */
  renewal?: boolean;
  /** The lock is renewed no longer than so long after it was granted, and is lost then: a whole number; no limit unless given. */
  holdLimit?: number;
  /**
   * The owner that the server sees. Each acquisition has its own unless given. A lock that this owner has already is granted
   * again at once, with the same token, and the first release ends it.
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

/** Owners are this id and a number, so no other process and no other acquisition has the same. */
const PROCESS_ID = randomUUID();
let owners = 0;

/**
 * Locks on the servers of a client of ioredis or node-redis. A Lockward opens its own connections with that client's
 * options. They are closed with the client. They keep the process from ending only while a call is under way.
 */
export class Lockward {
  readonly #servers: Servers;
  readonly #settings: Settings;
  readonly #connections: WaitingConnections;

  /** Throws a `TypeError` for any other client, and a `RangeError` for options out of range. */
  constructor(client: RedisClient, options: LockwardOptions = {}) {
    const { patience = 5_000, responseLimit = 2_000, waitingConnections = 256 } = options;
    checkRange(isDuration(patience) && patience > 0, "patience must be more than 0 milliseconds");
    checkRange(isDuration(responseLimit) && responseLimit > 0, "responseLimit must be more than 0 milliseconds");
    checkRange(isPositiveInteger(waitingConnections), "waitingConnections must be at least 1");
    this.#servers = Servers.of(client);
    this.#settings = { patience, responseLimit };
    this.#connections = { left: waitingConnections };
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
  using<T>(keys: Keys, routine: Routine<T>): Promise<T>;
  using<T>(keys: Keys, options: AcquireOptions, routine: Routine<T>): Promise<T>;
  async using<T>(keys: Keys, ...rest: [Routine<T>] | [AcquireOptions, Routine<T>]): Promise<T> {
    const [options, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    return runAndRelease(await this.acquire(keys, options), routine);
  }

  /**
   * Waits until this candidate leads, without limit, and runs the routine with the term. When the leadership is lost, the
   * routine's signal aborts; when the routine has settled then, the candidate waits again. Otherwise settles like the
   * routine. When `options.signal` aborts, the candidate leaves, and a routine that runs is told by its signal.
   */
  lead<T>(key: string | Buffer, routine: LeaderRoutine<T>): Promise<T>;
  lead<T>(key: string | Buffer, options: LeadOptions, routine: LeaderRoutine<T>): Promise<T>;
  async lead<T>(key: string | Buffer, ...rest: [LeaderRoutine<T>] | [LeadOptions, LeaderRoutine<T>]): Promise<T> {
    const [options, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    for (;;) {
      const lock = (await this.#acquire(key, options, Number.POSITIVE_INFINITY)) as Lock;
      const signals = options.signal === undefined ? [lock.signal] : [lock.signal, options.signal];
      try {
        return await runAndRelease(lock, () => routine(lock.token, AbortSignal.any(signals)));
      } catch (error) {
        if (!lock.signal.aborted) throw error;
      }
    }
  }

  /**
   * Goes on with a lock that another process has handed over by `handle`. Rejects with `LockLostError` if the lock is lost,
   * and with `UnreachableError` when no server answers for as long as the patience.
   * A text that is no handle is a `SyntaxError`.
   */
  async resume(handle: string): Promise<Lock> {
    const parts = JSON.parse(Buffer.from(handle, "base64url").toString()) as unknown[];
    const tenures = parts.map((each) => Tenure.fromHandle(this.#servers, this.#settings, each));
    try {
      await Promise.all(tenures.map((each) => each.resume()));
    } catch (error) {
      for (const each of tenures) each.abandon();
      throw error;
    }
    return new Lock(tenures);
  }

  async #acquire(keys: Keys, options: AcquireOptions, patience = this.#settings.patience): Promise<Lock | null> {
    const { waitLimit = Number.POSITIVE_INFINITY, lease, signal, renewal, holdLimit, owner, replicas } = options;
    checkRange(isDuration(waitLimit), "waitLimit must be 0 milliseconds or more");
    checkLease(lease);
    checkRange(holdLimit === undefined || isPositiveInteger(holdLimit), "holdLimit must be an integer above 0");
    if (replicas !== undefined) {
      checkRange(Number.isSafeInteger(replicas.count), "replicas.count must be an integer");
      // WAIT takes 0 milliseconds for no limit.
      checkRange(isPositiveInteger(replicas.within), "replicas.within must be an integer above 0");
    }
    signal?.throwIfAborted();
    // Many callers may wait with one signal. Node.js would take that for a leak, and warn.
    if (signal !== undefined) setMaxListeners(Number.POSITIVE_INFINITY, signal);
    owners += 1;
    const named = owner ?? `${PROCESS_ID}:${owners}`;
    const kind = kindArguments(options);
    const tenures = this.#fullKeys(keys).map(
      (key) => new Tenure(this.#servers, this.#settings, key, named, kind, lease ?? 0, renewal, holdLimit),
    );
    const call = {
      deadline: now() + waitLimit,
      waits: waitLimit > 0,
      patience,
      signal,
      replicas,
      connections: this.#connections,
    };
    return (await acquireAll(tenures, call)) ? new Lock(tenures) : null;
  }

  /** The keys with the client's prefix, distinct and sorted by their bytes. */
  #fullKeys(keys: Keys): Buffer[] {
    const list = Array.isArray(keys) ? (keys as readonly (string | Buffer)[]) : [keys as string | Buffer];
    checkRange(list.length > 0, "a lock needs a key");
    for (const key of list) {
      if (typeof key !== "string" && !Buffer.isBuffer(key)) throw new TypeError("a key must be a string or a Buffer");
    }
    const full = list.map((key) => this.#servers.fullKey(key)).sort(Buffer.compare);
    return full.filter((key, at) => at === 0 || !key.equals(full[at - 1] as Buffer));
  }
}

/** The options of `lead`. */
export type LeadOptions = Pick<AcquireOptions, "lease" | "signal" | "owner" | "replicas">;

async function runAndRelease<T>(lock: Lock, routine: Routine<T>): Promise<T> {
  let value: T;
  try {
    value = await routine(lock.signal, lock);
  } catch (error) {
    await lock[Symbol.asyncDispose]().catch(() => {}); // the routine's error goes first
    throw error;
  }
  await lock[Symbol.asyncDispose]();
  return value;
}

function isDuration(milliseconds: number): boolean {
  return typeof milliseconds === "number" && milliseconds >= 0;
}
