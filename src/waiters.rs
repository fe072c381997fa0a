//! Blocks, unblocks and answers clients that wait.

use crate::errors::Error;
use crate::pending_replies::PendingReply;
use crate::server::clock::Slice;
use crate::server::{BlockedClient, Context, KeyName, Socket, mono, subscriptions};
use crate::settings;
use crate::state;
use crate::statistics::count;
use lockward_core::{
    Absence, AcquireRequest, Completion, Grant, Instant, LONGEST_SWEPT_KEY, NameRef, Outcome, Owner, QueueId,
    Span, WaitRequest,
};

/// A wait that is about to begin.
pub struct Wait {
    pub request: AcquireRequest,
    /// The wait limit; `None` for no limit.
    pub wait_limit: Option<Span>,
    /// How long the place in the queue is kept after the wait.
    pub keep: Option<Span>,
    /// Whether the server generated the owner. If so, the reply contains the owner.
    pub minted: bool,
}

/// Blocks the client of `context` in the wait queue of `name`. `due` is the instant at which this lock must
/// be checked again.
///
/// # Errors
/// [`Error::Full`] when no more clients may wait. [`Error::MayNotWait`] when the server does not let this client wait.
/// [`Error::Superseded`] when the client has left and its owner waits on another connection.
pub fn park(context: Context, name: &KeyName<'_>, wait: Wait, due: Option<Instant>) -> Result<(), Error> {
    let (db, key) = (name.db(), name.key());
    let Wait { request, wait_limit, keep, minted } = wait;
    state::with(|state| state.store.queues.may_join(db, key, &request, settings::waiter_limits()))
        .map_err(Error::Full)?;
    let id = context.client_id();
    let socket = socket_of(context, id);
    // With I/O threads, the server may read this request after the client has repeated the request on its next
    // connection. So a request of a client that has left must not take over the place of the repeated request.
    if request.holds.is_some() && is_waiting(name, &request.owner) && socket.is_some_and(Socket::is_left) {
        return Err(Error::Superseded);
    }
    let client = BlockedClient::block(context, id, minted, socket).ok_or(Error::MayNotWait)?;
    // If a reply is still pending for this handle, the reply belongs to an earlier client with the same handle, whose
    // callback has panicked.
    drop_reply(client);
    let now = mono();
    let wait_limit = wait_limit.map(|limit| now.after(limit));
    let is_long = key.len() > LONGEST_SWEPT_KEY;
    // The sweeps leave out long keys. So the module decides on the lock at once, and this decision reads the TTL of
    // the key.
    let due = if is_long { Some(now) } else { due };
    let wait_request = WaitRequest { request, wait_limit, keep, handle: client };
    let superseded = state::with(|state| {
        let superseded = state.store.queues.join(db, key, wait_request, settings::waiter_limits(), now);
        if let Some(queue) = state.store.queues.queue(db, key) {
            // If a kept place was removed to make room, the queue may already need a decision.
            let due = due.into_iter().chain(state.store.queues.due(queue)).min();
            state.set_due(queue, due, now);
        }
        superseded
    });
    if let Some(superseded) = superseded {
        state::with(|state| count(&mut state.statistics.superseded));
        end_wait(superseded);
    }
    if is_long {
        subscriptions::subscribe_long_keys();
    }
    Ok(())
}

fn is_waiting(name: &KeyName<'_>, owner: &Owner) -> bool {
    state::with(|state| {
        let queue = state.store.queue(name);
        queue.is_some_and(|queue| state.store.queues.first_of(queue, owner).is_some())
    })
}

/// The socket of a client. The module remembers the socket, because a client that waits is likely to wait again.
fn socket_of(context: Context, id: u64) -> Option<Socket> {
    const MOST_KEPT: usize = 65_536;
    if let Some(known) = state::with(|state| state.sockets.get(&id).copied()) {
        return Some(known);
    }
    let socket = context.socket(id)?;
    state::with(|state| {
        if state.sockets.len() >= MOST_KEPT {
            state.sockets.clear();
        }
        state.sockets.insert(id, socket);
    });
    Some(socket)
}

/// Ends a wait with a reply that is not a grant.
pub fn end_wait(completion: Completion<BlockedClient>) {
    let client = state::with(|state| state.pending.add(completion, None));
    client.unblock();
}

/// Ends all waits, until the slice is over.
pub fn end_all_waits(outcome: Outcome, now: Instant, slice: Slice) {
    let queues: Vec<QueueId> = state::with(|state| state.store.queues.queues().collect());
    for queue in queues {
        end_waits_in(queue, outcome, now, slice);
        if slice.is_over() {
            return;
        }
    }
}

/// Ends the waits in a queue. If the slice is over before all waits have ended, the remaining waits end in the next
/// iteration.
pub fn end_waits_in(queue: QueueId, outcome: Outcome, now: Instant, slice: Slice) {
    state::with(|state| state.store.queues.forget_places(queue));
    while let Some((waiter, _)) = state::with(|state| state.store.queues.pop_front(queue)) {
        end_wait(Completion { waiter, outcome });
        if slice.is_over() {
            state::with(|state| state.recheck(&[queue], now));
            return;
        }
    }
}

/// Answers a client whose wait has ended. If the client has left but the server has not noticed yet, the background
/// work takes back a hold that was granted to this client, and serves the next waiters. Returns false if no reply is
/// pending for the client.
pub fn reply(context: Context, client: BlockedClient) -> bool {
    let Some(reply) = state::with(|state| state.pending.take(client)) else { return false };
    if reply.to_pass_on().is_some() && reply.client.has_left(context) {
        context.reply_null_array();
        leave_undelivered(reply);
        return true;
    }
    match reply.outcome {
        Outcome::Granted(grant) => reply_grant(context, grant, reply.client.minted.then_some(&reply.owner)),
        Outcome::NotAcquired => context.reply_null_array(),
        Outcome::Refused(refusal) => Error::Refused(refusal).reply(context),
        Outcome::Superseded => Error::Superseded.reply(context),
        Outcome::WrongType => Error::WrongType.reply(context),
        Outcome::NotServed => Error::NotServed.reply(context),
        Outcome::BecameReplica => Error::BecameReplica.reply(context),
    }
    true
}

/// Drops the pending reply of a client that cannot be answered any more. If the reply grants a hold, the background
/// work takes the hold back and serves the next waiters. Returns true if a reply was pending for the client.
pub fn drop_reply(client: BlockedClient) -> bool {
    let reply = state::with(|state| state.pending.take(client));
    reply.map(leave_undelivered).is_some()
}

fn leave_undelivered(reply: PendingReply) {
    let now = mono();
    state::with(|state| {
        state.pending.leave_undelivered(reply);
        state.rearm(now);
    });
}

/// Replies with a grant. The reply contains the owner if the server has generated the owner.
pub fn reply_grant(context: Context, grant: Grant, minted: Option<&Owner>) {
    context.reply_array(if minted.is_some() { 4 } else { 3 });
    context.reply_integer(grant.token.get());
    context.reply_integer(u64::from(grant.holds));
    context.reply_integer(grant.lease.as_millis());
    if let Some(owner) = minted {
        context.reply_bytes(&owner.to_bytes());
    }
}

/// The client leaves its wait queue, because it has disconnected or because the server itself has ended the wait.
pub fn leave(client: BlockedClient, absence: Absence) {
    // The code that takes a waiter out of its queue also unblocks the client. So if a reply is pending, the client is
    // already unblocked or will be soon, and must not be unblocked here again.
    if drop_reply(client) {
        return;
    }
    let now = mono();
    let was_waiting = state::with(|state| {
        let left = state.store.queues.leave(client, absence, now).is_some();
        if state.store.is_replica() {
            // Valkey 9 may end a wait after it has reported that this server is a replica.
            state.store.queues.forget_all_places();
        }
        if left {
            state.rearm(now);
            count(match absence {
                Absence::Disconnected => &mut state.statistics.disconnected,
                Absence::LimitReached => &mut state.statistics.wait_limits_reached,
            });
        }
        left
    });
    if was_waiting {
        client.unblock();
    }
}
