//! Clients that wait: how they are blocked, woken and answered.

use crate::callbacks::blocked;
use crate::client::Client;
use crate::errors::Error;
use crate::server::{Context, KeyName, Socket, mono};
use crate::settings;
use crate::state::{self, Undelivered};
use crate::statistics::count;
use lockward_core::{AcquireRequest, ById, Db, Grant, Instant, Outcome, Owner, Span, Ticket, Wake};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::rc::Rc;

/// A lock by its database and key, kept for later.
pub type LockName = (Db, Rc<[u8]>);

/// How a wait has ended: what the client is told, and what must happen when it cannot be told.
pub struct Verdict {
    client: Client,
    owner: Owner,
    outcome: Outcome,
    /// The lock of which it grants a hold, which is passed on when the client has left; none once somebody has claimed it.
    passed_on: Option<LockName>,
}

/// The verdicts that are on their way to their clients.
#[derive(Default)]
pub struct InFlight {
    verdicts: HashMap<NonZeroUsize, Verdict, ById>,
    sent: usize,
}

impl InFlight {
    fn send(&mut self, verdict: Verdict) -> NonZeroUsize {
        self.sent = self.sent.wrapping_add(1);
        let number = NonZeroUsize::new(self.sent).unwrap_or(NonZeroUsize::MIN);
        self.verdicts.insert(number, verdict);
        number
    }

    fn take(&mut self, number: NonZeroUsize) -> Option<Verdict> {
        const KEPT: usize = 64;
        let verdict = self.verdicts.remove(&number);
        if self.verdicts.is_empty() && self.verdicts.capacity() > KEPT * 2 {
            self.verdicts.shrink_to(KEPT);
        }
        verdict
    }
}

/// A wait that is about to begin.
pub struct Wait {
    /// What is asked for.
    pub request: AcquireRequest,
    /// For how long at most; `None` for as long as it takes.
    pub limit: Option<Span>,
    /// Whether the server minted the owner, and so must tell it.
    pub minted: bool,
}

/// Blocks the client of `context` in the line of `name`. `due` is when that lock must be looked at again.
///
/// # Errors
/// [`Error::Full`] when no more may wait; [`Error::MayNotWait`] when this client may not.
pub fn park(context: Context, name: &KeyName<'_>, wait: Wait, due: Option<Instant>) -> Result<(), Error> {
    let (db, key) = (name.db(), name.bytes());
    let Wait { request, limit, minted } = wait;
    state::with(|state| state.room.may_join(db, key, &request, settings::caps())).map_err(Error::Full)?;
    let id = context.client_id();
    let socket = socket_of(context, id);
    let handle = blocked::block(context).ok_or(Error::MayNotWait)?;
    let client = Client::new(handle, id, minted, socket);
    let now = mono();
    let limit = limit.map(|limit| now.after(limit));
    let superseded = state::with(|state| {
        let superseded = state.room.join(db, key, Ticket { request, limit, handle: client }, now);
        if let Some(line) = state.room.line(db, key) {
            state.set_due(line, due, now);
        }
        superseded
    });
    if let Some(superseded) = superseded {
        state::with(|state| count(&mut state.statistics.superseded));
        wake(superseded, None);
    }
    Ok(())
}

/// The socket of a client, asked for once: a client that waits will wait again.
fn socket_of(context: Context, id: u64) -> Option<Socket> {
    const KNOWN_AT_MOST: usize = 65_536;
    if let Some(known) = state::with(|state| state.sockets.get(&id).copied()) {
        return Some(known);
    }
    let socket = context.socket(id)?;
    state::with(|state| {
        if state.sockets.len() >= KNOWN_AT_MOST {
            state.sockets.clear();
        }
        state.sockets.insert(id, socket);
    });
    Some(socket)
}

/// Unblocks a waiter that has left the line, to be told how its wait ended. `lock` is the lock it may have been granted.
pub fn wake(wake: Wake<Client>, lock: Option<LockName>) {
    let Wake { waiter, outcome } = wake;
    let Ticket { request, handle: client, .. } = waiter.ticket;
    let counted = matches!(outcome, Outcome::Granted(grant) if grant.counted);
    let verdict = Verdict { client, owner: request.owner, outcome, passed_on: lock.filter(|_| counted) };
    let number = state::with(|state| state.in_flight.send(verdict));
    blocked::unblock(client, number);
}

/// Answers the client of a verdict. One that has left, though the server has yet to hear of that, is not told of a hold:
/// that is passed on. False when there is no such verdict.
pub fn tell(context: Context, number: NonZeroUsize) -> bool {
    let Some(verdict) = state::with(|state| state.in_flight.take(number)) else { return false };
    let Verdict { client, owner, outcome, passed_on } = &verdict;
    if passed_on.is_some() && client.socket.is_some_and(Socket::is_left) {
        context.reply_null_array();
        verdict.pass_on();
        return true;
    }
    match *outcome {
        Outcome::Granted(grant) => reply_grant(context, grant, client.minted.then_some(owner)),
        Outcome::NotAcquired => context.reply_null_array(),
        Outcome::Refused(refusal) => Error::Refused(refusal).reply(context),
        Outcome::Superseded => Error::Superseded.reply(context),
        Outcome::WrongType => Error::WrongType.reply(context),
        Outcome::NotServed => Error::NotServed.reply(context),
        Outcome::BecameReplica => Error::BecameReplica.reply(context),
    }
    true
}

/// The client of a verdict cannot be told of it: a hold that it grants is passed on.
pub fn drop_verdict(number: NonZeroUsize) {
    if let Some(verdict) = state::with(|state| state.in_flight.take(number)) {
        verdict.pass_on();
    }
}

impl Verdict {
    fn pass_on(self) {
        let (Outcome::Granted(grant), Some((db, key))) = (self.outcome, self.passed_on) else { return };
        let now = mono();
        state::with(|state| {
            state.undelivered.push(Undelivered { db, key, owner: self.owner, token: grant.token });
            state.look_at(&[], now);
        });
    }
}

/// Replies a grant, with the owner when the server has minted it.
pub fn reply_grant(context: Context, grant: Grant, minted: Option<&Owner>) {
    context.reply_array(if minted.is_some() { 3 } else { 2 });
    context.reply_integer(grant.token.get());
    context.reply_integer(u64::from(grant.holds));
    if let Some(owner) = minted {
        context.reply_bytes(&owner.to_bytes());
    }
}

/// Why a client leaves its line without having been told anything by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It has disconnected, or was sent away by the server.
    Disconnected,
    /// CLIENT UNBLOCK ends its wait as the limit would.
    Unblocked,
}

/// The client leaves its line. Whether it stood in one.
pub fn leave(client: Client, leaving: Leaving) -> bool {
    state::with(|state| {
        let left = state.room.leave(client).is_some();
        if left {
            count(match leaving {
                Leaving::Disconnected => &mut state.statistics.disconnected,
                Leaving::Unblocked => &mut state.statistics.wait_limits_reached,
            });
        }
        left
    })
}

/// An owner has repeated its request, and been told that it holds the lock: should the client that asked before have
/// left without an answer, the hold is the owner's all the same.
pub fn claim(name: &KeyName<'_>, owner: &Owner) {
    let this = |db: Db, key: &[u8], other: &Owner| db == name.db() && key == name.bytes() && other == owner;
    state::with(|state| {
        state.undelivered.retain(|grant| !this(grant.db, &grant.key, &grant.owner));
        for verdict in state.in_flight.verdicts.values_mut() {
            if verdict.passed_on.as_ref().is_some_and(|(db, key)| this(*db, key, &verdict.owner)) {
                verdict.passed_on = None;
            }
        }
    });
}
