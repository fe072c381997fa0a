// Connections of our own, made as those of the caller's client are, by the same library.
//
// The caller's own connection would do for neither waiting nor renewing: others share it, it may be in a subscription or a
// transaction, and its library repeats requests and queues them for longer than a wait limit or a lease may last. So all
// requests go on duplicates that repeat nothing and wait for nothing. That is all that is needed of a library, which is
// why ioredis and node-redis both do: this file is the only one that knows them.

import calculateSlot from "cluster-key-slot";
import { within } from "./time.js";

/** What is needed of a client of ioredis: `Redis`, with or without Sentinels. */
interface IoRedis {
  readonly status: string;
  readonly options: object;
  // biome-ignore lint/suspicious/noExplicitAny: what either library takes there is narrower than object, and differs
  duplicate(override?: any): unknown;
  on(event: "end", listener: () => void): unknown;
}

/** What is needed of a client of ioredis: `Cluster`. */
interface IoCluster {
  readonly isCluster: boolean;
  readonly status: string;
  readonly options: object;
  readonly slots: string[][];
  nodes(role?: "master"): IoRedis[];
  connect(): Promise<void>;
  on(event: "end", listener: () => void): unknown;
}

/** What is needed of a client of node-redis: `createClient`. */
interface NodeRedis {
  readonly isOpen: boolean;
  readonly options: object | undefined;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  duplicate(overrides?: any): unknown;
  on(event: "end" | "ready", listener: () => void): unknown;
}

/** What is needed of a client of node-redis: `createCluster`. */
interface NodeCluster {
  readonly _options: object;
  readonly slots: { readonly master: NodeOfCluster }[];
  readonly masters: NodeOfCluster[];
  // biome-ignore lint/suspicious/noExplicitAny: as above
  nodeClient(node: any): Promise<NodeRedis>;
  on(event: "connect" | "disconnect", listener: () => void): unknown;
}

type NodeOfCluster = Address & { readonly client?: unknown };

/** What is needed of a client of node-redis: `createSentinel`. */
interface NodeSentinel {
  getMasterNode(): unknown;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  _execute(isReadonly: boolean, run: (client: any) => Promise<any>): Promise<any>;
  on(event: "end" | "ready", listener: () => void): unknown;
}

/**
 * A client of ioredis (`new Redis`, also of Sentinels; `new Cluster`) or of node-redis (`createClient`, `createCluster`,
 * `createSentinel`). One of node-redis is connected first, as for anything else.
 */
export type RedisClient = IoRedis | IoCluster | NodeRedis | NodeCluster | NodeSentinel;

export type Command = [name: string, ...rest: (string | number | Buffer)[]];

/** A server's error. */
export class Refusal {
  readonly code: string;
  readonly message: string;

  constructor(message: string) {
    this.message = message;
    this.code = message.split(" ", 1)[0] ?? "";
  }
}

export interface Connection {
  /** The reply, a server's error as a `Refusal`. Rejects when the connection breaks. Strings are Buffers. */
  send(command: Command): Promise<unknown>;
  readonly isClosed: boolean;
  onClose(listener: () => void): void;
  /** Whether it keeps the process from ending: while it is held more often than not, which it is not at first. */
  hold(by: number): void;
  /** Closes it, once the server has read what was sent, and the farewell. Resolves when it is closed. */
  close(farewell?: Command): Promise<void>;
}

/** Where a request goes. */
export interface Site {
  /** Connections to sites of one name lead to the same server, or to whichever is the primary. */
  readonly name: string;
  readonly host: string;
  /** Rejects with a `Refusal` when the server does not let the client in. */
  open(): Promise<Connection>;
}

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** What is needed of a library. */
export interface Port {
  /** Put before each key. */
  readonly prefix: string | Buffer;
  /** Whether the caller has closed the client. */
  isEnded(): boolean;
  onEnd(listener: () => void): void;
  /** Where the key is believed to be: at `address`, if that is given; or, in turn, who else may know. */
  locate(slot: number, turn: number, address?: Address): Site;
}

/** How long to wait for a connection, in milliseconds. */
const CONNECTING = 2_000;
/** When a connection that is silent is probed first, in milliseconds. */
const KEEPALIVE = 10_000;

export function slotOf(key: Buffer): number {
  return calculateSlot(key);
}

export function portOf(client: RedisClient): Port {
  if (isIoCluster(client)) return ioClusterPort(client);
  if (isIoRedis(client)) return ioRedisPort(client);
  if ("nodeClient" in client) return nodeClusterPort(client);
  if ("_execute" in client) return nodeSentinelPort(client);
  if ("isOpen" in client && "duplicate" in client) return nodeRedisPort(client);
  throw new TypeError("a client of ioredis or of node-redis is needed");
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
  sentinels?: unknown[];
  natMap?: NatMap;
}

type NatMap = Record<string, Address> | ((address: string) => Address | null | undefined);

interface IoConnection {
  readonly status: string;
  readonly stream: { ref?(): void; unref?(): void };
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
  connectTimeout: CONNECTING,
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
  sentinelRetryStrategy: () => null,
  socketTimeout: undefined,
  stringNumbers: false,
};

function ioRedisPort(client: IoRedis): Port {
  const options = client.options as IoOptions;
  const site: Site = { name: "", host: options.host ?? "", open: () => openIo(client, {}) };
  return {
    prefix: options.keyPrefix ?? "",
    isEnded: () => isIoEnded(client),
    onEnd: (listener) => client.on("end", listener),
    locate: () => site,
  };
}

function ioClusterPort(client: IoCluster): Port {
  const options = client.options as IoOptions & { redisOptions?: IoOptions };
  return {
    prefix: options.keyPrefix ?? options.redisOptions?.keyPrefix ?? "",
    isEnded: () => isIoEnded(client),
    onEnd: (listener) => client.on("end", listener),
    locate(slot, turn, address) {
      if (client.status === "wait") client.connect().catch(() => {});
      const nodes = client.nodes("master");
      const owner = turn === 0 ? client.slots[slot]?.[0] : undefined;
      const node = nodes.find((node) => nameOf(node.options) === owner) ?? nodes[turn % nodes.length];
      if (node === undefined) throw new Error("no node of the cluster is known");
      const mapped = mappedBy(options.natMap, address);
      const at = mapped ?? (node.options as IoOptions);
      return { name: nameOf(at), host: at.host ?? "", open: () => openIo(node, { ...mapped }) };
    },
  };
}

/** ioredis says nothing of its end when it is closed while it tries to connect again. */
function isIoEnded(client: { readonly status: string; readonly manuallyClosing?: boolean }): boolean {
  return client.status === "end" || client.manuallyClosing === true;
}

function nameOf({ host, port }: IoOptions): string {
  return `${host}:${port}`;
}

function mappedBy(map: NatMap | undefined, address: Address | undefined): Address | undefined {
  if (map === undefined || address === undefined) return address;
  const name = nameOf(address);
  return (typeof map === "function" ? map(name) : map[name]) ?? address;
}

async function openIo(template: IoRedis, override: object): Promise<Connection> {
  const redis = template.duplicate({ ...IO_OVERRIDES, ...override }) as IoConnection;
  let failure: Error | undefined;
  redis.on("error", (error) => {
    failure = error;
  });
  const ended = new Promise<void>((resolve) => redis.once("end", resolve));
  // One that is closed already would keep the process for a while.
  const leave = () => redis.status === "close" || redis.status === "end" || redis.disconnect();
  const asked = (template.options as IoOptions).sentinels?.length ?? 0;
  try {
    await within(redis.connect(), CONNECTING * (asked + 1), { isBackground: true });
  } catch (error) {
    leave();
    throw barred(failure ?? (error as Error));
  }
  const { stream } = redis;
  stream.unref?.();
  let held = 0;
  let isClosing = false;
  const send = (command: Command) => redis.callBuffer(...command).catch(refused);
  return {
    send,
    get isClosed() {
      return redis.status === "end";
    },
    onClose: (listener) => void ended.then(listener),
    hold(by) {
      held += by;
      if (held > 0) stream.ref?.();
      else stream.unref?.();
    },
    close(farewell) {
      if (farewell !== undefined) send(farewell).catch(() => {});
      if (!isClosing) leave();
      isClosing = true;
      return ended;
    },
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
  // 36 is the type of strings.
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

function nodeRedisPort(client: NodeRedis): Port {
  const site: Site = { name: "", host: "", open: () => openNode(client, {}) };
  return {
    ...ending(client, "ready", "end"),
    prefix: (client.options as NodeOptions | undefined)?.keyPrefix ?? "",
    locate: () => site,
  };
}

function nodeSentinelPort(client: NodeSentinel): Port {
  // It tells its options to nobody: those of the connections that it has are taken, as the library itself does.
  const open = () => client._execute(false, (master: NodeRedis) => openNode(master, {}));
  const site: Site = { name: "", host: "", open };
  return {
    ...ending(client, "ready", "end"),
    prefix: (client as { _keyPrefix?: string | Buffer })._keyPrefix ?? "",
    locate: () => site,
  };
}

function nodeClusterPort(client: NodeCluster): Port {
  const options = client._options as NodeOptions;
  return {
    ...ending(client, "connect", "disconnect"),
    prefix: options.keyPrefix ?? "",
    locate(slot, turn, address) {
      const { masters } = client;
      const node = (turn === 0 ? client.slots[slot]?.master : undefined) ?? masters[turn % masters.length];
      if (node === undefined) throw new Error("no node of the cluster is known");
      const { host, port } = mappedBy(options.nodeAddressMap, address ?? node) as Address;
      const connected = masters.find((each) => each.client !== undefined) ?? node;
      const open = async () => openNode(await client.nodeClient(connected), { host, port });
      return { name: nameOf({ host, port }), host, open };
    },
  };
}

function ending(client: { on(event: string, listener: () => void): unknown }, begin: string, end: string) {
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
    connectTimeout: CONNECTING,
    keepAlive: true,
    keepAliveInitialDelay: KEEPALIVE,
    reconnectStrategy: false,
    socketTimeout: undefined,
    ...address,
  };
  const client = template.duplicate({ ...NODE_OVERRIDES, socket }) as NodeConnection;
  const ended = new Promise<void>((resolve) => {
    client.on("error", () => resolve()); // it does not connect again
    client.on("end", () => resolve());
  });
  try {
    await within(client.connect(), CONNECTING, { isBackground: true });
  } catch (error) {
    if (client.isOpen) client.destroy();
    throw barred(error as Error);
  }
  client.unref();
  let held = 0;
  const send = (command: Command) =>
    client.sendCommand(command.map((part) => (typeof part === "number" ? `${part}` : part))).catch(refused);
  return {
    send,
    get isClosed() {
      return !client.isOpen;
    },
    onClose: (listener) => void ended.then(listener),
    hold(by) {
      held += by;
      if (held > 0) client.ref();
      else client.unref();
    },
    async close(farewell) {
      if (farewell !== undefined) send(farewell).catch(() => {});
      // It writes in the next turn of the event loop, and loses what is not written by then.
      await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
      if (client.isOpen) client.destroy();
      return ended;
    },
  };
}

// Both.

/** A `Refusal` where the server does not let the client in, so that there is no use in trying again. */
function barred(error: Error): Error | Refusal {
  return /^(WRONGPASS|NOAUTH|NOPERM) /.test(error.message) ? new Refusal(error.message) : error;
}

/** A server's error begins with a word in capitals, those of the libraries do not, and those of the system have a code. */
function refused(error: Error): Refusal {
  if (/^[A-Z][A-Z0-9]*( |$)/.test(error.message) && !("code" in error)) return new Refusal(error.message);
  throw error;
}
