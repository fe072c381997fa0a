import type { Command } from "./adapters.js";
import type { LockLostError } from "./errors.js";
import type { Kind, Tenure } from "./tenure.js";

/** How a lock is shared. Without `shared` and `slots`, the lock is exclusive. */
export interface KindOptions {
  /** Acquires a read lock: all owners that acquire it with `shared` hold it together. */
  shared?: boolean;
  /** Makes the lock a semaphore with this number of slots, 1 to 1,000,000. All callers should use the same number. */
  slots?: number;
  /** How many of the slots to acquire. The default is 1. */
  weight?: number;
}

/** The arguments of a command for these options. The server checks the arguments. */
export function kindArguments({ shared, slots, weight }: KindOptions): Kind {
  const limit = slots === undefined ? [] : ["SLOTS", slots];
  return [...(shared ? ["SHARED"] : []), ...limit, ...(weight === undefined ? [] : ["WEIGHT", weight])];
}

/** The tenures of the keys of a lock. */
export type Tenures = readonly [Tenure, ...Tenure[]];

/**
 * A held lock, of one key or of several keys. The client renews its lease until the program releases the lock.
 *
 * A held lock does not keep the process running. If the process ends without a release, the lock ends with its lease.
 */
export class Lock implements AsyncDisposable {
  readonly #tenures: Tenures;
  #controller: AbortController | undefined;
  /** Set when the program has called `release` or `handle`. */
  #releasing: Promise<void> | undefined;

  /** @internal */
  constructor(tenures: Tenures) {
    this.#tenures = tenures;
    for (const each of tenures) each.onLost = (reason) => this.#lose(reason);
  }

  /** @internal Call this when all keys are held. Throws if a key is lost. */
  complete(): void {
    for (const each of this.#tenures) each.checkHeld();
    const begun = Math.max(...this.#tenures.map((each) => each.begun));
    for (const each of this.#tenures) each.complete(begun);
  }

  /**
   * The fencing token. It is larger than the tokens of all earlier tenures of this lock. Send it with every write. The token is
   * less than 2^53, so a number represents it exactly. If the lock has several keys, use `tokens`.
   */
  get token(): number {
    return this.#tenures[0].token;
  }

  /** The fencing tokens of the keys. The keys are sorted by their bytes. */
  get tokens(): number[] {
    return this.#tenures.map((each) => each.token);
  }

  /** The owner that holds the lock, as `LOCK.INFO` shows it. */
  get owner(): string {
    return this.#tenures[0].owner;
  }

  /**
   * Aborts when the lock is lost. The reason is a `LockLostError`. The lock is lost when its lease ends, or when the server
   * refuses a renewal because the owner no longer holds the lock. The client renews each time a third of the lease has passed. A
   * release does not abort the signal.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      const lost = this.#tenures.find((each) => each.loss !== undefined);
      if (lost !== undefined) this.#controller.abort(lost.loss);
    }
    return this.#controller.signal;
  }

  /**
   * Whether the lock is held, as far as this process knows: its lease is not over by the clock of this process, and no reply has
   * reported a loss.
   */
  get held(): boolean {
    return this.#tenures.every((each) => each.isHeld);
  }

  /**
   * Renews the lock. `lease` is the lease from now on, in milliseconds. A call is rarely needed, because the client renews the lock
   * by itself. Rejects with `LockLostError` if the lock is lost, with `UnreachableError` if no server answers within the patience,
   * and with `LockRefusedError` if the server refuses the renewal.
   */
  async renew(lease?: number): Promise<void> {
    checkOption("lease", lease ?? 1);
    await Promise.all(this.#tenures.map((each) => each.renew({ lease })));
  }

  /**
   * Lets other owners hold the lock together with this one. With `{ shared: true }` a writer becomes a reader. With
   * `{ slots: 8 }` the lock becomes a semaphore. The token does not change. Rejects as `renew` does. After an `UnreachableError`,
   * the next renewal downgrades the lock.
   */
  async downgrade(kind: KindOptions): Promise<void> {
    await Promise.all(this.#tenures.map((each) => each.renew({ kind: kindArguments(kind) })));
  }

  /**
   * Runs a command only if the server still has this tenure. Sends `LOCK.GUARD` with the token. Resolves with the reply, in which
   * strings are text. Without a command, `guarded` only checks the token. The lock must have one key.
   *
   * The data must be on the lock's server. In a cluster the lock and the data need the same slot, so give all their keys the same
   * `{tag}`. The client does not add its key prefix to the keys of the command.
   *
   * If the lock is lost, the command does not run, and `guarded` rejects with `LockLostError`. If the server replies with another
   * error, `guarded` rejects with `LockRefusedError`, and the lock stays held. If the reply is lost, the command may have run, so
   * `guarded` does not repeat it, and rejects with `UnreachableError`.
   */
  async guarded(...command: Command | []): Promise<unknown> {
    if (this.#tenures.length > 1) throw new TypeError("a guarded command needs a lock of one key");
    return this.#tenures[0].guarded(command);
  }

  /**
   * Returns a string with which another process can continue this tenure: see `resume`. In this process the lock ends as if it
   * were released: this process no longer renews it and reports no loss. If no process resumes the lock, it ends with its lease.
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
   * Releases the lock. Rejects with `LockLostError` if the lock was already lost. If no server answers within the patience, rejects
   * with `UnreachableError`, and the lock ends with its lease. A second call returns the promise of the first call.
   */
  release(): Promise<void> {
    this.#releasing ??= Promise.all(this.#tenures.map((each) => each.release())).then(() => {});
    return this.#releasing;
  }

  /** Releases the lock, unless the program has already released it. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#releasing === undefined) await this.release();
  }

  /** A lock of several keys is lost as soon as one key is lost. The other keys end with their leases, or by `release`. */
  #lose(reason: LockLostError): void {
    for (const each of this.#tenures) each.stopRenewal();
    this.#controller?.abort(reason);
  }
}

/** Throws unless an option is a whole number, or infinity, of at least `least`. */
export function checkOption(name: string, value: number, least = 1): void {
  if ((Number.isSafeInteger(value) || value === Number.POSITIVE_INFINITY) && value >= least) return;
  throw new RangeError(`${name} must be a whole number of at least ${least}, not ${value}`);
}
