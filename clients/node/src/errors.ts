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

/** Another owner holds the lock, or others wait for it, and the wait limit is reached. (Or the server is in quarantine.) */
export class LockBusy extends LockError {
  override name = "LockBusy";
}

/** The tenure is over: whoever goes on with the work may not be alone. */
export class LockLost extends LockError {
  override name = "LockLost";
}

/** The server refuses, in its own words. Nothing has changed. */
export class LockRefused extends LockError {
  override name = "LockRefused";
  /** Its first word, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. */
  readonly code: string;

  constructor(message: string, key: string, code: string) {
    super(message, key);
    this.code = code;
  }
}

/** Fewer replicas than wanted have heard of the grant in time. The lock has been given back. */
export class Unreplicated extends LockError {
  override name = "Unreplicated";
}

/**
 * No server has answered for as long as the patience, or the wait limit, lasts; or the client is closed. What had been
 * asked for is given back when one does, or ends with its lease. Its `cause` is the last failure.
 */
export class Unreachable extends LockError {
  override name = "Unreachable";
}
