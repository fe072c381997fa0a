// A tenure of one key, from its grant to its end, as this process knows it.
//
// A lease is counted from before its request was sent, by the monotonic clock of this process. The server starts to count
// later. So the lease ends here before it ends at the server, however long either was paused.

import { type Command, ServerError } from "./adapters.js";
import { LockLostError, LockRefusedError } from "./errors.js";
import { type Answer, Progress, type Request, refused, type Servers } from "./servers.js";
import { now } from "./time.js";

/** With whom a lock is shared, as arguments of a command. */
export type Kind = readonly (string | number)[];

/** Times are in milliseconds. */
export interface Settings {
  readonly patience: number;
  readonly responseLimit: number;
}

/** The owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was overwritten.) */
const DENIALS = new Set(["NOTHELD", "HOLDS", "WRONGTYPE"]);

export function deniesTenure(reply: unknown): reply is ServerError {
  return reply instanceof ServerError && DENIALS.has(reply.code);
}

/** When a lease ends. A thousandth and a millisecond are subtracted, because the server's clock may be faster. */
export function leaseEnd(sent: number, lease: number): number {
  return sent + lease - lease / 1_000 - 1;
}

export class Tenure {
  readonly servers: Servers;
  readonly settings: Settings;
  readonly key: Buffer;
  readonly owner: string;
  readonly isRenewed: boolean;
  readonly holdLimit: number;
  kind: Kind;
  /** The lease in milliseconds; 0 until the server has told it. */
  lease: number;
  token = 0;
  holds = 1;
  /** When the lease ends. */
  deadline = Number.NEGATIVE_INFINITY;
  /** Called once, when the tenure is lost. */
  onLost: ((reason: LockLostError) => void) | undefined;
  #loss: LockLostError | undefined;
  #isReleased = false;
  /** How many are under way. */
  #renewals = 0;
  #retryAt = 0;
  #holdEnd = Number.POSITIVE_INFINITY;
  /** How many requests have set the lease. Only the reply to the last one counts. */
  #leaseRequests = 0;

  constructor(
    servers: Servers,
    settings: Settings,
    key: Buffer,
    owner: string,
    kind: Kind,
    lease: number,
    isRenewed = true,
    holdLimit = Number.POSITIVE_INFINITY,
  ) {
    this.servers = servers;
    this.settings = settings;
    this.key = key;
    this.owner = owner;
    this.kind = kind;
    this.lease = Math.min(lease, holdLimit);
    this.isRenewed = isRenewed;
    this.holdLimit = holdLimit;
  }

  /** A tenure that another process has acquired. */
  static fromHandle(servers: Servers, settings: Settings, part: unknown): Tenure {
    const [key, owner, token, holds, lease, ...kind] = part as [string, string, number, number, number, ...Kind];
    const tenure = new Tenure(servers, settings, Buffer.from(key, "base64"), owner, kind, lease);
    tenure.token = token;
    tenure.holds = holds;
    return tenure;
  }

  toHandle(): unknown[] {
    return [this.key.toString("base64"), this.owner, this.token, this.holds, this.lease, ...this.kind];
  }

  get isHeld(): boolean {
    return !this.#isReleased && this.#loss === undefined && now() < this.deadline;
  }

  /** The server has granted the token and the lease, which counts from `sent`. */
  begin(sent: number): void {
    this.#loss = undefined;
    this.#isReleased = false;
    this.#holdEnd = sent + this.holdLimit;
    this.deadline = Math.min(leaseEnd(sent, this.lease), this.#holdEnd);
    this.servers.leases.add(this);
    // A lease that the server has chosen may be longer than the hold limit: renewing shortens it.
    if (leaseEnd(sent, this.lease) > this.#holdEnd) this.renewInBackground();
  }

  /** Throws when the tenure is lost. */
  checkHeld(): void {
    if (!this.#isReleased && now() >= this.deadline) this.loseByTime();
    if (this.#loss !== undefined) throw this.#loss;
  }

  /** Sends a request. If the server refuses the lease as too long, sends it again with the longest that it accepts. */
  async ask(request: Omit<Request, "key">): Promise<Answer> {
    const answer = await this.servers.ask({ ...request, key: this.key });
    const [reply] = answer.replies;
    const longest = reply instanceof ServerError && /^ERR invalid expire time .*: at most (\d+) /.exec(reply.message);
    if (!longest) return answer;
    this.lease = Number(longest[1]);
    return this.servers.ask({ ...request, key: this.key });
  }

  /** In quarantine the command restores a tenure that the server has forgotten. */
  renewCommand(lease: number): Command {
    return ["LOCK.RENEW", this.key, this.owner, "PX", lease, "TOKEN", this.token, "HOLDS", this.holds, ...this.kind];
  }

  /** Renews the lease, and sets its length from now on. Throws when the tenure is lost. */
  async renew(lease = this.lease): Promise<void> {
    const previous = this.lease;
    this.checkHeld();
    this.lease = lease;
    try {
      await this.#renew({ until: Math.min(this.deadline, now() + this.settings.patience) });
    } catch (error) {
      if (error instanceof LockRefusedError) this.lease = previous;
      throw error;
    }
  }

  /** Lets others in, who may hold the lock beside this owner. The server does so at the latest with the next renewal. */
  async downgrade(kind: Kind): Promise<void> {
    const previous = this.kind;
    this.checkHeld();
    this.kind = kind;
    try {
      await this.renew();
    } catch (error) {
      if (error instanceof LockRefusedError) this.kind = previous;
      throw error;
    }
  }

  /** Starts to hold a tenure that another process has acquired. */
  async resume(): Promise<void> {
    await this.#renew({ until: now() + this.settings.patience, isResumed: true });
    this.servers.leases.add(this);
  }

  /** Runs a command only while the server has this tenure. It is never sent again once a server may have carried it out. */
  async guarded(command: Command | [], mayRenew = true): Promise<unknown> {
    const { patience, responseLimit } = this.settings;
    const { replies } = await this.servers.ask({
      key: this.key,
      commands: () => [["LOCK.GUARD", this.key, this.token, ...command]],
      limit: () => responseLimit,
      until: now() + patience,
      isSentOnce: true,
      check: () => this.checkHeld(),
    });
    const [reply] = replies;
    if (!(reply instanceof ServerError)) return reply;
    if (reply.code !== "FENCED") throw refused(this.key, reply);
    // A server in quarantine may have forgotten the tenure: renewing restores it.
    if (!mayRenew) throw this.#lose(reply.message);
    await this.renew();
    return this.guarded(command, false);
  }

  /** Ends the tenure. Throws when it is lost. */
  async release(): Promise<void> {
    this.checkHeld();
    this.abandon();
    const progress = new Progress();
    const { patience, responseLimit } = this.settings;
    const { replies } = await this.servers.ask({
      key: this.key,
      commands: () => [["LOCK.RELEASE", this.key, this.owner, "ALL", "TOKEN", this.token]],
      limit: () => responseLimit,
      until: Math.min(this.deadline, now() + patience),
      progress,
    });
    const [reply] = replies;
    // An earlier attempt was carried out, and its reply lost.
    if (deniesTenure(reply) && progress.isReplyLost) return;
    if (deniesTenure(reply)) throw this.#lose(reply.message);
    if (reply instanceof ServerError) throw refused(this.key, reply);
  }

  /** From now on this process neither renews nor watches the lease. */
  stopRenewal(): void {
    this.servers.leases.delete(this);
  }

  /** From now on this process does nothing for the tenure, which may go on. */
  abandon(): void {
    this.#isReleased = true;
    this.stopRenewal();
  }

  /** Gives back what may be granted to a caller that has left, and its place in the queue. Tries it for 200 ms. */
  giveUp(): void {
    this.abandon();
    const commands = (): Command[] => [["LOCK.RELEASE", this.key, this.owner, "HOLDS", 0]];
    const request = { key: this.key, commands, limit: () => 200, until: now() + 200, isSentOnce: true };
    this.servers.ask(request).catch(() => {});
  }

  // For the watch over the leases.

  /** When the tenure is to be renewed, or ends. */
  get nextEvent(): number {
    return Math.min(this.renewalDue, this.deadline);
  }

  get renewalDue(): number {
    if (this.#renewals > 0 || this.#isLastLease || !this.isRenewed) return Number.POSITIVE_INFINITY;
    return Math.max(this.deadline - (this.lease * 2) / 3, this.#retryAt);
  }

  /** Whether the lease ends with the hold limit. */
  get #isLastLease(): boolean {
    return leaseEnd(this.#holdEnd, this.lease) - 1 <= this.deadline + this.lease;
  }

  renewInBackground(): void {
    if (this.#renewals > 0) return;
    this.#renew({ until: this.deadline, isBackground: true }).catch(() => {
      // The tenure is lost or released, or the server has refused the renewal.
    });
  }

  loseByTime(): void {
    this.#lose(this.#isLastLease ? "its hold limit is over" : "its lease is over");
  }

  /**
   * A lease that was not to be renewed stays as it is in the background: the request only restores what a server has
   * forgotten.
   */
  async #renew(options: { until: number; isBackground?: boolean; isResumed?: boolean }): Promise<void> {
    const { until, isBackground = false, isResumed = false } = options;
    const setsLease = this.isRenewed || !isBackground;
    this.#leaseRequests += 1;
    const leaseRequest = this.#leaseRequests;
    let lease = 0;
    const check = () => {
      if (this.#isReleased) throw new TypeError("the lock was released");
      if (!isResumed) this.checkHeld();
    };
    this.#renewals += 1;
    try {
      const { sent, replies } = await this.ask({
        check,
        until,
        isBackground,
        commands: (sent) => {
          const left = (setsLease ? this.#holdEnd : this.deadline) - sent;
          lease = Math.max(1, Math.min(this.lease, Math.ceil(left)));
          // The server may set a shorter lease though no reply arrives.
          this.deadline = Math.min(this.deadline, leaseEnd(sent, lease));
          this.servers.leases.arm(this.deadline);
          return [this.renewCommand(lease)];
        },
        limit: () => Math.min(this.settings.responseLimit, this.lease / 6 + 1),
      });
      const [reply] = replies;
      check(); // a tenure that is over stays over, however late this reply is
      if (deniesTenure(reply)) throw this.#lose(reply.message);
      if (reply instanceof ServerError) throw refused(this.key, reply);
      if (setsLease && leaseRequest === this.#leaseRequests) {
        this.deadline = Math.min(leaseEnd(sent, lease), this.#holdEnd);
      }
    } catch (error) {
      this.#retryAt = now() + Math.min(1_000, this.lease / 6);
      throw error;
    } finally {
      this.#renewals -= 1;
      if (this.isHeld) this.servers.leases.arm(this.nextEvent);
    }
  }

  #lose(reason: string): LockLostError {
    this.servers.leases.delete(this);
    if (this.#loss === undefined) {
      this.#loss = new LockLostError(`the lock is lost: ${reason}`, this.key.toString());
      this.onLost?.(this.#loss);
    }
    return this.#loss;
  }
}
