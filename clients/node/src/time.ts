import { setTimeout as sleep } from "node:timers/promises";

/** The monotonic clock for leases, in milliseconds. */
export function now(): number {
  return performance.now();
}

/** The longest delay of a timer in Node.js, in milliseconds. A timer with a longer delay fires at once. */
export const MAX_DELAY = 2 ** 31 - 1;

/** The error of `within` when the time is over. */
export class NoReply extends Error {}

/**
 * Settles like the promise. If `milliseconds` pass first, rejects with `NoReply`. If the signal aborts first, rejects with its
 * reason. With `isBackground` the timer does not keep the process running.
 */
export function within<T>(promise: Promise<T>, milliseconds: number, signal?: AbortSignal, isBackground = false) {
  return new Promise<T>((resolve, reject) => {
    const limit = Math.min(Math.max(0, Math.ceil(milliseconds)), MAX_DELAY);
    const settle = (how: () => void) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      how();
    };
    const abort = () => settle(() => reject(signal?.reason));
    const end = now() + limit;
    // A timer may fire early, because it counts from the time at which the event loop last read the clock.
    const late = () => reject(new NoReply(`no reply within ${limit} ms`));
    const expire = () => (now() < end ? setImmediate(expire) : settle(late));
    // With setImmediate, a process that was paused first reads the replies that have arrived, and only then times out.
    const timer = setTimeout(setImmediate, limit, expire);
    if (isBackground) timer.unref();
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    const resolved = (value: T) => settle(() => resolve(value));
    promise.then(resolved, (error) => settle(() => reject(error)));
  });
}

/** Sleeps until the time has passed or the signal aborts. */
export function rest(milliseconds: number, signal?: AbortSignal, isBackground = false): Promise<void> {
  const options = { ref: !isBackground, ...(signal && { signal }) };
  return sleep(Math.min(milliseconds, MAX_DELAY), undefined, options).catch(() => {});
}
