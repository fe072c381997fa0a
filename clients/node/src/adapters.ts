// Adapters for ioredis and node-redis: they open connections with the options of the caller's client. Only this file knows
// the two libraries.
//
// The caller's own connection is fit for neither waiting nor renewing: others share it, it may be in a subscription or a
// transaction, and its library repeats and queues requests for longer than a wait limit or a lease may last. So all
// requests go on duplicates of it, which repeat nothing and queue nothing.

import calculateSlot from "cluster-key-slot";
import { rest, within } from "./time.js";

/** The used part of ioredis: `Redis`, with or without Sentinels. */
interface IoRedis {
  readonly status: string;
  readonly options: object;
  // biome-ignore lint/suspicious/noExplicitAny: the libraries take different types, both narrower than object
  duplicate(override?: any): unknown;
  on(event: "end", listener: () => void): unknown;
}

/** The used part of ioredis: `Cluster`. */
interface IoCluster {
  readonly isCluster: boolean;
  readonly status: string;
  readonly options: object;
  readonly slots: string[][];
  nodes(role?: "master"): IoRedis[];
  connect(): Promise<void>;
  on(event: "end", listener: () => void): unknown;
}

/** The used part of node-redis: `createClient`. */
interface NodeRedis {
  readonly isOpen: boolean;
  readonly options: object | undefined;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  duplicate(overrides?: any): unknown;
  on(event: "end" | "ready", listener: () => void): unknown;
}

/** The used part of node-redis: `createCluster`. */
interface NodeCluster {
  readonly _options: object;
  readonly slots: { readonly master: NodeOfCluster }[];
  readonly masters: NodeOfCluster[];
  // biome-ignore lint/suspicious/noExplicitAny: as above
  nodeClient(node: any): Promise<NodeRedis>;
  on(event: "connect" | "disconnect", listener: () => void): unknown;
}

type NodeOfCluster = Address & { readonly client?: unknown };

/** The used part of node-redis: `createSentinel`. */
interface NodeSentinel {
  getMasterNode(): unknown;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  _execute(isReadonly: boolean, run: (client: any) => Promise<any>): Promise<any>;
  on(event: "end" | "ready", listener: () => void): unknown;
}

/**
 * A client of ioredis (`new Redis`, also of Sentinels; `new Cluster`) or of node-redis (`createClient`, `createCluster`,
 * `createSentinel`). Connect a client of node-redis first.
 */
export type RedisClient = IoRedis | IoCluster | NodeRedis | NodeCluster | NodeSentinel;

export type Command = [name: string, ...rest: (string | number | Buffer)[]];

/** An error that a server has replied. */
export class ServerError {
  /** The first word of the message. */
  readonly code: string;
  readonly message: string;

  constructor(message: string) {
    this.message = message;
    this.code = message.split(" ", 1)[0] ?? "";
  }
}

export interface Connection {
  /** The reply; an error reply is a `ServerError`, strings are Buffers. Rejects when the connection breaks. */
  send(command: Command): Promise<unknown>;
  readonly isClosed: boolean;
  onClose(listener: () => void): void;
  /** Adds to a count. The connection keeps the process from ending while that is above 0. */
  addRef(count: number): void;
  close(): void;
}

/** Where connections lead: a server, or whichever is the primary now. */
export interface Endpoint {
  /** Endpoints of one name are the same. */
  readonly name: string;
  readonly host: string;
  /** Takes a bounded time. Rejects with a `ServerError` when the server refuses the login. */
  open(): Promise<Connection>;
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
   * The node of a slot: at `address`, if that is given. After `failures` attempts have failed, another node, which may know
   * where the slot is. It asks no server.
   */
  locate(slot: number, failures: number, address?: Address): Endpoint;
}

/** How long opening a connection may take, in milliseconds. */
const CONNECT_LIMIT = 2_000;
/** How long Sentinels may take to name another primary than the last known one, in milliseconds. */
const SENTINEL_LIMIT = 100;
/** When TCP first probes an idle connection, in milliseconds. */
const KEEPALIVE = 10_000;

export function slotOf(key: Buffer): number {
  return calculateSlot(key);
}

export function adapterOf(client: RedisClient): Adapter {
  if (isIoCluster(client)) return ioClusterAdapter(client);
  if (isIoRedis(client)) return ioRedisAdapter(client);
  if ("nodeClient" in client) return nodeClusterAdapter(client);
  if ("_execute" in client) return nodeSentinelAdapter(client);
  if ("isOpen" in client && "duplicate" in client) return nodeRedisAdapter(client);
  throw new TypeError("the client must be one of ioredis or node-redis");
}

function isIoCluster(client: RedisClient): client is IoCluster {
  return "isCluster" in client && client.isCluster === true && "slots" in client;
}

function isIoRedis(client: RedisClient): client is IoRedis {
  return "status" in client && "duplicate" in client;
}

// ioredis.

interface IoOptions {
  host?: string;
  port?: number;
  keyPrefix?: string;
  sentinels?: unknown[] | null;
  enableTLSForSentinelMode?: boolean;
  tls?: object;
  natMap?: NatMap;
}

type NatMap = Record<string, Address> | ((address: string) => Address | null | undefined);

interface IoConnection {
  readonly status: string;
  readonly stream: {
    ref?(): void;
    unref?(): void;
    remoteAddress?: string;
    remotePort?: number;
    servername?: string | false;
  };
  connect(): Promise<void>;
  disconnect(): void;
  callBuffer(...command: Command): Promise<unknown>;
  on(event: "error", listener: (error: Error) => void): void;
  once(event: "end", listener: () => void): void;
}

const IO_OVERRIDES = {
  autoResendUnfulfilledCommands: false,
  autoResubscribe: false,
  blockingTimeout: undefined,
  commandTimeout: undefined,
  connectTimeout: CONNECT_LIMIT,
  disableClientInfo: true,
  enableAutoPipelining: false,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  keepAlive: KEEPALIVE,
  keyPrefix: "",
  lazyConnect: true,
  maxRetriesPerRequest: 0,
  monitor: false,
  protocol: 2,
  readOnly: false,
  reconnectOnError: null,
  replyMapping: "legacy",
  retryStrategy: () => null,
  sentinelCommandTimeout: CONNECT_LIMIT / 2,
  sentinelRetryStrategy: () => null,
  socketTimeout: undefined,
  stringNumbers: false,
};

function ioRedisAdapter(client: IoRedis): Adapter {
  const { keyPrefix = "", host = "", sentinels, enableTLSForSentinelMode, tls } = client.options as IoOptions;
  if (!sentinels?.length) return singleNode(keyPrefix, ioEnd(client), () => openIo(client, {}), host);
  let last: Address | undefined;
  const ask = async () => {
    const connection = await openIo(client, {}, CONNECT_LIMIT * (sentinels.length + 1));
    last = connection.address;
    return connection;
  };
  const tlsOfPrimary = enableTLSForSentinelMode ? tls : undefined;
  const reopen = () => last && openIo(client, { ...last, sentinels: null, tls: tlsOfPrimary });
  return singleNode(keyPrefix, ioEnd(client), () => openPrimary(ask, reopen), host);
}

function ioClusterAdapter(client: IoCluster): Adapter {
  const options = client.options as IoOptions & { redisOptions?: IoOptions };
  return {
    ...ioEnd(client),
    isCluster: true,
    prefix: options.keyPrefix ?? options.redisOptions?.keyPrefix ?? "",
    locate(slot, failures, address) {
      if (client.status === "wait") client.connect().catch(() => {});
      const nodes = client.nodes("master");
      const owner = failures === 0 ? client.slots[slot]?.[0] : undefined;
      const node = nodes.find((node) => nameOf(node.options) === owner) ?? nodes[failures % nodes.length];
      if (node === undefined) throw new Error("no node of the cluster is known");
      const mapped = mappedBy(options.natMap, address);
      const at = mapped ?? (node.options as IoOptions);
      return { name: nameOf(at), host: at.host ?? "", open: () => openIo(node, { ...mapped }) };
    },
  };
}

function ioEnd(client: IoRedis | IoCluster) {
  return {
    // ioredis emits no end event, and keeps its status, when it is closed while it reconnects.
    isEnded: () => client.status === "end" || (client as { manuallyClosing?: boolean }).manuallyClosing === true,
    onEnd: (listener: () => void) => void client.on("end", listener),
  };
}

function nameOf({ host, port }: IoOptions): string {
  return `${host}:${port}`;
}

function mappedBy(map: NatMap | undefined, address: Address | undefined): Address | undefined {
  if (map === undefined || address === undefined) return address;
  const name = nameOf(address);
  return (typeof map === "function" ? map(name) : map[name]) ?? address;
}

async function openIo(
  template: IoRedis,
  override: object,
  limit = CONNECT_LIMIT,
): Promise<Connection & { readonly address: Address }> {
  const redis = template.duplicate({ ...IO_OVERRIDES, ...override }) as IoConnection;
  let failure: Error | undefined;
  redis.on("error", (error) => {
    failure = error;
  });
  const ended = new Promise<void>((resolve) => redis.once("end", resolve));
  // disconnect() on a closed connection would keep the process from ending for a while.
  const close = () => void (redis.status === "close" || redis.status === "end" || redis.disconnect());
  try {
    await within(redis.connect(), limit, undefined, true);
  } catch (error) {
    close();
    throw connectError(failure ?? (error as Error));
  }
  const { stream } = redis;
  return {
    address: { host: stream.servername || stream.remoteAddress || "", port: stream.remotePort ?? 0 },
    send: (command) => redis.callBuffer(...command).catch(toServerError),
    get isClosed() {
      return redis.status === "end";
    },
    onClose: (listener) => void ended.then(listener),
    addRef: refCounter(
      () => stream.ref?.(),
      () => stream.unref?.(),
    ),
    close,
  };
}

// node-redis.

interface NodeOptions {
  keyPrefix?: string | Buffer;
  nodeAddressMap?: NatMap;
  socket?: object;
}

interface NodeConnection {
  readonly isOpen: boolean;
  connect(): Promise<unknown>;
  destroy(): void;
  sendCommand(command: (string | Buffer)[]): Promise<unknown>;
  ref(): void;
  unref(): void;
  on(event: "error" | "end", listener: (error?: Error) => void): void;
}

const NODE_OVERRIDES = {
  clientSideCache: undefined,
  // 36 is RESP's type of strings.
  commandOptions: { timeout: 0, typeMapping: { 36: Buffer } },
  commandsQueueMaxLength: undefined,
  disableClientInfo: true,
  disableOfflineQueue: true,
  emitInvalidate: false,
  keyPrefix: undefined,
  maintNotifications: "disabled",
  pingInterval: undefined,
  readonly: false,
  RESP: 2,
  url: undefined,
};

function nodeRedisAdapter(client: NodeRedis): Adapter {
  const { keyPrefix = "" } = (client.options ?? {}) as NodeOptions;
  return singleNode(keyPrefix, nodeEnd(client, "ready", "end"), () => openNode(client, {}));
}

function nodeSentinelAdapter(client: NodeSentinel): Adapter {
  let last: NodeRedis | undefined;
  const open = (primary: NodeRedis) => {
    last = primary;
    return openNode(primary, {});
  };
  // The library hides the options of a Sentinel client. So the connection to the primary is duplicated.
  const ask = () => bounded(client._execute(false, open));
  const { _keyPrefix = "" } = client as { _keyPrefix?: string | Buffer };
  const end = nodeEnd(client, "ready", "end");
  return singleNode(_keyPrefix, end, () => openPrimary(ask, () => last && openNode(last, {})));
}

function nodeClusterAdapter(client: NodeCluster): Adapter {
  const options = client._options as NodeOptions;
  return {
    ...nodeEnd(client, "connect", "disconnect"),
    isCluster: true,
    prefix: options.keyPrefix ?? "",
    locate(slot, failures, address) {
      const { masters } = client;
      const node = (failures === 0 ? client.slots[slot]?.master : undefined) ?? masters[failures % masters.length];
      if (node === undefined) throw new Error("no node of the cluster is known");
      const { host, port } = mappedBy(options.nodeAddressMap, address ?? node) as Address;
      const connected = masters.find((each) => each.client !== undefined) ?? node;
      const open = () => bounded(client.nodeClient(connected).then((each) => openNode(each, { host, port })));
      return { name: nameOf({ host, port }), host, open };
    },
  };
}

function nodeEnd(client: { on(event: string, listener: () => void): unknown }, begin: string, end: string) {
  let isEnded = false;
  client.on(begin, () => {
    isEnded = false;
  });
  client.on(end, () => {
    isEnded = true;
  });
  return {
    isEnded: () => isEnded,
    onEnd: (listener: () => void) => void client.on(end, listener),
  };
}

async function openNode(template: NodeRedis, address: object): Promise<Connection> {
  const socket = {
    ...(template.options as NodeOptions | undefined)?.socket,
    connectTimeout: CONNECT_LIMIT,
    keepAlive: true,
    keepAliveInitialDelay: KEEPALIVE,
    reconnectStrategy: false,
    socketTimeout: undefined,
    ...address,
  };
  const client = template.duplicate({ ...NODE_OVERRIDES, socket }) as NodeConnection;
  const ended = new Promise<void>((resolve) => {
    client.on("error", () => resolve()); // it does not reconnect
    client.on("end", () => resolve());
  });
  try {
    await within(client.connect(), CONNECT_LIMIT, undefined, true);
  } catch (error) {
    if (client.isOpen) client.destroy();
    throw connectError(error as Error);
  }
  return {
    send: (command) =>
      client.sendCommand(command.map((part) => (typeof part === "number" ? `${part}` : part))).catch(toServerError),
    get isClosed() {
      return !client.isOpen;
    },
    onClose: (listener) => void ended.then(listener),
    addRef: refCounter(
      () => client.ref(),
      () => client.unref(),
    ),
    close: () => client.isOpen && client.destroy(),
  };
}

// Both.

type End = Pick<Adapter, "isEnded" | "onEnd">;

function singleNode(prefix: string | Buffer, end: End, open: () => Promise<Connection>, host = ""): Adapter {
  const endpoint: Endpoint = { name: "", host, open };
  return { ...end, prefix, isCluster: false, locate: () => endpoint };
}

/**
 * Opens a connection to the primary that the Sentinels name. If they are silent, to the last known one, if its role is that
 * of a primary.
 */
async function openPrimary(
  ask: () => Promise<Connection>,
  reopen: () => Promise<Connection> | undefined,
): Promise<Connection> {
  const asked = ask();
  const reopening = reopen();
  if (reopening === undefined) return asked;
  const kept = reopening.then(async (connection) => {
    const reply = await within(connection.send(["ROLE"]), CONNECT_LIMIT, undefined, true).catch(() => undefined);
    if (Array.isArray(reply) && `${reply[0]}` === "master") return connection;
    connection.close();
    throw new Error("the last known primary is none");
  });
  const late = kept.then(async (connection) => {
    await rest(SENTINEL_LIMIT, undefined, true);
    return connection;
  });
  const first = await Promise.any([asked, late]).catch(() => asked);
  for (const each of [asked, kept]) each.then((other) => other === first || other.close()).catch(() => {});
  return first;
}

/** Rejects when the connection is not open in time. */
function bounded(opening: Promise<Connection>): Promise<Connection> {
  let isLate = false;
  opening.then((connection) => isLate && connection.close()).catch(() => {});
  return within(opening, CONNECT_LIMIT, undefined, true).catch((error) => {
    isLate = true;
    throw error;
  });
}

/** Calls `ref` while the count is above 0, and `unref` otherwise, as at first. */
function refCounter(ref: () => void, unref: () => void): (count: number) => void {
  let refs = 0;
  unref();
  return (count) => {
    refs += count;
    if (refs > 0) ref();
    else unref();
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
