/** A caller's turn to wait on a connection of its own. */
export interface Turn {
  hasBegun: boolean;
  /** Called when the turn begins, unless it has begun when `enter` returns. */
  onBegin(): void;
}

/** Bounds how many callers wait on connections of their own. Further callers get a turn first come, first served. */
export class WaitingConnections {
  #left: number;
  readonly #queue = new Set<Turn>();

  constructor(limit: number) {
    this.#left = limit;
  }

  enter(): Turn {
    const turn = { hasBegun: false, onBegin: () => {} };
    this.#queue.add(turn);
    this.#beginNext();
    return turn;
  }

  /** Ends the turn, whether it has begun or not. */
  leave(turn: Turn): void {
    if (!this.#queue.delete(turn)) this.#left += 1;
    this.#beginNext();
  }

  #beginNext(): void {
    const [next] = this.#queue;
    if (next === undefined || this.#left === 0) return;
    this.#left -= 1;
    this.#queue.delete(next);
    next.hasBegun = true;
    next.onBegin();
  }
}
