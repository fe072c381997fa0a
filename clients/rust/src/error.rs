//! The errors, and the meaning of each error for the caller.

use redis::RedisError;

/// Why a lock was not acquired, renewed or released.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait limit is reached: another owner holds the lock, other waiters come first, or the server is in
    /// quarantine. The caller holds nothing.
    #[error("the lock {key} is busy, or the server is in quarantine: wait longer, or try again later")]
    Busy {
        /// The lock. If the lock has several keys, this is the busy key.
        key: String,
    },
    /// The tenure is over. Another owner may hold the lock now.
    #[error("the lock {key} is lost: {loss}")]
    Lost {
        /// The lock.
        key: String,
        /// How the lock was lost.
        loss: Loss,
    },
    /// The server has replied with an error, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. The refused request
    /// has not changed the lock.
    #[error("the server refused the request{}: {code} {message}", of(key))]
    Refused {
        /// The lock. Empty if [`Client::connect`](crate::Client::connect) failed.
        key: String,
        /// The first word of the server's error.
        code: String,
        /// The rest of the server's error.
        message: String,
    },
    /// No server has answered within the client's patience or the wait limit. If the server has granted the lock, the
    /// lock ends with its lease. A guarded command may have run.
    #[error("no server answers{}: {cause}", of(key))]
    Unreachable {
        /// The lock. Empty if [`Client::connect`](crate::Client::connect) failed.
        key: String,
        /// The address of the last attempt, and why this attempt failed.
        cause: String,
    },
    /// Fewer replicas than wanted have confirmed the grant in time. The client releases the lock.
    #[error("{reached} of {wanted} replicas have confirmed the lock {key} in time")]
    Unreplicated {
        /// The lock.
        key: String,
        /// How many replicas have confirmed the grant.
        reached: usize,
        /// How many replicas the caller asked for.
        wanted: usize,
    },
    /// Too few servers of a [Redlock](crate::redlock) have granted the request: no majority. The source is the error of
    /// one of the servers that did not grant the request.
    #[error("no majority of the servers: {0}")]
    NoMajority(#[source] Box<Error>),
    /// An argument is out of range, or a URL or a handle is not valid. The caller holds nothing.
    #[error("{0}")]
    Invalid(String),
    /// The reply has a form that was not expected: see [`Guard::guarded`](crate::Guard::guarded).
    #[error("unexpected reply: {0}")]
    Reply(String),
}

/// How a tenure has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease is over by this process's clock, and no server has confirmed a renewal.
    #[error("its lease is over")]
    LeaseOver,
    /// The lease is over, because the server has refused to renew it. The text is the server's error.
    #[error("its lease is over, because the server refused to renew it: {0}")]
    RenewalRefused(String),
    /// The [hold limit](crate::Lock::hold_limit) is over.
    #[error("its hold limit is over")]
    HoldLimitOver,
    /// The server denies the tenure: another client has deleted the lock, the lease is over at the server, or the
    /// server has forgotten the tenure. The text is the server's error text, such as `the lock is held by another owner
    /// with token 1795255081422190`.
    #[error("{0}")]
    NotHeld(String),
    /// The guard was released or dropped.
    #[error("it was released")]
    Released,
}

/// Names the lock in the text of an error.
fn of(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(" for the lock {key}") }
}

impl Error {
    /// The first word of the server's error. `None` if this is not [`Error::Refused`].
    pub fn code(&self) -> Option<&str> {
        if let Self::Refused { code, .. } = self { Some(code) } else { None }
    }

    pub(crate) fn invalid(why: &str) -> Self {
        Self::Invalid(why.to_owned())
    }

    pub(crate) fn refused(key: String, error: &RedisError) -> Self {
        let code = error.code().unwrap_or("ERR").to_owned();
        let mut message = error.detail().map_or_else(|| error.to_string(), str::to_owned);
        if matches!(&*code, "MOVED" | "ASK") {
            message += ": the server is a node of a cluster, so its URL must begin with redis+cluster://";
        }
        Self::Refused { key, code, message }
    }

    /// The longest lease in milliseconds that the server accepts, if this error says that the requested lease is too
    /// long.
    pub(crate) fn longest_lease(&self) -> Option<u64> {
        let Self::Refused { message, .. } = self else { return None };
        let (_, limit) = message.strip_prefix("invalid expire time")?.split_once(": at most ")?;
        limit.split(' ').next()?.parse().ok()
    }
}
