/** A caller's turn to wait on a connection of its own. */
export class Turn {
  hasBegun = false;
  #begin: () => void = () => {};

  /** Resolves when the turn begins. Call it again only when the promise of the call before is not needed any more. */
  begun(): Promise<void> {
    return new Promise((resolve) => {
      if (this.hasBegun) resolve();
      else this.#begin = resolve;
    });
  }

  begin(): void {
    this.hasBegun = true;
    this.#begin();
  }
}

/** Bounds how many callers wait on connections of their own. Further callers get a turn first come, first served. */
export class WaitingConnections {
  #left: number;
  readonly #queue = new Set<Turn>();

  constructor(limit: number) {
    this.#left = limit;
  }

  enter(): Turn {
    const turn = new Turn();
    this.#queue.add(turn);
    this.#beginTurns();
    return turn;
  }

  /** Ends the turn, whether it has begun or not. */
  leave(turn: Turn): void {
    if (!this.#queue.delete(turn)) this.#left += 1;
    this.#beginTurns();
  }

  #beginTurns(): void {
    for (const turn of this.#queue) {
      if (this.#left === 0) return;
      this.#left -= 1;
      this.#queue.delete(turn);
      turn.begin();
    }
  }
}
