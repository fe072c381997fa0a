import { now, within } from "./time.js";

/** A semaphore that serves callers in order. */
export class Permits {
  #free: number;
  readonly #queue: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** Whether there was a permit before `deadline`. The caller has to release it. Throws when the signal aborts. */
  async acquire(deadline: number, signal: AbortSignal | undefined): Promise<boolean> {
    if (this.#free > 0) {
      this.#free -= 1;
      return true;
    }
    let grant = () => {};
    const granted = new Promise<boolean>((resolve) => {
      grant = () => resolve(true);
    });
    this.#queue.push(grant);
    try {
      return await within(granted, deadline - now(), { signals: [signal] });
    } catch {
      const at = this.#queue.indexOf(grant);
      if (at >= 0) this.#queue.splice(at, 1);
      else this.release(); // granted at the same moment
      signal?.throwIfAborted();
      return false;
    }
  }

  release(): void {
    const next = this.#queue.shift();
    if (next === undefined) this.#free += 1;
    else next();
  }
}
