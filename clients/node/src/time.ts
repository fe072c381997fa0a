/** The clock for leases, in milliseconds. It is monotonic. */
export function now(): number {
  return performance.now();
}

/** The longest delay of a timer in Node.js, in milliseconds. With a longer one it fires at once. */
export const MAX_DELAY = 2 ** 31 - 1;

interface Bounds {
  readonly signals?: (AbortSignal | undefined)[];
  /** Whether the process may end meanwhile. */
  readonly isBackground?: boolean;
}

/** Settles like the promise. Rejects when the milliseconds are over, or with a signal's reason when that aborts first. */
export function within<T>(promise: Promise<T>, milliseconds: number, bounds: Bounds = {}): Promise<T> {
  const { signals = [], isBackground = false } = bounds;
  return new Promise((resolve, reject) => {
    const settle = (how: () => void) => {
      clearTimeout(timer);
      for (const signal of signals) signal?.removeEventListener("abort", abort);
      how();
    };
    const abort = () => settle(() => reject(signals.find((signal) => signal?.aborted)?.reason));
    const limit = Math.max(0, milliseconds);
    const expire = () => settle(() => reject(new Error(`no answer within ${Math.round(limit)} ms`)));
    // setImmediate: a process that was paused reads what has arrived before it decides that nothing has.
    const timer = limit > MAX_DELAY ? undefined : setTimeout(setImmediate, limit, expire);
    if (isBackground) timer?.unref();
    promise.then(
      (value) => settle(() => resolve(value)),
      (error) => settle(() => reject(error)),
    );
    for (const signal of signals) signal?.addEventListener("abort", abort);
    if (signals.some((signal) => signal?.aborted)) abort();
  });
}
