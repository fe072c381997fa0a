// A tenure of one key, from its grant to its end, as this process knows it.
//
// This process counts a lease on its monotonic clock, from before it sent the request. The server starts the lease later. So
// the lease ends in this process before it ends at the server, even if this process or the server was paused.

import type { Plan } from "./acquire.js";
import type { Command } from "./adapters.js";
import { LockLostError, LockRefusedError } from "./errors.js";
import type { LockwardOptions } from "./lockward.js";
import type { Key, Progress, Servers } from "./servers.js";
import { now, UNLIMITED, within } from "./time.js";
import type { WaitingConnections } from "./waiting.js";

/** The kind of a lock, as arguments of a command. */
export type Kind = readonly (string | number)[];

/** What all calls of one client share. */
export type Settings = Required<LockwardOptions> & {
  readonly servers: Servers;
  readonly connections: WaitingConnections;
};

/** The errors which mean that the owner does not hold the lock any more. (WRONGTYPE: the key was overwritten.) */
const DENIALS = new Set(["NOTHELD", "HOLDS", "WRONGTYPE"]);

export const isDenial = (error: unknown): error is LockRefusedError =>
  error instanceof LockRefusedError && DENIALS.has(error.code);

/** When a lease ends. A thousandth and a millisecond are subtracted, because the server's clock may be faster. */
const leaseEnd = (sent: number, lease: number): number => sent + lease - lease / 1_000 - 1;

const isSame = (one: Kind, other: Kind | undefined): boolean => `${one}` === `${other}`;

/** The tenures of a lock or of a request, one for each key. */
export type Tenures = readonly [Tenure, ...Tenure[]];

export class Tenure {
  readonly plan: Plan;
  readonly owner: string;
  readonly key: Key;
  /**
   * The kinds that the server may have. After downgrades whose replies were lost there are several kinds. The next renewal names
   * the first kind.
   */
  kinds: Kind[];
  /** The lease in milliseconds. 0 until the server has chosen the lease. */
  lease: number;
  token = 0;
  /** Whether the server may have a grant or a place in the queue that must be given up. */
  mayBeGranted = false;
  /** The replies to a cancelled request that arrive within the response limit. */
  late: Promise<unknown[]> | undefined;
  /** When the lease ends. */
  deadline = Number.NEGATIVE_INFINITY;
  /** The position in the schedule. */
  index = -1;
  /** When the tenure's first lease was requested. */
  begun = 0;
  /** Called when the tenure is lost, unless the lock was lost before. */
  onLost!: (loss: LockLostError) => void;
  /** Set when the lock is lost, because this key or another key of the lock is lost. */
  loss: LockLostError | undefined;
  #isReleased = false;
  /** Whether the client renews the lease. While the caller waits for the next key of the lock, the client always renews it. */
  #isRenewed = true;
  /** How many renewals are in progress. */
  #renewals = 0;
  #retryAt = 0;
  #holdEnd = UNLIMITED;
  /** The end of the lease that the last renewal asks for. */
  #latestEnd = 0;
  /** When the client last sent a renewal that shortens the lease. Replies to earlier renewals do not set the deadline. */
  #shortenedAt = 0;
  /** The lease that the server has accepted last. */
  #acceptedLease = 0;

  constructor(plan: Plan, owner: string, key: Key) {
    this.plan = plan;
    this.owner = owner;
    this.key = key;
    this.kinds = [plan.kind];
    this.lease = Math.min(plan.lease, plan.holdLimit);
  }

  get isHeld(): boolean {
    return !this.#isReleased && this.loss === undefined && now() < this.deadline;
  }

  /** How much is left of the hold limit, in milliseconds. */
  get holdLeft(): number {
    return Math.max(1, Math.floor(this.#holdEnd - now()));
  }

  /** Called when the server has granted the lock. The lease starts at `sent`. Returns false if the lease is already over. */
  begin(sent: number): boolean {
    this.begun = sent;
    this.#acceptedLease = this.lease;
    this.deadline = leaseEnd(sent, this.lease);
    if (!this.isHeld) return false;
    this.plan.settings.servers.schedule.add(this);
    return true;
  }

  /** Called when all keys of the lock are held. `begun` is when the lease of the last key was requested. */
  complete(begun: number): void {
    this.mayBeGranted = false;
    this.#isRenewed = this.plan.renewal;
    this.#holdEnd = begun + this.plan.holdLimit;
    // A lease that the server has chosen may be longer than the hold limit. A renewal shortens it.
    const isTooLong = this.deadline > this.#holdEnd;
    this.deadline = Math.min(this.deadline, this.#holdEnd);
    if (isTooLong) this.#renew(this.deadline, false).catch(() => {});
    this.plan.settings.servers.schedule.arm(this);
  }

  /** Throws when the tenure was lost or released. */
  checkHeld(): void {
    if (this.#isReleased) throw new TypeError("the lock was released, or handle() has ended it here");
    if (now() >= this.deadline) this.#lose();
    if (this.loss !== undefined) throw this.loss;
  }

  acquireCommand(lease: number, ...block: (string | number)[]): Command {
    const named = lease > 0 ? ["PX", lease] : [];
    return ["LOCK.ACQUIRE", this.key, this.owner, ...named, ...block, "HOLDS", 1, ...this.plan.kind];
  }

  /** Returns whether the server has granted or renewed the lock. */
  readGrant(reply: unknown): boolean {
    if (reply === null || (reply === this.token && this.token > 0)) return reply !== null; // the token is the reply to a renewal
    const [token, , left] = Array.isArray(reply) ? reply : [];
    if (![token, left].every(Number.isSafeInteger)) throw new LockRefusedError(`unexpected reply ${reply}`, this.key);
    this.token = token;
    this.lease ||= left;
    return true;
  }

  /** The renewal command. A server in quarantine that has forgotten the tenure restores it. */
  renewCommand(lease: number, kind = this.plan.kind): Command {
    return ["LOCK.RENEW", this.key, this.owner, "PX", lease, "TOKEN", this.token, "HOLDS", 1, ...kind];
  }

  /**
   * Renews the lock. Later renewals use this lease, too. With a kind, this is a downgrade to this kind. Throws when the tenure is
   * lost. If no server answers, the next renewal sets the lease and the kind.
   */
  async renew({ lease = this.lease, kind }: { lease?: number | undefined; kind?: Kind } = {}): Promise<void> {
    this.checkHeld();
    this.lease = lease;
    if (kind !== undefined) this.kinds = [kind, ...this.kinds.filter((other) => !isSame(other, kind))];
    await this.#renew(Math.min(this.deadline, now() + this.plan.settings.patience), true, kind);
  }

  /** Runs a command only while the server has this tenure. Does not repeat a command that the server may have carried out. */
  async guarded(command: Command | [], mayRenew = true): Promise<unknown> {
    const { servers, patience } = this.plan.settings;
    const commands = (): Command[] => [["LOCK.GUARD", this.key, this.token, ...command]];
    const request = { commands, until: now() + patience, isSentOnce: true, mustBeHeld: true };
    try {
      return (await servers.ask([this], request)).replies[0];
    } catch (error) {
      if (!(error instanceof LockRefusedError) || error.code !== "FENCED") throw error;
      // A server in quarantine may have forgotten the tenure. A renewal restores it.
      if (!mayRenew) throw this.#lose(error.reply);
      await this.renew();
      return this.guarded(command, false);
    }
  }

  /** Releases the lock. Throws when the tenure is lost. */
  async release(): Promise<void> {
    if (now() >= this.deadline) this.checkHeld();
    this.abandon();
    const { servers, patience } = this.plan.settings;
    const commands = (): Command[] => [["LOCK.RELEASE", this.key, this.owner, "ALL", "TOKEN", this.token]];
    const until = Math.min(this.deadline, now() + patience);
    const progress: Progress = {};
    try {
      const { replies } = await servers.ask([this], { commands, until, isRelease: true, progress });
      if (!Number.isSafeInteger(replies[0])) throw new LockRefusedError(`unexpected reply ${replies[0]}`, this.key);
    } catch (error) {
      if (!isDenial(error)) throw error;
      // If an earlier reply was lost, this error does not show a loss: the server may have carried out the earlier attempt.
      if (!progress.isReplyLost) throw this.#lose(error.reply);
    }
  }

  /** From now on this process neither renews nor watches the lease, because the lock is lost. `release` still releases the key. */
  stop(loss: LockLostError): void {
    this.loss ??= loss;
    this.plan.settings.servers.schedule.delete(this);
  }

  /** From now on this process does nothing for the tenure. At the server the tenure may continue. */
  abandon(): void {
    this.#isReleased = true;
    this.plan.settings.servers.schedule.delete(this);
  }

  /**
   * Releases what the server may have granted to a caller that has left, and leaves the queue. Resolves when the release is
   * done, or after `limit` milliseconds. After the limit the client repeats the release in the background until the patience
   * is over. But if the program has named the owner, the client does not repeat the release after the limit, because this
   * owner may acquire the lock again. The release does not keep the process alive.
   */
  async giveUp(limit: number): Promise<void> {
    this.abandon();
    const { owner, settings } = this.plan;
    const until = now() + (owner === undefined ? settings.patience : limit);
    const commands = (): Command[] => [["LOCK.RELEASE", this.key, this.owner, "HOLDS", 0]];
    const giveUp = () => settings.servers.ask([this], { commands, until, isRelease: true, isBackground: true });
    // The server may carry out the cancelled request after the first release. If a late reply is a grant, release again.
    const giveUpAgain = this.late?.then(async (late) => late.some(Array.isArray) && now() < until && giveUp());
    await within(Promise.all([giveUp(), giveUpAgain]), limit).catch(() => {});
  }

  /** When to renew the tenure, or when its lease ends. */
  get due(): number {
    return Math.min(this.#renewalDue, this.deadline);
  }

  onTimer(at: number): void {
    // Report losses after all renewals are sent, because the program's listeners may be slow. Also renew a tenure that is due
    // within a twelfth of its lease, so that several renewals share a pipeline from now on.
    if (at >= this.deadline) queueMicrotask(() => this.#lose());
    else if (at >= this.#renewalDue - this.lease / 12) this.onBroken();
    this.plan.settings.servers.schedule.arm(this);
  }

  /** Renews the tenure: a server that was restarted may have forgotten it. */
  onBroken(): void {
    // An error needs no action here: `#renew` reports a loss, and sets the time of the next attempt.
    if (this.#renewals === 0) this.#renew(this.deadline, false).catch(() => {});
  }

  /** When to renew the tenure. Infinity means never. */
  get #renewalDue(): number {
    if (this.#renewals > 0 || this.#isLastLease || !this.#isRenewed) return UNLIMITED;
    return Math.max(this.deadline - (this.lease * 2) / 3, this.#retryAt);
  }

  /** Whether the lease ends with the hold limit. */
  get #isLastLease(): boolean {
    return leaseEnd(this.#holdEnd, this.lease) - 1 <= this.deadline + this.lease;
  }

  /**
   * Sends a renewal, and repeats it until a server answers. The program wants the renewal, or the renewal runs in the background.
   * If the program has switched renewal off, a renewal in the background does not extend the lease. It only restores a tenure
   * that a server has forgotten.
   */
  async #renew(until: number, isWanted: boolean, downgrade?: Kind): Promise<void> {
    const setsLease = this.#isRenewed || isWanted;
    let [lease, kind, end] = [0, this.plan.kind, 0];
    const commands = (sent: number) => {
      kind = downgrade ?? (this.kinds[0] as Kind);
      const left = (setsLease ? this.#holdEnd : this.deadline) - sent;
      lease = Math.max(1, Math.min(this.lease, Math.ceil(left)));
      // The server may set a shorter lease even if the reply is lost.
      end = leaseEnd(sent, lease);
      if (end < this.#latestEnd) this.#shortenedAt = sent;
      this.#latestEnd = end;
      this.deadline = Math.min(this.deadline, end);
      this.plan.settings.servers.schedule.arm(this);
      return [this.renewCommand(lease, kind)];
    };
    const limit = Math.min(this.plan.settings.responseLimit, this.lease / 6 + 1);
    const request = { commands, limit, until, mustBeHeld: true, isBackground: !isWanted, progress: {} as Progress };
    this.#renewals += 1;
    try {
      const { sent, replies } = await this.plan.settings.servers.ask([this], request);
      if (replies[0] !== this.token) throw new LockRefusedError(`unexpected reply ${replies[0]}`, this.key);
      this.checkHeld(); // a late reply does not revive a tenure that has ended
      this.#acceptedLease = this.lease;
      if (isSame(kind, this.kinds[0])) this.kinds = [kind];
      if (setsLease && sent >= this.#shortenedAt) this.deadline = Math.max(this.deadline, Math.min(end, this.#holdEnd));
    } catch (error) {
      if (isDenial(error) && !this.#isReleased) throw this.#lose(error.reply);
      const { code } = error as LockRefusedError;
      // The server does not have the kind that this renewal has named.
      const isWrongKind = code === "LIMIT" || code === "ERR";
      if (isWrongKind || (code && isWanted)) this.lease = this.#acceptedLease;
      if (isWrongKind || (code && downgrade !== undefined)) {
        const hasOtherKind = this.#reject(kind, !isWrongKind && request.progress.isReplyLost);
        if (hasOtherKind && downgrade === undefined) return await this.#renew(until, isWanted);
      }
      this.#retryAt = now() + Math.min(1_000, this.lease / 6);
      throw error;
    } finally {
      this.#renewals -= 1;
      if (this.isHeld) this.plan.settings.servers.schedule.arm(this);
    }
  }

  /**
   * Called when the server has refused a renewal with this kind. `mayHaveRun` says whether the server may have executed an
   * earlier attempt of this downgrade. Returns whether the next renewal names another kind.
   */
  #reject(kind: Kind, mayHaveRun = false): boolean {
    const others = this.kinds.filter((other) => !isSame(other, kind));
    if (others.length === 0) return false;
    this.kinds = mayHaveRun ? [...others, kind] : others;
    return true;
  }

  #lose(reason = this.#isLastLease ? "its hold limit is over" : "its lease is over"): LockLostError {
    this.deadline = Number.NEGATIVE_INFINITY; // so that a release sends no request
    if (this.loss === undefined) this.onLost(new LockLostError(`the lock is lost: ${reason}`, this.key));
    return this.loss as unknown as LockLostError;
  }
}
