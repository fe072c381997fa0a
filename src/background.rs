//! The work that no command asks for: leases that end while somebody waits, wait limits, keys that vanished, grants
//! that could not be told.
//!
//! Done when the alarm goes off. What a waiter is granted here is a write, and obeys what would refuse a client's
//! write; until it may be done, it is tried again. To end a wait is no write and is never held back.

use crate::server::{Context, Foreign, Gate, OpenKey, OwnedName, now};
use crate::state::{self, Undelivered};
use crate::{turn, waiters};
use lockward_core::{Instant, LineId, Outcome, Span, Wake};

/// How many lines are looked at before clients are let in again.
const LINES_AT_ONCE: usize = 1_000;

/// How soon work that the server does not allow now is tried again.
const HELD_BACK: Span = match Span::from_millis(20) {
    Some(span) => span,
    None => Span::MAX,
};

/// The alarm has gone off.
pub fn gone_off() {
    state::with(|state| state.alarm.gone_off());
}

/// Sets the alarm for the next work.
pub fn rearm() {
    let now = now().mono;
    state::with(|state| state.look_at(&[], now));
}

/// The server's cron: should the wall clock have been set back, its timers stand still. Then the alarm is set anew.
pub fn watch_timer() {
    let now = now().mono;
    state::with(|state| {
        state.alarm.drop_if_overdue(now);
        state.look_at(&[], now);
    });
}

/// Does what is due.
pub fn work(context: Context) {
    let now = now().mono;
    end_waits(now);
    // What was unlinked in an earlier turn of the event loop has been told by now.
    let (undelivered, follows, patrol) = state::with(|state| {
        state.unlinked = None;
        let follows = state.follows();
        (std::mem::take(&mut state.undelivered), follows, !follows && state.alarm.patrol(now))
    });
    if follows {
        return;
    }
    if Context::paused() {
        state::with(|state| {
            state.undelivered = undelivered;
            state.alarm.hold_back(now.after(HELD_BACK));
        });
        return;
    }
    for grant in undelivered {
        pass_on(context, grant, now);
    }
    if patrol {
        look_at_keys(context);
    }
    for _ in 0..LINES_AT_ONCE {
        let Some(line) = state::with(|state| state.room.pop_due(now)) else { return };
        settle(context, line, now);
    }
}

fn end_waits(now: Instant) {
    while let Some(waiter) = state::with(|state| state.room.pop_limit_reached(now)) {
        waiters::wake(Wake { waiter, outcome: Outcome::NotAcquired }, None);
    }
}

fn pass_on(context: Context, grant: Undelivered, now: Instant) {
    let name = OwnedName::new(grant.db, &grant.key);
    context.select(grant.db);
    match context.write_gate(&name.name()) {
        Gate::Open => {
            // Should the key hold something else by now, the tenure is over.
            let passed_on =
                turn::on_lock(context, &name.name(), |step| step.pass_on(&grant.owner, grant.token));
            let (Ok(()) | Err(Foreign)) = passed_on;
        }
        Gate::Shut => state::with(|state| {
            state.undelivered.push(grant);
            state.alarm.hold_back(now.after(HELD_BACK));
        }),
        Gate::NotServed => {}
    }
}

/// Opens every waited-for key, which makes the server drop it when its TTL, set by hand, has passed.
fn look_at_keys(context: Context) {
    let waited_for: Vec<LineId> =
        state::with(|state| state.room.lines().filter(|line| !state.room.is_empty(*line)).collect());
    for line in waited_for {
        let Some((db, key)) = state::with(|state| state.room.name(line)) else { continue };
        context.select(db);
        drop(OpenKey::for_write(context, &OwnedName::new(db, &key).name()));
    }
}

fn settle(context: Context, line: LineId, now: Instant) {
    let Some((db, key)) = state::with(|state| state.room.name(line)) else { return };
    let name = OwnedName::new(db, &key);
    context.select(db);
    match context.write_gate(&name.name()) {
        Gate::Open => {
            if let Err(Foreign) = turn::on_lock(context, &name.name(), |step| step.look_again()) {
                send_away(line, Outcome::WrongType);
            }
        }
        Gate::Shut => state::with(|state| state.room.set_due(line, Some(now.after(HELD_BACK)))),
        Gate::NotServed => send_away(line, Outcome::NotServed),
    }
}

fn send_away(line: LineId, outcome: Outcome) {
    while let Some(waiter) = state::with(|state| state.room.pop_front(line)) {
        waiters::wake(Wake { waiter, outcome }, None);
    }
}
