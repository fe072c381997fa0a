// A tenure, from an owner's first hold to its last, as this process knows it; and the one timer that renews all of a client.
//
// A lease counts from before its request was sent, by the monotonic clock of this process. The server's lease starts later,
// so who believes in the lock here does so no longer than the server does, however long either was paused.

import { type Command, Refusal } from "./connecting.js";
import { LockLost, LockRefused, Unreachable } from "./errors.js";
import { type Link, PROMPT } from "./link.js";
import { LONGEST, now } from "./time.js";

/** Whose lock it is about. */
export interface Claim {
  readonly key: Buffer;
  readonly owner: string;
}

/** What a server grants. The lease is in milliseconds, and ends at the deadline. */
export interface Grant {
  readonly token: number;
  readonly lease: number;
  readonly deadline: number;
}

/** The lock is not there any more as this owner had it. (WRONGTYPE: it was overwritten.) */
const GONE = new Set(["NOTHELD", "HOLDS", "WRONGTYPE"]);

export function isGone(reply: unknown): boolean {
  return reply === null || (reply instanceof Refusal && GONE.has(reply.code));
}

/** The server takes no lease that long, or not any more. */
export function isTooLong(reply: unknown): boolean {
  return reply instanceof Refusal && reply.message.startsWith("ERR invalid expire time");
}

/** When a lease ends that was asked for at `sent`: what the server's clock may be faster than ours is left out. */
export function deadline(sent: number, lease: number): number {
  return sent + lease - lease / 1_000 - 1;
}

export function renewal({ key, owner }: Claim, lease: number, token: number, holds: number): Command {
  return ["LOCK.RENEW", key, owner, "PX", lease, "TOKEN", token, "HOLDS", holds];
}

/** Gives back what may have been granted to somebody who has left, or who believes that it is lost; tries for so long. */
export function withdraw(link: Link, { key, owner }: Claim, patience: number): void {
  const request = {
    key,
    commands: (): Command[] => [["LOCK.RELEASE", key, owner, "HOLDS", 0]],
    until: now() + patience,
    patience,
    isBackground: true,
  };
  link.ask(request).catch(() => {}); // its lease ends it
}

export class Tenure {
  readonly claim: Claim;
  readonly token: number;
  readonly #link: Link;
  readonly #keeper: Keeper;
  readonly #isRenewed: boolean;
  readonly #patience: number;
  readonly #losing = new AbortController();
  /** What the program has of it. One that it has dropped is renewed no more. */
  readonly #locks = new Set<WeakRef<object>>();
  #lease: number;
  #deadline: number;
  /** How many holds the server has counted, at most. */
  #holds = 1;
  /** How many of them are not given back. */
  #entered = 1;
  #isOver = false;
  #isRenewing = false;
  /** How many were sent. */
  #renewals = 0;
  #isHurried = false;
  #retryAt = 0;
  /** Requests that change the count go one after the other. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(link: Link, claim: Claim, grant: Grant, isRenewed: boolean, patience: number) {
    this.#link = link;
    this.#keeper = Keeper.of(link);
    this.claim = claim;
    this.token = grant.token;
    this.#lease = grant.lease;
    this.#deadline = grant.deadline;
    this.#isRenewed = isRenewed;
    this.#patience = patience;
  }

  get signal(): AbortSignal {
    return this.#losing.signal;
  }

  get isHeld(): boolean {
    return !this.#isOver && !this.signal.aborted && now() < this.#deadline;
  }

  /** Is renewed while the program has a lock that is not released. */
  belongsTo(lock: WeakRef<object>): void {
    this.#locks.add(lock);
    if (!this.signal.aborted) this.#keeper.add(this);
  }

  /** Throws when it is lost. */
  check(): void {
    if (!this.#isOver && now() >= this.#deadline) this.#lose("its lease is over");
    this.signal.throwIfAborted();
  }

  /** One hold more. */
  enter(): Promise<void> {
    return this.#inTurn(async () => {
      this.check();
      const holds = this.#holds + 1;
      const { key, owner } = this.claim;
      const turn = this.#renewals;
      let lease = 0;
      let longest = Number.POSITIVE_INFINITY;
      const ask = () =>
        this.#ask(() => {
          lease = Math.min(this.#leaseLeft(), longest);
          return ["LOCK.ACQUIRE", key, owner, "PX", lease, "HOLDS", holds];
        });
      let { reply, sent } = await ask();
      while (isTooLong(reply) && lease > 1) {
        longest = Math.floor(lease / 2); // its lease ends no sooner for it
        if (this.#isRenewed) this.#lease = longest;
        ({ reply, sent } = await ask());
      }
      if (isGone(reply)) this.#lose(said(reply));
      this.check();
      this.#answered(reply);
      this.#holds = holds;
      this.#entered += 1;
      if (this.#isRenewed && turn === this.#renewals) {
        this.#deadline = Math.max(this.#deadline, deadline(sent, lease));
      }
    });
  }

  /** One hold less. Throws when the lock had been lost. */
  leave(lock: WeakRef<object>): Promise<void> {
    this.#locks.delete(lock);
    return this.#inTurn(async () => {
      const { key, owner } = this.claim;
      this.#entered -= 1;
      const isLast = this.#entered === 0;
      if (isLast && !this.isHeld) withdraw(this.#link, this.claim, this.#patience); // the server's lease may be longer
      this.check();
      // Before the request is sent: a renewal after the release would find the lock lost.
      if (isLast) this.#end();
      // HOLDS 0 would be answered alike whether the lock was held or had been lost; ALL with the token tells.
      const count: [string, ...number[]] = isLast ? ["ALL"] : ["HOLDS", this.#holds - 1];
      const { reply } = await this.#ask(() => ["LOCK.RELEASE", key, owner, ...count, "TOKEN", this.token]);
      // A count that is lower already, as a server has forgotten some, is not to be lowered.
      const isCounted = !(reply instanceof Refusal) || reply.code !== "HOLDS";
      if (isCounted && isGone(reply)) {
        this.#lose(said(reply));
        this.signal.throwIfAborted();
      }
      if (isCounted) this.#answered(reply);
      this.#holds = Math.max(1, this.#holds - 1);
    });
  }

  /** A lease of so many milliseconds from now, and at each renewal. */
  async renew(lease?: number): Promise<void> {
    this.check();
    const former = this.#lease;
    this.#lease = lease ?? former;
    try {
      await this.#renewOnce(this.#lease, false, lease !== undefined);
    } catch (error) {
      if (error instanceof LockRefused) this.#lease = former;
      throw error;
    }
    this.#keeper.arm(this.next);
  }

  // For the keeper.

  /** When there is something to do. */
  get next(): number {
    return Math.min(this.#due, this.#deadline);
  }

  get #due(): number {
    if (this.#isRenewing || this.signal.aborted || this.#isOver) return Number.POSITIVE_INFINITY;
    if (this.#isHurried) return this.#retryAt;
    if (!this.#isRenewed || this.#isDropped()) return Number.POSITIVE_INFINITY;
    return Math.max(this.#deadline - (this.#lease * 2) / 3, this.#retryAt);
  }

  /** The server may have started anew and forgotten: let it hear of the tenure at once. */
  hurry(): void {
    this.#isHurried = !this.#isDropped();
  }

  tend(): void {
    if (now() >= this.#deadline) this.#lose("its lease is over");
    else if (now() >= this.#due) void this.#keep();
  }

  async #keep(): Promise<void> {
    this.#isRenewing = true;
    this.#isHurried = false;
    try {
      await this.#renewOnce(this.#leaseLeft(), true);
    } catch {
      // It is lost, or is tried again before long.
      this.#retryAt = now() + 1_000;
    } finally {
      this.#isRenewing = false;
      if (!this.#isOver) this.#keeper.arm(this.next);
    }
  }

  /**
   * Has a lease of so many milliseconds, or of half as many and so on, where the server takes it no longer: not one that is
   * fixed, nor where nobody would renew a shorter one. Throws when the tenure is lost.
   */
  async #renewOnce(lease: number, isBackground: boolean, isFixed = false): Promise<void> {
    this.#renewals += 1;
    const turn = this.#renewals;
    // It may be shorter than it was, and be heard though no reply comes.
    this.#deadline = Math.min(this.#deadline, deadline(now(), lease));
    this.#keeper.arm(this.#deadline);
    const { sent, replies } = await this.#link.ask({
      key: this.claim.key,
      commands: () => [renewal(this.claim, lease, this.token, this.#holds)],
      until: isBackground ? this.#deadline : Math.min(this.#deadline, now() + this.#patience),
      patience: this.#patience,
      limit: () => Math.min(PROMPT, lease / 3 + 1),
      isBackground,
    });
    if (!this.#isOver && isGone(replies[0])) this.#lose(said(replies[0]));
    // A tenure that is over stays over.
    this.check();
    if (isTooLong(replies[0]) && this.#isRenewed && !isFixed && lease > 1) {
      this.#lease = Math.floor(lease / 2);
      return this.#renewOnce(this.#lease, isBackground);
    }
    this.#answered(replies[0]);
    // The last one that was sent is what counts.
    if (turn === this.#renewals && (this.#isRenewed || !isBackground)) this.#deadline = deadline(sent, lease);
  }

  /** Who is not renewed gets no more than is left. */
  #leaseLeft(): number {
    return this.#isRenewed ? this.#lease : Math.max(1, Math.floor(this.#deadline - now()));
  }

  async #ask(command: () => Command): Promise<{ reply: unknown; sent: number }> {
    const { key } = this.claim;
    const request = {
      key,
      commands: () => [command()],
      until: now() + this.#patience,
      patience: this.#patience,
    };
    let { sent, replies, isRepeat } = await this.#link.ask(request);
    if (isGone(replies[0])) {
      // An earlier attempt was heard, and its reply lost; that ends a tenure only where that was asked for.
      if (isRepeat && this.#isOver) return { reply: 0, sent };
      // A server that has forgotten the tenure takes it back in its quarantine.
      const isRestored = await this.#renewOnce(this.#leaseLeft(), false).then(
        () => true,
        (error) => {
          if (error instanceof Unreachable) throw error;
          return false;
        },
      );
      if (isRestored) ({ sent, replies } = await this.#link.ask(request));
    }
    return { reply: replies[0], sent };
  }

  #answered(reply: unknown): void {
    if (reply instanceof Refusal) throw new LockRefused(reply.message, this.claim.key.toString(), reply.code);
  }

  #lose(why: string): void {
    this.#keeper.delete(this);
    if (!this.signal.aborted) this.#losing.abort(new LockLost(`the lock is lost: ${why}`, this.claim.key.toString()));
  }

  #end(): void {
    this.#isOver = true;
    this.#keeper.delete(this);
  }

  #isDropped(): boolean {
    for (const lock of this.#locks) if (lock.deref() !== undefined) return false;
    return true;
  }

  #inTurn<T>(action: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(action, action);
    this.#last = turn.catch(() => {});
    return turn;
  }
}

function said(reply: unknown): string {
  return reply instanceof Refusal ? reply.message : "another owner holds it";
}

/** Has all tenures of a client renewed, by one timer, which does not keep the process from ending. */
class Keeper {
  static readonly #keepers = new WeakMap<Link, Keeper>();

  readonly #tenures = new Set<Tenure>();
  #timer: NodeJS.Timeout | undefined;
  #rings = Number.POSITIVE_INFINITY;

  static of(link: Link): Keeper {
    const known = Keeper.#keepers.get(link);
    if (known !== undefined) return known;
    const keeper = new Keeper();
    Keeper.#keepers.set(link, keeper);
    link.onBreak(() => keeper.#hurry());
    return keeper;
  }

  add(tenure: Tenure): void {
    this.#tenures.add(tenure);
    this.arm(tenure.next);
  }

  delete(tenure: Tenure): void {
    this.#tenures.delete(tenure);
    if (this.#tenures.size === 0) this.#disarm();
  }

  /** Looks after all of them at this moment, or before. */
  arm(at: number): void {
    if (at >= this.#rings || this.#tenures.size === 0) return;
    this.#disarm();
    this.#rings = at;
    this.#timer = setTimeout(() => this.#turn(), Math.min(Math.max(0, at - now()), LONGEST)).unref();
  }

  #disarm(): void {
    clearTimeout(this.#timer);
    this.#rings = Number.POSITIVE_INFINITY;
  }

  #turn(): void {
    this.#rings = Number.POSITIVE_INFINITY;
    let next = Number.POSITIVE_INFINITY;
    for (const tenure of this.#tenures) {
      tenure.tend();
      next = Math.min(next, tenure.next);
    }
    this.arm(next);
  }

  #hurry(): void {
    for (const tenure of this.#tenures) tenure.hurry();
    this.arm(now());
  }
}
