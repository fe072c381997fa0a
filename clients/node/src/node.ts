// The connections to one node: a shared one for short requests, and others for requests that wait.

import type { Command, Connection } from "./adapters.js";
import type { Request } from "./servers.js";
import { NoReply, now, within } from "./time.js";

/** How long an idle connection for waits is kept, in milliseconds. */
const IDLE_LIMIT = 10_000;
/** How long a wait that was cancelled keeps its connection for a late reply, in milliseconds. */
const LATE_REPLY_LIMIT = 200;

interface SharedConnection {
  readonly opening: Promise<Connection>;
  connection: Connection | undefined;
  pending: number;
  /** A request had no reply in time. New requests get another connection. */
  isRetired: boolean;
}

export class Node {
  readonly #connect: () => Promise<Connection>;
  readonly #onBroken: () => void;
  readonly #connections = new Set<Connection>();
  /** Connections for waits, and the timers that close them. */
  readonly #idle: [Connection, NodeJS.Timeout][] = [];
  #shared: SharedConnection | undefined;

  /** `onBroken` is called when the shared connection breaks. */
  constructor(connect: () => Promise<Connection>, onBroken: () => void) {
    this.#connect = connect;
    this.#onBroken = onBroken;
  }

  /** Sends commands, which are asked for then, on the shared connection. Throws if a reply is late. */
  async exchange({ signal, isBackground }: Request, limit: number, commands: () => Command[]): Promise<unknown[]> {
    this.#shared ??= this.#openShared();
    const shared = this.#shared;
    const begun = now();
    // When the limit is over, the connection may still open for the next attempt.
    const connection = shared.connection ?? (await within(shared.opening, limit, signal, isBackground));
    const refs = isBackground ? 0 : 1;
    shared.pending += 1;
    connection.addRef(refs);
    try {
      return await within(send(connection, commands()), begun + limit - now(), signal, isBackground);
    } catch (error) {
      if (error instanceof NoReply) this.#retire(shared);
      else if (connection.isClosed()) this.#forget(shared);
      throw error;
    } finally {
      connection.addRef(-refs);
      shared.pending -= 1;
      // Other requests may still get their replies on a slow connection.
      if (shared.isRetired && shared.pending === 0) connection.close();
    }
  }

  /** The same on a connection that no other request uses. */
  async exchangeAlone(request: Request, limit: number, commands: () => Command[]): Promise<unknown[]> {
    const { signal, onLateReplies } = request;
    const begun = now();
    const opening = this.#takeIdle() ?? this.#open();
    const connection = await within(opening, limit, signal).catch((error) => {
      opening.then((late) => late.close()).catch(() => {});
      throw error;
    });
    connection.addRef(1);
    const sending = send(connection, commands());
    try {
      const replies = await within(sending, begun + limit - now(), signal);
      this.#keepIdle(connection);
      return replies;
    } catch (error) {
      const late = signal?.aborted ? within(sending, LATE_REPLY_LIMIT).then(onLateReplies) : Promise.resolve();
      void late.catch(() => {}).finally(() => connection.close());
      throw error;
    } finally {
      connection.addRef(-1);
    }
  }

  /** Closes all connections that may serve another request: they may lead to the wrong server. */
  closeUnused(): void {
    if (this.#shared !== undefined) this.#retire(this.#shared);
    for (const [connection] of this.#idle) connection.close();
    this.#onBroken(); // another server may be the primary
  }

  closeAll(): void {
    for (const connection of this.#connections) connection.close();
  }

  #openShared(): SharedConnection {
    const opening = this.#open();
    const shared: SharedConnection = { opening, connection: undefined, pending: 0, isRetired: false };
    const onClosed = () => {
      this.#forget(shared);
      if (!shared.isRetired) this.#onBroken();
    };
    const onOpen = (connection: Connection) => {
      shared.connection = connection;
      void connection.closed.then(onClosed);
    };
    opening.then(onOpen, () => this.#forget(shared));
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
    const connection = await this.#connect();
    this.#connections.add(connection);
    void connection.closed.then(() => this.#connections.delete(connection));
    return connection;
  }

  #takeIdle(): Promise<Connection> | undefined {
    for (let idle = this.#idle.pop(); idle !== undefined; idle = this.#idle.pop()) {
      const [connection, timer] = idle;
      clearTimeout(timer);
      if (!connection.isClosed()) return Promise.resolve(connection);
    }
    return undefined;
  }

  #keepIdle(connection: Connection): void {
    const close = () => this.#idle.shift()?.[0].close(); // all have the same limit, so this is the first one
    this.#idle.push([connection, setTimeout(close, IDLE_LIMIT).unref()]);
  }
}

function send(connection: Connection, commands: Command[]): Promise<unknown[]> {
  return Promise.all(commands.map((command) => connection.send(command)));
}
