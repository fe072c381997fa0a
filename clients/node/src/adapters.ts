// Adapters for ioredis and node-redis: they open connections with the options of the caller's client. Only this file knows
// the two libraries.
//
// The caller's own connection is fit for neither waiting nor renewing: others share it, it may be in a subscription or a
// transaction, and its library repeats and queues requests for longer than a wait limit or a lease may last. So all
// requests go on duplicates of it, which repeat nothing and queue nothing.

import { isUtf8 } from "node:buffer";
import type { Cluster, Redis, RedisOptions } from "ioredis";
import type { RedisClientType as NodeRedis, RedisSentinelType as NodeSentinel } from "redis";
import { rest, within } from "./time.js";

// The parts by which the clients are told apart. Their methods take different types, all narrower than `any`.
// biome-ignore-start lint/suspicious/noExplicitAny: see above
type IoRedis = { readonly status: string; readonly options: object; duplicate(override?: any): unknown };
type IoCluster = { readonly isCluster: boolean; readonly slots: string[][]; nodes(role?: "master"): unknown[] };
type NodeClient = { readonly isOpen: boolean; duplicate(overrides?: any): unknown };
type NodeSentinelClient = { getMasterNode(): unknown; _execute(isReadonly: boolean, run: any): Promise<any> };
type NodeCluster = {
  readonly _options: object;
  readonly slots: { readonly master: Address }[];
  readonly masters: (Address & { readonly client?: unknown })[];
  nodeClient(node: any): Promise<unknown>;
  readonly isOpen: boolean;
  on(event: "disconnect", listener: () => void): unknown;
};
// biome-ignore-end lint/suspicious/noExplicitAny: see above

/**
 * A client of ioredis (`new Redis`, also of Sentinels; `new Cluster`) or of node-redis (`createClient`, `createCluster`,
 * `createSentinel`). Connect a client of node-redis first.
 */
export type RedisClient = IoRedis | IoCluster | NodeClient | NodeCluster | NodeSentinelClient;

export type Command = [name: string, ...rest: (string | number | Buffer)[]];

/** An error that a server has replied. */
export class ServerError extends Error {
  /** The first word of the message. */
  get code(): string {
    return this.message.split(" ", 1)[0] as string;
  }
}

export interface Connection {
  /** The reply; an error reply is a `ServerError`. Rejects when the connection breaks. */
  send(command: Command): Promise<unknown>;
  isClosed(): boolean;
  /** Resolves when the connection is closed. */
  readonly closed: Promise<void>;
  /** Adds to a count. The connection keeps the process from ending while that is above 0. */
  addRef(count: number): void;
  close(): void;
}

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** What the locks need of a library's client. */
export interface Adapter {
  /** The prefix of all keys. */
  readonly prefix: string | Buffer;
  readonly isCluster: boolean;
  /** Whether the caller has closed the client. */
  isEnded(): boolean;
  onEnd(listener: () => void): void;
  /**
   * The node of a slot: at `named`, if that is given. After `failures` attempts have failed, another node, which may know
   * where the slot is. It asks no server. Without a cluster, it is always the same address, which stands for the primary.
   */
  locate(slot: number, failures: number, named?: Address): Address;
  /** Takes a bounded time. Rejects with a `ServerError` when the server refuses the login. */
  open(address: Address): Promise<Connection>;
}

type Opener = () => Promise<Connection>;
type End = Pick<Adapter, "isEnded" | "onEnd">;

/** How long opening a connection may take, in milliseconds. */
const CONNECT_LIMIT = 2_000;
/** How long Sentinels may take to name another primary than the last known one, in milliseconds. */
const SENTINEL_LIMIT = 100;

export function adapterOf(client: RedisClient): Adapter {
  if ("isCluster" in client && client.isCluster && "slots" in client) return ioClusterAdapter(client as Cluster);
  if ("status" in client && "duplicate" in client) return ioRedisAdapter(client as Redis);
  if ("nodeClient" in client) return nodeClusterAdapter(client);
  if ("_execute" in client) return nodeSentinelAdapter(client as unknown as NodeSentinel);
  if ("isOpen" in client && "duplicate" in client) return nodeRedisAdapter(client as NodeRedis);
  throw new TypeError("the client must be one of ioredis or node-redis");
}

// ioredis.

const IO_OVERRIDES: RedisOptions = {
  commandTimeout: undefined,
  connectTimeout: CONNECT_LIMIT,
  disableClientInfo: true,
  enableAutoPipelining: false,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  keyPrefix: "",
  lazyConnect: true,
  protocol: 2,
  reconnectOnError: null,
  replyMapping: "legacy",
  retryStrategy: () => null,
  sentinelCommandTimeout: CONNECT_LIMIT / 2,
  sentinelRetryStrategy: () => null,
  socketTimeout: undefined,
  stringNumbers: false,
};

function ioRedisAdapter(client: Redis): Adapter {
  const { keyPrefix, sentinels, enableTLSForSentinelMode, tls } = client.options;
  if (!sentinels?.length) return singleNode(ioEnd(client), keyPrefix, () => openIo(client, {}));
  let reopen: Opener | undefined;
  const ask = async () => {
    const connection = await openIo(client, {}, CONNECT_LIMIT * (sentinels.length + 1));
    const primary = { ...connection.address, sentinels: null, tls: enableTLSForSentinelMode ? tls : undefined };
    reopen = () => openIo(client, primary as object);
    return connection;
  };
  return singleNode(ioEnd(client), keyPrefix, () => openPrimary(ask, reopen));
}

function ioClusterAdapter(client: Cluster): Adapter {
  const { keyPrefix, redisOptions, natMap } = client.options;
  const prefix = keyPrefix ?? (redisOptions as RedisOptions | undefined)?.keyPrefix;
  const nodes = () => {
    if (client.status === "wait") client.connect().catch(() => {});
    return client.nodes("master").map((node) => node.options as Address);
  };
  const owner = (slot: number) => nodes().find((node) => nameOf(node) === client.slots[slot]?.[0]);
  const open = async ({ host, port }: Address) => openIo(client.nodes("master")[0] as Redis, { host, port });
  return clusterAdapter(ioEnd(client), prefix, natMap as NatMap, { nodes, owner, open });
}

function ioEnd(client: Redis | Cluster): End {
  return {
    // ioredis emits no end event, and keeps its status, when it is closed while it reconnects.
    isEnded: () =>
      client.status === "end" || (client as unknown as { manuallyClosing?: boolean }).manuallyClosing === true,
    onEnd: (listener) => void client.on("end", listener),
  };
}

/** A key as text, if it is. ioredis takes twice as long to write a command with a Buffer. */
function keyText(part: Command[number]): Command[number] {
  return Buffer.isBuffer(part) && part.length <= 64 && isUtf8(part) ? part.toString() : part;
}

async function openIo(template: Redis, override: RedisOptions, limit = CONNECT_LIMIT) {
  const redis = template.duplicate({ ...IO_OVERRIDES, ...override });
  let failure: Error | undefined;
  redis.on("error", (error) => {
    failure = error;
  });
  const closed = new Promise<void>((resolve) => redis.once("end", resolve));
  // disconnect() on a closed connection would keep the process from ending for a while.
  const close = () => void (redis.status === "close" || redis.status === "end" || redis.disconnect());
  try {
    await within(redis.connect(), limit, undefined, true);
  } catch (error) {
    close();
    throw connectError(failure ?? (error as Error));
  }
  const stream = redis.stream as typeof redis.stream & { servername?: string };
  return {
    address: { host: stream.servername || stream.remoteAddress, port: stream.remotePort },
    send: (command: Command) => {
      if (stream.writableCorked === 0) {
        stream.cork(); // what the callbacks of one event send is written together
        process.nextTick(() => stream.uncork());
      }
      return redis.call(...(command.map(keyText) as Command)).catch(toServerError);
    },
    isClosed: () => redis.status === "end",
    closed,
    addRef: refCounter(stream),
    close,
  };
}

// node-redis.

const NODE_OVERRIDES = {
  clientSideCache: undefined,
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

function nodeRedisAdapter(client: NodeRedis): Adapter {
  return singleNode(nodeEnd(client as never), client.options?.keyPrefix, () => openNode(client));
}

function nodeSentinelAdapter(client: NodeSentinel): Adapter {
  let reopen: Opener | undefined;
  // The library hides the options of a Sentinel client. So the connection to the primary is duplicated.
  const open = (primary: unknown) => {
    reopen = () => openNode(primary as NodeRedis);
    return reopen();
  };
  const ask = () => bounded(client._execute(false, open));
  return singleNode(nodeEnd(client as never), client._keyPrefix, () => openPrimary(ask, reopen));
}

function nodeClusterAdapter(client: NodeCluster): Adapter {
  const { keyPrefix, nodeAddressMap } = client._options as { keyPrefix?: string | Buffer; nodeAddressMap?: NatMap };
  const open = async (address: Address) => {
    const connected = client.masters.find((each) => each.client !== undefined) ?? client.masters[0];
    return openNode((await client.nodeClient(connected)) as NodeRedis, address);
  };
  return clusterAdapter(nodeEnd(client, "disconnect"), keyPrefix, nodeAddressMap, {
    nodes: () => client.masters,
    owner: (slot) => client.slots[slot]?.master,
    open: (address) => bounded(open(address)),
  });
}

function nodeEnd(
  client: { readonly isOpen: boolean; on(event: string, listener: () => void): unknown },
  event = "end",
): End {
  return { isEnded: () => !client.isOpen, onEnd: (listener) => void client.on(event, listener) };
}

async function openNode(template: NodeRedis, { host, port }: Partial<Address> = {}): Promise<Connection> {
  const socket = {
    ...template.options?.socket,
    connectTimeout: CONNECT_LIMIT,
    reconnectStrategy: false,
    socketTimeout: undefined,
    ...(host === undefined ? {} : { host, port }),
  };
  const client = template.duplicate({ ...NODE_OVERRIDES, socket } as object) as unknown as NodeRedis;
  const closed = new Promise<void>((resolve) => {
    client.on("error", () => resolve()); // it does not reconnect
    client.on("end", resolve);
  });
  const close = () => void (client.isOpen && client.destroy());
  try {
    await within(client.connect(), CONNECT_LIMIT, undefined, true);
  } catch (error) {
    close();
    throw connectError(error as Error);
  }
  return {
    send: (command) =>
      client.sendCommand(command.map((part) => (typeof part === "number" ? `${part}` : part))).catch(toServerError),
    isClosed: () => !client.isOpen,
    closed,
    addRef: refCounter(client),
    close,
  };
}

// Both.

function singleNode(end: End, prefix: string | Buffer = "", open: Adapter["open"]): Adapter {
  const primary = { host: "", port: 0 };
  return { ...end, prefix, isCluster: false, locate: () => primary, open };
}

interface ClusterNodes extends Pick<Adapter, "open"> {
  nodes(): Address[];
  owner(slot: number): Address | undefined;
}

function clusterAdapter(end: End, prefix: string | Buffer = "", map: NatMap, cluster: ClusterNodes): Adapter {
  const locate = (slot: number, failures: number, named?: Address): Address => {
    const nodes = cluster.nodes();
    const address = named ?? (failures === 0 ? cluster.owner(slot) : undefined) ?? nodes[failures % nodes.length];
    if (address === undefined) throw new Error("no node of the cluster is known");
    return (typeof map === "function" ? map(nameOf(address)) : map?.[nameOf(address)]) ?? address;
  };
  return { ...end, prefix, isCluster: true, locate, open: cluster.open };
}

/** At which address a node is reached. */
type NatMap = Record<string, Address> | ((address: string) => Address | null | undefined) | undefined;

export function nameOf({ host, port }: Address): string {
  return `${host}:${port}`;
}

/**
 * Opens a connection to the primary that the Sentinels name. If they are silent, to the last known one, if its role is that
 * of a primary.
 */
async function openPrimary(ask: Opener, reopen: Opener | undefined): Promise<Connection> {
  const asked = ask();
  if (reopen === undefined) return asked;
  const kept = reopen().then(async (connection) => {
    const reply = await within(connection.send(["ROLE"]), CONNECT_LIMIT, undefined, true).catch(() => undefined);
    if (Array.isArray(reply) && reply[0] === "master") return connection;
    connection.close();
    throw new Error("the last known primary is none");
  });
  const late = kept.then((connection) => rest(SENTINEL_LIMIT, undefined, true).then(() => connection));
  const first = await Promise.any([asked, late]).catch(() => asked);
  for (const each of [asked, kept]) each.then((other) => other === first || other.close()).catch(() => {});
  return first;
}

/** Rejects when the connection is not open in time. */
function bounded(opening: Promise<Connection>): Promise<Connection> {
  return within(opening, CONNECT_LIMIT, undefined, true).catch((error) => {
    opening.then((connection) => connection.close()).catch(() => {});
    throw error;
  });
}

/** Calls `ref` while the count is above 0, and `unref` otherwise, as at first. */
function refCounter(handle: { ref?(): unknown; unref?(): unknown }): (count: number) => void {
  let refs = 0;
  handle.unref?.();
  return (count) => {
    refs += count;
    if (refs > 0) handle.ref?.();
    else handle.unref?.();
  };
}

/** A `ServerError` when the server refuses the login: then another attempt is useless. */
function connectError(error: Error): Error | ServerError {
  return /^(WRONGPASS|NOAUTH|NOPERM) /.test(error.message) ? new ServerError(error.message) : error;
}

/**
 * Returns a server's error, and throws any other. A server's message begins with a word in capitals. Messages of the
 * libraries do not, and errors of the system have a code.
 */
function toServerError(error: Error): ServerError {
  if (/^[A-Z][A-Z0-9]*( |$)/.test(error.message) && !("code" in error)) return new ServerError(error.message);
  throw error;
}
