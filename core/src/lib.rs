//! The lock of Lockward as pure data and functions.
//!
//! Nothing here knows Redis, reads a clock or does I/O: time is an argument ([`Now`]), and a decision returns its
//! effects ([`Effects`]) for somebody else to carry out. The module, its replicas, a reloaded AOF and the tests all
//! run the same functions.
//!
//! - [`Lock`] is the stored value: its holders, changed only by [`Lock::apply`].
//! - [`WaitingRoom`] keeps the wait queues, one line a lock.
//! - [`Step`] is one step on one lock: acquire, release, renew, settle. The only place where a grant is decided.
//! - [`Tally`] counts what steps have come to.
//! - [`arguments`] reads what a client asks for.
//! - [`encoding`] is what RDB files, replicas and the AOF are sent.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod arguments;
mod effects;
pub mod encoding;
mod histogram;
mod id_hash;
mod lock;
mod owner;
mod packed;
mod quarantine;
mod queue;
mod request;
mod shadows;
mod step;
mod tally;
mod token;
mod units;
mod waiting;

pub use effects::{Effects, Event, Grant, NotHeld, Outcome, Propagation, Refusal, Wake, event_of};
pub use histogram::Histogram;
pub use id_hash::ById;
pub use lock::{Change, End, Holder, Lock, Slots, Tenures};
pub use owner::Owner;
pub use quarantine::{Quarantine, Seen};
pub use request::{AcquireRequest, HoldsLeft, ReleaseRequest, RenewRequest};
pub use shadows::{Name, RoundPosition, Shadows};
pub use step::{Acquired, Step};
pub use tally::Tally;
pub use token::{FencingToken, TokenSource};
pub use units::{Instant, Now, Span, WallTime};
pub use waiting::{Caps, Db, Full, LONGEST_PATROLLED, LineId, Ticket, Waiter, WaitingRoom};
