/** What can go wrong with a lock. */
export class LockError extends Error {
  override name = "LockError";
  /** The lock's key, as text. */
  readonly key: string;

  constructor(message: string, key: string | Buffer, options?: ErrorOptions) {
    super(`${message} (lock ${JSON.stringify(`${key}`)})`, options);
    this.key = `${key}`;
  }
}

/** The wait limit is over, and another owner holds the lock, or others wait for it, or the server is in quarantine. */
export class LockBusyError extends LockError {
  override name = "LockBusyError";
}

/** The lock ended before it was released: another owner may hold it now. */
export class LockLostError extends LockError {
  override name = "LockLostError";
}

/** The server has replied with an error. Nothing has changed. */
export class LockRefusedError extends LockError {
  override name = "LockRefusedError";
  /** The server's error. */
  readonly reply: string;
  /** Its first word, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. */
  readonly code: string;

  constructor(reply: string, key: string | Buffer) {
    super(`the server refuses the request: ${reply}`, key);
    this.reply = reply;
    this.code = reply.split(" ", 1)[0] as string;
  }
}

/** Fewer replicas than wanted have confirmed the grant in time. The lock has been given back. */
export class UnreplicatedError extends LockError {
  override name = "UnreplicatedError";
}

/**
 * No server has answered for as long as the patience or the wait limit, or the Redis client is closed. What may have been
 * granted ends with its lease. A guarded command may have run. `cause` is the last failure.
 */
export class UnreachableError extends LockError {
  override name = "UnreachableError";
}
