// Implements node-redlock's interface with this client, so that node-redlock's own tests can run. It supports one server and one
// resource, and retries as node-redlock does.

import { setTimeout as sleep } from "node:timers/promises";
import { LockBusyError, LockError, Lockward, type Lock as LockwardLock, type RedisClient } from "../src/index.js";

interface Settings {
  retryCount: number;
  retryDelay: number;
}

interface Stats {
  membershipSize: number;
  quorumSize: number;
  votesFor: Set<RedisClient>;
  votesAgainst: Map<RedisClient, Error>;
}

export class ResourceLockedError extends Error {}

export class ExecutionError extends Error {
  readonly attempts: Promise<Stats>[];

  constructor(message: string, attempts: Promise<Stats>[]) {
    super(message);
    this.attempts = attempts;
  }
}

class Lock {
  readonly #lock: LockwardLock;

  constructor(lock: LockwardLock) {
    this.#lock = lock;
  }

  get value(): string {
    return this.#lock.owner;
  }

  async extend(duration: number): Promise<this> {
    await this.#lock.renew(duration);
    return this;
  }

  release(): Promise<void> {
    return this.#lock.release();
  }
}

export default class Redlock {
  readonly #client: RedisClient;
  readonly #lockward: Lockward;

  constructor([client]: [RedisClient]) {
    this.#client = client;
    this.#lockward = new Lockward(client, { patience: 300 });
  }

  async acquire(resources: string[], lease: number, settings: Partial<Settings> = {}): Promise<Lock> {
    const { retryCount = 10, retryDelay = 200 } = settings;
    const attempts: Promise<Stats>[] = [];
    for (;;) {
      try {
        const lock = await this.#lockward.acquire(resources, { waitLimit: 0, lease, renewal: false });
        return new Lock(lock);
      } catch (error) {
        if (error instanceof RangeError) throw new Error("Duration must be an integer value in milliseconds.");
        if (!(error instanceof LockError)) throw error;
        attempts.push(Promise.resolve(this.#against(error)));
        if (attempts.length > retryCount) throw new ExecutionError(error.message, attempts);
        await sleep(retryDelay);
      }
    }
  }

  using<T>(resources: string[], lease: number, _: unknown, routine: (signal: AbortSignal) => Promise<T>): Promise<T> {
    return this.#lockward.using(resources, { lease }, routine);
  }

  #against(error: LockError): Stats {
    const cause = error instanceof LockBusyError ? new ResourceLockedError(error.message) : (error.cause as Error);
    return {
      membershipSize: 1,
      quorumSize: 1,
      votesFor: new Set(),
      votesAgainst: new Map([[this.#client, cause]]),
    };
  }
}
