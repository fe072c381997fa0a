// The connections to one node: a shared one for short requests, and a dedicated one for each request that waits.

import type { Command, Connection, Endpoint } from "./adapters.js";
import { NoReply, now, within } from "./time.js";

/** How long an idle dedicated connection is kept, in milliseconds. */
const IDLE_LIMIT = 10_000;
/** How long a wait that was cancelled keeps its connection for a late reply, in milliseconds. */
const LATE_REPLY_LIMIT = 200;

/** One attempt to send a request. */
export interface Attempt {
  /** Called when the commands are sent: from then on the server may carry them out. */
  readonly commands: () => Command[];
  /** How long it may take, in milliseconds. */
  readonly limit: number;
  readonly signal: AbortSignal | undefined;
  /** Whether the process may end meanwhile. */
  readonly isBackground: boolean;
  /** Called with replies that arrive after the signal has aborted a request on a dedicated connection. */
  readonly onLateReplies: ((replies: unknown[]) => void) | undefined;
}

interface SharedConnection {
  readonly opening: Promise<Connection>;
  connection: Connection | undefined;
  pending: number;
  /** A request had no reply in time. New requests get another connection. */
  isRetired: boolean;
}

export class Node {
  readonly #endpoint: Endpoint;
  readonly #onBroken: () => void;
  readonly #connections = new Set<Connection>();
  readonly #idle: { connection: Connection; timer: NodeJS.Timeout }[] = [];
  #shared: SharedConnection | undefined;

  /** `onBroken` is called when the shared connection breaks. */
  constructor(endpoint: Endpoint, onBroken: () => void) {
    this.#endpoint = endpoint;
    this.#onBroken = onBroken;
  }

  /** Sends the commands of a short request on the shared connection. */
  async exchange(attempt: Attempt): Promise<unknown[]> {
    const { limit, signal, isBackground } = attempt;
    this.#shared ??= this.#openShared();
    const shared = this.#shared;
    const begun = now();
    // When the limit is over, the connection may still open for the next attempt.
    const connection = shared.connection ?? (await within(shared.opening, limit, signal, isBackground));
    const left = shared.connection === undefined ? begun + limit - now() : limit;
    const refs = isBackground ? 0 : 1;
    shared.pending += 1;
    connection.addRef(refs);
    try {
      return await within(send(connection, attempt), left, signal, isBackground);
    } catch (error) {
      if (error instanceof NoReply) this.#retire(shared);
      else if (!signal?.aborted) {
        this.#forget(shared);
        connection.close();
      }
      throw error;
    } finally {
      connection.addRef(-refs);
      shared.pending -= 1;
      // Other requests may still get their replies on a slow connection.
      if (shared.isRetired && shared.pending === 0) connection.close();
    }
  }

  /** Sends the commands of a request that waits on a connection that no other request uses. */
  async exchangeAlone(attempt: Attempt): Promise<unknown[]> {
    const { limit, signal, onLateReplies } = attempt;
    const begun = now();
    const opening = this.#takeIdle() ?? this.#open();
    let connection: Connection;
    try {
      connection = await within(opening, limit, signal);
    } catch (error) {
      opening.then((late) => late.close()).catch(() => {});
      throw error;
    }
    connection.addRef(1);
    const sending = send(connection, attempt);
    try {
      const replies = await within(sending, begun + limit - now(), signal);
      this.#keepIdle(connection);
      return replies;
    } catch (error) {
      if (signal?.aborted) {
        const late = within(sending, LATE_REPLY_LIMIT).then(onLateReplies);
        void late.catch(() => {}).finally(() => connection.close());
      } else connection.close();
      throw error;
    } finally {
      connection.addRef(-1);
    }
  }

  /** Closes all connections that may serve another request: they may lead to the wrong server. */
  closeUnused(): void {
    if (this.#shared !== undefined) this.#retire(this.#shared);
    for (const { connection, timer } of this.#idle.splice(0)) {
      clearTimeout(timer);
      connection.close();
    }
  }

  closeAll(): void {
    this.closeUnused();
    for (const connection of this.#connections) connection.close();
  }

  #openShared(): SharedConnection {
    const opening = this.#open();
    const shared: SharedConnection = { opening, connection: undefined, pending: 0, isRetired: false };
    const forget = () => this.#forget(shared);
    opening.then((connection) => {
      shared.connection = connection;
      connection.onClose(() => {
        forget();
        if (!shared.isRetired) this.#onBroken();
      });
    }, forget);
    return shared;
  }

  #retire(shared: SharedConnection): void {
    shared.isRetired = true;
    this.#forget(shared);
    if (shared.pending === 0) shared.opening.then((connection) => connection.close()).catch(() => {});
  }

  #forget(shared: SharedConnection): void {
    if (this.#shared === shared) this.#shared = undefined;
  }

  async #open(): Promise<Connection> {
    const connection = await this.#endpoint.open();
    this.#connections.add(connection);
    connection.onClose(() => this.#connections.delete(connection));
    return connection;
  }

  #takeIdle(): Promise<Connection> | undefined {
    for (let idle = this.#idle.pop(); idle !== undefined; idle = this.#idle.pop()) {
      clearTimeout(idle.timer);
      if (!idle.connection.isClosed) return Promise.resolve(idle.connection);
    }
    return undefined;
  }

  #keepIdle(connection: Connection): void {
    const close = () => {
      this.#idle.splice(this.#idle.indexOf(idle), 1);
      connection.close();
    };
    const idle = { connection, timer: setTimeout(close, IDLE_LIMIT).unref() };
    this.#idle.push(idle);
  }
}

function send(connection: Connection, { commands }: Attempt): Promise<unknown[]> {
  return Promise.all(commands().map((command) => connection.send(command)));
}
