//! The work that the module does without a command. There is work in these cases:
//!
//! - a lease ends while a client waits;
//! - a wait limit is reached;
//! - a key has left the keyspace;
//! - a grant could not be delivered;
//! - a dropped lock (a held lock that the server evicted or expired early) must be replicated.
//!
//! The timer starts this work. A grant to a waiter is a write that no client has sent. So the module first asks whether
//! the server would accept a client's write. If not, the module tries again later. The end of a wait is not a write, so
//! the module does not ask.

use crate::command_time;
use crate::replication_audience;
use crate::server::clock::Slice;
use crate::server::{Context, KeyName, WriteGate, WrongType, clock, info, lock_allocation, mono};
use crate::settings;
use crate::state::{self, State};
use crate::statistics::count;
use crate::sweeps;
use crate::transaction;
use crate::waiters;
use lockward_core::{Completion, Counters, Db, Instant, LimitReached, NameRef, Outcome, QueueId, Span};

/// How long the module works before it lets the server serve clients again, in microseconds. The limit is a
/// time and not a count, because the cost of one piece of work varies.
const WORK_SLICE: i64 = 1_000;

/// How long a sweep of dropped locks, or of waited-for keys in a cluster, runs before the server serves clients again,
/// in microseconds. This slice is shorter than [`WORK_SLICE`], because each check calls the server more often.
const SWEEP_SLICE: i64 = 300;

/// After this many refused writes in one slice, the work pauses for [`RETRY`].
const REFUSED_IN_SLICE: usize = 100;

/// If the server does not allow the work now, the module tries again after this time.
const RETRY: Span = Span::millis(20);

/// Called by the server's cron. Reads the wall clock for later decisions. Checks whether CONFIG RESETSTAT was called,
/// and whether there is an audience for changes. Sets an overdue timer again, because the server's timers do not fire
/// for some time after the wall clock was set back.
pub fn tick() {
    clock::read();
    if state::with(|state| !state.store.has_unlinked()) {
        command_time::stop_watching();
    }
    let now = mono();
    if state::with(|state| state.statistics.look_is_due(now)) {
        notice_reset();
    }
    state::with(State::forget_sockets);
    if state::with(|state| !state.store.follows() && state.audience_can_be_known) {
        let no_audience = replication_audience::is_absent();
        state::with(|state| state.no_audience = no_audience);
    }
    rearm();
}

/// Resets the statistics if CONFIG RESETSTAT was given.
pub fn notice_reset() {
    let server = info::monotonic_stats();
    state::with(|state| {
        if state.statistics.reset_with_server(server) {
            state.store.counters = Counters::default();
        }
    });
}

pub fn rearm() {
    let now = mono();
    state::with(|state| state.rearm(now));
}

/// Does the work that is due, for one slice of time. The remaining work is due in the next iteration of
/// the event loop.
pub fn work(context: Context) {
    let now = mono();
    let slice = Slice::of_micros(WORK_SLICE);
    end_reached_waits(now, slice);
    // By now the server has sent all events of earlier iterations of the event loop. So if there was no event for the
    // last lock that left the keyspace, the server has neither evicted nor expired this lock.
    command_time::stop_watching();
    let (follows, queues_are_due, dropped_locks_are_due) = state::with(|state| {
        state.store.settle_unlinked(now, lock_allocation::freed());
        state.store.notice_end_of_quarantine(now);
        (
            state.store.follows(),
            state.wakeup_timer.queues.are_due(now),
            state.wakeup_timer.dropped_locks.are_due(now),
        )
    });
    if follows {
        state::with(|state| state.pending.drop_undelivered());
        // Only a primary grants locks.
        if state::with(|state| state.store.is_replica()) {
            waiters::end_all_waits(Outcome::BecameReplica, mono(), slice);
        }
        drop_discarded(slice);
        return;
    }
    if Context::paused() {
        hold_back(now);
        return;
    }
    pass_on(context, now, slice);
    put_back(context, now, slice);
    replicate_dropped_locks(context, slice);
    serve_due(context, now, slice);
    drop_discarded(slice);
    if queues_are_due {
        let round_is_over = sweeps::sweep_queues(context, now, Slice::of_micros(SWEEP_SLICE));
        state::with(|state| state.wakeup_timer.queues.went_on(round_is_over, mono()));
    }
    if dropped_locks_are_due {
        let round_is_over = sweeps::sweep_dropped_locks(context, now, Slice::of_micros(SWEEP_SLICE));
        state::with(|state| state.wakeup_timer.dropped_locks.went_on(round_is_over, mono()));
    }
}

/// Frees locks that are not needed any more. This work is no write, so a replica does it too.
fn drop_discarded(slice: Slice) {
    while !slice.is_over() && state::with(|state| state.store.drop_discarded()) {}
}

fn hold_back(now: Instant) {
    state::with(|state| state.wakeup_timer.hold_back(now.after(RETRY)));
}

/// Selects the database of a lock. Returns the lock's name, and whether the server would let a client write to the lock
/// now.
fn name_and_gate(context: Context, db: Db, key: &[u8]) -> (KeyName<'static>, WriteGate) {
    let name = KeyName::copied(db, key);
    context.select(db);
    let gate = context.write_gate(&name);
    (name, gate)
}

fn end_reached_waits(now: Instant, slice: Slice) {
    while let Some(reached) = state::with(|state| state.store.queues.pop_limit_reached(now)) {
        if let LimitReached::Wait(waiter) = reached {
            // With KEEP, one wait may consist of several requests. The limit of one request is then not the end of the
            // wait. So the statistics do not count this limit.
            if waiter.wait_request.keep.is_none() {
                state::with(|state| count(&mut state.statistics.wait_limits_reached));
            }
            waiters::end_wait(Completion { waiter, outcome: Outcome::NotAcquired });
        }
        if slice.is_over() {
            return;
        }
    }
}

/// Takes back each hold whose client left before the reply was sent, and serves the next waiters.
fn pass_on(context: Context, now: Instant, slice: Slice) {
    while let Some(undelivered) = state::with(|state| state.pending.next_undelivered()) {
        let Some(((db, key), token)) = undelivered.to_pass_on() else { continue };
        let (name, gate) = name_and_gate(context, *db, key);
        match gate {
            WriteGate::Open => {
                // If the key holds another type now, the tenure is over.
                let passed_on =
                    transaction::run(context, &name, |decision| decision.pass_on(&undelivered.owner, token));
                if let (Ok(true), Some(place)) = (passed_on, undelivered.place) {
                    let limits = settings::waiter_limits();
                    state::with(|state| state.store.queues.keep(name.db(), name.key(), place, limits, now));
                }
            }
            WriteGate::Refused => {
                state::with(|state| state.pending.put_back(undelivered));
                return hold_back(now);
            }
            WriteGate::NotServed => {}
        }
        if slice.is_over() {
            return;
        }
    }
}

/// Puts back into the keyspace the locks that the server dropped because its wall clock jumped.
fn put_back(context: Context, now: Instant, slice: Slice) {
    while let Some((db, key)) = state::with(|state| state.store.pop_to_put_back()) {
        let (name, gate) = name_and_gate(context, db, &key);
        match gate {
            WriteGate::Open => transaction::put_back(context, &name),
            WriteGate::Refused => {
                state::with(|state| state.store.put_back_later((db, key)));
                return hold_back(now);
            }
            WriteGate::NotServed => state::with(|state| state.break_dropped(&name, now)),
        }
        if slice.is_over() {
            return;
        }
    }
}

/// Tells replicas and the AOF which dropped locks are new, and which dropped locks do not exist any more. The server
/// has already sent a DEL of each key, and this function only corrects what replicas know. So the module does not ask
/// whether the server would accept a write. The module only waits until a pause of writes is over.
fn replicate_dropped_locks(context: Context, slice: Slice) {
    while let Some((db, key)) = state::with(|state| state.store.dropped_locks.pop_unreplicated()) {
        context.select(db);
        transaction::replicate_dropped(context, &KeyName::copied(db, &key));
        if slice.is_over() {
            return;
        }
    }
}

fn serve_due(context: Context, now: Instant, slice: Slice) {
    let mut refused = 0;
    while let Some((queue, changed)) = state::with(|state| state.store.queues.pop_due(now)) {
        if !serve_queue(context, queue, changed, now, slice) {
            refused += 1;
        }
        let is_over = slice.is_over();
        if refused == REFUSED_IN_SLICE || (refused > 0 && is_over) {
            return hold_back(now);
        }
        if is_over {
            return;
        }
    }
}

/// Serves a wait queue, or ends its waits. Returns false when the server allows no write now.
fn serve_queue(context: Context, queue: QueueId, changed: bool, now: Instant, slice: Slice) -> bool {
    let Some((db, key)) = state::with(|state| state.store.queues.name(queue)) else { return true };
    let (name, gate) = name_and_gate(context, db, &key);
    match gate {
        WriteGate::Open => {
            let served = transaction::run(context, &name, |decision| {
                if changed { decision.recheck() } else { decision.expire_and_serve() }
            });
            if let Err(WrongType) = served {
                waiters::end_waits_in(queue, Outcome::WrongType, now, slice);
            }
            true
        }
        WriteGate::Refused => {
            state::with(|state| {
                if changed {
                    state.store.queues.set_changed(queue, now.after(RETRY));
                } else {
                    state.store.queues.set_due(queue, Some(now.after(RETRY)));
                }
            });
            false
        }
        WriteGate::NotServed => {
            state::with(|state| state.break_dropped(&name, now));
            waiters::end_waits_in(queue, Outcome::NotServed, now, slice);
            true
        }
    }
}
