// Acquiring a lock: try it first, and wait in the server's queue if it is busy.

import { type Command, ServerError } from "./adapters.js";
import { LockRefused, Unreplicated } from "./errors.js";
import type { Permits } from "./permits.js";
import { type Answer, RESPONSE_LIMIT } from "./request.js";
import type { Servers } from "./servers.js";
import {
  acquireCommand,
  deniesTenure,
  type Grant,
  leaseEnd,
  longestLease,
  type OwnedKey,
  renewCommand,
  withdraw,
} from "./tenure.js";
import { MAX_DELAY, now } from "./time.js";

export interface AcquireRequest {
  readonly ownedKey: OwnedKey;
  /** In milliseconds. 0: only try. Infinity: no limit. */
  readonly waitLimit: number;
  /** In milliseconds. Undefined: the server's default. */
  readonly lease: number | undefined;
  readonly signal: AbortSignal | undefined;
  readonly replicas: { readonly count: number; readonly within: number } | undefined;
  readonly patience: number;
}

/** What the server has granted. The lease is in milliseconds. */
interface Granted {
  readonly token: number;
  readonly lease: number;
}

/** How long a grant with an unknown lease is withdrawn, in milliseconds: an hour. */
const UNKNOWN_LEASE = 3_600_000;

/** Pauses between tries while all waiting connections are in use, in milliseconds: the first and the longest. */
const [FIRST_PAUSE, LONGEST_PAUSE] = [50, 1_000];

/** An acquisition under way. The server may have granted it, or queued it, without the client knowing. */
export class PendingAcquire {
  readonly #servers: Servers;
  readonly #waitPermits: Permits;
  readonly #request: AcquireRequest;
  readonly #deadline: number;
  readonly #release: Command;
  #mayBeGranted = false;
  #hasWaited = false;

  constructor(servers: Servers, waitPermits: Permits, request: AcquireRequest) {
    this.#servers = servers;
    this.#waitPermits = waitPermits;
    this.#request = request;
    this.#deadline = now() + request.waitLimit;
    const { key, owner } = request.ownedKey;
    this.#release = ["LOCK.RELEASE", key, owner, "HOLDS", 0];
  }

  /** The grant, or null when the wait limit is over. A caller that gives up leaves nothing behind. */
  async run(): Promise<Grant | null> {
    try {
      const grant = await this.#acquire();
      this.#request.signal?.throwIfAborted();
      return grant;
    } catch (error) {
      // A grant may have been on its way, or too few replicas have confirmed it.
      if (this.#mayBeGranted && !(error instanceof LockRefused)) this.#withdraw();
      throw error;
    }
  }

  async #acquire(): Promise<Grant | null> {
    const { waitLimit, patience, signal } = this.#request;
    const isLimited = Number.isFinite(waitLimit);
    let pause = FIRST_PAUSE;
    let answer = await this.#try(isLimited && waitLimit > 0 ? this.#deadline : now() + patience);
    for (;;) {
      const granted = this.#readGrant(answer);
      const grant = granted && (await this.#confirm(granted, answer.sent));
      if (grant !== undefined) return grant;
      if (now() >= this.#deadline) return null;
      if (await this.#waitPermits.acquire(Math.min(this.#deadline, now() + pause), signal)) {
        answer = await this.#waitInQueue();
        if (answer.replies[0] === null) return null;
      } else {
        if (now() >= this.#deadline) return null;
        // Callers that wait for a lock which this caller holds may use all connections: so try again now and then.
        pause = Math.min(2 * pause, LONGEST_PAUSE);
        answer = await this.#try(isLimited ? this.#deadline : now() + patience);
      }
    }
  }

  #try(until: number): Promise<Answer> {
    return this.#servers.ask({ ...this.#common(), until, commands: () => this.#commands([]) });
  }

  /** The caller has a permit, which is released here. */
  async #waitInQueue(): Promise<Answer> {
    this.#hasWaited = true;
    try {
      return await this.#servers.ask({
        ...this.#common(),
        until: this.#deadline,
        commands: (sent) => this.#commands(["BLOCK", blockArgument(this.#deadline - sent)]),
        limit: (sent) => this.#deadline - sent + RESPONSE_LIMIT,
        withdrawal: this.#release,
      });
    } finally {
      this.#waitPermits.release();
    }
  }

  /**
   * What the client can rely on; undefined if the lock was lost before. The lease is counted from before the request was
   * sent, so after a long wait it may be over by this clock. Then it is renewed first.
   */
  async #confirm(granted: Granted, sent: number): Promise<Grant | undefined> {
    const { ownedKey, lease, replicas, patience } = this.#request;
    if (replicas === undefined && now() - sent <= granted.lease / 3) return toGrant(granted, sent);
    const renew = renewCommand(ownedKey, granted.lease, granted.token, 1);
    const answer = await this.#servers.ask({
      ...this.#common(),
      until: now() + patience,
      commands: () => (replicas === undefined ? [renew] : [renew, ["WAIT", replicas.count, replicas.within]]),
      limit: () => RESPONSE_LIMIT + (replicas?.within ?? 0),
      // On a dedicated connection: WAIT would hold up others on a shared one. And after a wait, the server may accept no
      // other connection than the one that has waited.
      ...(replicas === undefined && !this.#hasWaited ? {} : { withdrawal: this.#release }),
    });
    const [reply, reached] = answer.replies;
    if (deniesTenure(reply)) return undefined;
    const longest = longestLease(reply, granted.lease);
    if (longest !== undefined && lease === undefined) {
      return this.#confirm({ ...granted, lease: longest }, Number.NEGATIVE_INFINITY);
    }
    for (const each of answer.replies) if (each instanceof ServerError) throw this.#refused(each, true);
    if (replicas !== undefined && (reached as number) < replicas.count) {
      const message = `${reached} of ${replicas.count} replicas have confirmed the grant in time`;
      throw new Unreplicated(message, ownedKey.key.toString());
    }
    return toGrant(granted, answer.sent);
  }

  #readGrant({ replies, mayHaveRun }: Answer): Granted | undefined {
    const [reply] = replies;
    if (reply === null) return undefined;
    if (reply instanceof ServerError) throw this.#refused(reply, mayHaveRun);
    const [token, , lease] = reply as [number, number, number];
    return { token, lease };
  }

  #refused({ message, code }: ServerError, mayBeGranted: boolean): LockRefused {
    if (mayBeGranted) this.#withdraw();
    return new LockRefused(message, this.#request.ownedKey.key.toString(), code);
  }

  #withdraw(): void {
    const { ownedKey, patience, lease } = this.#request;
    withdraw(this.#servers, ownedKey, Math.max(patience, lease ?? UNKNOWN_LEASE));
  }

  #commands(block: (string | number)[]): Command[] {
    const { ownedKey, lease } = this.#request;
    const named = lease === undefined ? [] : ["PX", lease];
    return [acquireCommand(ownedKey, 1, ...named, ...block)];
  }

  #common() {
    const { ownedKey, patience, signal } = this.#request;
    const onSend = () => {
      this.#mayBeGranted = true;
    };
    return { key: ownedKey.key, patience, signal, onSend };
  }
}

function toGrant(granted: Granted, sent: number): Grant {
  return { ...granted, deadline: leaseEnd(sent, granted.lease) };
}

/** The argument of BLOCK: rounded up, as 0 means no limit; and 0 for many years. */
function blockArgument(milliseconds: number): number {
  return milliseconds > 1_000 * MAX_DELAY ? 0 : Math.max(1, Math.ceil(milliseconds));
}
