/** The clock that leases are measured by: milliseconds, and no step of the wall clock moves it. */
export function now(): number {
  return performance.now();
}

/** What a timer of Node.js can hold; it would ring at once for more. */
export const LONGEST = 2 ** 31 - 1;

interface Bounds {
  readonly signals?: (AbortSignal | undefined)[];
  /** Whether the process may end meanwhile. */
  readonly isBackground?: boolean;
}

/** Settles as the promise does, unless the milliseconds are over or a signal aborts (by its reason) first. */
export function within<T>(promise: Promise<T>, milliseconds: number, bounds: Bounds = {}): Promise<T> {
  const { signals = [], isBackground = false } = bounds;
  return new Promise((resolve, reject) => {
    const settle = (how: () => void) => {
      clearTimeout(timer);
      for (const signal of signals) signal?.removeEventListener("abort", abort);
      how();
    };
    const abort = () => settle(() => reject(signals.find((signal) => signal?.aborted)?.reason));
    const late = () => settle(() => reject(new Error(`no answer within ${milliseconds} ms`)));
    // A process that stood still is to read what has come meanwhile before it finds that nothing has.
    const timer = milliseconds > LONGEST ? undefined : setTimeout(setImmediate, Math.max(0, milliseconds), late);
    if (isBackground) timer?.unref();
    promise.then(
      (value) => settle(() => resolve(value)),
      (error) => settle(() => reject(error)),
    );
    for (const signal of signals) signal?.addEventListener("abort", abort);
    if (signals.some((signal) => signal?.aborted)) abort();
  });
}
