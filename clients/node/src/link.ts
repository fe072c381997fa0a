// What all locks of one client share: connections to its servers, and requests that are repeated until a server answers.
//
// A request may be sent twice: when its reply is lost nobody knows whether the server has heard it. So each acquisition
// names the count of holds that it should lead to, and each other request the fencing token of its tenure.

import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Address,
  type Command,
  type Connection,
  type Port,
  portOf,
  type RedisClient,
  Refusal,
  type Site,
  slotOf,
} from "./connecting.js";
import { LockRefused, Unreachable } from "./errors.js";
import { now, within } from "./time.js";

/** How long a server has to reply to what takes no time, in milliseconds. */
export const PROMPT = 2_000;
/** How often somebody who waits asks whether the server is still there, in milliseconds. */
const HEARTBEAT = 5_000;
/** How long a connection that nobody uses is kept for the next who waits, in milliseconds. */
const IDLE = 10_000;
const PASSING = new Set(["UNBLOCKED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"]);

export interface Request {
  readonly key: Buffer;
  /** What to send at this moment: the first may be refused, redirected or repeated. */
  commands(sent: number): Command[];
  /** When the last attempt begins at the latest. Infinity: when nobody has answered for the patience. */
  readonly until: number;
  readonly patience: number;
  /** How long an attempt that begins at this moment may take; unless given, as long as what takes no time. */
  limit?(sent: number): number;
  /** Called when an attempt is sent: from then on it may be heard. */
  readonly onSend?: () => void;
  /** On a connection of its own, which is closed when the request is given up, and the farewell said. */
  readonly farewell?: Command;
  readonly signal?: AbortSignal | undefined;
  /** Whether the process may end meanwhile. */
  readonly isBackground?: boolean;
}

export interface Answer {
  readonly sent: number;
  readonly replies: unknown[];
  /** Whether an earlier attempt may have been heard. */
  readonly isRepeat: boolean;
}

interface Redirect extends Address {
  readonly slot: number;
  readonly isAsk: boolean;
}

export class Link {
  static readonly #links = new WeakMap<RedisClient, Link>();

  readonly #port: Port;
  readonly #nodes = new Map<string, Node>();
  /** Where MOVED has sent the requests for a slot. */
  readonly #moved = new Map<number, Address>();
  readonly #onBreak = new Set<() => void>();
  #closing = crowded(new AbortController());
  /** When a server has last answered anything. */
  #answered = Number.NEGATIVE_INFINITY;

  private constructor(client: RedisClient) {
    this.#port = portOf(client);
    this.#port.onEnd(() => {
      this.#closing.abort(closed());
      this.#closing = crowded(new AbortController());
      for (const node of this.#nodes.values()) node.close();
    });
  }

  static of(client: RedisClient): Link {
    const link = Link.#links.get(client) ?? new Link(client);
    Link.#links.set(client, link);
    return link;
  }

  /** The key as the server knows it. */
  full(key: string | Buffer): Buffer {
    const { prefix } = this.#port;
    return Buffer.concat([Buffer.from(prefix), Buffer.from(key)]);
  }

  /** Calls the listener whenever a server may have started anew. */
  onBreak(listener: () => void): void {
    this.#onBreak.add(listener);
  }

  /** Asks until a server answers. */
  async ask(request: Request): Promise<Answer> {
    const slot = slotOf(request.key);
    const begun = now();
    let redirect: Redirect | undefined;
    let isRepeat = false;
    let failures = 0;
    for (let turn = 0, hops = 0; ; ) {
      request.signal?.throwIfAborted();
      if (this.#port.isEnded()) throw this.#unreachable(request, closed());
      const closing = this.#closing.signal;
      const sent = now();
      let cause: Error;
      try {
        const site = this.#port.locate(slot, turn, redirect ?? this.#moved.get(slot));
        const node = this.#node(site);
        const replies = await node.exchange(request, sent, redirect?.isAsk === true, closing);
        this.#answered = now();
        const [reply] = replies;
        redirect = redirectOf(reply, site);
        if (redirect === undefined && !(reply instanceof Refusal && PASSING.has(reply.code))) {
          return { sent, replies, isRepeat };
        }
        cause = new Error((reply as Refusal).message);
        turn = 0;
        if ((reply as Refusal).code === "READONLY") node.close();
        if (redirect?.isAsk === false) this.#moved.set(redirect.slot, redirect);
        if (redirect !== undefined && hops++ < 5) continue;
      } catch (error) {
        request.signal?.throwIfAborted();
        if (closing.aborted) throw this.#unreachable(request, closing.reason);
        if (error instanceof Refusal) throw new LockRefused(error.message, request.key.toString(), error.code);
        if (!(error instanceof Error)) throw error;
        cause = error;
        isRepeat = true;
        redirect = undefined;
        turn += 1;
        this.#moved.delete(slot);
      }
      hops = 0;
      if (now() - sent > 1_000) failures = 0;
      const pause = backOff(failures++);
      const until = Number.isFinite(request.until) ? request.until : Math.max(begun, this.#answered) + request.patience;
      if (now() + pause >= until) throw this.#unreachable(request, cause);
      await rest(pause, request);
    }
  }

  #unreachable(request: Request, cause: Error): Unreachable {
    return new Unreachable(`no server answers: ${cause.message}`, request.key.toString(), { cause });
  }

  #node(site: Site): Node {
    let node = this.#nodes.get(site.name);
    if (node === undefined) {
      node = new Node(
        site,
        () => {
          for (const listener of this.#onBreak) listener();
        },
        () => {
          this.#answered = now();
        },
      );
      this.#nodes.set(site.name, node);
    }
    return node;
  }
}

/** The connections to one server. */
class Node {
  readonly #site: Site;
  readonly #onBreak: () => void;
  readonly #onAlive: () => void;
  #shared: Promise<Connection> | undefined;
  readonly #idle: { connection: Connection; timer: NodeJS.Timeout }[] = [];
  readonly #waiting = new Set<Connection>();
  #heartbeat: NodeJS.Timeout | undefined;

  constructor(site: Site, onBreak: () => void, onAlive: () => void) {
    this.#site = site;
    this.#onBreak = onBreak;
    this.#onAlive = onAlive;
  }

  async exchange(request: Request, sent: number, isAsk: boolean, closing: AbortSignal): Promise<unknown[]> {
    const asked = request.commands(sent);
    const commands = isAsk ? asked.flatMap((command): Command[] => [["ASKING"], command]) : asked;
    const limit = request.limit?.(sent) ?? Math.min(PROMPT, Math.max(100, request.until - sent));
    const replies = await (request.farewell === undefined
      ? this.#share(commands, limit, request, [closing, request.signal])
      : this.#own(commands, limit, request, request.farewell, [closing, request.signal]));
    return isAsk ? replies.filter((_, at) => at % 2 === 1) : replies;
  }

  async #share(
    commands: Command[],
    limit: number,
    { isBackground = false, onSend }: Request,
    signals: (AbortSignal | undefined)[],
  ) {
    this.#shared ??= this.#open();
    const opening = this.#shared;
    const by = isBackground ? 0 : 1;
    try {
      return await within(
        opening.then(async (connection) => {
          connection.hold(by);
          onSend?.();
          try {
            return await Promise.all(commands.map((command) => connection.send(command)));
          } finally {
            connection.hold(-by);
          }
        }),
        limit,
        { signals, isBackground },
      );
    } catch (error) {
      // Whoever gives up leaves the connection to others; nobody trusts one that is late or broken. Of those who wait it is
      // asked before it is closed: another one may not be had.
      if (!signals.some((signal) => signal?.aborted)) {
        if (this.#shared === opening) this.#shared = undefined;
        void this.#probe(opening).then(() => this.#forget(opening));
      }
      throw error;
    }
  }

  async #own(
    commands: Command[],
    limit: number,
    { onSend, patience }: Request,
    farewell: Command,
    signals: (AbortSignal | undefined)[],
  ) {
    const opening = this.#take();
    let connection: Connection;
    try {
      connection = await within(opening, limit, { signals });
    } catch (error) {
      opening.then((connection) => connection.close()).catch(() => {});
      throw error;
    }
    this.#waiting.add(connection);
    this.#heartbeat ??= setInterval(() => {
      this.#shared ??= this.#open();
      void this.#probe(this.#shared);
    }, HEARTBEAT).unref();
    connection.hold(1);
    onSend?.();
    const begun = now();
    try {
      const replies = await within(Promise.all(commands.map((each) => connection.send(each))), limit, {
        signals,
      });
      this.#keep(connection);
      return replies;
    } catch (error) {
      // Its server was there all the time, unless it was found silent.
      if (now() - begun > Math.min(PROMPT, patience) && this.#waiting.has(connection)) this.#onAlive();
      // Not where the request is repeated: the farewell might be heard after that.
      void connection.close(signals.some((signal) => signal?.aborted) ? farewell : undefined);
      throw error;
    } finally {
      connection.hold(-1);
      this.#waiting.delete(connection);
      if (this.#waiting.size === 0) {
        clearInterval(this.#heartbeat);
        this.#heartbeat = undefined;
      }
    }
  }

  /** Lets no connection serve anybody any more: they may lead to the wrong server. */
  close(): void {
    if (this.#shared !== undefined) this.#forget(this.#shared);
    for (const { connection, timer } of this.#idle.splice(0)) {
      clearTimeout(timer);
      void connection.close();
    }
  }

  #open(): Promise<Connection> {
    const opening = this.#site.open();
    const gone = () => {
      if (this.#shared === opening) this.#shared = undefined;
      this.#onBreak();
    };
    opening.then((connection) => connection.onClose(gone), gone);
    return opening;
  }

  #forget(opening: Promise<Connection>): void {
    if (this.#shared === opening) this.#shared = undefined;
    opening.then((connection) => connection.close()).catch(() => {});
  }

  async #take(): Promise<Connection> {
    for (;;) {
      const idle = this.#idle.pop();
      if (idle === undefined) return this.#site.open();
      clearTimeout(idle.timer);
      if (!idle.connection.isClosed) return idle.connection;
    }
  }

  #keep(connection: Connection): void {
    const idle = {
      connection,
      timer: setTimeout(() => {
        this.#idle.splice(this.#idle.indexOf(idle), 1);
        void connection.close();
      }, IDLE).unref(),
    };
    this.#idle.push(idle);
  }

  /**
   * A server that stands still closes no connection: who waits would wait for ever. (One whose host is gone fails the
   * probes of the system.) Whatever it replies, it is there; and that no other connection can be made does not tell.
   */
  async #probe(opening: Promise<Connection>): Promise<void> {
    const waiting = [...this.#waiting];
    if (waiting.length === 0) return;
    const connection = await opening.catch(() => undefined);
    const ping = connection?.send(["PING"]).catch(() => {});
    try {
      await within(Promise.resolve(ping), PROMPT, { isBackground: true });
    } catch {
      this.#forget(opening);
      for (const each of waiting) if (this.#waiting.delete(each)) void each.close();
    }
  }
}

/** Milliseconds before the next attempt: none at first, as the connection may have been cut while it was idle. */
function backOff(failures: number): number {
  return failures === 0 ? 0 : Math.min(1_000, 25 * 2 ** Math.min(failures, 6)) * (0.5 + Math.random() / 2);
}

/** In the words of ioredis. */
function closed(): Error {
  return new Error("Connection is closed.");
}

/** Any number may listen. */
function crowded(controller: AbortController): AbortController {
  setMaxListeners(Number.POSITIVE_INFINITY, controller.signal);
  return controller;
}

async function rest(milliseconds: number, { signal, isBackground }: Request): Promise<void> {
  const ref = isBackground !== true;
  await sleep(milliseconds, undefined, signal === undefined ? { ref } : { ref, signal }).catch(() => {});
}

function redirectOf(reply: unknown, { host: asked }: Site): Redirect | undefined {
  if (!(reply instanceof Refusal) || (reply.code !== "MOVED" && reply.code !== "ASK")) return undefined;
  const [, slot, address = ""] = reply.message.split(" ");
  const colon = address.lastIndexOf(":");
  const host = address.slice(0, colon);
  const port = Number(address.slice(colon + 1));
  return { slot: Number(slot), host: host === "" || host === "?" ? asked : host, port, isAsk: reply.code === "ASK" };
}
