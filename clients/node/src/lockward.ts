import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { acquire, Doors } from "./acquiring.js";
import type { RedisClient } from "./connecting.js";
import { LockBusy } from "./errors.js";
import { Link } from "./link.js";
import { type Claim, Tenure } from "./tenure.js";

/** Settings of a `Lockward`. Times are in milliseconds. */
export interface LockwardOptions {
  /** How long a request is repeated while no server answers: 10,000. Who waits for a lock bears an outage as long as the wait limit. */
  patience?: number;
  /**
   * How many connections may wait for locks at a time: 100. More callers stand in line before these, in the process,
   * within their wait limits. Who finds the lock free needs none.
   *
   * Who stands in that line asks for its lock now and then, once a second or more often, and gets it when it is free and nobody
   * waits in the server's queue: all connections may be taken by those who wait for a lock that it holds.
   */
  waitingConnections?: number;
}

/** How a lock is acquired. Times are in milliseconds. */
export interface AcquireOptions {
  /** How long to wait for the lock: without limit (Infinity) unless given; 0 only tries. */
  waitLimit?: number;
  /** How long the lock stays held when this process is not heard of any more: a whole number; unless given, the server's own `lock.default-lease`. */
  lease?: number;
  /** Whether the lease is renewed at each third of it: true. If not, the lock is lost when the lease is over. */
  autoRenewal?: boolean;
  /** Gives up waiting when it aborts: the place in the queue is left, and what was granted meanwhile given back. */
  signal?: AbortSignal;
  /** Acquires it only if so many replicas have heard of it within a time; else it is given back, and the error is `Unreplicated`. */
  replicas?: { count: number; within: number };
}

/** What `tryAcquire` takes: as `AcquireOptions`, without the wait limit. */
export type TryOptions = Omit<AcquireOptions, "waitLimit">;

/** Owners are named after it and numbered: no other process, and no other tenure, has the same. */
const HERE = randomUUID();
let owners = 0;

/**
 * Locks on the servers of one client of ioredis. It makes connections of its own, as that client's are made; they end
 * with the client, and do not keep the process from ending unless somebody waits.
 */
export class Lockward {
  readonly #link: Link;
  readonly #doors: Doors;
  readonly #patience: number;

  /** Throws a `TypeError` when it is no client of these libraries, a `RangeError` for settings out of range. */
  constructor(client: RedisClient, options: LockwardOptions = {}) {
    const { patience = 10_000, waitingConnections = 100 } = options;
    demand(isSpan(patience) && patience > 0, "the patience is more than 0 milliseconds");
    demand(Number.isInteger(waitingConnections) && waitingConnections > 0, "at least one connection may wait");
    this.#link = Link.of(client);
    this.#doors = new Doors(waitingConnections);
    this.#patience = patience;
  }

  /**
   * Acquires the lock, and waits for it in the server's queue if it is held: first come, first served.
   *
   * Rejects with `LockBusy` when the wait limit is reached, `Unreachable` when no server answers, `LockRefused` with
   * what the server says, and the signal's reason when that aborts.
   */
  async acquire(key: string | Buffer, options: AcquireOptions = {}): Promise<Lock> {
    const lock = await this.#acquire(key, options);
    if (lock === null) throw new LockBusy("the lock is busy", key.toString());
    return lock;
  }

  /** Acquires the lock if it is free; null when it is busy. Otherwise as `acquire`. */
  tryAcquire(key: string | Buffer, options: TryOptions = {}): Promise<Lock | null> {
    return this.#acquire(key, { ...options, waitLimit: 0 });
  }

  /**
   * Acquires the lock, as `acquire` does, runs the routine, and releases the lock: what the routine returns or throws.
   *
   * The routine is given a signal that aborts when the lock is lost. Where it goes on nevertheless, and returns, the
   * promise rejects with `LockLost`.
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
      await lock[Symbol.asyncDispose]().catch(() => {}); // what the routine says goes first
      throw error;
    }
    await lock[Symbol.asyncDispose]();
    return value;
  }

  async #acquire(key: string | Buffer, options: AcquireOptions): Promise<Lock | null> {
    const { waitLimit = Number.POSITIVE_INFINITY, lease, autoRenewal = true, signal, replicas } = options;
    if (typeof key !== "string" && !Buffer.isBuffer(key)) throw new TypeError("a key is a string or a Buffer");
    demand(isSpan(waitLimit), "a wait limit is 0 milliseconds or more");
    demand(lease === undefined || isWhole(lease), LEASE);
    // WAIT takes 0 milliseconds for no limit.
    demand(replicas === undefined || isWhole(replicas.within), "replicas have whole milliseconds, at least 1");
    demand(replicas === undefined || Number.isSafeInteger(replicas.count), "a count of replicas is a whole number");
    signal?.throwIfAborted();
    // Many may wait until the same signal: that is no leak, of which Node.js would warn.
    if (signal !== undefined) setMaxListeners(Number.POSITIVE_INFINITY, signal);
    owners += 1;
    const claim: Claim = { key: this.#link.full(key), owner: `${HERE}:${owners}` };
    const patience = this.#patience;
    const grant = await acquire(this.#link, this.#doors, { claim, waitLimit, lease, signal, replicas, patience });
    return grant === null ? null : new Lock(key, new Tenure(this.#link, claim, grant, autoRenewal, patience));
  }
}

/** What `using` runs, with a signal that aborts when the lock is lost. */
export type Routine<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

/**
 * One hold of a lock.
 *
 * Keep it, and release it: a lock that the program drops is renewed no more, and ends with its lease. So it does when
 * the process ends, which a lock does not keep it from.
 */
export class Lock implements AsyncDisposable {
  /** As it was given. */
  readonly key: string | Buffer;
  readonly #tenure: Tenure;
  readonly #self = new WeakRef(this);
  #releasing: Promise<void> | undefined;

  /** @internal */
  constructor(key: string | Buffer, tenure: Tenure) {
    this.key = key;
    this.#tenure = tenure;
    tenure.belongsTo(this.#self);
  }

  /**
   * The fencing token: larger than that of any earlier holder of this lock, to be sent along with every write.
   *
   * The server's tokens are below 2^53, so that a number holds each of them exactly.
   */
  get token(): number {
    return this.#tenure.token;
  }

  /** By what name the server knows the holder. */
  get owner(): string {
    return this.#tenure.claim.owner;
  }

  /** Aborts, with a `LockLost` as its reason, when the lock is lost. Not when it is released. */
  get signal(): AbortSignal {
    return this.#tenure.signal;
  }

  /** Whether the lock is held for certain: the lease runs by the own clock, and no server has said otherwise. */
  get held(): boolean {
    return this.#releasing === undefined && this.#tenure.isHeld;
  }

  /**
   * Acquires the lock once more for the same owner: one hold more, with the same token. The lock is free when each of its
   * holds is released. Rejects with `LockLost` when it is lost.
   */
  async reenter(): Promise<Lock> {
    this.#demandHold();
    await this.#tenure.enter();
    return new Lock(this.key, this.#tenure);
  }

  /**
   * Sets a lease of so many milliseconds from now, shorter or longer than it was, and for each renewal from now on; or
   * as long as it was. (A lock that is renewed by itself gets a shorter one then, where the server takes none so long any
   * more.) Rejects with `LockLost` when the lock is lost.
   */
  async renew(lease?: number): Promise<void> {
    demand(lease === undefined || isWhole(lease), LEASE);
    this.#demandHold();
    await this.#tenure.renew(lease);
  }

  /**
   * Gives the hold back. Rejects with `LockLost` when the lock had been lost, with `Unreachable` when no server answers:
   * its lease ends it then. Called again, it does nothing, and says the same.
   */
  release(): Promise<void> {
    this.#releasing ??= this.#tenure.leave(this.#self);
    return this.#releasing;
  }

  /** Releases the lock, unless that was done. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#releasing === undefined) await this.release();
  }

  #demandHold(): void {
    if (this.#releasing !== undefined) throw new TypeError("the lock was released");
  }
}

const LEASE = "a lease is a whole number of milliseconds, at least 1";

function isWhole(value: number): boolean {
  return Number.isSafeInteger(value) && value > 0;
}

function isSpan(milliseconds: number): boolean {
  return typeof milliseconds === "number" && milliseconds >= 0;
}

function demand(condition: boolean, message: string): void {
  if (!condition) throw new RangeError(message);
}
