import type { Request } from "./servers.js";

/** The clock for leases, in milliseconds. It is monotonic. */
export const now = (): number => performance.now();

/** The value of a limit that does not limit. */
export const UNLIMITED = Number.POSITIVE_INFINITY;

/** `within` throws this when its time is over. */
export class NoReply extends Error {}

/** A tenure or a request that waits for a time. */
interface Member {
  /** The position in the schedule. */
  index: number;
  /** Whether the member keeps the process alive. */
  readonly keepsAlive?: boolean;
  /** When the timer is to fire. */
  readonly due: number;
  /** Called when the timer fires, perhaps for another member or too early. */
  onTimer(at: number): void;
  /** Called when a connection breaks. */
  onBroken?(): void;
  /** Called when the client ends. */
  onEnd?(reason: Error): void;
}

type Options = Pick<Request, "signal" | "isBackground">;

/** The tenures and the requests of a client, with one timer for all of them. The timer does not wait for replies. */
export class Schedule {
  // This is an array and not a Set: when V8 enlarges a Set, the deleted members stay in memory until the next full garbage
  // collection.
  readonly #members: Member[] = [];
  /** How many members keep the process alive. */
  #keepers = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerAt = UNLIMITED;

  add(member: Member): void {
    member.index = this.#members.push(member) - 1;
    if (member.keepsAlive) this.#keepers += 1;
    if (this.#keepers === 1) this.#timer?.ref();
    this.arm(member);
  }

  delete(member: Member): void {
    if (this.#members[member.index] !== member) return;
    const last = this.#members.pop() as Member;
    if (last !== member) this.#members[member.index] = last;
    last.index = member.index;
    if (member.keepsAlive) this.#keepers -= 1;
    if (this.#keepers === 0) this.#timer?.unref();
  }

  /** Sets the timer for the member, unless the timer fires earlier. Call `arm` again when the member becomes due earlier. */
  arm({ due }: Member): void {
    if (due >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = due;
    const delay = Math.min(Math.max(0, Math.ceil(due - now())), 2 ** 31 - 1); // a timer with a longer delay fires at once
    // With setImmediate, a process that was paused first reads the replies that have already arrived.
    this.#timer = setTimeout(setImmediate, delay, () => this.#onTimer());
    if (this.#keepers === 0) this.#timer.unref();
  }

  visit(visitor: (member: Member) => void): void {
    for (const each of [...this.#members]) visitor(each);
  }

  /**
   * Settles like the promise. But if the promise is still pending `milliseconds` after `begun`, or when the client ends, the
   * result is a rejection. When the signal aborts, the result rejects with the signal's reason.
   */
  within<T>(promise: Promise<T>, begun: number, milliseconds: number, { signal, isBackground }: Options = {}) {
    return new Promise<T>((resolve, reject) => {
      const settle = (how: () => void) => {
        this.delete(wait);
        signal?.removeEventListener("abort", abort);
        how();
      };
      const fail = (reason: Error) => settle(() => reject(reason));
      const abort = () => fail(signal?.reason);
      const ms = Math.max(0, Math.ceil(milliseconds));
      const onTimer = (at: number) => (at < wait.due ? this.arm(wait) : fail(new NoReply(`no reply within ${ms} ms`)));
      const wait = { index: -1, keepsAlive: !isBackground, due: begun + ms, onTimer, onEnd: fail };
      this.add(wait);
      signal?.addEventListener("abort", abort);
      if (signal?.aborted) abort();
      promise.then((value) => settle(() => resolve(value)), fail);
    });
  }

  /** Sleeps until the milliseconds are over, the signal aborts, or the client ends. */
  rest(milliseconds: number, options?: Options): Promise<void> {
    return this.within(new Promise<void>(() => {}), now(), milliseconds, options).catch(() => {});
  }

  #onTimer(): void {
    this.#timerAt = UNLIMITED;
    this.visit((each) => each.onTimer(now()));
  }
}

/** Settles like the promise, but rejects when the milliseconds are over. */
export const within = <T>(promise: Promise<T>, milliseconds: number, options?: Options): Promise<T> =>
  new Schedule().within(promise, now(), milliseconds, options);

/** Waits until all promises are settled. Then settles like `Promise.all`. */
export async function settleAll<T>(promises: Promise<T>[]): Promise<T[]> {
  await Promise.allSettled(promises);
  return Promise.all(promises);
}

/** Sleeps until the milliseconds are over or the signal aborts. */
export const rest = (milliseconds: number, options?: Options) => new Schedule().rest(milliseconds, options);
