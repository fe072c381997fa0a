//! What can go wrong, and what that means for the caller.

use redis::{ErrorKind, RedisError, ServerError};

/// Why a lock was not acquired, renewed or released.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait limit is reached, and another owner holds the lock, or waiters are before this one, or the server is in
    /// quarantine.
    #[error("the lock is busy")]
    Busy,
    /// The tenure is over. Another owner may hold the lock now.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// No server answered within the client's patience, or within the wait limit if that is longer. A request that a
    /// server may have received is withdrawn as soon as a server answers; otherwise its grant ends with its lease.
    #[error("no server answers: {0}")]
    Unreachable(#[source] RedisError),
    /// The server replied with an error, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. Nothing has changed.
    #[error("{code} {message}")]
    Server {
        /// The first word of the error.
        code: String,
        /// The rest of the error.
        message: String,
    },
    /// Too few servers of a [Redlock](crate::redlock) answer, or grant locks, for a majority. The source is the error of
    /// one of the others. Requests that they may have received are withdrawn as soon as they answer; otherwise their
    /// grants end with their leases.
    #[error("no majority of the servers: {0}")]
    NoMajority(#[source] Box<Error>),
    /// Too few replicas have confirmed the grant in time. The client releases the lock.
    #[error("{reached} of {wanted} replicas have confirmed the grant in time")]
    Unreplicated {
        /// How many replicas have confirmed it.
        reached: usize,
        /// How many the caller asked for.
        wanted: usize,
    },
    /// An argument is out of range. Nothing is held.
    #[error("{0}")]
    Invalid(&'static str),
    /// The URL is not valid, or the server or a Sentinel refuses the connection, for example because of the password.
    #[error("cannot connect: {0}")]
    Connection(#[source] RedisError),
    /// The reply has a form that a server with Lockward does not send.
    #[error("unexpected reply: {0}")]
    Reply(String),
}

/// How a tenure has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease is over by this process's clock, and no server has confirmed a longer one.
    #[error("its lease is over")]
    LeaseOver,
    /// The server does not know the tenure: somebody deleted the lock, or its lease is over on the server, or the server
    /// has forgotten it. The text is the server's, such as `the lock is held by another owner with token
    /// 1795255081422190`.
    #[error("{0}")]
    NotHeld(String),
    /// The last guard was released or dropped.
    #[error("it was released")]
    Released,
}

impl Error {
    /// The first word of the server's error: `Some` for [`Error::Server`] only.
    pub fn code(&self) -> Option<&str> {
        if let Self::Server { code, .. } = self { Some(code) } else { None }
    }

    /// The error that a server has replied. `NOTHELD` and `FENCED` are the loss of a tenure.
    pub(crate) fn from_server(error: &ServerError) -> Self {
        let message = error.details().unwrap_or_default().to_owned();
        match error.code() {
            "NOTHELD" | "FENCED" => Self::Lost(Loss::NotHeld(message)),
            code => Self::Server { code: code.to_owned(), message },
        }
    }

    /// An error of the connection. Whatever may be different on another connection is [`Error::Unreachable`].
    pub(crate) fn from_redis(error: RedisError) -> Self {
        let is_refused = matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::InvalidClientConfig
                | ErrorKind::RESP3NotSupported
                | ErrorKind::Server(_)
                | ErrorKind::Extension
        );
        if !is_refused {
            return Self::Unreachable(error);
        }
        match error.clone().into_server_errors().as_deref() {
            Some([(_, server_error), ..]) => Self::from_server(server_error),
            _ => Self::Connection(error),
        }
    }

    pub(crate) const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self.code() {
            None => self.is_unreachable(),
            Some("READONLY" | "UNBLOCKED" | "TRYAGAIN" | "CLUSTERDOWN" | "LOADING") => true,
            Some("MASTERDOWN" | "BUSY" | "NOREPLICAS") => true,
            Some(_) => false,
        }
    }

    /// Whether a replica has replied. A new connection may lead to the primary.
    pub(crate) fn is_from_replica(&self) -> bool {
        matches!(self.code(), Some("READONLY" | "UNBLOCKED"))
    }

    /// Whether a server has replied that another one may have replaced without its knowledge.
    pub(crate) fn may_be_from_old_primary(&self) -> bool {
        matches!(self.code(), Some("NOREPLICAS" | "LOADING" | "MASTERDOWN"))
    }

    /// The longest lease in milliseconds that the server accepts, if it refuses a longer one.
    pub(crate) fn longest_lease(&self) -> Option<u64> {
        let Self::Server { message, .. } = self else { return None };
        let (_, limit) = message.strip_prefix("invalid expire time")?.split_once(": at most ")?;
        limit.split(' ').next()?.parse().ok()
    }
}
