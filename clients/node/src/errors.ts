/** What can go wrong with a lock. */
export class LockError extends Error {
  override name = "LockError";
  /** The lock's key, as text. */
  readonly key: string;

  constructor(message: string, key: string, options?: ErrorOptions) {
    super(message, options);
    this.key = key;
  }
}

/** The wait limit is over, and another owner holds the lock, or others wait for it, or the server is in quarantine. */
export class LockBusy extends LockError {
  override name = "LockBusy";
}

/** The tenure ended before it was released: another owner may hold the lock now. */
export class LockLost extends LockError {
  override name = "LockLost";
}

/** The server has replied with an error. Nothing has changed. */
export class LockRefused extends LockError {
  override name = "LockRefused";
  /** The first word of the error, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. */
  readonly code: string;

  constructor(message: string, key: string, code: string) {
    super(message, key);
    this.code = code;
  }
}

/** Fewer replicas than wanted have confirmed the grant in time. The lock has been given back. */
export class Unreplicated extends LockError {
  override name = "Unreplicated";
}

/**
 * No server has answered for as long as the patience or the wait limit, or the client is closed. What may have been granted
 * is given back when a server answers; otherwise it ends with its lease. A guarded command may have run. `cause` is the
 * last failure.
 */
export class Unreachable extends LockError {
  override name = "Unreachable";
}
