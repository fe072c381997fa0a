import type { Tenure } from "./tenure.js";
import { MAX_DELAY, now } from "./time.js";

/**
 * Watches the leases of all tenures of a client, and renews them, by one timer. The timer waits for no server. It does not
 * keep the process from ending.
 */
export class Leases {
  /** Call `arm` when the next event of one is earlier than before. */
  readonly tenures = new Set<Tenure>();
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  /** Sets the timer to when the tenure is to be renewed, or ends, unless it fires earlier. */
  arm(tenure: Tenure): void {
    const at = Math.min(tenure.renewalDue, tenure.deadline);
    if (at >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = at;
    this.#timer = setTimeout(() => this.#onTimer(), Math.min(Math.max(0, at - now()), MAX_DELAY)).unref();
  }

  /** Renews all tenures at once: a server that was restarted may have forgotten them. */
  renewAll(): void {
    for (const tenure of this.tenures) tenure.renewInBackground();
  }

  #onTimer(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    const at = now();
    const ended = [...this.tenures].filter((tenure) => at >= tenure.deadline);
    for (const tenure of this.tenures) {
      // What is due soon is renewed with what is due now: then later renewals share a pipeline.
      if (at < tenure.deadline && at >= tenure.renewalDue - tenure.lease / 12) tenure.renewInBackground();
      if (at < tenure.deadline) this.arm(tenure);
    }
    // At the end: the listeners of the program may be slow.
    for (const tenure of ended) tenure.loseByTime();
  }
}
