// The state of one tenure of one key in this process.
//
// This process counts a lease on its monotonic clock, from before it sends the request. The server starts to count later. So the lease
// ends in this process before it ends at the server, even if one of them was paused.

import type { Command } from "./adapters.js";
import { LockLostError, LockRefusedError } from "./errors.js";
import type { Progress, Request, Servers } from "./servers.js";
import { now, within } from "./time.js";
import type { WaitingConnections } from "./waiting.js";

/** The arguments of a command that say how the lock is shared. */
export type Kind = readonly (string | number)[];

/** The settings of a client, and the state that its calls share. Times are in milliseconds. */
export interface Settings {
  readonly servers: Servers;
  readonly connections: WaitingConnections;
  /** How long to repeat a request while no server answers. */
  readonly patience: number;
  readonly responseLimit: number;
}

/** The settings that the tenures of one lock share. */
export interface Plan {
  readonly settings: Settings;
  /** The owner, if the program has named it. */
  readonly owner: string | undefined;
  /** Whether the lease is renewed. */
  readonly renewal: boolean;
  readonly holdLimit: number;
}

/** Error codes which mean that the tenure is over. After WRONGTYPE, another value has overwritten the lock. */
const DENIALS = new Set(["NOTHELD", "HOLDS", "WRONGTYPE"]);

export function isDenial(error: unknown): error is LockRefusedError {
  return error instanceof LockRefusedError && DENIALS.has(error.code);
}

/** Returns when a lease ends. Subtracts a thousandth and a millisecond, because the server's clock may run faster. */
function leaseEnd(sent: number, lease: number): number {
  return sent + lease - lease / 1_000 - 1;
}

export class Tenure {
  readonly plan: Plan;
  readonly owner: string;
  readonly key: Buffer;
  kind: Kind;
  /** The lease in milliseconds; 0 until the server has chosen it. */
  lease: number;
  token = 0;
  holds = 1;
  /** Whether the server may have a grant or a queue place of this owner that the program does not know of. */
  mayBeGranted = false;
  /** The late replies to a wait that was cancelled. */
  late: Promise<unknown[]> | undefined;
  /** When the lease ends. */
  deadline = Number.NEGATIVE_INFINITY;
  /** When the request was sent that granted the tenure, or that confirmed the grant. */
  begun = 0;
  /** Called once, when the tenure is lost. */
  onLost: ((reason: LockLostError) => void) | undefined;
  /** Set when the tenure is lost. */
  loss: LockLostError | undefined;
  #isReleased = false;
  /** Whether the lease is renewed. Until all keys of the lock are held, it is true even without the option `renewal`. */
  #isRenewed = true;
  /** How many renewals are under way. */
  #renewals = 0;
  #retryAt = 0;
  #holdEnd = Number.POSITIVE_INFINITY;
  /** When the last renewal was sent. Only its reply may extend the deadline. */
  #askedAt = 0;

  constructor(plan: Plan, owner: string, key: Buffer, kind: Kind, lease: number) {
    this.plan = plan;
    this.owner = owner;
    this.key = key;
    this.kind = kind;
    this.lease = Math.min(lease, plan.holdLimit);
  }

  get isHeld(): boolean {
    return !this.#isReleased && this.loss === undefined && now() < this.deadline;
  }

  /** Call this after a grant. The lease counts from `sent`. Returns whether the lease is not over yet. */
  begin(sent: number): boolean {
    const { leases } = this.plan.settings.servers;
    this.begun = sent;
    this.deadline = leaseEnd(sent, this.lease);
    if (!this.isHeld) return false;
    leases.tenures.add(this);
    leases.arm(this);
    return true;
  }

  /** Call this when all keys of the lock are held. `begun` is when the request for the last key was sent. */
  complete(begun: number): void {
    this.mayBeGranted = false;
    this.#isRenewed = this.plan.renewal;
    this.#holdEnd = begun + this.plan.holdLimit;
    // The server may have chosen a lease longer than the hold limit. The renewal shortens it.
    if (this.deadline > this.#holdEnd) this.renewInBackground();
    this.deadline = Math.min(this.deadline, this.#holdEnd);
    this.plan.settings.servers.leases.arm(this);
  }

  /** Throws if the tenure is lost or released. */
  checkHeld(): void {
    if (this.#isReleased) throw new TypeError("the lock was released");
    if (now() >= this.deadline) this.loseByTime();
    if (this.loss !== undefined) throw this.loss;
  }

  /** Sends a request. If the server refuses the lease as too long, sends it again with the longest lease that the server accepts. */
  async ask(request: Request) {
    const { servers, responseLimit } = this.plan.settings;
    try {
      return await servers.ask(this.key, request, responseLimit);
    } catch (error) {
      const longest =
        error instanceof LockRefusedError && /^ERR invalid expire time .*: at most (\d+) /.exec(error.reply);
      if (!longest) throw error;
      this.lease = Number(longest[1]);
      return servers.ask(this.key, request, responseLimit);
    }
  }

  /** Returns the command that renews. In quarantine it restores a tenure that the server has forgotten. */
  renewCommand(lease: number): Command {
    const { key, owner, token, holds, kind } = this;
    return ["LOCK.RENEW", key, owner, "PX", lease, "TOKEN", token, "HOLDS", holds, ...kind];
  }

  /**
   * Renews the tenure with this lease and kind, which also apply to later renewals. Throws if the tenure is lost. If no server
   * answers, the next renewal sets the new lease and kind.
   */
  async renew({ lease = this.lease, kind = this.kind } = {}): Promise<void> {
    const previous = { lease: this.lease, kind: this.kind };
    this.checkHeld();
    Object.assign(this, { lease, kind });
    try {
      await this.#renew(Math.min(this.deadline, now() + this.plan.settings.patience), false);
    } catch (error) {
      if (error instanceof LockRefusedError) Object.assign(this, previous);
      throw error;
    }
  }

  /** Runs a command only if the server has this tenure. If a server may have executed the command, it is not sent again. */
  async guarded(command: Command | [], mayRenew = true): Promise<unknown> {
    try {
      const { replies } = await this.ask({
        commands: () => [["LOCK.GUARD", this.key, this.token, ...command]],
        until: now() + this.plan.settings.patience,
        isSentOnce: true,
        holder: this,
      });
      return replies[0];
    } catch (error) {
      if (!(error instanceof LockRefusedError) || error.code !== "FENCED") throw error;
      // A server in quarantine may have forgotten the tenure. The renewal restores it.
      if (!mayRenew) throw this.#lose(error.reply);
      await this.renew();
      return this.guarded(command, false);
    }
  }

  /** Releases the tenure. Throws if it is lost. */
  async release(): Promise<void> {
    this.checkHeld();
    this.abandon();
    const progress: Progress = {};
    try {
      await this.ask({
        commands: () => [["LOCK.RELEASE", this.key, this.owner, "ALL", "TOKEN", this.token]],
        until: Math.min(this.deadline, now() + this.plan.settings.patience),
        progress,
      });
    } catch (error) {
      if (!isDenial(error)) throw error;
      // If a reply was lost, an earlier attempt may have released the tenure, so this is not a loss.
      if (!progress.isReplyLost) throw this.#lose(error.reply);
    }
  }

  /** From now on this process neither renews nor watches the lease. */
  stopRenewal(): void {
    this.plan.settings.servers.leases.tenures.delete(this);
  }

  /** From now on the tenure counts as released in this process. At the server it may continue. */
  abandon(): void {
    this.#isReleased = true;
    this.stopRenewal();
  }

  /**
   * Releases what the server may have granted to a caller that has left, and its place in the queue. Resolves when the server has
   * answered, or after `limit` milliseconds. After `limit`, repeats the request in the background until the patience is over, and does
   * not keep the process running. If the program has named the owner, stops after `limit`, because the owner may acquire the lock again.
   */
  async giveUp(limit: number): Promise<void> {
    this.abandon();
    const { owner, settings } = this.plan;
    const until = now() + (owner === undefined ? settings.patience : limit);
    const commands = (): Command[] => [["LOCK.RELEASE", this.key, this.owner, "HOLDS", 0]];
    const giveUp = () => this.ask({ commands, until, isBackground: true });
    // The server may execute the cancelled wait after the first release. If its late reply is a grant, this releases again.
    const giveUpAgain = this.late?.then(async ([reply]) => Array.isArray(reply) && giveUp());
    await within(Promise.all([giveUp(), giveUpAgain]), limit).catch(() => {});
  }

  // For `Leases`.

  /** When the client should next renew the tenure; infinity if it should not. */
  get renewalDue(): number {
    if (this.#renewals > 0 || this.#isLastLease || !this.#isRenewed) return Number.POSITIVE_INFINITY;
    return Math.max(this.deadline - (this.lease * 2) / 3, this.#retryAt);
  }

  renewInBackground(): void {
    // If the tenure is lost, `onLost` reports it. After other errors the timer renews again.
    if (this.#renewals === 0) this.#renew(this.deadline, true).catch(() => {});
  }

  loseByTime(): void {
    this.#lose(this.#isLastLease ? "its hold limit is over" : "its lease is over");
  }

  /** Whether the present lease reaches the hold limit, so that no renewal can extend it. */
  get #isLastLease(): boolean {
    return leaseEnd(this.#holdEnd, this.lease) - 1 <= this.deadline + this.lease;
  }

  /**
   * Renews the tenure. In the background, a tenure without renewal keeps the deadline of its lease: the request only restores a tenure
   * that a server has forgotten.
   */
  async #renew(until: number, isBackground: boolean): Promise<void> {
    const setsLease = this.#isRenewed || !isBackground;
    let lease = 0;
    const commands = (sent: number) => {
      this.#askedAt = sent;
      const left = (setsLease ? this.#holdEnd : this.deadline) - sent;
      lease = Math.max(1, Math.min(this.lease, Math.ceil(left)));
      // The new lease may end before the present one. The server may set it although its reply is lost.
      this.deadline = Math.min(this.deadline, leaseEnd(sent, lease));
      this.plan.settings.servers.leases.arm(this);
      return [this.renewCommand(lease)];
    };
    const limit = Math.min(this.plan.settings.responseLimit, this.lease / 6 + 1);
    this.#renewals += 1;
    try {
      const { sent } = await this.ask({ commands, limit, until, holder: this, isBackground });
      this.checkHeld(); // a late reply does not revive a tenure that has ended
      if (setsLease && sent === this.#askedAt) this.deadline = Math.min(leaseEnd(sent, lease), this.#holdEnd);
    } catch (error) {
      if (isDenial(error) && !this.#isReleased) throw this.#lose(error.reply);
      this.#retryAt = now() + Math.min(1_000, this.lease / 6);
      throw error;
    } finally {
      this.#renewals -= 1;
      if (this.isHeld) this.plan.settings.servers.leases.arm(this);
    }
  }

  #lose(reason: string): LockLostError {
    this.stopRenewal();
    if (this.loss === undefined) {
      this.loss = new LockLostError(`the lock is lost: ${reason}`, this.key);
      this.onLost?.(this.loss);
    }
    return this.loss;
  }
}
