import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { PendingAcquire } from "./acquire.js";
import type { RedisClient } from "./adapters.js";
import { LockBusy } from "./errors.js";
import { Permits } from "./permits.js";
import { Servers } from "./servers.js";
import { type OwnedKey, Tenure } from "./tenure.js";

/** Settings of a `Lockward`. Times are in milliseconds. */
export interface LockwardOptions {
  /**
   * How long a request is repeated while no server answers: 10,000 unless given. A caller that waits with a wait limit
   * survives an outage until that limit.
   */
  patience?: number;
  /**
   * How many connections may wait for locks at a time: 100 unless given. More callers wait in the process until one of
   * these connections is free, or until their wait limits. A caller that finds the lock free needs none.
   *
   * A caller without a connection asks for its lock once a second or more often. It gets the lock when the lock is free
   * and nobody waits in the server's queue. Otherwise callers that wait for a lock which this caller holds could use all
   * connections, and block it forever.
   */
  waitingConnections?: number;
}

/** How a lock is acquired. Times are in milliseconds. */
export interface AcquireOptions {
  /** How long to wait for the lock: no limit (Infinity) unless given. 0 only tries. */
  waitLimit?: number;
  /** How long the lock stays held after this process dies: a whole number; the server's `lock.default-lease` unless given. */
  lease?: number;
  /** Whether the lock is shared with all others who ask for it as shared: a read lock. It is exclusive unless given. */
  shared?: boolean;
  /** Acquires one of so many slots of the lock, 1 to 1,000,000: a semaphore. The number should be the same for all. */
  slots?: number;
  /** How many of the slots to acquire: 1 unless given. */
  weight?: number;
  /** Whether the lease is renewed when a third of it is over: true unless given. If not, the lock is lost with its lease. */
  autoRenewal?: boolean;
  /** When it aborts, the caller leaves the queue, and a grant that arrives meanwhile is given back. */
  signal?: AbortSignal;
  /**
   * Acquires the lock only if `count` replicas confirm the grant within so many milliseconds. Otherwise the lock is given
   * back, and the error is `Unreplicated`.
   */
  replicas?: { count: number; within: number };
}

/** The options of `tryAcquire`: `AcquireOptions` without the wait limit. */
export type TryOptions = Omit<AcquireOptions, "waitLimit">;

/** Owners are this id and a number, so no other process and no other tenure has the same. */
const PROCESS_ID = randomUUID();
let owners = 0;

/**
 * Locks on the servers of a client of ioredis or node-redis. A Lockward opens its own connections with that client's
 * options. They are closed with the client. They keep the process from ending only while a caller waits.
 */
export class Lockward {
  readonly #servers: Servers;
  readonly #waitPermits: Permits;
  readonly #patience: number;

  /** Throws a `TypeError` for any other client, and a `RangeError` for options out of range. */
  constructor(client: RedisClient, options: LockwardOptions = {}) {
    const { patience = 10_000, waitingConnections = 100 } = options;
    checkRange(isDuration(patience) && patience > 0, "patience must be more than 0 milliseconds");
    checkRange(Number.isInteger(waitingConnections) && waitingConnections > 0, "waitingConnections must be at least 1");
    this.#servers = Servers.of(client);
    this.#waitPermits = new Permits(waitingConnections);
    this.#patience = patience;
  }

  /**
   * Acquires the lock. If it is held, waits in the server's queue: first come, first served.
   *
   * Rejects with `LockBusy` when the wait limit is over, `Unreachable` when no server answers, `LockRefused` with the
   * server's error, `Unreplicated`, and the signal's reason when that aborts.
   */
  async acquire(key: string | Buffer, options: AcquireOptions = {}): Promise<Lock> {
    const lock = await this.#acquire(key, options);
    if (lock === null) throw new LockBusy("the lock is busy", key.toString());
    return lock;
  }

  /** Acquires the lock if it is free; null when it is busy. Otherwise like `acquire`. */
  tryAcquire(key: string | Buffer, options: TryOptions = {}): Promise<Lock | null> {
    return this.#acquire(key, { ...options, waitLimit: 0 });
  }

  /**
   * Acquires the lock, as `acquire` does, runs the routine, and releases the lock. Settles like the routine.
   *
   * The routine gets a signal that aborts when the lock is lost. If it returns nevertheless, the promise rejects with
   * `LockLost`.
   */
  using<T>(key: string | Buffer, routine: Routine<T>): Promise<T>;
  using<T>(key: string | Buffer, options: AcquireOptions, routine: Routine<T>): Promise<T>;
  async using<T>(key: string | Buffer, ...rest: [Routine<T>] | [AcquireOptions, Routine<T>]): Promise<T> {
    const [options, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    const lock = await this.acquire(key, options);
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

  async #acquire(key: string | Buffer, options: AcquireOptions): Promise<Lock | null> {
    const { waitLimit = Number.POSITIVE_INFINITY, lease, autoRenewal = true, signal, replicas } = options;
    if (typeof key !== "string" && !Buffer.isBuffer(key)) throw new TypeError("the key must be a string or a Buffer");
    checkRange(isDuration(waitLimit), "waitLimit must be 0 milliseconds or more");
    checkRange(lease === undefined || isPositiveInteger(lease), LEASE_RANGE);
    // WAIT takes 0 milliseconds for no limit.
    checkRange(
      replicas === undefined || isPositiveInteger(replicas.within),
      "replicas.within must be an integer above 0",
    );
    checkRange(replicas === undefined || Number.isSafeInteger(replicas.count), "replicas.count must be an integer");
    signal?.throwIfAborted();
    // Many callers may wait with one signal. Node.js would take that for a leak, and warn.
    if (signal !== undefined) setMaxListeners(Number.POSITIVE_INFINITY, signal);
    owners += 1;
    const ownedKey: OwnedKey = {
      key: this.#servers.fullKey(key),
      owner: `${PROCESS_ID}:${owners}`,
      mode: mode(options),
    };
    const patience = this.#patience;
    const request = { ownedKey, waitLimit, lease, signal, replicas, patience };
    const grant = await new PendingAcquire(this.#servers, this.#waitPermits, request).run();
    return grant === null ? null : new Lock(key, new Tenure(this.#servers, ownedKey, grant, autoRenewal, patience));
  }
}

/** What `using` runs. The signal aborts when the lock is lost. */
export type Routine<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

/**
 * One hold of a lock.
 *
 * Keep a reference to it, and release it. A lock that the program has dropped is renewed no more, and ends with its lease.
 * A held lock does not keep the process from ending; it then ends with its lease, too.
 */
export class Lock implements AsyncDisposable {
  /** The key, as it was given to `acquire`. */
  readonly key: string | Buffer;
  readonly #tenure: Tenure;
  readonly #self = new WeakRef(this);
  #releasing: Promise<void> | undefined;

  /** @internal */
  constructor(key: string | Buffer, tenure: Tenure) {
    this.key = key;
    this.#tenure = tenure;
    tenure.addLock(this.#self);
  }

  /**
   * The fencing token: larger than that of every earlier tenure of this lock. Send it along with every write.
   *
   * Tokens are below 2^53, so a number holds them exactly.
   */
  get token(): number {
    return this.#tenure.token;
  }

  /** The owner that holds the lock, as `LOCK.INFO` shows it. */
  get owner(): string {
    return this.#tenure.ownedKey.owner;
  }

  /** Aborts when the lock is lost, with a `LockLost` as its reason. It does not abort when the lock is released. */
  get signal(): AbortSignal {
    return this.#tenure.signal;
  }

  /** Whether the lock is held: its lease runs by the clock of this process, and no server has denied it. */
  get held(): boolean {
    return this.#releasing === undefined && this.#tenure.isHeld;
  }

  /**
   * Acquires the lock once more for the same owner. The new hold has the same token, and is released on its own. The lock
   * is free when all holds are released. Rejects with `LockLost` when the lock is lost.
   */
  async reenter(): Promise<Lock> {
    this.#checkNotReleased();
    await this.#tenure.reenter();
    return new Lock(this.key, this.#tenure);
  }

  /**
   * Sets a lease in milliseconds, from now and for each later renewal. It may be shorter or longer than before. Without an
   * argument the lease stays as long as it was; if the server refuses that as too long, and the lock is renewed by itself,
   * the longest that it accepts is set. Rejects with `LockLost` when the lock is lost.
   */
  async renew(lease?: number): Promise<void> {
    checkRange(lease === undefined || isPositiveInteger(lease), LEASE_RANGE);
    this.#checkNotReleased();
    await this.#tenure.renew(lease);
  }

  /**
   * Runs a command only while the server has this tenure: `LOCK.GUARD` with the lock's token. Resolves with the reply, its
   * strings as text. Without a command it only checks the token.
   *
   * The data must be on the lock's server, and in a cluster in the lock's slot: name both with the same `{tag}`. The client's
   * key prefix is not added to keys of the command.
   *
   * Rejects with `LockLost` when the lock is lost: the command did not run. Rejects with `LockRefused` when the server replies
   * with another error, and the lock stays held. The command is not repeated when its reply is lost: `Unreachable` means that
   * it may have run.
   */
  async guarded(...command: (string | number | Buffer)[]): Promise<unknown> {
    this.#checkNotReleased();
    return asText(await this.#tenure.guarded(command));
  }

  /**
   * Gives the hold back. Rejects with `LockLost` when the lock was lost before, and with `Unreachable` when no server
   * answers; then the lock ends with its lease. A second call does nothing, and settles like the first.
   */
  release(): Promise<void> {
    this.#releasing ??= this.#tenure.release(this.#self);
    return this.#releasing;
  }

  /** Releases the lock, if it is not released. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#releasing === undefined) await this.release();
  }

  #checkNotReleased(): void {
    if (this.#releasing !== undefined) throw new TypeError("the lock was released");
  }
}

/** The arguments that say with whom the lock is shared. The server checks them. */
function mode({ shared, slots, weight }: AcquireOptions): (string | number)[] {
  const limit = slots === undefined ? [] : ["SLOTS", slots];
  return [...(shared ? ["SHARED"] : []), ...limit, ...(weight === undefined ? [] : ["WEIGHT", weight])];
}

/** A reply with text instead of Buffers. */
function asText(reply: unknown): unknown {
  if (Array.isArray(reply)) return reply.map(asText);
  return Buffer.isBuffer(reply) ? reply.toString() : reply;
}

const LEASE_RANGE = "a lease must be an integer of milliseconds above 0";

function isPositiveInteger(value: number): boolean {
  return Number.isSafeInteger(value) && value > 0;
}

function isDuration(milliseconds: number): boolean {
  return typeof milliseconds === "number" && milliseconds >= 0;
}

function checkRange(condition: boolean, message: string): void {
  if (!condition) throw new RangeError(message);
}
