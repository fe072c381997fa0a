// Acquiring locks: try, wait in the server's queue, confirm, or give up.

import { type Command, ServerError } from "./adapters.js";
import { UnreachableError, UnreplicatedError } from "./errors.js";
import { FIRST_PAUSE, LONGEST_PAUSE, Progress, refused } from "./servers.js";
import { deniesTenure, type Tenure } from "./tenure.js";
import { now, rest } from "./time.js";

/** The longest lease of a grant that the client has not confirmed, in milliseconds. */
const SHORT_LEASE = 3_000;
/** The longest time that the server lets a request wait, in milliseconds. The next request keeps the place in the queue. */
const SLICE = 10_000;
/** How long the server keeps a place in the queue, in milliseconds. */
const KEEP = 5_000;
/** How long after its wait limit a call may end, in milliseconds. */
const GRACE = 150;

/** What all keys of one call share. Times are in milliseconds. */
export interface AcquireCall {
  /** When the wait limit is over. */
  readonly deadline: number;
  readonly waits: boolean;
  /** How long to try while no server answers. */
  readonly patience: number;
  readonly signal: AbortSignal | undefined;
  readonly replicas: { readonly count: number; readonly within: number } | undefined;
  readonly connections: WaitingConnections;
}

/** How many more connections may wait. */
export interface WaitingConnections {
  left: number;
}

/** Acquires all, or none. Returns whether they are held; they are not when the wait limit is over. */
export async function acquireAll(tenures: Tenure[], call: AcquireCall): Promise<boolean> {
  const [first] = tenures;
  if (first !== undefined && tenures.length === 1) return new PendingAcquire(first, call).run();
  const tried = await Promise.allSettled(
    tenures.map((each) => new PendingAcquire(each, { ...call, waits: false }).run()),
  );
  if (tried.every((each) => each.status === "fulfilled" && each.value)) return true;
  const givenBack = giveBack(tenures);
  for (const each of tried) if (each.status === "rejected") throw each.reason;
  await givenBack;
  while (call.waits) {
    try {
      for (const each of tenures) {
        if (await new PendingAcquire(each, call).run()) continue;
        await giveBack(tenures);
        return false;
      }
    } catch (error) {
      void giveBack(tenures);
      throw error;
    }
    if (tenures.every((each) => each.isHeld)) return true;
    await giveBack(tenures); // one was lost while the next ones were acquired
  }
  return false;
}

async function giveBack(tenures: Tenure[]): Promise<void> {
  await Promise.allSettled(tenures.filter((each) => each.isHeld).map((each) => each.release()));
}

/** An acquisition under way. The server may have granted it, or queued it, without the client knowing. */
class PendingAcquire {
  readonly #tenure: Tenure;
  readonly #call: AcquireCall;
  readonly #progress = new Progress();
  /** Whether the server keeps a place in the queue, or a grant that is not confirmed. */
  #isKept = false;

  constructor(tenure: Tenure, call: AcquireCall) {
    this.#tenure = tenure;
    this.#call = call;
  }

  /** Whether the lock is granted before the wait limit. A caller that gives up leaves nothing behind. */
  async run(): Promise<boolean> {
    const { signal, waits, deadline } = this.#call;
    try {
      const isGranted = (await this.#try()) || (waits && (await this.#wait()));
      if (isGranted) this.#isKept = true;
      signal?.throwIfAborted();
      if (!isGranted && this.#isKept) this.#tenure.giveUp();
      return isGranted;
    } catch (error) {
      const { isSent, isReplyLost, isAnswered } = this.#progress;
      if (isSent || isReplyLost || this.#isKept) this.#tenure.giveUp();
      if (waits && isAnswered && now() >= deadline && error instanceof UnreachableError) return false;
      throw error;
    }
  }

  async #try(patience = this.#call.patience): Promise<boolean> {
    const tenure = this.#tenure;
    const { sent, replies } = await tenure.ask({
      ...this.#request(patience),
      commands: () => [this.#acquireCommand(tenure.lease), ...this.#waitForReplicas()],
      // WAIT would hold up others on a shared connection.
      isAlone: this.#call.replicas !== undefined,
    });
    return this.#readGrant(replies, sent, false);
  }

  /** Waits in slices, until the wait limit. */
  async #wait(): Promise<boolean> {
    const { deadline, signal, connections } = this.#call;
    for (let pause = FIRST_PAUSE; now() < deadline; ) {
      if (connections.left > 0) {
        const isGranted = await this.#waitInQueue();
        if (isGranted !== undefined) return isGranted;
      } else {
        // Callers that wait for a lock which this caller holds may use all connections: so try again now and then.
        await rest(Math.min(pause, deadline - now()), signal);
        pause = Math.min(2 * pause, LONGEST_PAUSE);
        signal?.throwIfAborted();
        if (now() < deadline && (await this.#try(Number.POSITIVE_INFINITY))) return true;
      }
    }
    return false;
  }

  /** One slice. Undefined: the caller waits again, and keeps its place. */
  async #waitInQueue(): Promise<boolean | undefined> {
    const { deadline, connections } = this.#call;
    const tenure = this.#tenure;
    let isLast = false;
    connections.left -= 1;
    try {
      const { sent, replies } = await tenure.ask({
        ...this.#request(Number.POSITIVE_INFINITY),
        commands: (sent) => {
          const left = Math.max(1, Math.ceil(deadline - sent));
          isLast = left <= SLICE;
          const block = isLast ? ["BLOCK", left] : ["BLOCK", SLICE, "KEEP", KEEP];
          return [this.#acquireCommand(Math.min(tenure.lease, SHORT_LEASE), ...block)];
        },
        limit: (sent) => Math.min(SLICE, Math.max(0, deadline - sent)) + tenure.settings.responseLimit,
        isAlone: true,
        onLateReplies: ([reply]) => {
          if (Array.isArray(reply)) tenure.giveUp();
        },
      });
      if (replies[0] !== null) return (await this.#readGrant(replies, sent, true)) || undefined;
      this.#isKept = !isLast;
      return isLast ? false : undefined;
    } finally {
      connections.left += 1;
    }
  }

  /** Whether the replies grant the lock, and it is held then. The lease of a wait is short until it is confirmed. */
  async #readGrant([reply, reached]: unknown[], sent: number, isShort: boolean): Promise<boolean> {
    const tenure = this.#tenure;
    if (reply === null) return false;
    if (reply instanceof ServerError) throw refused(tenure.key, reply);
    this.#isKept = true;
    const [token, , lease] = reply as [number, number, number];
    tenure.token = token;
    tenure.lease ||= lease;
    if (isShort) return this.#confirm();
    this.#checkReplicas(reached);
    tenure.begin(sent);
    return true;
  }

  /** Renews the lease, which counts from then. If the lock was lost meanwhile, the caller waits again. */
  async #confirm(): Promise<boolean> {
    const tenure = this.#tenure;
    const { sent, replies } = await tenure.ask({
      ...this.#request(),
      commands: () => [tenure.renewCommand(tenure.lease), ...this.#waitForReplicas()],
      // On the connection that has waited: the server may accept no other one.
      isAlone: true,
    });
    const [reply, reached] = replies;
    if (deniesTenure(reply)) {
      this.#isKept = false;
      return false;
    }
    if (reply instanceof ServerError) throw refused(tenure.key, reply);
    this.#checkReplicas(reached);
    tenure.begin(sent);
    return true;
  }

  /** A call that does not wait ends within the patience, whatever servers answer. */
  #request(patience = this.#call.patience) {
    const { waits, deadline, signal, replicas } = this.#call;
    const { responseLimit } = this.#tenure.settings;
    return {
      until: waits ? deadline + GRACE : now() + patience,
      patience,
      limit: () => responseLimit + (replicas?.within ?? 0),
      signal,
      progress: this.#progress,
    };
  }

  #acquireCommand(lease: number, ...block: (string | number)[]): Command {
    const { key, owner, kind } = this.#tenure;
    return ["LOCK.ACQUIRE", key, owner, ...(lease > 0 ? ["PX", lease] : []), ...block, "HOLDS", 1, ...kind];
  }

  #waitForReplicas(): Command[] {
    const { waits, deadline, replicas } = this.#call;
    if (replicas === undefined) return [];
    const left = waits ? Math.max(1, Math.ceil(deadline - now())) : replicas.within;
    return [["WAIT", replicas.count, Math.min(left, replicas.within)]];
  }

  #checkReplicas(reached: unknown): void {
    const { replicas } = this.#call;
    if (replicas === undefined) return;
    if (reached instanceof ServerError) throw refused(this.#tenure.key, reached);
    if ((reached as number) >= replicas.count) return;
    const message = `${reached} of ${replicas.count} replicas have confirmed the grant in time: the lock is given back`;
    throw new UnreplicatedError(message, this.#tenure.key.toString());
  }
}
