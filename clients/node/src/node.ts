// The connections to one node: one shared connection for short requests, and further connections for requests that wait.

import type { Command, Connection } from "./adapters.js";
import type { Request } from "./servers.js";
import type { Tenures } from "./tenure.js";
import { NoReply, now, type Schedule, within } from "./time.js";

/** How long an idle connection for waits stays open, in milliseconds. */
const IDLE_LIMIT = 10_000;
/** How long attempts wait for the same shared connection to open, in milliseconds. Then an attempt opens a new connection. */
const OPENING_LIMIT = 1_000;

interface Link {
  readonly begun: number;
  readonly opening: Promise<Connection>;
  /** Set when the connection is open. */
  connection?: Connection;
  /** How many requests use the link. */
  uses: number;
  /** A retired link gets no further request. It is closed when no request uses it any more. */
  isRetired: boolean;
  idleTimer?: NodeJS.Timeout;
}

export class Node {
  readonly #schedule: Schedule;
  readonly #connect: () => Promise<Connection>;
  readonly #links = new Set<Link>();
  #shared: Link | undefined;
  /** The idle connections for waits. */
  #idle: Link[] = [];

  /** The schedule learns when a connection breaks, unless the connection was already retired. */
  constructor(schedule: Schedule, connect: () => Promise<Connection>) {
    this.#schedule = schedule;
    this.#connect = connect;
  }

  /**
   * Calls `commands` when a connection is open, and sends the commands that it returns. Throws if a reply comes later than
   * `limit` milliseconds after `begun`.
   */
  async exchange(tenures: Tenures, request: Request, begun: number, limit: number, commands: () => Command[]) {
    const { signal, isAlone } = request;
    if (!isAlone) this.#shared ??= this.#open();
    const link = (isAlone ? this.#idle.pop() : this.#shared) ?? this.#open();
    clearTimeout(link.idleTimer);
    link.uses += 1;
    let sending: Promise<unknown[]> | undefined;
    try {
      const connection = link.connection ?? (await this.#schedule.within(link.opening, begun, limit, request));
      sending = Promise.all(commands().map((command) => connection.send(command)));
      const replies = await this.#schedule.within(sending, begun, limit, request);
      if (isAlone) {
        this.#idle.push(link);
        link.idleTimer = setTimeout(() => this.#retire(link), IDLE_LIMIT).unref();
      }
      return replies;
    } catch (error) {
      if (isAlone) {
        const replies = signal?.aborted && sending ? sending : Promise.resolve([]);
        // The server may carry out the cancelled request after the release, which the client sends on another connection.
        const late = within(replies, tenures[0].plan.settings.responseLimit, { isBackground: true }).catch(() => []);
        for (const each of tenures) each.late = late;
        void late.then(() => this.#retire(link));
      } else if (!signal?.aborted && (sending !== undefined || now() - link.begun > OPENING_LIMIT)) {
        // Until `OPENING_LIMIT`, the client keeps a connection that is not open yet, because the next attempt may use it.
        this.#retire(link, !(error instanceof NoReply));
      }
      throw error;
    } finally {
      link.uses -= 1;
      if (link.isRetired) this.#retire(link);
    }
  }

  /** Closes the connections that were opened before `time`, as soon as no request uses them. */
  retireBefore(time: number): void {
    for (const link of this.#links) if (link.begun < time) this.#retire(link, true);
  }

  #open(): Link {
    const link: Link = { begun: now(), opening: this.#connect(), uses: 0, isRetired: false };
    this.#links.add(link);
    const opened = async (connection: Connection) => {
      link.connection = connection;
      await connection.closed;
      this.#retire(link, true);
    };
    void link.opening.then(opened, () => this.#retire(link));
    return link;
  }

  #retire(link: Link, isBroken = false): void {
    const isNew = !link.isRetired;
    link.isRetired = true;
    if (this.#shared === link) this.#shared = undefined;
    this.#idle = this.#idle.filter((each) => each !== link);
    // Do not close a connection on which other requests may still get their replies.
    if (link.uses === 0) this.#close(link);
    if (isBroken && isNew) this.#schedule.visit((each) => each.onBroken?.());
  }

  #close(link: Link): void {
    this.#links.delete(link);
    link.opening.then((connection) => connection.close()).catch(() => {});
  }
}
