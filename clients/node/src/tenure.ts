// A tenure, from an owner's first hold to its last, as this process knows it; and the renewal of all tenures of a client.
//
// A lease is counted from before its request was sent, by the monotonic clock of this process. The server starts to count
// later. So the lease ends here before it ends at the server, however long either was paused.

import { type Command, ServerError } from "./adapters.js";
import { LockLost, LockRefused, Unreachable } from "./errors.js";
import { RESPONSE_LIMIT } from "./request.js";
import type { Servers } from "./servers.js";
import { MAX_DELAY, now } from "./time.js";

/** A lock's key, and the owner that requests are sent for. */
export interface OwnedKey {
  readonly key: Buffer;
  readonly owner: string;
  /** The arguments that say with whom the lock is shared. */
  readonly mode: readonly (string | number)[];
}

/** What a server has granted. The lease is in milliseconds, and ends at the deadline. */
export interface Grant {
  readonly token: number;
  readonly lease: number;
  readonly deadline: number;
}

/** The owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was overwritten.) */
const DENIALS = new Set(["NOTHELD", "HOLDS", "WRONGTYPE"]);

export function deniesTenure(reply: unknown): boolean {
  return reply === null || (reply instanceof ServerError && DENIALS.has(reply.code));
}

/** The longest lease that the server accepts, if it refuses this one as too long. Its limit may have changed meanwhile. */
export function longestLease(reply: unknown, lease: number): number | undefined {
  const longest = reply instanceof ServerError && /^ERR invalid expire time .*: at most (\d+) /.exec(reply.message);
  return longest && Number(longest[1]) < lease ? Number(longest[1]) : undefined;
}

/** When a lease ends. A thousandth and a millisecond are subtracted, because the server's clock may be faster. */
export function leaseEnd(sent: number, lease: number): number {
  return sent + lease - lease / 1_000 - 1;
}

export function acquireCommand(
  { key, owner, mode }: OwnedKey,
  holds: number,
  ...options: (string | number)[]
): Command {
  return ["LOCK.ACQUIRE", key, owner, ...options, "HOLDS", holds, ...mode];
}

/** In quarantine the command restores a tenure that the server has forgotten. */
export function renewCommand({ key, owner, mode }: OwnedKey, lease: number, token: number, holds: number): Command {
  return ["LOCK.RENEW", key, owner, "PX", lease, "TOKEN", token, "HOLDS", holds, ...mode];
}

/** Gives back in the background what may be granted to a caller that has left; repeats that for so many milliseconds. */
export function withdraw(servers: Servers, { key, owner }: OwnedKey, patience: number): void {
  const request = {
    key,
    commands: (): Command[] => [["LOCK.RELEASE", key, owner, "HOLDS", 0]],
    until: now() + patience,
    patience,
    isBackground: true,
  };
  servers.ask(request).catch(() => {}); // the lock ends with its lease
}

export class Tenure {
  readonly ownedKey: OwnedKey;
  readonly token: number;
  readonly #servers: Servers;
  readonly #renewer: Renewer;
  readonly #isRenewed: boolean;
  readonly #patience: number;
  readonly #lossController = new AbortController();
  /** The locks of this tenure that are not released. When the program has dropped all of them, it is renewed no more. */
  readonly #locks = new Set<WeakRef<object>>();
  #lease: number;
  #deadline: number;
  /** The server counts no more holds than these. */
  #serverHolds = 1;
  #holds = 1;
  #isReleased = false;
  #isRenewing = false;
  /** How many requests have set or renewed the lease. Only the reply to the last one counts. */
  #leaseRequests = 0;
  #isUrgent = false;
  #retryAt = 0;
  /** Requests that change the count of holds are sent one after the other. */
  #lastRequest: Promise<unknown> = Promise.resolve();

  constructor(servers: Servers, ownedKey: OwnedKey, grant: Grant, isRenewed: boolean, patience: number) {
    this.#servers = servers;
    this.#renewer = Renewer.of(servers);
    this.ownedKey = ownedKey;
    this.token = grant.token;
    this.#lease = grant.lease;
    this.#deadline = grant.deadline;
    this.#isRenewed = isRenewed;
    this.#patience = patience;
  }

  get signal(): AbortSignal {
    return this.#lossController.signal;
  }

  get isHeld(): boolean {
    return !this.#isReleased && !this.signal.aborted && now() < this.#deadline;
  }

  /** Renews the tenure while the program keeps the lock. */
  addLock(lock: WeakRef<object>): void {
    this.#locks.add(lock);
    if (!this.signal.aborted) this.#renewer.add(this);
  }

  /** Throws when the tenure is lost. */
  checkHeld(): void {
    if (!this.#isReleased && now() >= this.#deadline) this.#lose("its lease is over");
    this.signal.throwIfAborted();
  }

  /** Adds a hold. */
  reenter(): Promise<void> {
    return this.#inOrder(async () => {
      this.checkHeld();
      const holds = this.#serverHolds + 1;
      const leaseRequest = this.#leaseRequests;
      let lease = 0;
      let longest = Number.POSITIVE_INFINITY;
      const ask = () =>
        this.#ask(() => {
          lease = Math.min(this.#nextLease(), longest);
          return acquireCommand(this.ownedKey, holds, "PX", lease);
        });
      let { reply, sent } = await ask();
      for (let limit = longestLease(reply, lease); limit !== undefined; limit = longestLease(reply, lease)) {
        longest = limit; // a re-entry with a shorter lease does not shorten the tenure's
        if (this.#isRenewed) this.#lease = longest;
        ({ reply, sent } = await ask());
      }
      if (deniesTenure(reply)) this.#lose(denialText(reply));
      this.checkHeld();
      this.#throwIfRefused(reply);
      this.#serverHolds = holds;
      this.#holds += 1;
      if (this.#isRenewed && leaseRequest === this.#leaseRequests) {
        this.#deadline = Math.max(this.#deadline, leaseEnd(sent, lease));
      }
    });
  }

  /** Gives a hold back. Throws when the lock was lost. */
  release(lock: WeakRef<object>): Promise<void> {
    this.#locks.delete(lock);
    return this.#inOrder(async () => {
      const { key, owner } = this.ownedKey;
      this.#holds -= 1;
      const isLast = this.#holds === 0;
      // The lease may still run at the server.
      if (isLast && !this.isHeld) withdraw(this.#servers, this.ownedKey, this.#patience);
      this.checkHeld();
      // Before the request is sent: a renewal after it would find the lock lost.
      if (isLast) {
        this.#isReleased = true;
        this.#renewer.delete(this);
      }
      // The reply to HOLDS 0 does not tell whether the lock was lost. The reply to ALL with the token does.
      const count: [string, ...number[]] = isLast ? ["ALL"] : ["HOLDS", this.#serverHolds - 1];
      const { reply } = await this.#ask(() => ["LOCK.RELEASE", key, owner, ...count, "TOKEN", this.token]);
      // HOLDS: a server that has forgotten some holds counts fewer already.
      if (!(reply instanceof ServerError) || reply.code !== "HOLDS") {
        if (deniesTenure(reply)) {
          this.#lose(denialText(reply));
          this.signal.throwIfAborted();
        }
        this.#throwIfRefused(reply);
      }
      this.#serverHolds = Math.max(1, this.#serverHolds - 1);
    });
  }

  /** Sets a lease in milliseconds, from now and for each renewal; or the same as before. */
  async renew(lease?: number): Promise<void> {
    this.checkHeld();
    const previous = this.#lease;
    this.#lease = lease ?? previous;
    try {
      await this.#renewOnce(this.#lease, false, lease !== undefined);
    } catch (error) {
      if (error instanceof LockRefused) this.#lease = previous;
      throw error;
    }
    this.#renewer.arm(this.nextEvent);
  }

  /**
   * Runs a command only while the server has this tenure. Throws when the tenure is lost. The command is not sent again once a
   * server may have carried it out. If the server denies the tenure, it is renewed first: a server in quarantine restores it.
   */
  async guarded(command: (string | number | Buffer)[], isRenewed = false): Promise<unknown> {
    const { key } = this.ownedKey;
    let isSent = false;
    const { replies } = await this.#servers.ask({
      key,
      commands: () => [["LOCK.GUARD", key, this.token, ...command]],
      until: now() + this.#patience,
      patience: this.#patience,
      onSend: () => {
        isSent = true;
      },
      check: (failure) => {
        if (failure === undefined) {
          this.checkHeld();
          isSent = false;
        } else if (isSent) {
          const message = `no reply, and the command may have run: ${failure.message}`;
          throw new Unreachable(message, key.toString(), { cause: failure });
        }
      },
    });
    const [reply] = replies;
    if (reply instanceof ServerError && reply.code === "FENCED") {
      if (!isRenewed) {
        await this.renew();
        return this.guarded(command, true);
      }
      if (!this.#isReleased) this.#lose(reply.message);
      this.signal.throwIfAborted();
      throw new LockLost(`the lock is lost: ${reply.message}`, key.toString());
    }
    this.#throwIfRefused(reply);
    return reply;
  }

  // For the renewer.

  /** When the tenure is to be renewed, or ends. */
  get nextEvent(): number {
    return Math.min(this.#renewalDue, this.#deadline);
  }

  get #renewalDue(): number {
    if (this.#isRenewing || this.signal.aborted || this.#isReleased) return Number.POSITIVE_INFINITY;
    if (this.#isUrgent) return this.#retryAt;
    if (!this.#isRenewed || this.#isDropped()) return Number.POSITIVE_INFINITY;
    return Math.max(this.#deadline - (this.#lease * 2) / 3, this.#retryAt);
  }

  /** Makes the renewal due now: a server that was restarted may have forgotten the tenure. */
  renewNow(): void {
    this.#isUrgent = !this.#isDropped();
  }

  /** Renews the tenure if that is due, or ends it if its lease is over. */
  onTimer(): void {
    if (now() >= this.#deadline) this.#lose("its lease is over");
    else if (now() >= this.#renewalDue) void this.#renewInBackground();
  }

  async #renewInBackground(): Promise<void> {
    this.#isRenewing = true;
    this.#isUrgent = false;
    try {
      await this.#renewOnce(this.#nextLease(), true);
    } catch {
      // The tenure is lost, or the renewal is repeated.
      this.#retryAt = now() + 1_000;
    } finally {
      this.#isRenewing = false;
      if (!this.#isReleased) this.#renewer.arm(this.nextEvent);
    }
  }

  /**
   * Sets a lease in milliseconds. If the server refuses it as too long, the longest that it accepts; but not if the caller
   * has chosen it (`isFixed`), nor if the tenure is not renewed. Throws when the tenure is lost.
   */
  async #renewOnce(lease: number, isBackground: boolean, isFixed = false): Promise<void> {
    this.#leaseRequests += 1;
    const leaseRequest = this.#leaseRequests;
    // The new lease may be shorter, and the server may set it though no reply arrives.
    this.#deadline = Math.min(this.#deadline, leaseEnd(now(), lease));
    this.#renewer.arm(this.#deadline);
    const { sent, replies } = await this.#servers.ask({
      key: this.ownedKey.key,
      commands: () => [renewCommand(this.ownedKey, lease, this.token, this.#serverHolds)],
      until: isBackground ? this.#deadline : Math.min(this.#deadline, now() + this.#patience),
      patience: this.#patience,
      limit: () => Math.min(RESPONSE_LIMIT, lease / 3 + 1),
      isBackground,
    });
    const [reply] = replies;
    if (!this.#isReleased && deniesTenure(reply)) this.#lose(denialText(reply));
    this.checkHeld(); // a tenure that is over stays over
    const longest = longestLease(reply, lease);
    if (longest !== undefined && this.#isRenewed && !isFixed) {
      this.#lease = longest;
      return this.#renewOnce(longest, isBackground);
    }
    this.#throwIfRefused(reply);
    if (leaseRequest === this.#leaseRequests && (this.#isRenewed || !isBackground)) {
      this.#deadline = leaseEnd(sent, lease);
    }
  }

  /** The lease for the next request: what is left, if the tenure is not renewed. */
  #nextLease(): number {
    return this.#isRenewed ? this.#lease : Math.max(1, Math.floor(this.#deadline - now()));
  }

  /** Sends a command. If the server denies the tenure, restores it and sends the command again. */
  async #ask(command: () => Command): Promise<{ reply: unknown; sent: number }> {
    const { key } = this.ownedKey;
    const request = {
      key,
      commands: () => [command()],
      until: now() + this.#patience,
      patience: this.#patience,
    };
    let { sent, replies, mayHaveRun } = await this.#servers.ask(request);
    if (deniesTenure(replies[0])) {
      // An earlier attempt to release the lock was carried out, and its reply lost.
      if (mayHaveRun && this.#isReleased) return { reply: 0, sent };
      // A server that has forgotten the tenure restores it in quarantine.
      const isRestored = await this.#renewOnce(this.#nextLease(), false).then(
        () => true,
        (error) => {
          if (error instanceof Unreachable) throw error;
          return false;
        },
      );
      if (isRestored) ({ sent, replies } = await this.#servers.ask(request));
    }
    return { reply: replies[0], sent };
  }

  #throwIfRefused(reply: unknown): void {
    if (reply instanceof ServerError) throw new LockRefused(reply.message, this.ownedKey.key.toString(), reply.code);
  }

  #lose(reason: string): void {
    this.#renewer.delete(this);
    if (this.signal.aborted) return;
    this.#lossController.abort(new LockLost(`the lock is lost: ${reason}`, this.ownedKey.key.toString()));
  }

  #isDropped(): boolean {
    for (const lock of this.#locks) if (lock.deref() !== undefined) return false;
    return true;
  }

  #inOrder<T>(action: () => Promise<T>): Promise<T> {
    const result = this.#lastRequest.then(action, action);
    this.#lastRequest = result.catch(() => {});
    return result;
  }
}

function denialText(reply: unknown): string {
  return reply instanceof ServerError ? reply.message : "another owner holds it";
}

/** Renews all tenures of a client, by one timer. The timer does not keep the process from ending. */
class Renewer {
  static readonly #known = new WeakMap<Servers, Renewer>();

  readonly #tenures = new Set<Tenure>();
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  static of(servers: Servers): Renewer {
    const known = Renewer.#known.get(servers);
    if (known !== undefined) return known;
    const renewer = new Renewer();
    Renewer.#known.set(servers, renewer);
    servers.onConnectionLost(() => renewer.#renewAllNow());
    return renewer;
  }

  add(tenure: Tenure): void {
    this.#tenures.add(tenure);
    this.arm(tenure.nextEvent);
  }

  delete(tenure: Tenure): void {
    this.#tenures.delete(tenure);
    if (this.#tenures.size === 0) this.#disarm();
  }

  /** Sets the timer to this time, unless it fires earlier. */
  arm(at: number): void {
    if (at >= this.#timerAt || this.#tenures.size === 0) return;
    this.#disarm();
    this.#timerAt = at;
    this.#timer = setTimeout(() => this.#onTimer(), Math.min(Math.max(0, at - now()), MAX_DELAY)).unref();
  }

  #disarm(): void {
    clearTimeout(this.#timer);
    this.#timerAt = Number.POSITIVE_INFINITY;
  }

  #onTimer(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    let next = Number.POSITIVE_INFINITY;
    for (const tenure of this.#tenures) {
      tenure.onTimer();
      next = Math.min(next, tenure.nextEvent);
    }
    this.arm(next);
  }

  #renewAllNow(): void {
    for (const tenure of this.#tenures) tenure.renewNow();
    this.arm(now());
  }
}
