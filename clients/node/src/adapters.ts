// Adapters for ioredis and node-redis: they open connections with the options of the caller's client. Only this file knows
// the two libraries.
//
// The locks cannot use the caller's own connection. Other code uses this connection, perhaps for a subscription or a
// transaction. On this connection, the library may also repeat or queue a request until long after a wait limit or a lease is
// over. So the locks use duplicates of the connection. On the duplicates, the library repeats and queues no request.

import { type EventEmitter, once } from "node:events";
import type { Cluster, Redis, RedisOptions } from "ioredis";
import type { RedisClientType, RedisClusterType, RedisSentinelType } from "redis";
import { rest, within } from "./time.js";

// The members that distinguish the clients. The parameters marked `any` have different types in the two libraries.
// biome-ignore-start lint/suspicious/noExplicitAny: see above
type IoRedis = { readonly status: string; readonly options: object; duplicate(override?: any): unknown };
type IoCluster = { readonly isCluster: boolean; readonly slots: string[][]; nodes(role?: "master"): unknown[] };
type NodeClient = { readonly isOpen: boolean; duplicate(overrides?: any): unknown };
type NodeSentinelClient = { getMasterNode(): unknown; _execute(isReadonly: boolean, run: any): Promise<any> };
type NodeClusterClient = { readonly masters: unknown[]; nodeClient(node: any): Promise<unknown> };
// biome-ignore-end lint/suspicious/noExplicitAny: see above

/**
 * A client of ioredis (`new Redis`, also of Sentinels; `new Cluster`) or of node-redis (`createClient`, `createCluster`,
 * `createSentinel`). Connect a client of node-redis first.
 */
export type RedisClient = IoRedis | IoCluster | NodeClient | NodeClusterClient | NodeSentinelClient;

export type Command = [name: string, ...rest: (string | number | Buffer)[]];

/** An error reply of a server. */
export class ServerError extends Error {
  /** The first word of the message. */
  readonly code = this.message.split(" ", 1)[0] as string;
}

/** A connection that repeats and queues no request. It does not keep the process alive. */
export interface Connection {
  /** Resolves with the reply, or with a `ServerError` for an error reply. Rejects when the connection breaks. */
  send(command: Command): Promise<unknown>;
  /** Resolves when the connection is closed. */
  readonly closed: Promise<unknown>;
  close(): void;
}

export type Address = { readonly host: string; readonly port: number };

/** What the locks need from a library's client. Only `open` sends requests. */
export interface Adapter {
  /** The prefix of all keys. */
  readonly prefix: string | Buffer | undefined;
  readonly cluster?: {
    /** The nodes that the client knows. */
    nodes(): Address[];
    /** The node that has a slot. */
    owner(slot: number): Address | undefined;
    /** Gives the address that the other functions use, for the address that a node announces. By default it is the same. */
    natMapper?(announced: Address): Address;
  };
  /**
   * Opens a connection, within a bounded time. If there is no cluster, the connection leads to the primary. Rejects with a
   * `ServerError` when the server refuses the login.
   */
  open(address: Address): Promise<Connection>;
}

type Opener = () => Promise<Connection>;

/** How long opening a connection may take, in milliseconds. */
const CONNECT_LIMIT = 2_000;
/** How long to wait for the Sentinels, in milliseconds. Then the client uses the last known primary. */
const SENTINEL_LIMIT = 100;

const NO_CLIENT = "the client must be one of ioredis or node-redis, and not a pool";

export function adapterOf(client: RedisClient): Adapter {
  if (Object(client) !== client) throw new TypeError(NO_CLIENT);
  if ("isCluster" in client && client.isCluster && "slots" in client) return ioClusterAdapter(client as Cluster);
  if ("status" in client && "duplicate" in client) return ioRedisAdapter(client as Redis);
  if ("nodeClient" in client) return nodeClusterAdapter(client as unknown as RedisClusterType);
  if ("_execute" in client) return nodeSentinelAdapter(client as unknown as RedisSentinelType);
  const isNodeRedis = "isOpen" in client && "duplicate" in client;
  if (!isNodeRedis) throw new TypeError(NO_CLIENT);
  return { prefix: (client as RedisClientType).options?.keyPrefix, open: () => openNode(client as RedisClientType) };
}

/** Whether the caller has closed the client. */
export function isEnded(client: RedisClient): boolean {
  const { isOpen, status, manuallyClosing, stream } = client as unknown as Record<string, unknown>;
  // If the caller closes ioredis while it reconnects, ioredis does not change its status until the caller connects it again.
  const isClosing = status !== "ready" || (stream as Redis["stream"] | undefined)?.writableEnded === true;
  return isOpen === false || status === "end" || (manuallyClosing === true && isClosing);
}

/** Calls the listener when the client ends. */
export function onEnd(client: RedisClient, listener: () => void): void {
  const emitter = client as unknown as EventEmitter & { readonly status?: string };
  // A cluster client of node-redis emits "disconnect".
  for (const event of ["end", "disconnect"]) emitter.on(event, listener);
  // If the caller closes ioredis while it reconnects, ioredis emits no event.
  const watch = async () => {
    while (emitter.status === "reconnecting" && !isEnded(client)) await rest(20, { isBackground: true });
    if (isEnded(client)) listener();
  };
  emitter.on("reconnecting", watch);
  void watch();
}

// ioredis.

const IO_OVERRIDES: RedisOptions = {
  commandTimeout: undefined,
  connectTimeout: CONNECT_LIMIT,
  db: 0, // `openIo` selects the database: if SELECT fails, ioredis goes on in database 0
  disableClientInfo: true,
  disconnectTimeout: 1, // a longer timeout keeps the process alive while a server hangs
  enableAutoPipelining: false,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  keyPrefix: "",
  lazyConnect: true,
  protocol: 2,
  reconnectOnError: null,
  replyMapping: "legacy",
  retryStrategy: () => null,
  role: "master",
  sentinelCommandTimeout: CONNECT_LIMIT / 2,
  sentinelRetryStrategy: () => null,
  socketTimeout: undefined,
  stringNumbers: false,
};

function ioRedisAdapter(client: Redis): Adapter {
  const { keyPrefix: prefix, sentinels, enableTLSForSentinelMode: usesTls, tls } = client.options;
  if (!sentinels?.length) return { prefix, open: () => openIo(client) };
  const open = viaSentinels(async () => {
    const connection = await openIo(client);
    const { servername, remoteAddress, remotePort: port } = connection.stream;
    const primary = { host: servername || remoteAddress, port, sentinels: null, tls: usesTls ? tls : undefined };
    return { connection, reopen: () => openIo(client, primary) };
  });
  return { prefix, open };
}

function ioClusterAdapter(client: Cluster): Adapter {
  const mapper = client as unknown as { natMapper(announced: Address): Address };
  // `client.nodes()` lacks each node whose connection is broken. While the client waits to reconnect, it is empty.
  const latest = { node: client.nodes()[0] };
  client.on("+node", (node: Redis) => Object.assign(latest, { node }));
  const nodes = () => {
    if (client.status === "wait") client.connect().catch(() => {});
    const names = client.nodes("master").map((node) => nameOf(node.options as Address));
    const known = new Set(names.concat(client.slots.flatMap(([primary]) => primary ?? [])));
    return [...known].map((name) => addressIn(name) as Address);
  };
  const owner = (slot: number) => addressIn(client.slots[slot]?.[0]);
  return {
    prefix: client.options.keyPrefix,
    cluster: { nodes, owner, natMapper: (announced) => mapper.natMapper(announced) },
    open: async ({ host, port }) => openIo(latest.node as Redis, { host, port }),
  };
}

async function openIo(template: Redis, override: object = {}) {
  const redis = template.duplicate({ ...IO_OVERRIDES, ...override });
  const close = () => redis.disconnect();
  const limit = CONNECT_LIMIT * (1 + (redis.options.sentinels?.length ?? 0));
  const { db } = template.options;
  const { closed } = await connect(redis, close, limit, db ? () => redis.select(db) : undefined);
  const stream = redis.stream as typeof redis.stream & { servername?: string };
  stream.unref();
  const send = (command: Command) => {
    if (stream.writableCorked === 0) {
      stream.cork(); // commands that are sent in the same tick are written together
      process.nextTick(() => stream.uncork());
    }
    return redis.call(...command).catch((error) => toServerError(error, redis.status === "ready" && stream.writable));
  };
  return { stream, send, closed, close };
}

// node-redis.

const NODE_OVERRIDES = {
  clientSideCache: undefined,
  commandsQueueMaxLength: undefined,
  commandOptions: { timeout: 0, typeMapping: {} },
  disableClientInfo: true,
  disableOfflineQueue: true,
  emitInvalidate: false,
  keyPrefix: undefined,
  maintNotifications: "disabled",
  pingInterval: undefined,
  RESP: 2,
  url: undefined,
};

function nodeSentinelAdapter(client: RedisSentinelType): Adapter {
  const open = viaSentinels(async () => {
    // The library hides the options of a Sentinel client. So `openNode` duplicates the connection to the primary.
    const primary = (await bounded(client._execute(false, async (primary) => primary))) as unknown as RedisClientType;
    const reopen = () => openNode(primary);
    return { connection: await reopen(), reopen };
  });
  return { prefix: client._keyPrefix, open };
}

function nodeClusterAdapter(client: RedisClusterType): Adapter {
  const { keyPrefix, nodeAddressMap: map }: Partial<typeof client._options> = client._options ?? {}; // version 5.0 has none
  const open = async (address: Address) => {
    const node = client.masters.find((each) => each.client !== undefined) ?? client.masters[0];
    // Create its client if necessary. Do not wait until this client is connected: it is only a template, and the node may hang.
    void (async () => client.nodeClient(node as never))().catch(() => {});
    const mapped = (typeof map === "function" ? map(nameOf(address)) : map?.[nameOf(address)]) ?? address;
    return openNode(node?.client as unknown as RedisClientType, mapped);
  };
  const owner = (slot: number) => client.slots[slot]?.master;
  return { prefix: keyPrefix, cluster: { nodes: () => client.masters, owner }, open };
}

async function openNode(template: RedisClientType, address?: Address): Promise<Connection> {
  const socket = {
    ...template.options?.socket,
    connectTimeout: CONNECT_LIMIT,
    reconnectStrategy: false,
    socketTimeout: undefined,
    ...(address && { host: address.host, port: address.port }),
  };
  const client = template.duplicate({ ...NODE_OVERRIDES, socket } as object) as unknown as RedisClientType;
  const close = () => void (async () => client.destroy())().catch(() => {}); // version 5 cannot destroy a closed client
  const { closed } = await connect(client, close, CONNECT_LIMIT);
  client.unref();
  const send = (command: Command) =>
    client.sendCommand(command.map(textOrBytes)).catch((error) => toServerError(error, client.isReady));
  return { send, closed, close };
}

const textOrBytes = (part: Command[number]) => (typeof part === "number" ? `${part}` : part);

// For both libraries.

/** Settles like the promise, but rejects after `limit` milliseconds. */
const bounded = <T>(promise: Promise<T>, limit = CONNECT_LIMIT) => within(promise, limit, { isBackground: true });

type Connectable = EventEmitter & { connect(): Promise<unknown> };

/** Connects a duplicate, and calls `select`, within the limit. `closed` of the result resolves when the connection is closed. */
async function connect(client: Connectable, close: () => void, limit: number, select?: () => unknown) {
  let failure: unknown;
  client.on("error", (error) => {
    failure = error;
  });
  try {
    await bounded(client.connect().then(select), limit);
  } catch (error) {
    close();
    const { message } = (failure ?? error) as Error;
    // The server refuses the login, so another attempt is useless.
    if (/^(WRONGPASS|NOAUTH|NOPERM|ERR DB index) /.test(message)) throw new ServerError(message);
    throw failure ?? error;
  }
  return { closed: once(client, "end").catch(close) }; // an error event also closes the connection
}

export const nameOf = ({ host, port }: Address): string => `${host}:${port}`;

/** The address at the end of an error such as MOVED or ASK. A node that does not know its own host leaves the host out. */
export function addressIn(text = "", unknown = ""): Address | undefined {
  const [, host = "", port] = /(\S*):(\d+)$/.exec(text) ?? [];
  return port === undefined ? undefined : { host: host.replace(/^\??$/, unknown), port: Number(port) };
}

/**
 * Opens connections to the primary that the Sentinels name. If the Sentinels do not answer in time, the connection leads to
 * the last known primary, if that server still has the role of a primary.
 */
function viaSentinels(ask: () => Promise<{ connection: Connection; reopen: Opener }>): Opener {
  let reopen: Opener | undefined;
  return async () => {
    const asked = ask().then((primary) => {
      reopen = primary.reopen;
      return primary.connection;
    });
    if (reopen === undefined) return asked;
    const kept = reopen().then(async (connection) => {
      const reply = await bounded(connection.send(["ROLE"])).catch(() => undefined);
      if (Array.isArray(reply) && reply[0] === "master") return connection;
      connection.close();
      throw new Error("the last known primary is none");
    });
    const late = kept.then((connection) => rest(SENTINEL_LIMIT, { isBackground: true }).then(() => connection));
    const first = await Promise.any([asked, late]).catch(() => asked);
    for (const each of [asked, kept]) each.then((other) => other === first || other.close()).catch(() => {});
    return first;
  };
}

/**
 * Returns a server's error, and throws any other error: the libraries' own errors come when a connection cannot be used.
 * Also throws `ERR max number of clients reached`, because a full server does not execute the request.
 */
function toServerError(error: Error, isUsable: boolean): ServerError {
  if (!isUsable || error.message.startsWith("ERR max number")) throw error;
  return new ServerError(error.message);
}
