// The servers of one client: requests that are repeated until a server answers, at the node that has the key.
//
// A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So each
// acquisition names the count of holds that it leads to, and each other request the fencing token of its tenure.

import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Adapter,
  type Address,
  adapterOf,
  type Endpoint,
  type RedisClient,
  ServerError,
  slotOf,
} from "./adapters.js";
import { LockRefused, Unreachable } from "./errors.js";
import { Node } from "./node.js";
import type { Answer, Request } from "./request.js";
import { now } from "./time.js";

const TRANSIENT = new Set(["UNBLOCKED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"]);
const MAX_REDIRECTS = 5;

interface Redirect extends Address {
  readonly slot: number;
  readonly isAsk: boolean;
}

export class Servers {
  static readonly #known = new WeakMap<RedisClient, Servers>();

  readonly #adapter: Adapter;
  readonly #nodes = new Map<string, Node>();
  /** The addresses that MOVED has named, by slot. */
  readonly #moved = new Map<number, Address>();
  readonly #connectionLostListeners = new Set<() => void>();
  #closing = closeController();
  /** When a server has last answered. */
  #answeredAt = Number.NEGATIVE_INFINITY;

  private constructor(client: RedisClient) {
    this.#adapter = adapterOf(client);
    this.#adapter.onEnd(() => {
      this.#closing.abort(closedError());
      this.#closing = closeController();
      for (const node of this.#nodes.values()) node.close();
    });
  }

  static of(client: RedisClient): Servers {
    const servers = Servers.#known.get(client) ?? new Servers(client);
    Servers.#known.set(client, servers);
    return servers;
  }

  /** The key with the client's prefix. */
  fullKey(key: string | Buffer): Buffer {
    return Buffer.concat([Buffer.from(this.#adapter.prefix), Buffer.from(key)]);
  }

  /** Calls the listener when a connection is lost: a server may have been restarted. */
  onConnectionLost(listener: () => void): void {
    this.#connectionLostListeners.add(listener);
  }

  /** Sends a request until a server answers. */
  async ask(request: Request): Promise<Answer> {
    const slot = slotOf(request.key);
    const begun = now();
    let redirect: Redirect | undefined;
    let mayHaveRun = false;
    let pauses = 0;
    for (let failures = 0, redirects = 0; ; ) {
      request.signal?.throwIfAborted();
      request.check?.();
      if (this.#adapter.isEnded()) throw unreachable(request, closedError());
      const closing = this.#closing.signal;
      const sent = now();
      let cause: Error;
      try {
        const endpoint = this.#adapter.locate(slot, failures, redirect ?? this.#moved.get(slot));
        const node = this.#node(endpoint);
        const replies = await node.exchange(request, sent, redirect?.isAsk === true, closing);
        this.#answeredAt = now();
        const [reply] = replies;
        redirect = redirectOf(reply, endpoint);
        if (redirect === undefined && !(reply instanceof ServerError && TRANSIENT.has(reply.code))) {
          return { sent, replies, mayHaveRun };
        }
        const { message, code } = reply as ServerError;
        cause = new Error(message);
        failures = 0;
        if (code === "READONLY") node.close();
        if (redirect?.isAsk === false) this.#moved.set(redirect.slot, redirect);
        if (redirect !== undefined && redirects++ < MAX_REDIRECTS) continue;
      } catch (error) {
        request.signal?.throwIfAborted();
        if (error instanceof Error) request.check?.(error);
        if (closing.aborted) throw unreachable(request, closing.reason);
        if (error instanceof ServerError) throw new LockRefused(error.message, request.key.toString(), error.code);
        if (!(error instanceof Error)) throw error;
        cause = error;
        mayHaveRun = true;
        redirect = undefined;
        failures += 1;
        this.#moved.delete(slot);
      }
      redirects = 0;
      if (now() - sent > 1_000) pauses = 0;
      const pause = backOff(pauses++);
      if (now() + pause >= this.#lastAttempt(request, begun)) throw unreachable(request, cause);
      await rest(pause, request);
    }
  }

  /** When the last attempt of a request begins at the latest. */
  #lastAttempt({ until, patience }: Request, begun: number): number {
    return Number.isFinite(until) ? until : Math.max(begun, this.#answeredAt) + patience;
  }

  #node(endpoint: Endpoint): Node {
    let node = this.#nodes.get(endpoint.name);
    if (node === undefined) {
      node = new Node(
        endpoint,
        () => {
          for (const listener of this.#connectionLostListeners) listener();
        },
        () => {
          this.#answeredAt = now();
        },
      );
      this.#nodes.set(endpoint.name, node);
    }
    return node;
  }
}

/** The pause before the next attempt, in milliseconds: none at first, as the connection may have been cut while idle. */
function backOff(failures: number): number {
  return failures === 0 ? 0 : Math.min(1_000, 25 * 2 ** Math.min(failures, 6)) * (0.5 + Math.random() / 2);
}

function unreachable(request: Request, cause: Error): Unreachable {
  return new Unreachable(`no server answers: ${cause.message}`, request.key.toString(), { cause });
}

/** The error of ioredis for this. */
function closedError(): Error {
  return new Error("Connection is closed.");
}

/** Any number of requests may listen, without a warning of Node.js. */
function closeController(): AbortController {
  const controller = new AbortController();
  setMaxListeners(Number.POSITIVE_INFINITY, controller.signal);
  return controller;
}

async function rest(milliseconds: number, { signal, isBackground }: Request): Promise<void> {
  const ref = isBackground !== true;
  await sleep(milliseconds, undefined, signal === undefined ? { ref } : { ref, signal }).catch(() => {});
}

/** Where MOVED or ASK leads. A node that does not know its own host leaves it out. */
function redirectOf(reply: unknown, asked: Endpoint): Redirect | undefined {
  if (!(reply instanceof ServerError) || (reply.code !== "MOVED" && reply.code !== "ASK")) return undefined;
  const [, slot, address = ""] = reply.message.split(" ");
  const colon = address.lastIndexOf(":");
  const named = address.slice(0, colon);
  const host = named === "" || named === "?" ? asked.host : named;
  return { slot: Number(slot), host, port: Number(address.slice(colon + 1)), isAsk: reply.code === "ASK" };
}
