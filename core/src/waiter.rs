//! A client that waits for a lock.

use crate::outcome::Outcome;
use crate::queue::Position;
use crate::request::AcquireRequest;
use crate::units::{Instant, Span};

/// The request of a client to join a wait queue.
#[derive(Clone, Debug)]
pub struct WaitRequest<H> {
    /// The request for the lock.
    pub request: AcquireRequest,
    /// The instant at which the client stops waiting; `None` for no limit.
    pub wait_limit: Option<Instant>,
    /// How long the place is kept after the wait limit is reached or the client leaves. A request with this value must
    /// name its count of holds.
    pub keep: Option<Span>,
    /// The handle by which the caller finds the blocked client.
    pub handle: H,
}

/// A client in a wait queue.
#[derive(Clone, Debug)]
pub struct Waiter<H> {
    /// The request with which the client joined the queue.
    pub wait_request: WaitRequest<H>,
    /// The instant since which the client has waited. If the waiter took over a place, this is the instant at which the
    /// earlier wait began.
    pub since: Instant,
    pub(crate) position: Position,
}

impl<H: Copy> Waiter<H> {
    /// A copy of this waiter whose place is to be kept; `None` when the request did not ask to keep its place.
    #[must_use]
    pub fn place(&self) -> Option<Self> {
        let WaitRequest { request, keep, .. } = &self.wait_request;
        keep.and(request.holds).map(|_| self.clone())
    }
}

/// A waiter that has left its queue and will be sent the outcome of its wait.
#[derive(Debug)]
pub struct Completion<H> {
    /// The waiter.
    pub waiter: Waiter<H>,
    /// How its wait ended.
    pub outcome: Outcome,
}
