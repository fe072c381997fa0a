import type { Command } from "./adapters.js";
import type { LockLostError } from "./errors.js";
import type { Kind, Tenure } from "./tenure.js";

/** With whom a lock is shared. A lock is exclusive unless one of these is given. */
export interface KindOptions {
  /** Whether the lock is shared with all others who ask for it as shared: a read lock. */
  shared?: boolean;
  /** Acquires one of so many slots of the lock, 1 to 1,000,000: a semaphore. The number should be the same for all. */
  slots?: number;
  /** How many of the slots to acquire: 1 unless given. */
  weight?: number;
}

/** The arguments for a kind. The server checks them. */
export function kindArguments({ shared, slots, weight }: KindOptions): Kind {
  const limit = slots === undefined ? [] : ["SLOTS", slots];
  return [...(shared ? ["SHARED"] : []), ...limit, ...(weight === undefined ? [] : ["WEIGHT", weight])];
}

/** Of the keys of a lock. */
export type Tenures = readonly [Tenure, ...Tenure[]];

/**
 * A lock that is held, of one key or of several. It is renewed until it is released.
 *
 * A held lock does not keep the process from ending. It then ends with its lease.
 */
export class Lock implements AsyncDisposable {
  readonly #tenures: Tenures;
  #controller: AbortController | undefined;
  /** Set when the program has released the lock, or handed it over. */
  #releasing: Promise<void> | undefined;

  /** @internal */
  constructor(tenures: Tenures) {
    this.#tenures = tenures;
    for (const each of tenures) each.onLost = (reason) => this.#lose(reason);
  }

  /** @internal All keys are held. Throws when one is lost. */
  complete(): void {
    for (const each of this.#tenures) each.checkHeld();
    const begun = Math.max(...this.#tenures.map((each) => each.begun));
    for (const each of this.#tenures) each.complete(begun);
  }

  /**
   * The fencing token: larger than that of every earlier holder of this lock. Send it along with every write. It is below
   * 2^53, so a number holds it exactly. For a lock of several keys see `tokens`.
   */
  get token(): number {
    return this.#tenures[0].token;
  }

  /** The fencing tokens of the keys, which are sorted by their bytes. */
  get tokens(): number[] {
    return this.#tenures.map((each) => each.token);
  }

  /** The owner that holds the lock, as `LOCK.INFO` shows it. */
  get owner(): string {
    return this.#tenures[0].owner;
  }

  /**
   * Aborts when the lock is lost, with a `LockLostError` as its reason: at the end of its lease, or when a server has denied
   * it. A server is asked at each third of the lease. The signal does not abort when the lock is released.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      const lost = this.#tenures.find((each) => each.loss !== undefined);
      if (lost !== undefined) this.#controller.abort(lost.loss);
    }
    return this.#controller.signal;
  }

  /** Whether the lock is held: its lease runs by the clock of this process, and no server has denied it. */
  get held(): boolean {
    return this.#tenures.every((each) => each.isHeld);
  }

  /**
   * Renews the lock, and sets its lease in milliseconds from now on, if one is given. This is rarely needed, because the lock
   * is renewed by itself. Rejects with `LockLostError` when the lock is lost, with `UnreachableError` when no server answers
   * for as long as the patience, and with `LockRefusedError` when the server refuses it.
   */
  async renew(lease?: number): Promise<void> {
    checkOption("lease", lease ?? 1);
    await Promise.all(this.#tenures.map((each) => each.renew({ lease })));
  }

  /**
   * Lets others in: a writer becomes a reader (`{ shared: true }`), or the lock a semaphore (`{ slots: 8 }`). The token stays.
   * Rejects as `renew` does. After an `UnreachableError` the next renewal does the same.
   */
  async downgrade(kind: KindOptions): Promise<void> {
    await Promise.all(this.#tenures.map((each) => each.renew({ kind: kindArguments(kind) })));
  }

  /**
   * Runs a command only while the server has this lock: `LOCK.GUARD` with the token. Resolves with the reply, its strings as
   * text. Without a command it only checks the token. The lock must have one key.
   *
   * The data must be on the lock's server, and in a cluster in the lock's slot: name both with the same `{tag}`. The client's
   * key prefix is not added to keys of the command.
   *
   * Rejects with `LockLostError` when the lock is lost: the command did not run. Rejects with `LockRefusedError` when the
   * server replies with another error, and the lock stays held. The command is not repeated when its reply is lost:
   * `UnreachableError` means that it may have run.
   */
  async guarded(...command: Command | []): Promise<unknown> {
    if (this.#tenures.length > 1) throw new TypeError("a guarded command needs a lock of one key");
    return this.#tenures[0].guarded(command);
  }

  /**
   * A text with which another process goes on with this lock: it calls `resume`. This process renews the lock no more and
   * tells no loss, as if it was released. The lock ends with its lease if nobody resumes it.
   */
  handle(): string {
    for (const each of this.#tenures) each.checkHeld();
    this.#releasing = Promise.resolve();
    for (const each of this.#tenures) each.abandon();
    const partOf = ({ key, token, holds, lease, kind }: Tenure) => [key.toString("base64"), token, holds, lease, kind];
    const parts = this.#tenures.map(partOf);
    return Buffer.from(JSON.stringify([this.owner, ...parts])).toString("base64url");
  }

  /**
   * Gives the lock back. Rejects with `LockLostError` when the lock was lost before, and with `UnreachableError` when no
   * server answers for as long as the patience; then the lock ends with its lease. A second call does nothing, and settles
   * like the first.
   */
  release(): Promise<void> {
    this.#releasing ??= Promise.all(this.#tenures.map((each) => each.release())).then(() => {});
    return this.#releasing;
  }

  /** Releases the lock, if it is not released. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#releasing === undefined) await this.release();
  }

  /** The lock of several keys is lost with the first of them. The others end with their leases, or are released. */
  #lose(reason: LockLostError): void {
    for (const each of this.#tenures) each.stopRenewal();
    this.#controller?.abort(reason);
  }
}

/** Throws if an option is no whole number, or less than `least`. */
export function checkOption(name: string, value: number, least = 1): void {
  if ((Number.isSafeInteger(value) || value === Number.POSITIVE_INFINITY) && value >= least) return;
  throw new RangeError(`${name} must be a whole number of at least ${least}, not ${value}`);
}
