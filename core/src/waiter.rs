//! A client that waits for a lock.

use crate::outcome::Outcome;
use crate::owner::Owner;
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

impl<H> Waiter<H> {
    /// The place to be kept for the owner; `None` when the request did not ask to keep its place.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let WaitRequest { request, keep, .. } = &self.wait_request;
        let (keep, holds) = keep.zip(request.holds)?;
        Some(Place { owner: request.owner.clone(), holds, position: self.position, since: self.since, keep })
    }
}

/// A place in a wait queue that is kept after its client has left the queue.
#[derive(Clone, Debug)]
pub struct Place {
    /// The owner for whom the place is kept.
    pub owner: Owner,
    pub(crate) holds: u32,
    pub(crate) position: Position,
    pub(crate) since: Instant,
    pub(crate) keep: Span,
}

/// A waiter that has left its queue and will be sent the outcome of its wait.
#[derive(Debug)]
pub struct Completion<H> {
    /// The waiter.
    pub waiter: Waiter<H>,
    /// How its wait ended.
    pub outcome: Outcome,
}
