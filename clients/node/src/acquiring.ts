// How a lock is acquired: it is tried first, and waited for in the server's queue if it is held.

import { type Command, Refusal } from "./connecting.js";
import { LockRefused, Unreplicated } from "./errors.js";
import { type Answer, type Link, PROMPT } from "./link.js";
import { type Claim, deadline, type Grant, isGone, isTooLong, renewal, withdraw } from "./tenure.js";
import { LONGEST, now, within } from "./time.js";

export interface Acquisition {
  readonly claim: Claim;
  /** Milliseconds; 0: the lock is only tried; Infinity: no limit. */
  readonly waitLimit: number;
  /** Milliseconds; undefined: the server's own. */
  readonly lease: number | undefined;
  readonly signal: AbortSignal | undefined;
  readonly replicas: { readonly count: number; readonly within: number } | undefined;
  readonly patience: number;
}

/** For how long a lease of the server's own is given back, in milliseconds, as it may be anything: an hour. */
const HOUR = 3_600_000;

/** The grant, or null when the lock is busy for longer than the wait limit. Whoever gives up leaves nothing behind. */
export async function acquire(link: Link, doors: Doors, acquisition: Acquisition): Promise<Grant | null> {
  const { claim, lease, patience, signal } = acquisition;
  let isHeard = false;
  const giveBack = () => withdraw(link, claim, Math.max(patience, lease ?? HOUR));
  const onSend = () => {
    isHeard = true;
  };
  try {
    const grant = await attempt(link, doors, acquisition, onSend, giveBack);
    signal?.throwIfAborted();
    return grant;
  } catch (error) {
    // The grant may have been on its way, or too few replicas have heard of it.
    if (isHeard && !(error instanceof LockRefused)) giveBack();
    throw error;
  }
}

async function attempt(
  link: Link,
  doors: Doors,
  acquisition: Acquisition,
  onSend: () => void,
  giveBack: () => void,
): Promise<Grant | null> {
  const { claim, waitLimit, lease, patience, replicas, signal } = acquisition;
  const { key, owner } = claim;
  const text = key.toString();
  const begun = now();
  const until = begun + waitLimit;
  const commands = (block: (string | number)[]): Command[] => [
    ["LOCK.ACQUIRE", key, owner, ...(lease === undefined ? [] : ["PX", lease]), ...block, "HOLDS", 1],
    ...(lease === undefined ? [["LOCK.INFO", key] satisfies Command] : []),
  ];
  const shared = {
    key,
    patience,
    signal,
    onSend,
    until: Number.isFinite(waitLimit) && waitLimit > 0 ? until : begun + patience,
  };

  let answer = await link.ask({ ...shared, commands: () => commands([]) });
  let pause = 50;
  let hasWaited = false;
  for (;;) {
    const { sent } = answer;
    const granted = read(answer);
    if (granted !== undefined) {
      // By our clock the lease of a grant that was long in coming may be over: a new one is asked for before anybody
      // relies on it.
      if (replicas === undefined && now() - sent <= granted.lease / 3) {
        return { ...granted, deadline: deadline(sent, granted.lease) };
      }
      const confirmed = await confirm(granted);
      if (confirmed !== undefined) return confirmed;
    }
    if (now() >= until) return null;
    if (!(await doors.enter(Math.min(until, now() + pause), signal))) {
      if (now() >= until) return null;
      // All may be taken by those who wait for a lock that the caller holds: it is tried now and then.
      pause = Math.min(2 * pause, 1_000);
      answer = await link.ask({
        ...shared,
        until: until < Infinity ? until : now() + patience,
        commands: () => commands([]),
      });
      continue;
    }
    hasWaited = true;
    try {
      answer = await link.ask({
        ...shared,
        until,
        commands: (sent) => commands(["BLOCK", blocking(until - sent)]),
        limit: (sent) => until - sent + PROMPT,
        farewell: ["LOCK.RELEASE", key, owner, "HOLDS", 0],
      });
    } finally {
      doors.leave();
    }
    if (answer.replies[0] === null) return null;
  }

  /** What is refused after the grant, or after an earlier request that may have been granted. */
  function takenBack({ message, code }: Refusal): LockRefused {
    giveBack();
    return new LockRefused(message, text, code);
  }

  /** Token and lease, where the lock was granted. */
  function read({ replies, isRepeat }: Answer): { token: number; lease: number } | undefined {
    const [reply, info] = replies;
    if (reply === null) return undefined;
    if (reply instanceof Refusal) throw isRepeat ? takenBack(reply) : new LockRefused(reply.message, text, reply.code);
    const [token] = reply as [number, number];
    if (lease !== undefined) return { token, lease };
    if (info instanceof Refusal) throw takenBack(info);
    const left = leaseLeft(info, owner, token);
    return left === undefined ? undefined : { token, lease: left };
  }

  /** Undefined where it was lost before this process has heard of it. */
  async function confirm(granted: { token: number; lease: number }): Promise<Grant | undefined> {
    const renew = renewal(claim, granted.lease, granted.token, 1);
    const { sent, replies } = await link.ask({
      ...shared,
      until: now() + patience,
      commands: () => (replicas === undefined ? [renew] : [renew, ["WAIT", replicas.count, replicas.within]]),
      limit: () => PROMPT + (replicas?.within ?? 0),
      // WAIT asks for what was written on its own connection, and nobody else is to wait there meanwhile. And no other than
      // the one that has waited may be let in.
      ...(replicas === undefined && !hasWaited
        ? {}
        : { farewell: ["LOCK.RELEASE", key, owner, "HOLDS", 0] satisfies Command }),
    });
    const [reply, reached] = replies;
    if (isGone(reply)) return undefined;
    if (isTooLong(reply) && lease === undefined && granted.lease > 1) {
      return confirm({ ...granted, lease: Math.floor(granted.lease / 2) });
    }
    for (const each of replies) if (each instanceof Refusal) throw takenBack(each);
    if (replicas !== undefined && (reached as number) < replicas.count) {
      throw new Unreplicated(`${reached} of ${replicas.count} replicas have heard of the grant in time`, text);
    }
    return { ...granted, deadline: deadline(sent, granted.lease) };
  }
}

/** What the server is told to wait: rounded up, as 0 waits without limit, as do years. */
function blocking(milliseconds: number): number {
  return milliseconds > 1_000 * LONGEST ? 0 : Math.max(1, Math.ceil(milliseconds));
}

/** What is left of an owner's lease, from a reply to LOCK.INFO. */
function leaseLeft(info: unknown, owner: string, token: number): number | undefined {
  const holders = info === null ? [] : (asMap(info).get("holders") as unknown[]);
  const holder = holders.map(asMap).find((each) => each.get("token") === token && `${each.get("owner")}` === owner);
  return holder?.get("lease-left") as number | undefined;
}

function asMap(flat: unknown): Map<string, unknown> {
  const list = flat as unknown[];
  return new Map(list.flatMap((name, at) => (at % 2 === 0 ? [[`${name}`, list[at + 1]]] : [])));
}

/** So many may wait at a time, each on a connection of its own. More stand in line. */
export class Doors {
  #free: number;
  readonly #line: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** Whether there was one before `until`. Who has entered leaves. */
  async enter(until: number, signal: AbortSignal | undefined): Promise<boolean> {
    if (this.#free > 0) {
      this.#free -= 1;
      return true;
    }
    let open = () => {};
    const opened = new Promise<boolean>((resolve) => {
      open = () => resolve(true);
    });
    this.#line.push(open);
    try {
      return await within(opened, until - now(), { signals: [signal] });
    } catch {
      const at = this.#line.indexOf(open);
      if (at >= 0) this.#line.splice(at, 1);
      else this.leave(); // it was opened at the same moment
      signal?.throwIfAborted();
      return false;
    }
  }

  leave(): void {
    const next = this.#line.shift();
    if (next === undefined) this.#free += 1;
    else next();
  }
}
