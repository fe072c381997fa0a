/** The base class of this package's errors. */
export class LockError extends Error {
  /** The lock's key, as text. */
  readonly key: string;

  constructor(message: string, key: string | Buffer, options?: ErrorOptions) {
    super(`${message} (lock ${JSON.stringify(`${key}`)})`, options);
    this.key = `${key}`;
  }
}

/** The wait limit is over. Other owners hold the lock or wait for it, or the server is in quarantine. */
export class LockBusyError extends LockError {
  override name = "LockBusyError";
}

/** The tenure ended before the program released the lock. Another owner may hold the lock now. */
export class LockLostError extends LockError {
  override name = "LockLostError";
}

/** The server has replied with an error. The refused request has not changed the lock. */
export class LockRefusedError extends LockError {
  override name = "LockRefusedError";
  /** The server's error reply. */
  readonly reply: string;
  /** The first word of the reply, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. */
  readonly code: string;

  constructor(reply: string, key: string | Buffer) {
    const advice = /^(MOVED|ASK) /.test(reply) ? ": the server is a cluster node, so use a cluster client" : "";
    super(`the server refuses the request: ${reply}${advice}`, key);
    this.reply = reply;
    this.code = reply.split(" ", 1)[0] as string;
  }
}

/** Fewer replicas than wanted have confirmed the grant in time. The client releases the lock. */
export class UnreplicatedError extends LockError {
  override name = "UnreplicatedError";
}

/**
 * No server has answered within the patience or the wait limit, or the Redis client is closed. If the server has granted the
 * lock, the lock ends with its lease. A guarded command may have run. `cause` is the last failure.
 */
export class UnreachableError extends LockError {
  override name = "UnreachableError";
}
