// The connections to one node: a shared one for short requests, and others for requests that wait.

import type { Command, Connection } from "./adapters.js";
import type { Request } from "./servers.js";
import { NoReply, now, within } from "./time.js";

/** How long an idle connection for waits stays open, in milliseconds. */
const IDLE_LIMIT = 10_000;
/** After a wait was cancelled, how long its connection stays open for a late reply, in milliseconds. */
const LATE_REPLY_LIMIT = 200;

interface Link {
  readonly opening: Promise<Connection>;
  /** Set when the connection is open. */
  connection?: Connection;
  /** How many requests use the connection. */
  uses: number;
  /** No further request uses the connection. It is closed when its last request has ended. */
  isRetired: boolean;
  idleTimer?: NodeJS.Timeout;
}

export class Node {
  readonly #connect: () => Promise<Connection>;
  readonly #onBroken: () => void;
  readonly #links = new Set<Link>();
  #shared: Link | undefined;
  /** Idle connections for waits. */
  #idle: Link[] = [];

  /** `onBroken` is called when a connection breaks, unless a request waits on it alone, and when all connections are retired. */
  constructor(connect: () => Promise<Connection>, onBroken: () => void) {
    this.#connect = connect;
    this.#onBroken = onBroken;
  }

  /** Sends the commands that `commands` returns when the connection is open. Throws if a reply takes longer than `limit`. */
  async exchange(request: Request, limit: number, commands: () => Command[]): Promise<unknown[]> {
    const { signal, isAlone, isBackground, onLeft } = request;
    const begun = now();
    if (!isAlone) this.#shared ??= this.#open();
    const link = (isAlone ? this.#idle.pop() : this.#shared) ?? this.#open();
    clearTimeout(link.idleTimer);
    link.uses += 1;
    let sending: Promise<unknown[]> | undefined;
    try {
      const connection = link.connection ?? (await within(link.opening, limit, signal, isBackground));
      sending = Promise.all(commands().map((command) => connection.send(command)));
      const replies = await within(sending, begun + limit - now(), signal, isBackground);
      if (isAlone) this.#keepIdle(link);
      return replies;
    } catch (error) {
      if (isAlone) {
        const late = signal?.aborted && sending ? within(sending, LATE_REPLY_LIMIT) : Promise.resolve([]);
        onLeft?.(late);
        void late.catch(() => {}).finally(() => this.#retire(link));
      } else if (sending !== undefined && !signal?.aborted) {
        // A connection that is still opening is not retired, because it may be open at the next attempt.
        this.#retire(link, !(error instanceof NoReply));
      }
      throw error;
    } finally {
      link.uses -= 1;
      if (link.isRetired) this.#retire(link);
    }
  }

  /** Closes each connection when no request uses it any more, because the connections may lead to the wrong server. */
  retireAll(): void {
    for (const link of this.#links) this.#retire(link);
    this.#onBroken(); // renews all locks, because another server may be the primary
  }

  closeAll(): void {
    for (const link of this.#links) this.#close(link);
  }

  #open(): Link {
    const link: Link = { opening: this.#connect(), uses: 0, isRetired: false };
    this.#links.add(link);
    const opened = async (connection: Connection) => {
      link.connection = connection;
      await connection.closed;
      this.#retire(link, true);
    };
    void link.opening.then(opened, () => this.#retire(link));
    return link;
  }

  #keepIdle(link: Link): void {
    this.#idle.push(link);
    link.idleTimer = setTimeout(() => this.#retire(link), IDLE_LIMIT).unref();
  }

  #retire(link: Link, isBroken = false): void {
    const isNew = !link.isRetired;
    link.isRetired = true;
    if (this.#shared === link) this.#shared = undefined;
    this.#idle = this.#idle.filter((each) => each !== link);
    // Other requests may still get their replies on a slow connection.
    if (link.uses === 0) this.#close(link);
    if (isBroken && isNew) this.#onBroken();
  }

  #close(link: Link): void {
    this.#links.delete(link);
    link.opening.then((connection) => connection.close()).catch(() => {});
  }
}
