//! All error replies and their texts. Programs check only the first word. No text contains anything that a
//! client sent.

use crate::server::{Context, InnerRefused, WrongType};
use crate::settings::Setting;
use crate::statistics;
use lockward_core::arguments::ParseError;
use lockward_core::{FencingToken, Full, NotHeld, Refusal, Slots};
use std::fmt;

/// An error reply. A request that gets an error grants, renews and releases nothing.
#[derive(Debug)]
pub enum Error {
    /// Wrong arguments.
    Arguments(ParseError),
    /// A lease that is not above zero, or has too many milliseconds for 64 bits. The value is the command.
    InvalidLease(&'static str),
    /// A lease that is too long. The values are the command, and the setting that limits the lease.
    LeaseTooLong(&'static str, &'static Setting),
    /// LOCK.TOP in a transaction or script on a node of a cluster.
    TopInTransaction,
    /// KEEP without BLOCK or HOLDS, or for an owner that the server generates.
    KeepNeeds,
    /// The key holds a value that is not a lock.
    WrongType,
    /// A client asked a replica to change a lock.
    ReadOnly,
    Paused,
    /// The token of LOCK.GUARD is not that of a present holder. The value is the largest token of the present holders,
    /// if there are any.
    Fenced(Option<FencingToken>),
    /// The inner command of LOCK.GUARD is refused.
    Inner(InnerRefused),
    /// The decision on the lock refused the request.
    Refused(Refusal),
    /// No more clients may wait.
    Full(Full),
    /// The server does not let the module block this client.
    MayNotWait,
    /// A later request of the owner has taken over the place in the queue, or a release has ended the wait.
    Superseded,
    /// This node does not serve the key now.
    NotServed,
    /// The server has become a replica while the client waited.
    BecameReplica,
    /// The internal command came neither from a primary nor from the AOF.
    NotFromPrimary,
    /// The payload of the internal command cannot be decoded.
    Payload,
    /// A panic was caught.
    Internal,
}

impl From<WrongType> for Error {
    fn from(_: WrongType) -> Self {
        Self::WrongType
    }
}

impl From<ParseError> for Error {
    fn from(error: ParseError) -> Self {
        Self::Arguments(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Error {
    pub fn reply(&self, context: Context) {
        statistics::count_error();
        if matches!(self, Self::Arguments(ParseError::WrongArity)) {
            context.reply_wrong_arity();
        } else {
            context.reply_error(&self.to_string());
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(error) => f.write_str(parse_error(*error)),
            Self::InvalidLease(command) => write!(f, "ERR invalid expire time in '{command}' command"),
            Self::LeaseTooLong(command, setting) => {
                let (most, name) = (setting.get(), setting.name.to_string_lossy());
                write!(f, "ERR invalid expire time in '{command}' command: at most {most} (lock.{name})")
            }
            Self::TopInTransaction => {
                f.write_str("ERR LOCK.TOP is not possible in a transaction or script on a node of a cluster")
            }
            Self::KeepNeeds => f.write_str("ERR KEEP needs BLOCK, HOLDS and an owner other than *"),
            Self::WrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Self::ReadOnly => f.write_str("READONLY You can't write against a read only replica."),
            Self::Paused => f.write_str("TRYAGAIN writes are paused"),
            Self::Fenced(None) => f.write_str("FENCED the lock is free"),
            Self::Fenced(Some(latest)) => write!(f, "FENCED the lock is held with token {}", latest.get()),
            Self::Inner(refused) => f.write_str(inner_refused(*refused)),
            Self::Refused(refusal) => refused(*refusal, f),
            Self::Full(Full::Lock) => {
                f.write_str("MAXWAITERS too many clients wait for this lock (lock.max-waiters)")
            }
            Self::Full(Full::Total) => {
                f.write_str("MAXWAITERS too many clients wait on this server (lock.max-waiters-total)")
            }
            // From Valkey 8.1.1 on, a client that has subscribed may not wait. Such a client can send LOCK.ACQUIRE only
            // with RESP3.
            Self::MayNotWait => f.write_str("ERR this server does not let a subscriber wait"),
            Self::Superseded => {
                f.write_str("SUPERSEDED a later request of the same owner has ended this wait")
            }
            Self::NotServed => f.write_str("TRYAGAIN this node does not serve the key now"),
            Self::BecameReplica => f.write_str("UNBLOCKED this server has become a replica"),
            Self::NotFromPrimary => f.write_str("ERR this command is for replicas and the AOF alone"),
            Self::Payload => {
                f.write_str("ERR malformed changes, or changes of a later version of the module")
            }
            Self::Internal => f.write_str("ERR internal error, see the server's log"),
        }
    }
}

const fn parse_error(error: ParseError) -> &'static str {
    match error {
        ParseError::WrongArity => "ERR wrong number of arguments",
        ParseError::Syntax => "ERR syntax error",
        ParseError::NotAnInteger => "ERR value is not an integer or out of range",
        ParseError::Owner => "ERR owner must be 1 to 1024 bytes",
        ParseError::Holds => "ERR HOLDS is out of range",
        ParseError::Slots => "ERR SLOTS must be 1 to 1000000",
        ParseError::Weight => "ERR WEIGHT must be 1 to the number of slots",
        ParseError::WeightNeedsSlots => "ERR WEIGHT needs SLOTS",
        ParseError::Keep => "ERR KEEP must be 1 to 60000 ms",
        ParseError::Token => "ERR TOKEN is out of range",
        ParseError::Count => "ERR count is out of range",
        ParseError::LimitNotAnInteger => "ERR timeout is not an integer or out of range",
        ParseError::LimitNegative => "ERR timeout is negative",
        ParseError::LimitOutOfRange => "ERR timeout is out of range",
        // `Arguments::lease` replaces the next two errors by errors that name the command.
        ParseError::Lease => "ERR invalid expire time",
        ParseError::LeaseTooLong => "ERR invalid expire time, too long",
    }
}

const fn inner_refused(refused: InnerRefused) -> &'static str {
    match refused {
        InnerRefused::OwnCommand => "ERR LOCK.GUARD cannot run LOCK commands",
        InnerRefused::NoSuchCommand => "ERR unknown command",
        InnerRefused::WaitsForReplicas => "ERR LOCK.GUARD cannot run WAIT and WAITAOF",
        InnerRefused::Blocks => "ERR LOCK.GUARD cannot run a command of a module that blocks",
        InnerRefused::NoReply => "ERR the command has sent no reply",
    }
}

fn refused(refusal: Refusal, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match refusal {
        Refusal::NotHeld(NotHeld::Free) => f.write_str("NOTHELD the lock is free"),
        Refusal::NotHeld(NotHeld::ByAnother(token)) => {
            write!(f, "NOTHELD the lock is held by another owner with token {}", token.get())
        }
        Refusal::NotHeld(NotHeld::OtherToken(token)) => {
            write!(f, "NOTHELD the lock is held by this owner with token {}", token.get())
        }
        Refusal::Holds { has: 1 } => f.write_str("HOLDS the owner has 1 hold"),
        Refusal::Holds { has } => write!(f, "HOLDS the owner has {has} holds"),
        Refusal::Mode { has } if has.slots == Slots::SHARED => {
            f.write_str("LIMIT the owner has SHARED: release first, or ask as another owner")
        }
        Refusal::Mode { has } => {
            let (slots, weight) = (has.slots.number(), has.weight.number());
            write!(
                f,
                "LIMIT the owner has SLOTS {slots} WEIGHT {weight}: release first, or ask as another owner"
            )
        }
        Refusal::TooManyHolds => f.write_str("ERR the owner has as many holds as can be counted"),
        Refusal::TokensUsedUp => f.write_str("ERR there is no larger fencing token"),
        Refusal::TokenFarAhead => f.write_str("ERR TOKEN lies more than a day ahead of the server's clock"),
    }
}
