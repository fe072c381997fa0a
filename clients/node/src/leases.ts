import type { Tenure } from "./tenure.js";
import { MAX_DELAY, now } from "./time.js";

/**
 * Watches the leases of all tenures of a client, and renews them, by one timer. The timer waits for no server. It does not
 * keep the process from ending.
 */
export class Leases {
  readonly #tenures = new Set<Tenure>();
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  add(tenure: Tenure): void {
    this.#tenures.add(tenure);
    this.arm(tenure.nextEvent);
  }

  delete(tenure: Tenure): void {
    this.#tenures.delete(tenure);
  }

  /** Sets the timer to this time, unless it fires earlier. */
  arm(at: number): void {
    if (at >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = at;
    this.#timer = setTimeout(() => this.#onTimer(), Math.min(Math.max(0, at - now()), MAX_DELAY)).unref();
  }

  /** Renews all tenures at once: a server that was restarted may have forgotten them. */
  renewAll(): void {
    for (const tenure of this.#tenures) tenure.renewInBackground();
  }

  #onTimer(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    const [at, ended] = [now(), [] as Tenure[]];
    let next = Number.POSITIVE_INFINITY;
    for (const tenure of this.#tenures) {
      if (at >= tenure.deadline) ended.push(tenure);
      else {
        // What is due soon is renewed with what is due now: then later renewals share a pipeline.
        if (at >= tenure.renewalDue - tenure.lease / 12) tenure.renewInBackground();
        next = Math.min(next, tenure.nextEvent);
      }
    }
    this.arm(next);
    // At the end: the listeners of the program may be slow.
    for (const tenure of ended) tenure.loseByTime();
  }
}
