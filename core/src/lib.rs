//! The lock of Lockward as pure data and functions.
//!
//! Nothing here knows Redis, reads a clock or does I/O: time is an argument ([`Now`]), and a decision returns its
//! effects ([`Effects`]) for somebody else to carry out. The module, its replicas, a reloaded AOF and the tests all
//! run the same functions.
//!
//! - [`Lock`] is the stored value: its holders, changed only by [`Lock::apply`].
//! - [`WaitQueues`] keeps the wait queues, one line a lock.
//! - [`Decision`] is one step on one lock: acquire, release, renew, settle. The only place where a grant is decided.
//! - [`Counters`] counts what steps have come to.
//! - [`arguments`] reads what a client asks for.
//! - [`encoding`] is what RDB files, replicas and the AOF are sent.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod arguments;
mod counters;
mod decimal;
mod decision;
mod dropped_locks;
mod effects;
pub mod encoding;
mod histogram;
mod id_hash;
mod lock;
mod name;
mod owner;
mod packed;
mod quarantine;
mod queue;
mod request;
mod store;
mod token;
mod units;
mod wait_queues;

pub use counters::Counters;
pub use decimal::parse_i64;
pub use decision::{Acquired, Decision};
pub use dropped_locks::{DroppedLocks, SweepPosition};
pub use effects::{Completion, Effects, Event, Grant, NotHeld, Outcome, Propagation, Refusal, event_of};
pub use histogram::Histogram;
pub use id_hash::ById;
pub use lock::{Change, End, Holder, Holders, Lock, Slots};
pub use name::{Db, LockName};
pub use owner::Owner;
pub use quarantine::{Quarantine, QuarantineMemory};
pub use request::{AcquireRequest, HoldsLeft, ReleaseRequest, RenewRequest};
pub use store::{Expired, Loading, NameRef, Store, Unlinked, UnlinkedLock, Waits};
pub use token::{FencingToken, TokenSource};
pub use units::{Instant, Now, Span, WallTime};
pub use wait_queues::{Full, LONGEST_SWEPT_KEY, Limits, QueueId, WaitQueues, WaitRequest, Waiter};
