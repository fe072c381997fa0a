//! Clients that wait: how they are blocked, woken and answered.

use crate::callbacks::blocked;
use crate::client::Client;
use crate::errors::Error;
use crate::server::{Context, KeyName, now};
use crate::state::{self, Undelivered};
use crate::turn;
use lockward_core::{Caps, Db, Grant, Instant, Outcome, Owner, Ticket, Wake};
use std::cell::Cell;
use std::rc::Rc;

/// How a wait has ended: what the client is told, and what must happen when it cannot be told.
pub struct Verdict {
    wake: Wake<Client>,
    lock: Option<(Db, Rc<[u8]>)>,
    told: Cell<bool>,
}

/// Blocks the client of `context` in the line of `name`. `due` is when that lock must be looked at again.
///
/// # Errors
/// [`Error::Full`] when no more may wait.
pub fn park(
    context: Context,
    name: &KeyName<'_>,
    mut ticket: Ticket<()>,
    minted: bool,
    caps: Caps,
    due: Option<Instant>,
) -> Result<(), Error> {
    let (db, key) = (name.db(), name.bytes());
    state::with(|state| state.room.may_join(db, key, &ticket.request, caps)).map_err(Error::Full)?;
    let handle = blocked::block(context).ok_or(Error::Internal)?;
    let client = Client::new(handle, context.client_id(), minted);
    let now = now().mono;
    let (request, limit) = (ticket.request, ticket.limit.take());
    let superseded = state::with(|state| {
        let superseded = state.room.join(db, key, Ticket { request, limit, handle: client }, now);
        turn::set_due(state, name, due, now);
        superseded
    });
    if let Some(superseded) = superseded {
        wake(superseded, None);
    }
    Ok(())
}

/// Unblocks a waiter that has left the line, to be told how its wait ended. `lock` is the lock it may have been granted.
pub fn wake(wake: Wake<Client>, lock: Option<(Db, Rc<[u8]>)>) {
    let client = wake.waiter.ticket.handle;
    blocked::unblock(client, Box::new(Verdict { wake, lock, told: Cell::new(false) }));
}

impl Verdict {
    /// Answers the client.
    pub fn tell(&self, context: Context) {
        self.told.set(true);
        let ticket = &self.wake.waiter.ticket;
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
        }
    }

    /// After the answer, or instead of it when the client had left: a grant that nobody was told of is passed on.
    pub fn end(self) {
        let Outcome::Granted(Grant { token, .. }) = self.wake.outcome else { return };
        let Some((db, key)) = self.lock.filter(|_| !self.told.get()) else { return };
        let owner = self.wake.waiter.ticket.request.owner;
        let now = now().mono;
        state::with(|state| {
            state.undelivered.push(Undelivered { db, key, owner, token });
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
        context.reply_bytes(owner.as_bytes());
    }
}

/// The client has left or was sent away by the server: it leaves the line too. Whether it stood in one.
pub fn leave(client: Client) -> bool {
    state::with(|state| state.room.leave(client)).is_some()
}

/// An owner repeats its request by name: the grant it was not told of before is its own after all.
pub fn claim(name: &KeyName<'_>, owner: &Owner) {
    state::with(|state| {
        if state.undelivered.is_empty() {
            return;
        }
        let other = |grant: &Undelivered| {
            grant.db != name.db() || *grant.key != *name.bytes() || grant.owner != *owner
        };
        state.undelivered.retain(other);
    });
}
