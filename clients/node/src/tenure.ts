// A tenure of one key, from its grant to its end, as this process knows it.
//
// A lease is counted from before its request was sent, by the monotonic clock of this process. The server starts to count
// later. So the lease ends here before it ends at the server, however long either was paused.

import type { Command } from "./adapters.js";
import { LockLostError, LockRefusedError } from "./errors.js";
import type { Progress, Request, Servers } from "./servers.js";
import { now, within } from "./time.js";
import type { WaitingConnections } from "./waiting.js";

/** With whom a lock is shared, as arguments of a command. */
export type Kind = readonly (string | number)[];

/** What all calls of one client share. Times are in milliseconds. */
export interface Settings {
  readonly servers: Servers;
  readonly connections: WaitingConnections;
  /** How long to try while no server answers. */
  readonly patience: number;
  readonly responseLimit: number;
}

/** What the tenures of one lock share. */
export interface Plan {
  readonly settings: Settings;
  /** As the program has named it. */
  readonly owner: string | undefined;
  /** Whether the lease is renewed. */
  readonly renewal: boolean;
  readonly holdLimit: number;
}

/** The owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was overwritten.) */
const DENIALS = new Set(["NOTHELD", "HOLDS", "WRONGTYPE"]);

export function isDenial(error: unknown): error is LockRefusedError {
  return error instanceof LockRefusedError && DENIALS.has(error.code);
}

/** When a lease ends. A thousandth and a millisecond are subtracted, because the server's clock may be faster. */
function leaseEnd(sent: number, lease: number): number {
  return sent + lease - lease / 1_000 - 1;
}

export class Tenure {
  readonly plan: Plan;
  readonly owner: string;
  readonly key: Buffer;
  kind: Kind;
  /** The lease in milliseconds; 0 until the server has told it. */
  lease: number;
  token = 0;
  holds = 1;
  /** Whether the server may keep a grant, or a place in the queue, that the program does not have. */
  mayBeGranted = false;
  /** Replies to a wait that was cancelled. */
  late: Promise<unknown[]> | undefined;
  /** When the lease ends. */
  deadline = Number.NEGATIVE_INFINITY;
  /** When the lease was asked for that it began with. */
  begun = 0;
  /** Called once, when the tenure is lost. */
  onLost: ((reason: LockLostError) => void) | undefined;
  /** Set when the tenure is lost. */
  loss: LockLostError | undefined;
  #isReleased = false;
  /** While later keys of the lock are waited for, the lease is renewed in any case. */
  #isRenewed = true;
  /** How many renewals are under way. */
  #renewals = 0;
  #retryAt = 0;
  #holdEnd = Number.POSITIVE_INFINITY;
  /** When the lease was last asked for. Only the reply to that counts. */
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

  /** The server has granted the token and the lease, which counts from `sent`. Returns whether it still runs. */
  begin(sent: number): boolean {
    const { leases } = this.plan.settings.servers;
    this.begun = sent;
    this.deadline = leaseEnd(sent, this.lease);
    if (!this.isHeld) return false;
    leases.tenures.add(this);
    leases.arm(this);
    return true;
  }

  /** All keys of the lock are held since `begun`. */
  complete(begun: number): void {
    this.mayBeGranted = false;
    this.#isRenewed = this.plan.renewal;
    this.#holdEnd = begun + this.plan.holdLimit;
    // A lease that the server has chosen may be longer than the hold limit: renewing shortens it.
    if (this.deadline > this.#holdEnd) this.renewInBackground();
    this.deadline = Math.min(this.deadline, this.#holdEnd);
    this.plan.settings.servers.leases.arm(this);
  }

  /** Throws when the tenure is lost or was released. */
  checkHeld(): void {
    if (this.#isReleased) throw new TypeError("the lock was released");
    if (now() >= this.deadline) this.loseByTime();
    if (this.loss !== undefined) throw this.loss;
  }

  /** Sends a request. If the server refuses the lease as too long, sends it again with the longest that it accepts. */
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

  /** In quarantine the command restores a tenure that the server has forgotten. */
  renewCommand(lease: number): Command {
    const { key, owner, token, holds, kind } = this;
    return ["LOCK.RENEW", key, owner, "PX", lease, "TOKEN", token, "HOLDS", holds, ...kind];
  }

  /**
   * Renews the lease, and sets its length and the kind from now on. Throws when the tenure is lost. If no server answers, the
   * next renewal sets them.
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

  /** Runs a command only while the server has this tenure. It is never sent again once a server may have carried it out. */
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
      // A server in quarantine may have forgotten the tenure: renewing restores it.
      if (!mayRenew) throw this.#lose(error.reply);
      await this.renew();
      return this.guarded(command, false);
    }
  }

  /** Ends the tenure. Throws when it is lost. */
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
      // Unless an earlier attempt was carried out, and its reply lost.
      if (!progress.isReplyLost) throw this.#lose(error.reply);
    }
  }

  /** From now on this process neither renews nor watches the lease. */
  stopRenewal(): void {
    this.plan.settings.servers.leases.tenures.delete(this);
  }

  /** From now on this process does nothing for the tenure, which may go on. */
  abandon(): void {
    this.#isReleased = true;
    this.stopRenewal();
  }

  /**
   * Gives back what may be granted to a caller that has left, and its place in the queue. Resolves when that is done or has
   * taken so many milliseconds. Then it goes on for the patience, unless the program has named the owner, which may acquire
   * the lock again meanwhile. The process may end then.
   */
  async giveUp(limit: number): Promise<void> {
    this.abandon();
    const { owner, settings } = this.plan;
    const until = now() + (owner === undefined ? settings.patience : limit);
    const commands = (): Command[] => [["LOCK.RELEASE", this.key, this.owner, "HOLDS", 0]];
    const giveUp = () => this.ask({ commands, until, isBackground: true });
    // The request that waited may be carried out after the one that gives up.
    const giveUpAgain = this.late?.then(async ([reply]) => Array.isArray(reply) && giveUp());
    await within(Promise.all([giveUp(), giveUpAgain]), limit).catch(() => {});
  }

  // For the watch over the leases.

  /** When the tenure is to be renewed, if it is. */
  get renewalDue(): number {
    if (this.#renewals > 0 || this.#isLastLease || !this.#isRenewed) return Number.POSITIVE_INFINITY;
    return Math.max(this.deadline - (this.lease * 2) / 3, this.#retryAt);
  }

  renewInBackground(): void {
    // It may find that the tenure is lost or released, or the server may refuse it.
    if (this.#renewals === 0) this.#renew(this.deadline, true).catch(() => {});
  }

  loseByTime(): void {
    this.#lose(this.#isLastLease ? "its hold limit is over" : "its lease is over");
  }

  /** Whether the lease ends with the hold limit. */
  get #isLastLease(): boolean {
    return leaseEnd(this.#holdEnd, this.lease) - 1 <= this.deadline + this.lease;
  }

  /** In the background a lease that is not to be renewed stays: the request only restores what a server has forgotten. */
  async #renew(until: number, isBackground: boolean): Promise<void> {
    const setsLease = this.#isRenewed || !isBackground;
    let lease = 0;
    const commands = (sent: number) => {
      this.#askedAt = sent;
      const left = (setsLease ? this.#holdEnd : this.deadline) - sent;
      lease = Math.max(1, Math.min(this.lease, Math.ceil(left)));
      // The server may set a shorter lease though no reply arrives.
      this.deadline = Math.min(this.deadline, leaseEnd(sent, lease));
      this.plan.settings.servers.leases.arm(this);
      return [this.renewCommand(lease)];
    };
    const limit = Math.min(this.plan.settings.responseLimit, this.lease / 6 + 1);
    this.#renewals += 1;
    try {
      const { sent } = await this.ask({ commands, limit, until, holder: this, isBackground });
      this.checkHeld(); // a tenure that is over stays over, however late this reply is
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
