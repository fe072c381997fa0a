//! Clients that wait: how they are blocked, woken and answered.

use crate::callbacks::blocked;
use crate::client::Client;
use crate::errors::Error;
use crate::server::{Context, KeyName, Socket, mono};
use crate::settings;
use crate::state::{self, Undelivered};
use lockward_core::{AcquireRequest, Db, Grant, Instant, Outcome, Owner, Span, Ticket, Wake};
use std::cell::Cell;
use std::rc::Rc;

/// A lock by its database and key, kept for later.
pub type LockName = (Db, Rc<[u8]>);

/// How a wait has ended: what the client is told, and what must happen when it cannot be told.
pub struct Verdict {
    wake: Wake<Client>,
    lock: Option<LockName>,
    told: Cell<bool>,
}

/// The verdicts of this turn of the event loop that grant a hold and have not ended yet.
#[derive(Default)]
pub struct InFlight {
    granted: Vec<Rc<Verdict>>,
    ended: usize,
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
    let client = wake.waiter.ticket.handle;
    let verdict = Rc::new(Verdict { wake, lock, told: Cell::new(false) });
    if verdict.counted().is_some() {
        state::with(|state| state.in_flight.granted.push(Rc::clone(&verdict)));
    }
    blocked::unblock(client, verdict);
}

impl Verdict {
    /// Answers the client. One that has left, though the server has yet to hear of that, is not told of a grant.
    pub fn tell(&self, context: Context) {
        let ticket = &self.wake.waiter.ticket;
        if self.counted().is_some() && ticket.handle.socket.is_some_and(Socket::is_left) {
            return context.reply_null_array();
        }
        self.told.set(true);
        match self.wake.outcome {
            Outcome::Granted(grant) => {
                let owner = &ticket.request.owner;
                reply_grant(context, grant, ticket.handle.minted.then_some(owner));
            }
            Outcome::NotAcquired => context.reply_null_array(),
            Outcome::Refused(refusal) => Error::Refused(refusal).reply(context),
            Outcome::Superseded => Error::Superseded.reply(context),
            Outcome::WrongType => Error::WrongType.reply(context),
            Outcome::NotServed => Error::NotServed.reply(context),
            Outcome::BecameReplica => Error::BecameReplica.reply(context),
        }
    }

    /// After the answer, or instead of it when the client had left: a hold that nobody was told of is passed on.
    pub fn end(&self) {
        let Some((grant, (db, key))) = self.counted() else { return };
        let now = mono();
        state::with(|state| {
            state.in_flight.ended += 1;
            if state.in_flight.ended >= state.in_flight.granted.len() {
                state.in_flight = InFlight::default();
            }
            if !self.told.get() {
                let (db, key, owner) = (*db, Rc::clone(key), self.owner().clone());
                state.undelivered.push(Undelivered { db, key, owner, token: grant.token });
                state.look_at(&[], now);
            }
        });
    }

    fn owner(&self) -> &Owner {
        &self.wake.waiter.ticket.request.owner
    }

    /// The grant and its lock, when it counts a hold.
    fn counted(&self) -> Option<(Grant, &LockName)> {
        match self.wake.outcome {
            Outcome::Granted(grant) if grant.counted => Some((grant, self.lock.as_ref()?)),
            Outcome::Granted(_)
            | Outcome::NotAcquired
            | Outcome::Refused(_)
            | Outcome::Superseded
            | Outcome::WrongType
            | Outcome::NotServed
            | Outcome::BecameReplica => None,
        }
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

/// The client has left or was sent away by the server: it leaves the line too. Whether it stood in one.
pub fn leave(client: Client) -> bool {
    state::with(|state| state.room.leave(client)).is_some()
}

/// An owner has repeated its request, and been told that it holds the lock: should the client that asked before have
/// left without an answer, the hold is the owner's all the same.
pub fn claim(name: &KeyName<'_>, owner: &Owner) {
    let this = |db: Db, key: &[u8], other: &Owner| db == name.db() && key == name.bytes() && other == owner;
    state::with(|state| {
        state.undelivered.retain(|grant| !this(grant.db, &grant.key, &grant.owner));
        for verdict in &state.in_flight.granted {
            if verdict.counted().is_some_and(|(_, (db, key))| this(*db, key, verdict.owner())) {
                verdict.told.set(true);
            }
        }
    });
}
