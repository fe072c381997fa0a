//! The lock of Lockward as pure data and functions.
//!
//! This crate calls no server, reads no clock and does no I/O. Time is an argument ([`Now`]). A decision returns its
//! effects ([`Effects`]), and the caller carries them out. The module uses the same functions on a primary, on a
//! replica and when it loads the AOF. The tests and the model check use these functions too.
//!
//! - [`Lock`] is the stored value: its holders. [`Lock::apply`] is the only way to change who holds a lock.
//! - [`WaitQueues`] keeps the wait queues, one for each lock that clients wait for.
//! - [`Decision`] is one decision on one lock. Every grant is part of a decision.
//! - [`Counters`] counts the results of decisions.
//! - [`DroppedLocks`] keeps the locks that the server evicted or expired before their leases were over.
//! - [`arguments`] parses the arguments of commands.
//! - [`encoding`] encodes and decodes locks and changes, for RDB files, replicas and the AOF.
//!
//! No two files import each other, directly or through other files: scripts/check-layers checks this.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod arguments;
mod change;
mod cluster_slot;
mod compact_holder;
mod counters;
mod decimal;
mod decision;
mod dropped_locks;
mod effects;
pub mod encoding;
mod histogram;
mod holder;
mod holder_list;
mod id_hash;
mod lock;
mod name;
mod outcome;
mod owner;
mod quarantine;
mod queue;
mod request;
mod store;
mod token;
mod units;
mod wait_queue;
mod wait_queues;
mod waiter;

pub use change::{Change, End};
pub use cluster_slot::{SlotKey, slot_key};
pub use counters::Counters;
pub use decimal::parse_i64;
pub use decision::{Acquired, Decision};
pub use dropped_locks::{DroppedLocks, SweepPosition};
pub use effects::{Effects, Event, Propagation, event_of};
pub use histogram::Histogram;
pub use holder::{Holder, Load, Mode, Slots, Weight};
pub use holder_list::{Holders, Present};
pub use id_hash::ById;
pub use lock::{Fencing, Lock};
pub use name::{Db, LockName, NameRef};
pub use outcome::{Grant, NotHeld, Outcome, Refusal};
pub use owner::Owner;
pub use quarantine::{Quarantine, QuarantineMemory};
pub use request::{AcquireRequest, HoldsLeft, ReleaseRequest, RenewRequest};
pub use store::{Decided, Expired, Loading, Store, Unlinked, UnlinkedLock, Waits};
pub use token::{FencingToken, TokenSource};
pub use units::{Instant, Now, Span, WallTime};
pub use wait_queues::{
    Absence, Full, LONGEST_SWEPT_KEY, LimitReached, QueueId, QueueLimits, QueueSweepPosition, WaitQueues,
};
pub use waiter::{Completion, WaitRequest, Waiter};
