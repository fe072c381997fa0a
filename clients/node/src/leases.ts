import type { Tenure } from "./tenure.js";
import { MAX_DELAY, now } from "./time.js";

/**
 * Watches and renews the leases of all tenures of a client, with one timer. The timer does not wait for replies, and does not
 * keep the process alive.
 */
export class Leases {
  /** When the next event of a tenure becomes earlier, call `arm`. */
  readonly tenures = new Set<Tenure>();
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  /** Sets the timer to the tenure's next renewal or its end, unless the timer fires earlier. */
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
      // Tenures that are due soon are renewed now, too. So their later renewals share a pipeline.
      if (at < tenure.deadline && at >= tenure.renewalDue - tenure.lease / 12) tenure.renewInBackground();
      if (at < tenure.deadline) this.arm(tenure);
    }
    // This comes last, because the program's listeners may be slow.
    for (const tenure of ended) tenure.loseByTime();
  }
}
