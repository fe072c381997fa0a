// ioredis for node-redlock's tests. This version of ioredis maps the host names of the tests to the servers of this
// run, and returns a lock's owner as the lock's value.

import * as ioredis from "ioredis";

const ports = (host: string | undefined) =>
  JSON.parse(process.env.PEER_PORTS ?? "{}")[host ?? ""] as number | undefined;

/** The owner of a Lockward lock, from LOCK.INFO. node-redlock's tests read the owner as the value of a string key. */
async function readValue(client: ioredis.Redis | ioredis.Cluster, key: string): Promise<string | null> {
  if ((await client.type(key)) === "string") return client.get(key);
  const info = (await client.call("LOCK.INFO", [key])) as unknown[] | null;
  const [holder] = (info?.[info.indexOf("holders") + 1] ?? []) as unknown[][];
  return holder === undefined ? null : String(holder[holder.indexOf("owner") + 1]);
}

class Redis extends ioredis.Redis {
  constructor(options: ioredis.RedisOptions) {
    const port = ports(options.host);
    super((port === undefined ? options : { ...options, host: "127.0.0.1", port }) as object);
    this.get = ((key: string) => readValue(new Proxy(this, { get: plain }), key)) as typeof this.get;
  }
}

class Cluster extends ioredis.Cluster {
  constructor([node]: { host: string }[]) {
    super([{ host: "127.0.0.1", port: ports(node?.host) ?? 0 }]);
    this.get = ((key: string) => readValue(new Proxy(this, { get: plain }), key)) as typeof this.get;
  }
}

/** The client with its original `get`. */
function plain(client: ioredis.Redis | ioredis.Cluster, name: string): unknown {
  const value = name === "get" ? ioredis.Redis.prototype.get : Reflect.get(client, name);
  return typeof value === "function" ? value.bind(client) : value;
}

export { Cluster };
export default Redis;
