// The servers of one client. The client sends a request to the node that has the key, and repeats it until a server answers.
//
// When a reply is lost, the client does not know whether the server has carried out the request. Then the client sends the
// request again. So that no hold counts twice, each acquisition, and each release after a failed acquisition, names the
// resulting count of holds. Each other request names the fencing token of its tenure.

import { isUtf8 } from "node:buffer";
import calculateSlot from "cluster-key-slot";
import type { Adapter, Address, Command, RedisClient } from "./adapters.js";
import { adapterOf, addressIn, isEnded, nameOf, onEnd, ServerError } from "./adapters.js";
import { LockRefusedError, UnreachableError } from "./errors.js";
import { Node } from "./node.js";
import type { Tenure, Tenures } from "./tenure.js";
import { NoReply, now, Schedule, UNLIMITED } from "./time.js";

export interface Request {
  /** Returns the commands of one attempt. The client sends them at the time `sent`. */
  commands(sent: number): Command[];
  /** How long an attempt may take, in milliseconds: the response limit by default. */
  readonly limit?: number;
  /** When the request fails with `UnreachableError`. */
  readonly until: number;
  /** The request also fails with `UnreachableError` after this many milliseconds without an answer. */
  readonly patience?: number;
  readonly signal?: AbortSignal | undefined;
  /** Whether the client has already shortened the lease to the longest lease that the server accepts. */
  readonly isShortened?: boolean;
  /** Whether the request needs a connection of its own, because it may wait at the server. */
  readonly isAlone?: boolean;
  /** Whether the process may end while the request is in progress. */
  readonly isBackground?: boolean;
  /** Whether the request fails when the reply to an attempt is lost. The client does not repeat such a request. */
  readonly isSentOnce?: boolean;
  /** Whether the client sends the request again while the server cannot write to its disk. */
  readonly isRelease?: boolean;
  readonly progress?: Progress;
  /** Whether the tenure must be held. The client checks this before each attempt. */
  readonly mustBeHeld?: boolean;
}

/**
 * The outcome of the attempts of a request, or of several requests of one call: whether a server has answered, and whether an
 * attempt was sent and had no reply. Then the server may have carried out this attempt.
 */
export type Progress = { isAnswered?: boolean; isReplyLost?: boolean };

/** After these errors the client sends the request again, perhaps to another server. */
const TRANSIENT = new Set(["LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "MASTERDOWN"]);
/**
 * After these errors the client also sends the request again, but not a guarded command: the script of the command may have
 * returned the error itself.
 */
const ENDED_WAIT = new Set(["TRYAGAIN", "UNBLOCKED", "SUPERSEDED", "NOREPLICAS"]);
/** These errors do not show that a primary accepts writes, so they do not count as answers. */
const REFUSES_WRITES = new Set<string | undefined>(["READONLY", "NOREPLICAS"]);
/** The first and the longest pause between attempts, in milliseconds. */
export const [FIRST_PAUSE, LONGEST_PAUSE] = [50, 1_000];

/** A key: text, or bytes that are not valid UTF-8. ioredis takes twice as long to write a command with a Buffer. */
export type Key = string | Buffer;

/** Returns the key as text, if it is valid UTF-8. */
export const keyOf = (bytes: Buffer): Key => (isUtf8(bytes) ? bytes.toString() : bytes);

/** The request with the longest lease that the server accepts. Throws if the server has refused something else, or this lease too. */
function shortened(request: Request, error: ServerError, refused: Tenure, tenures: Tenures): Request {
  const longest = /^ERR invalid expire time .*: at most (\d+) /.exec(error.message);
  if (!longest || request.isShortened) throw new LockRefusedError(error.message, refused.key);
  for (const each of tenures) each.lease = Number(longest[1]);
  return { ...request, isShortened: true };
}

export class Servers {
  static readonly #known = new WeakMap<RedisClient, Servers>();

  readonly schedule = new Schedule();
  readonly #client: RedisClient;
  readonly adapter: Adapter;
  readonly #nodes = new Map<string, Node>();
  /** The addresses that MOVED has named, by slot. */
  readonly #moved = new Map<number, Address>();

  private constructor(client: RedisClient) {
    this.#client = client;
    this.adapter = adapterOf(client);
    onEnd(client, () => {
      for (const node of this.#nodes.values()) node.retireBefore(UNLIMITED);
      this.schedule.visit((each) => each.onEnd?.(new Error("Connection is closed.")));
    });
    Servers.#known.set(client, this);
  }

  static of(client: RedisClient): Servers {
    return Servers.#known.get(client) ?? new Servers(client);
  }

  /** The key with the client's prefix. */
  fullKey(key: string | Buffer): Key {
    if (typeof key !== "string" && !Buffer.isBuffer(key)) throw new TypeError("a key must be a string or a Buffer");
    return keyOf(Buffer.concat([Buffer.from(this.adapter.prefix ?? ""), Buffer.from(key)]));
  }

  /**
   * Sends a request until a server answers, or the client ends. Throws for an error reply. Returns the replies, and when the
   * last attempt was sent. If the server refuses the lease as too long, sends the request again with the longest accepted lease.
   * In a cluster, all tenures of a request must have one key.
   */
  async ask(tenures: Tenures, request: Request): Promise<{ sent: number; replies: unknown[] }> {
    const [tenure] = tenures;
    const { key, plan } = tenure;
    const { signal, progress = {}, patience = UNLIMITED, limit = plan.settings.responseLimit } = request;
    const slot = this.adapter.cluster ? calculateSlot(key) : 0;
    let answeredAt = now();
    let asked: Address | undefined;
    let cause: Error | undefined;
    // After the first failure there is no pause, because the server may have closed the connection while it was idle.
    for (let failures = 0, pause = 0; ; pause = Math.min(Math.max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)) {
      signal?.throwIfAborted();
      if (request.mustBeHeld) tenure.checkHeld();
      const begun = now();
      let sent = 0;
      let refused = tenure;
      const left = Math.min(request.until, answeredAt + patience) - begun;
      if (isEnded(this.#client) || (cause !== undefined && left <= 0)) throw unreachable(key, cause);
      try {
        const address = this.#locate(slot, failures, asked ?? this.#moved.get(slot));
        const node = this.#node(address);
        const commands = (): Command[] => {
          sent = now();
          return asked ? [["ASKING"], ...request.commands(sent)] : request.commands(sent);
        };
        const replies = await node.exchange(tenures, request, begun, Math.min(limit, left), commands);
        if (asked) replies.shift();
        const error = replies.find((reply) => reply instanceof ServerError);
        const isRedirected = error?.code === "MOVED" || error?.code === "ASK"; // perhaps to a node that cannot be reached
        progress.isAnswered ||= !isRedirected && !REFUSES_WRITES.has(error?.code);
        if (error === undefined) return { sent, replies };
        // The error may be for one of several keys, or for WAIT. Then the server may have carried out the other commands.
        progress.isReplyLost ||= tenures.some((_, at) => !(replies[at] instanceof ServerError));
        refused = tenures[replies.indexOf(error)] ?? tenure;
        const redirection = this.adapter.cluster ? addressIn(error.message, address.host) : undefined;
        asked = error.code === "ASK" ? redirection : undefined;
        const isTransient = TRANSIENT.has(error.code) || (request.isRelease && error.code === "MISCONF");
        if (redirection && error.code === "MOVED") this.#moved.set(slot, redirection);
        else if (ENDED_WAIT.has(error.code) ? request.isSentOnce : !asked && !isTransient) throw error;
        cause = new Error(error.message);
        // After CLUSTERDOWN ask another node too, because the cluster may have removed this node.
        failures = error.code === "CLUSTERDOWN" ? failures + 1 : 0;
        if (failures > 0) this.#moved.delete(slot);
        // Another server may be the primary. A connection that is new may already lead to this server.
        if (REFUSES_WRITES.has(error.code)) node.retireBefore(sent - FIRST_PAUSE);
        else if (!isRedirected) answeredAt = now();
      } catch (error) {
        if (error instanceof ServerError) return this.ask(tenures, shortened(request, error, refused, tenures));
        progress.isReplyLost ||= sent > 0;
        signal?.throwIfAborted();
        // Keep an earlier reason if this failure is only a missing reply: the earlier reason says more.
        if (cause === undefined || !(error instanceof NoReply)) cause = error as Error;
        if (sent > 0 && request.isSentOnce) throw unreachable(key, error as Error);
        asked = undefined;
        if (error instanceof NoReply || pause > 0) failures += 1;
        this.#moved.delete(slot);
      }
      if (now() - begun > 2 * LONGEST_PAUSE) pause = 0;
      const length = Math.min(pause * (0.75 + Math.random() / 4), request.until - now(), answeredAt + patience - now());
      // Follow ASK at once: the cluster may move the slot again.
      if (pause > 0 && !asked) await this.schedule.rest(length, request);
    }
  }

  /**
   * Returns the address of the slot's node. If `named` is given, this is the address. After failed attempts the result is
   * another node, which may know which node has the slot. Without a cluster the address has no meaning.
   */
  #locate(slot: number, failures: number, named: Address | undefined): Address {
    const { cluster } = this.adapter;
    if (cluster === undefined) return { host: "the primary", port: 0 };
    if (named !== undefined) return cluster.natMapper?.(named) ?? named;
    const owner = failures === 0 ? cluster.owner(slot) : undefined;
    const nodes = owner === undefined ? cluster.nodes() : [owner];
    const address = nodes[failures % nodes.length];
    if (address === undefined) throw new Error("no node of the cluster is known");
    return address;
  }

  #node(address: Address): Node {
    const name = nameOf(address);
    const node = this.#nodes.get(name) ?? new Node(this.schedule, () => this.adapter.open(address));
    this.#nodes.set(name, node);
    return node;
  }
}

const unreachable = (key: Key, cause = new Error("Connection is closed.")): UnreachableError =>
  new UnreachableError(`no server answers: ${cause.message}`, key, { cause });
