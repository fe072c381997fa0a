import type { Tenure } from "./tenure.js";
import { MAX_DELAY, now } from "./time.js";

/**
 * Watches and renews the leases of all tenures of a client, with one timer. The timer does not wait for replies, and does not
 * keep the process alive.
 */
export class Leases {
  // This is an array and not a Set: when V8 enlarges a Set, the deleted members stay in memory until the next full garbage
  // collection.
  readonly #tenures: Tenure[] = [];
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  add(tenure: Tenure): void {
    tenure.index = this.#tenures.push(tenure) - 1;
    this.arm(tenure);
  }

  delete(tenure: Tenure): void {
    if (this.#tenures[tenure.index] !== tenure) return;
    const last = this.#tenures.pop() as Tenure;
    if (last !== tenure) this.#tenures[tenure.index] = last;
    last.index = tenure.index;
  }

  /**
   * Sets the timer to the next renewal or the end of the tenure, unless the timer fires earlier. Call `arm` when the time of
   * the next renewal or the end of the tenure becomes earlier.
   */
  arm(tenure: Tenure): void {
    const at = Math.min(tenure.renewalDue, tenure.deadline);
    if (at >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = at;
    this.#timer = setTimeout(() => this.#onTimer(), Math.min(Math.max(0, at - now()), MAX_DELAY)).unref();
  }

  /** Renews all tenures at once: a server that was restarted may have forgotten them. */
  renewAll(): void {
    for (const tenure of [...this.#tenures]) tenure.renewInBackground();
  }

  #onTimer(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    const at = now();
    const tenures = [...this.#tenures];
    for (const tenure of tenures) {
      // Also renew tenures that are due soon, so that their renewals share a pipeline from now on.
      if (at < tenure.deadline && at >= tenure.renewalDue - tenure.lease / 12) tenure.renewInBackground();
      if (at < tenure.deadline) this.arm(tenure);
    }
    // Report losses last, because the program's listeners may be slow.
    for (const tenure of tenures) if (at >= tenure.deadline) tenure.loseByTime();
  }
}
