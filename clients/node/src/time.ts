/** The clock for leases, in milliseconds. It is monotonic. */
export function now(): number {
  return performance.now();
}

/** The longest delay of a timer in Node.js, in milliseconds. With a longer one it fires at once. */
export const MAX_DELAY = 2 ** 31 - 1;

/** The milliseconds of `within` are over. */
export class NoReply extends Error {}

/**
 * Settles like the promise. Rejects when the milliseconds are over, or with the signal's reason when that aborts first. The
 * process may end meanwhile if `isBackground`.
 */
export function within<T>(promise: Promise<T>, milliseconds: number, signal?: AbortSignal, isBackground = false) {
  return new Promise<T>((resolve, reject) => {
    const limit = Math.min(Math.max(0, Math.ceil(milliseconds)), MAX_DELAY);
    // setImmediate: a process that was paused reads what has arrived before it decides that nothing has.
    const timer = setTimeout(setImmediate, limit, () => {
      signal?.removeEventListener("abort", abort);
      reject(new NoReply(`no reply within ${limit} ms`));
    });
    const settle = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    };
    const abort = () => {
      settle();
      reject(signal?.reason);
    };
    if (isBackground) timer.unref();
    promise.then(
      (value) => {
        settle();
        resolve(value);
      },
      (error) => {
        settle();
        reject(error);
      },
    );
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
  });
}

/** Sleeps, but no longer than until the signal aborts. */
export function rest(milliseconds: number, signal: AbortSignal | undefined, isBackground = false): Promise<void> {
  return within(new Promise<never>(() => {}), milliseconds, signal, isBackground).catch(() => {});
}
