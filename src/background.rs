//! The work that no command asks for: leases that end while somebody waits, wait limits, keys that vanished, grants
//! that could not be told, shadows of which replicas and the AOF do not know.
//!
//! Done when the alarm goes off. What a waiter is granted here is a write, and obeys what would refuse a client's
//! write; until it may be done, it is tried again. To end a wait is no write and is never held back.

use crate::commands::GATE;
use crate::server::{Content, Context, Foreign, Gate, OpenKey, OwnedName, clock, info, mono};
use crate::state::{self, Undelivered};
use crate::statistics::{self, count};
use crate::{turn, waiters};
use lockward_core::{Instant, LineId, Name, Outcome, Span, Wake};

/// How many lines are looked at, and how many shadows told of, before clients are let in again.
const AT_ONCE: usize = 1_000;

/// How many keys of each kind are looked at in one slice of a patrol: with 10,000 waited-for keys, the most there may be
/// by default, a round takes 20 slices and 80 ms. Shadows are met more slowly, 500 in a tenth of a
/// second, but faster while many of them have ended.
const KEYS_AT_ONCE: usize = 500;

/// How soon work that the server does not allow now is tried again.
const HELD_BACK: Span = match Span::from_millis(20) {
    Some(span) => span,
    None => Span::MAX,
};

/// The alarm has gone off.
pub fn gone_off() {
    state::with(|state| state.alarm.gone_off());
}

/// The server's cron: reads the wall clock for the steps to come, finds out whether nobody listens, and sets the alarm:
/// should the wall clock have been set back, the server's timers stand still. And sees whether the statistics begin anew.
pub fn tick() {
    clock::read();
    statistics::see_reset_now_and_then();
    if state::with(|state| !state.follows() && state.listeners.can_be_known()) {
        let none = info::nobody_listens();
        state::with(|state| state.listeners.found(none));
    }
    rearm();
}

/// Sets the alarm for the next work.
pub fn rearm() {
    let now = mono();
    state::with(|state| state.look_at(&[], now));
}

/// Does what is due.
pub fn work(context: Context) {
    let now = mono();
    end_waits(now);
    // What was unlinked in an earlier turn of the event loop has been told by now.
    let (undelivered, follows, patrol_is_due) = state::with(|state| {
        state.note_unlinked(now);
        if state.quarantine.ends(now).is_none() {
            state.forget_seen();
        }
        let follows = state.follows();
        (std::mem::take(&mut state.undelivered), follows, !follows && state.alarm.patrol_is_due(now))
    });
    if follows {
        send_replicas_waiters_away();
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
    put_back(context, now);
    tell_of_shadows(context);
    if patrol_is_due {
        let round_is_over = patrol(context, now);
        let few_have_ended = patrol_shadows(context, now);
        state::with(|state| state.alarm.patrolled(round_is_over && few_have_ended, now));
    }
    for _ in 0..AT_ONCE {
        let Some(line) = state::with(|state| state.room.pop_due(now)) else { return };
        settle(context, line, now);
    }
}

fn end_waits(now: Instant) {
    while let Some(waiter) = state::with(|state| state.room.pop_limit_reached(now)) {
        state::with(|state| count(&mut state.statistics.wait_limits_reached));
        waiters::wake(Wake { waiter, outcome: Outcome::NotAcquired }, None);
    }
}

fn pass_on(context: Context, grant: Undelivered, now: Instant) {
    let name = OwnedName::new(grant.db, &grant.key);
    context.select(grant.db);
    match context.write_gate(GATE, &name.name()) {
        Gate::Open => {
            // Should the key hold something else by now, the tenure is over.
            let passed_on =
                turn::on_lock(context, &name.name(), |step| step.pass_on(&grant.owner, grant.token));
            let (Ok(()) | Err(Foreign)) = passed_on;
        }
        Gate::Shut | Gate::Down => state::with(|state| {
            state.undelivered.push(grant);
            state.alarm.hold_back(now.after(HELD_BACK));
        }),
        Gate::NotServed => {}
    }
}

/// Puts locks back into the keyspace that the server has dropped because its wall clock has jumped.
fn put_back(context: Context, now: Instant) {
    let mut names = state::with(|state| std::mem::take(&mut state.to_put_back));
    let later = names.split_off(names.len().min(AT_ONCE));
    let mut held_back = Vec::new();
    for (db, key) in names {
        let name = OwnedName::new(db, &key);
        context.select(db);
        match context.write_gate(GATE, &name.name()) {
            Gate::Open => turn::put_back(context, &name.name()),
            Gate::Shut | Gate::Down => held_back.push((db, key)),
            Gate::NotServed => state::with(|state| state.break_shadow(&name.name(), now)),
        }
    }
    state::with(|state| {
        if !held_back.is_empty() {
            state.alarm.hold_back(now.after(HELD_BACK));
        }
        state.to_put_back.extend(held_back.into_iter().chain(later));
    });
}

/// Tells replicas and the AOF of shadows that were kept or forgotten. That is nothing new: it only says what the server's
/// own DEL has left out, and waits for nothing but the end of a pause.
fn tell_of_shadows(context: Context) {
    for _ in 0..AT_ONCE {
        let Some((db, key)) = state::with(|state| state.shadows.pop_untold()) else { return };
        context.select(db);
        turn::tell_of_shadow(context, &OwnedName::new(db, &key).name());
    }
}

/// Looks for keys that changed without a word: opens waited-for keys in turn, some at a time. Where no key is (in
/// quarantine, or beside a shadow), a cluster slot that moves takes nothing along that would tell. Returns whether all
/// have had their turn.
fn patrol(context: Context, now: Instant) -> bool {
    let (lines, round_is_over) = state::with(|state| {
        let lines: Vec<LineId> = state.room.after(state.patrolled).take(KEYS_AT_ONCE).collect();
        let round_is_over = lines.len() < KEYS_AT_ONCE;
        state.patrolled = if round_is_over { None } else { lines.last().copied() };
        (lines, round_is_over)
    });
    let in_cluster = context.flags().cluster();
    if in_cluster && lines.first().is_some_and(|line| is_down(context, *line)) {
        // Not every server tells those who wait. A lock that may be handed over again soon is no reason to keep them: it
        // may be another node that does it.
        let all: Vec<LineId> = state::with(|state| state.room.lines().collect());
        all.into_iter().for_each(|line| send_away(line, Outcome::NotServed));
        return round_is_over;
    }
    for line in lines {
        let Some((db, key)) = state::with(|state| state.room.name(line)) else { continue };
        let name = OwnedName::new(db, &key);
        context.select(db);
        // To open it makes the server drop it when its TTL, set by hand, has passed.
        let mut key = OpenKey::for_write(context, &name.name());
        let changed = match key.content() {
            Content::Missing => in_cluster && context.slot_gate(GATE, &name.name()) == Gate::NotServed,
            Content::Foreign => true,
            Content::Lock(lock) => state::with(|state| state.room.due(line) > lock.first_deadline()),
        };
        if changed {
            state::with(|state| state.room.set_due(line, Some(now)));
        }
    }
    round_is_over
}

/// Whether the cluster is down, in which no node serves the lock of this line or any other.
fn is_down(context: Context, line: LineId) -> bool {
    let Some((db, key)) = state::with(|state| state.room.name(line)) else { return false };
    context.select(db);
    context.slot_gate(GATE, &OwnedName::new(db, &key).name()) == Gate::Down
}

/// Looks at shadows in turn, some at a time: whether a lease is over, something stands in their place, or another node
/// serves them now. Returns false when many were not needed any more: there may be more such.
fn patrol_shadows(context: Context, now: Instant) -> bool {
    let names = state::with(|state| {
        let last = state.patrolled_shadow.take();
        let names: Vec<Name> = state.shadows.after(last.as_ref()).take(KEYS_AT_ONCE).collect();
        state.patrolled_shadow = names.last().filter(|_| names.len() == KEYS_AT_ONCE).cloned();
        names
    });
    let in_cluster = !names.is_empty() && context.flags().cluster();
    let before = state::with(|state| state.shadows.len());
    for (db, key) in names {
        let name = OwnedName::new(db, &key);
        context.select(db);
        let missing = matches!(OpenKey::for_write(context, &name.name()).content(), Content::Missing);
        let runs = |state: &mut state::State| {
            let shadow = state.shadows.get(db, &key);
            shadow.is_some_and(|lock| lock.first_deadline() > Some(now))
        };
        let stands = missing && state::with(runs);
        if stands && !in_cluster {
            continue;
        }
        match context.write_gate(GATE, &name.name()) {
            Gate::Open if stands => {}
            // What stands in its place breaks it, a lock or not.
            Gate::Open => {
                let (Ok(()) | Err(Foreign)) = turn::on_lock(context, &name.name(), |step| step.settle());
            }
            Gate::Shut | Gate::Down => {}
            Gate::NotServed => state::with(|state| state.break_shadow(&name.name(), now)),
        }
    }
    before.saturating_sub(state::with(|state| state.shadows.len())) < KEYS_AT_ONCE / 4
}

fn settle(context: Context, line: LineId, now: Instant) {
    let Some((db, key)) = state::with(|state| state.room.name(line)) else { return };
    let name = OwnedName::new(db, &key);
    context.select(db);
    match context.write_gate(GATE, &name.name()) {
        Gate::Open => {
            if let Err(Foreign) = turn::on_lock(context, &name.name(), |step| step.look_again()) {
                send_away(line, Outcome::WrongType);
            }
        }
        Gate::Shut | Gate::Down => state::with(|state| state.room.set_due(line, Some(now.after(HELD_BACK)))),
        Gate::NotServed => {
            state::with(|state| state.break_shadow(&name.name(), now));
            send_away(line, Outcome::NotServed);
        }
    }
}

/// Nobody waits at a replica.
fn send_replicas_waiters_away() {
    let lines: Vec<LineId> =
        state::with(|state| if state.replica { state.room.lines().collect() } else { Vec::new() });
    for line in lines {
        send_away(line, Outcome::BecameReplica);
    }
}

fn send_away(line: LineId, outcome: Outcome) {
    while let Some((waiter, _)) = state::with(|state| state.room.pop_front(line)) {
        waiters::wake(Wake { waiter, outcome }, None);
    }
}
