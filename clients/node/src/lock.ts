import { inspect } from "node:util";
import type { Command } from "./adapters.js";
import type { LockLostError } from "./errors.js";
import type { Kind, Tenure, Tenures } from "./tenure.js";
import { settleAll } from "./time.js";

/** Which owners may hold the lock together. Without these options the lock is exclusive. */
export interface KindOptions {
  /** A read lock: all owners that ask for a shared lock may hold it together. */
  shared?: boolean;
  /** A semaphore with this many slots, 1 to 1,000,000. The number should be the same for all callers. */
  slots?: number;
  /** How many of the slots to acquire: 1 by default. */
  weight?: number;
}

/** The arguments of a command for a kind. The server checks these arguments. */
export function kindArguments({ shared, slots, weight, ...others }: KindOptions): Kind {
  refuseOthers(others);
  const limit = slots === undefined ? [] : ["SLOTS", slots];
  return [...(shared ? ["SHARED"] : []), ...limit, ...(weight === undefined ? [] : ["WEIGHT", weight])];
}

/** The arguments for a kind with the present weight. The server refuses SHARED with a weight, so SLOTS replaces it. */
function downgraded(present: Kind, kind: KindOptions): Kind {
  const weight = kind.weight === undefined ? present.slice(2) : [];
  const named = kindArguments(kind.shared && weight.length ? { ...kind, shared: false, slots: 1_000_000 } : kind);
  if (named.length === 0) throw new TypeError("a downgrade needs the option shared or slots");
  return [...named, ...weight];
}

/**
 * A lock that is held. It has one key or several keys. The client renews the lock until the program releases it.
 *
 * A held lock does not keep the process alive. When the process ends, the lock ends with its lease.
 */
export class Lock implements AsyncDisposable {
  readonly #tenures: Tenures;
  #controller: AbortController | undefined;
  /** Set when the program has released the lock, or has called `handle`. */
  #releasing: Promise<void> | undefined;

  /** @internal */
  constructor(tenures: Tenures) {
    this.#tenures = tenures;
    for (const each of tenures) each.onLost = (reason) => this.#lose(reason);
  }

  /** @internal Called when the server has granted all keys. Throws when a key is lost. */
  complete(): void {
    for (const each of this.#tenures) each.checkHeld();
    const begun = Math.max(...this.#tenures.map((each) => each.begun));
    for (const each of this.#tenures) each.complete(begun);
  }

  /**
   * The fencing token. It is larger than the token of every earlier tenure of this lock. Send the token with every write. The
   * token is below 2^53, so a JavaScript number represents it exactly. For a lock of several keys see `tokens`.
   */
  get token(): number {
    return this.#tenures[0].token;
  }

  /** The fencing tokens of the keys, in the order of the keys' bytes. */
  get tokens(): number[] {
    return this.#tenures.map((each) => each.token);
  }

  /** The owner that holds the lock. `LOCK.INFO` shows this name. */
  get owner(): string {
    return this.#tenures[0].owner;
  }

  /**
   * A signal that aborts when the lock is lost. Its reason is a `LockLostError`. The lock is lost at the end of the lease, or
   * when a server refuses a renewal because the owner does not hold the lock any more. The client renews the lock each time a
   * third of the lease has passed. A release does not abort the signal.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      const lost = this.#tenures.find((each) => each.loss !== undefined);
      if (lost !== undefined) this.#controller.abort(lost.loss);
    }
    return this.#controller.signal;
  }

  /** Whether the lock is held: by the clock of this process its lease is not over, and no server has reported a loss. */
  get held(): boolean {
    return this.#tenures.every((each) => each.isHeld);
  }

  /**
   * Renews the lock. `lease` sets its lease from now on, in milliseconds. Programs rarely need this method, because the client
   * renews the lock by itself. Rejects with `LockLostError` when the lock is lost, with `UnreachableError` when no server
   * answers within the patience, and with `LockRefusedError` when the server refuses the renewal.
   */
  async renew(lease?: number): Promise<void> {
    checkOption("lease", lease ?? 2, 2);
    await Promise.all(this.#tenures.map((each) => each.renew({ lease })));
  }

  /**
   * Lets other owners hold the lock together with this owner: a writer becomes a reader (`{ shared: true }`), or the lock
   * becomes a semaphore (`{ slots: 8 }`). The token does not change. Rejects with the errors of `renew`. After an
   * `UnreachableError` the next renewal downgrades the lock.
   */
  async downgrade(kind: KindOptions): Promise<void> {
    // Wait for all keys: a handle names the kind that each key has then.
    await settleAll(this.#tenures.map((each) => each.renew({ kind: downgraded(each.kinds[0] as Kind, kind) })));
  }

  /**
   * Runs a command only while the server has this tenure: the client sends `LOCK.GUARD` with the token. Resolves with the
   * reply. Strings in the reply are text. Without a command the server only checks the token. The lock must have one key.
   *
   * The data must be on the lock's server. In a cluster, the keys of the data must be in the slot of the lock: give all keys a
   * common tag such as `{order:42}`. The client does not add its key prefix to the keys of the command.
   *
   * Rejects with `LockLostError` when the lock is lost: the command did not run. Rejects with `LockRefusedError` when the
   * server replies with another error: the lock stays held. If the reply is lost, the client does not repeat the command, and
   * rejects with `UnreachableError`: the command may have run.
   */
  async guarded(...command: Command | []): Promise<unknown> {
    if (this.#tenures.length > 1) throw new TypeError("a guarded command needs a lock of one key");
    const isPart = (part: unknown) => typeof part === "string" || typeof part === "number" || Buffer.isBuffer(part);
    if (!command.every(isPart)) throw new TypeError("a command consists of strings, numbers and Buffers");
    return this.#tenures[0].guarded(command);
  }

  /**
   * Returns a string. Another process passes this string to `resume` to continue this lock. The string contains whether the client
   * renews the lock, and how much is left of the hold limit; the other process counts this time from the call of `resume`. This
   * process does not renew the lock any more, and does not report a loss. If no process resumes the lock, the lock ends with its lease.
   */
  handle(): string {
    for (const each of this.#tenures) each.checkHeld();
    this.#releasing = Promise.resolve();
    for (const each of this.#tenures) each.abandon();
    const base64 = (key: string | Buffer) => Buffer.from(key as string).toString("base64");
    const partOf = ({ key, token, lease, kinds }: Tenure) => [base64(key), token, lease, kinds];
    const [{ owner, plan, holdLeft }] = this.#tenures; // JSON has null for Infinity
    const parts = [owner, plan.renewal, holdLeft, ...this.#tenures.map(partOf)];
    return Buffer.from(JSON.stringify(parts)).toString("base64url");
  }

  /**
   * Releases the lock. Rejects with `LockLostError` when the lock was lost before. Rejects with `UnreachableError` when no
   * server answers within the patience; then the lock ends with its lease. A second call sends no request, and returns the
   * promise of the first call.
   */
  release(): Promise<void> {
    // Wait for the releases of all keys: a later release could end the next tenure of a named owner.
    this.#releasing ??= settleAll(this.#tenures.map((each) => each.release())).then(() => {});
    return this.#releasing;
  }

  /** Releases the lock, unless the program has released it. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#releasing === undefined) await this.release();
  }

  /**
   * A lock of several keys is lost when one key is lost. The other keys end with their leases, or when the program releases the
   * lock.
   */
  #lose(reason: LockLostError): void {
    for (const each of this.#tenures) each.stop(reason);
    this.#controller?.abort(reason);
  }
}

/** Throws if there is an option with another name. Plain JavaScript does not check the names. */
export function refuseOthers(others: object): void {
  const [name] = Object.keys(others);
  if (name !== undefined) throw new TypeError(`there is no option ${name}`);
}

/** Throws if an option is neither a whole number nor `most`, or is less than `least`. */
export function checkOption(name: string, value: number, least = 1, most = Number.MAX_SAFE_INTEGER): void {
  if ((Number.isSafeInteger(value) || value === most) && value >= least) return;
  throw new RangeError(`${name} must be a whole number of at least ${least}, not ${inspect(value)}`);
}
