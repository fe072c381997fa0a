/** Limits how many callers wait on connections of their own at a time. Callers get their turns first come, first served. */
export class WaitingConnections {
  #left: number;
  /** The callers without a turn. Each function begins the turn of one caller. */
  readonly #queue = new Set<() => void>();

  constructor(limit: number) {
    this.#left = limit;
  }

  /** `begun` resolves with true when the caller's turn begins. Call `leave` at the end, even if the turn has not begun. */
  enter() {
    let begin = () => {};
    const begun = new Promise<boolean>((resolve) => {
      begin = () => resolve(true);
    });
    const leave = () => {
      if (!this.#queue.delete(begin)) this.#left += 1;
      this.#beginNext();
    };
    this.#queue.add(begin);
    this.#beginNext();
    return { begun, leave };
  }

  #beginNext(): void {
    const [next] = this.#queue;
    if (next === undefined || this.#left === 0) return;
    this.#left -= 1;
    this.#queue.delete(next);
    next();
  }
}
