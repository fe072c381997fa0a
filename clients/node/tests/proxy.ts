import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

/** What the proxy does with a request. */
export type Fate = "served" | "request lost" | "reply lost";

/**
 * A proxy for the server on `port`. For each request `fateOf` decides whether the request or its reply is lost; then the
 * proxy closes the connection. Each chunk of data counts as one request.
 */
export class LossyProxy {
  readonly #server: Server;
  readonly #connections = new Set<Socket>();
  /** Delay of replies, in milliseconds. */
  delay = 0;

  private constructor(port: number, fateOf: (request: string) => Fate) {
    this.#server = createServer((client) => {
      const server = connect(port, "127.0.0.1");
      this.#connections.add(client);
      let fate: Fate = "served";
      const cut = () => {
        this.#connections.delete(client);
        client.destroy();
        server.destroy();
      };
      client.on("data", (request) => {
        if (fate === "served") fate = fateOf(request.toString("latin1"));
        if (fate === "request lost") cut();
        else server.write(request);
      });
      server.on("data", (reply) => {
        if (fate === "reply lost") cut();
        else if (this.delay === 0) client.write(reply);
        else setTimeout(() => client.write(reply), this.delay);
      });
      for (const each of [client, server]) each.on("close", cut).on("error", cut);
    });
  }

  static async start(port: number, fateOf: (request: string) => Fate = () => "served"): Promise<LossyProxy> {
    const proxy = new LossyProxy(port, fateOf);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Closes all connections. */
  cut(): void {
    for (const client of this.#connections) client.destroy();
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}
