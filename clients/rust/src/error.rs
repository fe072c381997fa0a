//! What can go wrong, and what that means for who asked.

use redis::{ErrorKind, RedisError, ServerError};

/// Why a lock was not acquired, or could not be kept or given back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another owner holds the lock, or others wait for it, and the wait limit is reached. (Or the server is in
    /// quarantine.)
    #[error("the lock is busy")]
    Busy,
    /// The tenure is over: whoever goes on with the work may not be alone.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// No server has answered for as long as the client's patience, or the wait limit, lasts. Whatever had been asked
    /// for is given back as soon as one answers, or ends with its lease.
    #[error("no server answers: {0}")]
    Unreachable(#[source] RedisError),
    /// The server has answered an error of its own, such as `MAXWAITERS`, `OOM`, `NOPERM` or `WRONGTYPE`. Nothing has
    /// changed.
    #[error("{code} {message}")]
    Server {
        /// Its first word.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// Too few servers of a [Redlock](crate::redlock) answer, or are of use, for a majority. This is what one of the
    /// others said. Whatever had been asked for is given back as soon as they answer, or ends with its lease.
    #[error("no majority of the servers: {0}")]
    NoMajority(#[source] Box<Error>),
    /// Not enough replicas have heard of the grant in time. The lock has been given back.
    #[error("{reached} of {wanted} replicas have heard of the grant in time")]
    Unreplicated {
        /// How many have.
        reached: usize,
        /// How many were asked for.
        wanted: usize,
    },
    /// The caller has asked for something that no server would accept. Nothing is held.
    #[error("{0}")]
    Invalid(&'static str),
    /// The URL is not understood, or the server or a Sentinel does not let this client in.
    #[error("cannot connect: {0}")]
    Connection(#[source] RedisError),
    /// The server has answered what no server with Lockward answers.
    #[error("unexpected reply: {0}")]
    Reply(String),
}

/// How a tenure has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease is over by this process's own clock, and no server has confirmed a longer one.
    #[error("its lease is over")]
    LeaseOver,
    /// The server does not know of the tenure: it was broken by hand, or its lease was over on the server, or the
    /// server has forgotten it. This is what it said, such as `the lock is held by another owner with token
    /// 1795255081422190`.
    #[error("{0}")]
    NotHeld(String),
    /// Nothing is lost: the last guard was released or dropped, on purpose.
    #[error("it was released")]
    Released,
}

impl Error {
    /// The first word of the server's own error, if it is one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Server { code, .. } => Some(code),
            Self::Busy
            | Self::Lost(_)
            | Self::Unreachable(_)
            | Self::NoMajority(_)
            | Self::Unreplicated { .. }
            | Self::Invalid(_)
            | Self::Connection(_)
            | Self::Reply(_) => None,
        }
    }

    /// What the server has said. Where it denies a tenure, that is the loss of it.
    pub(crate) fn said(error: &ServerError) -> Self {
        let message = error.details().unwrap_or_default().to_owned();
        match error.code() {
            "NOTHELD" => Self::Lost(Loss::NotHeld(message)),
            code => Self::Server { code: code.to_owned(), message },
        }
    }

    /// What has kept a request or its reply from arriving.
    pub(crate) fn silence(error: RedisError) -> Self {
        let is_told = matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::InvalidClientConfig
                | ErrorKind::RESP3NotSupported
                | ErrorKind::Server(_)
                | ErrorKind::Extension
        );
        if !is_told {
            return Self::Unreachable(error);
        }
        match error.clone().into_server_errors().as_deref() {
            Some([(_, said), ..]) => Self::said(said),
            _ => Self::Connection(error),
        }
    }
}
