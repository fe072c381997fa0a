import { setTimeout as sleep } from "node:timers/promises";

/** The clock for leases, in milliseconds. It is monotonic. */
export const now = (): number => performance.now();

/** The longest delay of a timer in Node.js, in milliseconds. A timer with a longer delay fires at once. */
export const MAX_DELAY = 2 ** 31 - 1;

/** `within` throws this when its time is over. */
export class NoReply extends Error {}

/**
 * Settles like the promise. Rejects when the milliseconds are over. When the signal aborts, rejects with the signal's reason.
 * With `isBackground` the timer does not keep the process alive.
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
    // A timer may fire early, because it counts from the time when the event loop last read the clock.
    const late = () => reject(new NoReply(`no reply within ${limit} ms`));
    const expire = () => (now() < end ? setImmediate(expire) : settle(late));
    // setImmediate lets a process that was paused read replies that have already arrived.
    const timer = setTimeout(setImmediate, limit, expire);
    if (isBackground) timer.unref();
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    const resolved = (value: T) => settle(() => resolve(value));
    promise.then(resolved, (error) => settle(() => reject(error)));
  });
}

/** Waits until all promises are settled. Then rejects if a promise was rejected. */
export const settleAll = <T>(promises: Promise<T>[]): Promise<T[]> =>
  Promise.allSettled(promises).then(() => Promise.all(promises));

/** Sleeps until the milliseconds are over or the signal aborts. */
export function rest(milliseconds: number, signal?: AbortSignal, isBackground = false): Promise<void> {
  const options = { ref: !isBackground, ...(signal && { signal }) };
  return sleep(Math.min(milliseconds, MAX_DELAY), undefined, options).catch(() => {});
}
