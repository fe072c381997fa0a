// Acquiring locks: try, wait in the server's queue, confirm, or give up.

import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import type { Command } from "./adapters.js";
import { UnreachableError, UnreplicatedError } from "./errors.js";
import { checkOption, kindArguments, Lock } from "./lock.js";
import type { AcquireOptions } from "./lockward.js";
import { FIRST_PAUSE, type Key, LONGEST_PAUSE, type Progress } from "./servers.js";
import { isDenial, type Settings, Tenure, type Tenures } from "./tenure.js";
import { now, rest, settleAll, UNLIMITED, within } from "./time.js";

/** The longest lease of a grant that the client has not confirmed, in milliseconds. */
const SHORT_LEASE = 3_000;
/** The longest wait of one request, in milliseconds. The next request continues the wait at the same place in the queue. */
const SLICE = 10_000;
/** How long the server keeps a place in the queue between two requests, in milliseconds. */
const KEEP = 5_000;
/** How long after the wait limit a reply may still arrive, in milliseconds. */
const GRACE = 150;
/** How long after `GRACE` the call may still wait until the lock is given up, in milliseconds. */
const GIVE_UP_GRACE = 25;
/** The longest time that a call waits until the lock is given up, in milliseconds. */
const GIVE_UP_LIMIT = 200;

/** An owner is this id and a number, so each acquisition of each process has a different owner. */
const PROCESS_ID = randomUUID();
let owners = 0;

/**
 * The plan of one acquisition. The keys must be distinct, and sorted by their bytes. Throws a `TypeError` for an unknown option,
 * and a `RangeError` for an option out of range.
 */
export function planOf(settings: Settings, keys: readonly Key[], options: AcquireOptions, patience: number) {
  const { waitLimit = UNLIMITED, holdLimit = UNLIMITED, ...others } = options;
  const { lease, renewal = true, signal, owner, replicas: wanted, ...kind } = others;
  const replicas = { count: 0, within: 0, ...wanted }; // a copy, because the program may change its object
  checkOption("waitLimit", waitLimit, 0, UNLIMITED);
  checkOption("lease", lease ?? 2, 2); // `leaseEnd` subtracts a millisecond
  checkOption("holdLimit", holdLimit, 2, UNLIMITED);
  checkOption("replicas.count", replicas.count, 0);
  checkOption("replicas.within", replicas.within, wanted ? 1 : 0); // for WAIT, 0 means no limit
  if (owner === "*") throw new RangeError("an owner must not be *, because the server makes another owner for each *");
  const begun = now();
  return {
    settings,
    keys,
    /** The owner that the program has named. */
    owner,
    signal,
    holdLimit,
    replicas,
    /** How long to repeat a request while no server answers. */
    patience,
    kind: kindArguments(kind),
    /** In milliseconds. 0 means the server's default lease. */
    lease: lease ?? 0,
    renewal,
    waits: waitLimit > 0,
    /** When the wait limit is over. */
    deadline: begun + waitLimit,
    /** When the call ends at the latest. */
    until: begun + (waitLimit > 0 ? waitLimit + GRACE : patience + replicas.within),
  };
}

/** What the tenures of one lock share. */
export type Plan = ReturnType<typeof planOf> & Progress;

/** Acquires all keys, or none. Returns null when the wait limit is over. If the call fails, it gives up all keys. */
export async function acquireAll(plan: Plan): Promise<Lock | null> {
  // First try several keys in one pipeline. Then wait for one key after the other.
  for (let isTrial = plan.keys.length > 1; ; isTrial = false) {
    // If the program has named no owner, each round has a new owner: a late release of an earlier round must not end a
    // new tenure.
    const owner = plan.owner ?? `${PROCESS_ID}:${++owners}`;
    const tenures = plan.keys.map((key) => new Tenure(plan, owner, key)) as unknown as Tenures;
    const lock = new Lock(tenures);
    const isLost = () => tenures.some((each) => each.loss !== undefined);
    const signal = tenures.length > 1 ? AbortSignal.any([lock.signal, plan.signal ?? lock.signal]) : plan.signal;
    // Many callers may wait with one signal, and one caller may wait for many keys. Without this line Node.js would warn of a
    // memory leak.
    if (signal !== undefined) setMaxListeners(UNLIMITED, signal);
    try {
      let isGranted = true;
      if (isTrial) {
        // In a cluster each key has a request of its own, because the cluster may move one key.
        const requests = plan.settings.servers.adapter.cluster ? tenures.map((each): Tenures => [each]) : [tenures];
        // Wait for all tries: if the try for one key fails, the server may still grant the other keys.
        isGranted = (await settleAll(requests.map((each) => acquire(each, plan, false, signal)))).every(Boolean);
      } else {
        for (const each of tenures) isGranted &&= await acquire([each], plan, plan.waits, signal);
      }
      if (isGranted) {
        lock.complete();
        return lock;
      }
    } catch (error) {
      if (!isLost() || plan.signal?.aborted) throw error;
    } finally {
      const limit = Math.min(GIVE_UP_LIMIT, plan.until + GIVE_UP_GRACE - now());
      const givenBack = tenures.map((each) => each.mayBeGranted && each.giveUp(limit));
      // The program may acquire the lock again for an owner that it has named. So these releases must end first.
      if (plan.owner !== undefined) await Promise.all(givenBack);
    }
    if (now() >= plan.deadline || (!isTrial && !isLost())) return null;
    if (isLost()) await rest(FIRST_PAUSE, plan); // leases shorter than a round trip are lost each time
  }
}

/** Acquires the keys with one request. May wait only for one key. Returns whether the keys are held before the wait limit. */
async function acquire(tenures: Tenures, plan: Plan, mayWait: boolean, signal?: AbortSignal): Promise<boolean> {
  const { settings, deadline, waits, until, patience, replicas } = plan;
  const [tenure] = tenures;
  const tryCommands = () => tenures.map((each) => each.acquireCommand(each.lease));
  const request = { until, signal, progress: plan };

  try {
    return (await ask(tryCommands, patience, false)) || (mayWait && (await wait()));
  } catch (error) {
    if (plan.isReplyLost) for (const each of tenures) each.mayBeGranted = true;
    if (waits && plan.isAnswered && now() >= deadline && error instanceof UnreachableError) return false;
    throw error;
  }

  /** Waits until the lock is held, or the wait limit is over. */
  async function wait(): Promise<boolean> {
    const turn = settings.connections.enter();
    try {
      for (let pause = FIRST_PAUSE; now() < deadline; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
        const hasBegun = await within(turn.begun, Math.min(pause, deadline - now()), { signal }).catch(() => false);
        if (hasBegun) {
          if (!(await waitInQueue())) return false;
          if (await confirm()) return true;
          await rest(Math.min(pause, deadline - now()), { signal }); // a lease shorter than a round trip is lost each time
        } else if (await ask(tryCommands, UNLIMITED, false)) {
          return true; // the tries prevent a deadlock: all connections may wait for a lock that this caller holds
        }
      }
      return false;
    } finally {
      turn.leave();
    }
  }

  /** Waits for a grant until the wait limit, with a request for each slice. */
  async function waitInQueue(): Promise<boolean> {
    let [isLast, pause] = [false, 0];
    const commands = (sent: number) => {
      const left = Math.max(1, Math.ceil(deadline - sent));
      isLast = left <= SLICE;
      const block = isLast ? ["BLOCK", left] : ["BLOCK", SLICE, "KEEP", KEEP];
      return [tenure.acquireCommand(Math.min(tenure.lease, SHORT_LEASE), ...block)];
    };
    const limit = SLICE + settings.responseLimit;
    while (!isLast) {
      const { sent, replies } = await settings.servers.ask(tenures, { ...request, commands, limit, isAlone: true });
      tenure.mayBeGranted = replies[0] !== null || !isLast;
      if (tenure.readGrant(replies[0])) return true;
      if (isLast || now() - sent > LONGEST_PAUSE) continue;
      // The server did not block, for example because a proxy runs the command in a script. Do not send requests without a break.
      await rest(Math.min(pause, deadline - now()), { signal });
      pause = Math.min(Math.max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE);
    }
    return false;
  }

  /** Sets the whole lease after a grant with a short lease. Returns false if the short lease is already over. */
  async function confirm(): Promise<boolean> {
    try {
      // Use the connection that has waited: the server might refuse a new connection.
      return await ask(() => [tenure.renewCommand(tenure.lease)], patience, true);
    } catch (error) {
      if (!isDenial(error)) throw error;
      tenure.mayBeGranted = false;
      return false;
    }
  }

  /**
   * Sends a request that may grant the keys. If replicas must confirm the grants, `ask` also sends WAIT in the same pipeline.
   * Returns whether all keys are held.
   */
  async function ask(commands: () => Command[], patience: number, isAlone: boolean): Promise<boolean> {
    const limit = waits ? Math.min(replicas.within, Math.max(1, Math.ceil(deadline - now()))) : replicas.within;
    const { sent, replies } = await settings.servers.ask(tenures, {
      commands: () => (limit > 0 ? [...commands(), ["WAIT", replicas.count, limit]] : commands()),
      ...request,
      limit: settings.responseLimit + limit,
      patience: patience + limit,
      isAlone: isAlone || limit > 0, // WAIT would block other requests on a shared connection
    });
    for (const [at, each] of tenures.entries()) each.mayBeGranted ||= replies[at] !== null;
    const reached = replies[tenures.length] ?? 0;
    const isGranted = tenures.map((each, at) => each.readGrant(replies[at])).every(Boolean);
    if (isGranted && !((reached as number) >= replicas.count)) {
      const message = `${reached} of ${replicas.count} replicas have confirmed the grant in time: the lock is given back`;
      throw new UnreplicatedError(message, tenure.key);
    }
    return isGranted && tenures.every((each) => each.begin(sent));
  }
}
