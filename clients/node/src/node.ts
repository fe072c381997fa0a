// The connections to one node: a shared one for short requests, and a dedicated one for each request that waits.

import type { Command, Connection, Endpoint } from "./adapters.js";
import { RESPONSE_LIMIT, type Request } from "./request.js";
import { now, within } from "./time.js";

/** How often the server is probed while requests wait there, in milliseconds. */
const PROBE_INTERVAL = 5_000;
/** How long an idle connection is kept, in milliseconds. */
const IDLE_LIMIT = 10_000;

export class Node {
  readonly #endpoint: Endpoint;
  readonly #onConnectionLost: () => void;
  readonly #onAlive: () => void;
  #shared: Promise<Connection> | undefined;
  readonly #idle: { connection: Connection; timer: NodeJS.Timeout }[] = [];
  readonly #waiting = new Set<Connection>();
  #probeTimer: NodeJS.Timeout | undefined;

  constructor(endpoint: Endpoint, onConnectionLost: () => void, onAlive: () => void) {
    this.#endpoint = endpoint;
    this.#onConnectionLost = onConnectionLost;
    this.#onAlive = onAlive;
  }

  async exchange(request: Request, sent: number, isAsk: boolean, closing: AbortSignal): Promise<unknown[]> {
    const asked = request.commands(sent);
    const commands = isAsk ? asked.flatMap((command): Command[] => [["ASKING"], command]) : asked;
    const limit = request.limit?.(sent) ?? Math.min(RESPONSE_LIMIT, Math.max(100, request.until - sent));
    const signals = [closing, request.signal];
    const replies = await (request.withdrawal === undefined
      ? this.#exchangeShared(commands, limit, request, signals)
      : this.#exchangeDedicated(commands, limit, request, signals));
    return isAsk ? replies.filter((_, at) => at % 2 === 1) : replies;
  }

  async #exchangeShared(
    commands: Command[],
    limit: number,
    { isBackground = false, onSend }: Request,
    signals: (AbortSignal | undefined)[],
  ) {
    this.#shared ??= this.#open();
    const opening = this.#shared;
    const refs = isBackground ? 0 : 1;
    const send = async (connection: Connection) => {
      connection.addRef(refs);
      onSend?.();
      try {
        return await Promise.all(commands.map((command) => connection.send(command)));
      } finally {
        connection.addRef(-refs);
      }
    };
    try {
      return await within(opening.then(send), limit, { signals, isBackground });
    } catch (error) {
      // The request was given up: the connection is fine. Otherwise it is slow or broken, and new requests get another one.
      // Before it is closed it serves to probe the server for those that wait: another connection may be refused.
      if (!signals.some((signal) => signal?.aborted)) {
        if (this.#shared === opening) this.#shared = undefined;
        void this.#probe(opening).then(() => this.#closeShared(opening));
      }
      throw error;
    }
  }

  async #exchangeDedicated(
    commands: Command[],
    limit: number,
    { onSend, patience, withdrawal }: Request,
    signals: (AbortSignal | undefined)[],
  ) {
    const opening = this.#dedicated();
    let connection: Connection;
    try {
      connection = await within(opening, limit, { signals });
    } catch (error) {
      opening.then((connection) => connection.close()).catch(() => {});
      throw error;
    }
    this.#waiting.add(connection);
    this.#probeTimer ??= setInterval(() => {
      this.#shared ??= this.#open();
      void this.#probe(this.#shared);
    }, PROBE_INTERVAL).unref();
    connection.addRef(1);
    onSend?.();
    const begun = now();
    try {
      const replies = await within(Promise.all(commands.map((each) => connection.send(each))), limit, { signals });
      this.#keepIdle(connection);
      return replies;
    } catch (error) {
      // The server has been alive all the time, unless a probe has found it silent.
      if (now() - begun > Math.min(RESPONSE_LIMIT, patience) && this.#waiting.has(connection)) this.#onAlive();
      // No withdrawal where the request is repeated: the server might carry it out after the repetition.
      void connection.close(signals.some((signal) => signal?.aborted) ? withdrawal : undefined);
      throw error;
    } finally {
      connection.addRef(-1);
      this.#waiting.delete(connection);
      if (this.#waiting.size === 0) {
        clearInterval(this.#probeTimer);
        this.#probeTimer = undefined;
      }
    }
  }

  /** Closes all connections that may serve another request: they may lead to the wrong server. */
  close(): void {
    if (this.#shared !== undefined) this.#closeShared(this.#shared);
    for (const { connection, timer } of this.#idle.splice(0)) {
      clearTimeout(timer);
      void connection.close();
    }
  }

  #open(): Promise<Connection> {
    const opening = this.#endpoint.open();
    const onClose = () => {
      if (this.#shared === opening) this.#shared = undefined;
      this.#onConnectionLost();
    };
    opening.then((connection) => connection.onClose(onClose), onClose);
    return opening;
  }

  #closeShared(opening: Promise<Connection>): void {
    if (this.#shared === opening) this.#shared = undefined;
    opening.then((connection) => connection.close()).catch(() => {});
  }

  async #dedicated(): Promise<Connection> {
    for (;;) {
      const idle = this.#idle.pop();
      if (idle === undefined) return this.#endpoint.open();
      clearTimeout(idle.timer);
      if (!idle.connection.isClosed) return idle.connection;
    }
  }

  #keepIdle(connection: Connection): void {
    const idle = {
      connection,
      timer: setTimeout(() => {
        this.#idle.splice(this.#idle.indexOf(idle), 1);
        void connection.close();
      }, IDLE_LIMIT).unref(),
    };
    this.#idle.push(idle);
  }

  /**
   * Closes the connections that wait, if the server does not reply to PING: a server process that is stopped closes none.
   * (TCP keepalive finds a host that is gone.) Any reply is an answer. That no connection can be opened proves nothing.
   */
  async #probe(opening: Promise<Connection>): Promise<void> {
    const waiting = [...this.#waiting];
    if (waiting.length === 0) return;
    const connection = await opening.catch(() => undefined);
    const ping = connection?.send(["PING"]).catch(() => {});
    try {
      await within(Promise.resolve(ping), RESPONSE_LIMIT, { isBackground: true });
    } catch {
      this.#closeShared(opening);
      for (const each of waiting) if (this.#waiting.delete(each)) void each.close();
    }
  }
}
