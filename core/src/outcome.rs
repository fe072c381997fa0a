//! How a request or a wait ends.

use crate::holder::Mode;
use crate::token::FencingToken;
use crate::units::Span;

/// A granted acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token of the tenure.
    pub token: FencingToken,
    /// The number of holds that the owner now has.
    pub holds: u32,
    /// Whether this grant added a hold. A repeated request adds no hold.
    pub counted: bool,
    /// How much of the lease was left at the grant, rounded down.
    pub lease: Span,
}

/// Why an owner has no tenure to release or renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotHeld {
    /// Nobody holds the lock.
    Free,
    /// Other owners hold the lock. The value is the largest of their tokens.
    ByAnother(FencingToken),
    /// The owner holds the lock with this token, but the request named another token.
    OtherToken(FencingToken),
}

/// Why a request gets an error. A refused request grants, renews and releases nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The owner does not hold the lock.
    NotHeld(NotHeld),
    /// The request named a count of holds that the owner cannot reach with one acquisition or release.
    Holds {
        /// The count that the owner has.
        has: u32,
    },
    /// The request named a smaller limit or another weight than the owner has.
    Mode {
        /// What the owner has.
        has: Mode,
    },
    /// The owner already has the largest possible count of holds.
    TooManyHolds,
    /// The server has already given or received the largest fencing token.
    TokensUsedUp,
    /// The named token lies more than a day ahead of the server's clock.
    TokenFarAhead,
}

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The owner holds the lock.
    Granted(Grant),
    /// The wait limit was reached, or CLIENT UNBLOCK ended the wait.
    NotAcquired,
    /// The waiter was next, but its request is refused.
    Refused(Refusal),
    /// A later request of the same owner took over the place of this waiter.
    Superseded,
    /// The key now holds a value of another type.
    WrongType,
    /// This server does not serve the key any more.
    NotServed,
    /// This server has become a replica.
    BecameReplica,
}
