//! A client that waits for a lock.

use crate::outcome::Outcome;
use crate::request::AcquireRequest;
use crate::units::Instant;

/// What a client brings when it joins a wait queue.
#[derive(Clone, Debug)]
pub struct WaitRequest<H> {
    /// What it asks for.
    pub request: AcquireRequest,
    /// The instant at which it stops waiting.
    pub limit: Option<Instant>,
    /// How the caller finds the blocked client again.
    pub handle: H,
}

/// A client in a wait queue.
#[derive(Clone, Debug)]
pub struct Waiter<H> {
    /// What it brought.
    pub wait_request: WaitRequest<H>,
    /// Since when it has waited. A waiter that took over a position has waited since the earlier wait began.
    pub since: Instant,
}

/// A waiter that has left its queue and is to be sent the outcome of its wait.
#[derive(Debug)]
pub struct Completion<H> {
    /// The waiter.
    pub waiter: Waiter<H>,
    /// How its wait ended.
    pub outcome: Outcome,
}
