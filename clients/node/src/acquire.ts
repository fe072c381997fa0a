// Acquiring locks: try, wait in the server's queue, confirm, or give up.

import type { Command } from "./adapters.js";
import { UnreachableError, UnreplicatedError } from "./errors.js";
import { FIRST_PAUSE, LONGEST_PAUSE, Progress } from "./servers.js";
import { isDenial, type Plan, type Tenure } from "./tenure.js";
import { now, rest } from "./time.js";

/** The longest lease of a grant that the client has not confirmed, in milliseconds. */
const SHORT_LEASE = 3_000;
/** The longest time that the server lets a request wait, in milliseconds. The next request keeps the place in the queue. */
const SLICE = 10_000;
/** How long the server keeps a place in the queue, in milliseconds. */
const KEEP = 5_000;
/** How long after its wait limit a call may end, in milliseconds. */
const GRACE = 150;

/** What the keys of one call share. */
export interface AcquirePlan extends Plan {
  /** When the wait limit is over. */
  readonly deadline: number;
  readonly waits: boolean;
  readonly signal: AbortSignal | undefined;
  readonly replicas: { readonly count: number; readonly within: number } | undefined;
  /** How many more connections may wait. */
  readonly connections: { left: number };
}

/** Acquires all, or none. Returns whether they are held; they are not when the wait limit is over. */
export async function acquireAll(tenures: Tenure[], plan: AcquirePlan): Promise<boolean> {
  if (tenures.length === 1) return acquire(tenures[0] as Tenure, plan);
  const tried = await Promise.allSettled(tenures.map((each) => acquire(each, { ...plan, waits: false })));
  if (tried.every((each) => each.status === "fulfilled" && each.value)) return true;
  giveBack(tenures);
  for (const each of tried) if (each.status === "rejected") throw each.reason;
  while (plan.waits) {
    try {
      for (const each of tenures) if (!(await acquire(each, plan))) return false;
      if (tenures.every((each) => each.isHeld)) return true; // otherwise one was lost while the next ones were acquired
    } finally {
      if (!tenures.every((each) => each.isHeld)) giveBack(tenures);
    }
  }
  return false;
}

function giveBack(tenures: Tenure[]): void {
  for (const each of tenures) if (each.isHeld) each.release().catch(() => {});
}

/** Whether the lock is granted before the wait limit. A caller that gives up leaves nothing behind. */
async function acquire(tenure: Tenure, plan: AcquirePlan): Promise<boolean> {
  const { deadline, waits, patience, responseLimit, signal, replicas = { count: 0, within: 0 }, connections } = plan;
  const progress = new Progress();
  /** Whether the server keeps a place in the queue, or a grant that is not confirmed. */
  let isKept = false;
  /** A call that does not wait ends within the patience, whatever servers answer. */
  const until = waits ? deadline + GRACE : now() + patience;

  try {
    const isGranted = (await tryOnce(patience)) || (waits && (await wait()));
    signal?.throwIfAborted();
    if (!isGranted && isKept) tenure.giveUp();
    return isGranted;
  } catch (error) {
    if (isKept || progress.isSent || progress.isReplyLost) tenure.giveUp();
    if (waits && progress.isAnswered && now() >= deadline && error instanceof UnreachableError) return false;
    throw error;
  }

  async function tryOnce(patience: number): Promise<boolean> {
    const { sent, reply } = await ask(() => acquireCommand(tenure.lease), patience, false);
    if (reply === null) return false;
    readGrant(reply);
    tenure.begin(sent);
    return true;
  }

  /** Waits in slices, until the wait limit. */
  async function wait(): Promise<boolean> {
    for (let pause = FIRST_PAUSE; now() < deadline; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      let isGranted: boolean | undefined;
      if (connections.left > 0) {
        connections.left -= 1;
        isGranted = await waitInQueue().finally(() => {
          connections.left += 1;
        });
      } else {
        // Callers that wait for a lock which this caller holds may use all connections: so try again now and then.
        await rest(Math.min(pause, deadline - now()), signal);
        if (now() < deadline && (await tryOnce(Number.POSITIVE_INFINITY))) isGranted = true;
      }
      if (isGranted !== undefined) return isGranted;
    }
    return false;
  }

  /** One slice. Undefined: the caller waits again. */
  async function waitInQueue(): Promise<boolean | undefined> {
    let isLast = false;
    const { replies } = await tenure.ask({
      commands: (sent) => {
        const left = Math.max(1, Math.ceil(deadline - sent));
        isLast = left <= SLICE;
        const block = isLast ? ["BLOCK", left] : ["BLOCK", SLICE, "KEEP", KEEP];
        return [acquireCommand(Math.min(tenure.lease, SHORT_LEASE), ...block)];
      },
      limit: (begun) => Math.min(SLICE, Math.max(0, deadline - begun)) + responseLimit,
      until,
      signal,
      progress,
      isAlone: true,
      onLateReplies: ([reply]) => {
        if (Array.isArray(reply)) tenure.giveUp();
      },
    });
    const [reply] = replies;
    isKept = reply !== null || !isLast;
    if (reply === null) return isLast ? false : undefined;
    readGrant(reply);
    return confirm();
  }

  /** Renews the short lease of a grant to the full one. If the grant was lost meanwhile, the caller waits again. */
  async function confirm(): Promise<true | undefined> {
    try {
      // On the connection that has waited: the server may accept no other one.
      const { sent } = await ask(() => tenure.renewCommand(tenure.lease), patience, true);
      tenure.begin(sent);
      return true;
    } catch (error) {
      if (!isDenial(error)) throw error;
      isKept = false;
      return undefined;
    }
  }

  /** Sends a request that may grant the lock, and in the same pipeline one for the replicas, if they are to confirm it. */
  async function ask(command: () => Command, patience: number, isAlone: boolean) {
    const within = waits ? Math.min(replicas.within, Math.max(1, Math.ceil(deadline - now()))) : replicas.within;
    const { sent, replies } = await tenure.ask({
      commands: () => (within > 0 ? [command(), ["WAIT", replicas.count, within]] : [command()]),
      limit: () => responseLimit + within,
      until,
      patience,
      signal,
      progress,
      isAlone: isAlone || within > 0, // WAIT would hold up others on a shared connection
    });
    const [reply, reached = 0] = replies;
    isKept ||= reply !== null;
    if (reply === null || (reached as number) >= replicas.count) return { sent, reply };
    const message = `${reached} of ${replicas.count} replicas have confirmed the grant in time: the lock is given back`;
    throw new UnreplicatedError(message, tenure.key);
  }

  function acquireCommand(lease: number, ...block: (string | number)[]): Command {
    const named = lease > 0 ? ["PX", lease] : [];
    return ["LOCK.ACQUIRE", tenure.key, plan.owner, ...named, ...block, "HOLDS", 1, ...tenure.kind];
  }

  function readGrant(reply: unknown): void {
    const [token, , lease] = reply as [number, number, number];
    tenure.token = token;
    tenure.lease ||= lease;
  }
}
