/** Limits how many callers wait on connections of their own at a time. Callers get their turns first come, first served. */
export class WaitingConnections {
  readonly #limit: number;
  /** The callers that have not left, first come first. Each function begins the turn of one caller. */
  readonly #callers = new Set<() => void>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** `begun` resolves with true when the caller's turn begins. Call `leave` at the end, even if the turn has not begun. */
  enter() {
    let begin = () => {};
    const begun = new Promise<boolean>((resolve) => {
      begin = () => resolve(true);
    });
    this.#callers.add(begin);
    if (this.#callers.size <= this.#limit) begin();
    const leave = () => {
      this.#callers.delete(begin);
      [...this.#callers][this.#limit - 1]?.(); // has no effect if this caller's turn has begun
    };
    return { begun, leave };
  }
}
