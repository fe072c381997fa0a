import type { Tenure } from "./tenure.js";
import { MAX_DELAY, now } from "./time.js";

/**
 * Watches and renews the leases of all tenures of a client, with one timer. The timer never waits for a server, and does not
 * keep the process running.
 */
export class Leases {
  /** After you add a tenure, or make its renewal or deadline earlier, call `arm`. */
  readonly tenures = new Set<Tenure>();
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  /** Sets the timer for the next renewal or the end of the tenure, unless the timer fires earlier anyway. */
  arm(tenure: Tenure): void {
    const at = Math.min(tenure.renewalDue, tenure.deadline);
    if (at >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = at;
    this.#timer = setTimeout(() => this.#onTimer(), Math.min(Math.max(0, at - now()), MAX_DELAY)).unref();
  }

  /** Renews all tenures at once, because a restarted server may have forgotten them. */
  renewAll(): void {
    for (const tenure of this.tenures) tenure.renewInBackground();
  }

  #onTimer(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    const at = now();
    const ended = [...this.tenures].filter((tenure) => at >= tenure.deadline);
    for (const tenure of this.tenures) {
      // Leases that are due soon are renewed now too. From then on these renewals share a pipeline.
      if (at < tenure.deadline && at >= tenure.renewalDue - tenure.lease / 12) tenure.renewInBackground();
      if (at < tenure.deadline) this.arm(tenure);
    }
    // This comes last, because it calls the program's listeners, which may be slow.
    for (const tenure of ended) tenure.loseByTime();
  }
}
