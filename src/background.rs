//! The work that no command asks for: leases that end while a client waits, wait limits, keys that vanished, grants
//! that could not be delivered, dropped locks that are not replicated.
//!
//! Done when the timer fires. A grant to a waiter is a write here, and is refused when a client's write would be. It is then
//! tried again. The end of a wait is not a write, and is never refused.

use crate::info_section;
use crate::server::{
    ClusterState, Content, Context, KeyName, OpenKey, WriteGate, WrongType, clock, cluster_state, info,
    lock_allocation, mono, stop_watching_commands,
};
use crate::state::{self, State};
use crate::statistics::count;
use crate::transaction;
use crate::waiters;
use lockward_core::{
    Completion, Db, Instant, LONGEST_SWEPT_KEY, LockName, Outcome, QueueId, Span, SweepPosition,
};

/// How long the work goes on before clients are served again, in microseconds. A limit of time, not of count: the cost of one piece
/// of work depends on names, on the server and on its replicas.
const WORK_SLICE: i64 = 1_000;

/// How many waited-for keys are checked before clients are served again: some 0.4 ms, as their names are short. With 10,000
/// waited-for keys, the most there may be by default, a round takes 20 slices and 0.17 seconds.
const KEYS_IN_SLICE: usize = 500;

/// Leases that end later than this are left to the next round.
const SOON: Span = match Span::from_millis(1_000) {
    Some(span) => span,
    None => Span::MAX,
};

/// How long keys in a cluster, and dropped locks, are checked before clients are served again, in microseconds: each check asks the
/// server more.
const SWEEP_SLICE: i64 = 300;

/// After so many refused writes in one slice, the work pauses for [`RETRY`].
const REFUSED_IN_SLICE: usize = 100;

/// How soon work that the server does not allow now is tried again.
const RETRY: Span = match Span::from_millis(20) {
    Some(span) => span,
    None => Span::MAX,
};

/// The timer has fired.
pub fn timer_fired() {
    state::with(|state| state.wakeup_timer.fired());
}

/// The server's cron: reads the wall clock for later decisions, looks for CONFIG RESETSTAT and for anyone who receives what is
/// replicated, and sets the timer: if the wall clock was set back, the server's timers stand still.
pub fn tick() {
    clock::read();
    if state::with(|state| !state.store.has_unlinked()) {
        stop_watching_commands();
    }
    info_section::notice_reset_now_and_then();
    state::with(State::forget_sockets);
    if state::with(|state| !state.store.follows() && state.replication_audience.can_be_known()) {
        let none = info::has_no_replication_audience();
        state::with(|state| state.replication_audience.found(none));
    }
    rearm();
}

/// Sets the timer for the next work.
pub fn rearm() {
    let now = mono();
    state::with(|state| state.rearm(now));
}

/// The part of a pass of the event loop that some work may take. There is always time for one piece of it.
#[derive(Clone, Copy)]
struct Slice {
    end: Instant,
}

impl Slice {
    fn of_micros(micros: i64) -> Self {
        Self { end: Instant::from_micros(mono().as_micros().saturating_add(micros)) }
    }

    fn is_over(self) -> bool {
        mono() >= self.end
    }
}

/// Does what is due, for one slice of time. The rest is due in the next pass of the event loop.
pub fn work(context: Context) {
    let now = mono();
    let slice = Slice::of_micros(WORK_SLICE);
    end_waits(now, slice);
    // The server has sent the events of an earlier pass of the event loop by now.
    stop_watching_commands();
    let (follows, queues_are_due, dropped_locks_are_due) = state::with(|state| {
        state.store.settle_unlinked(now, lock_allocation::freed());
        state.store.forget_after_quarantine(now);
        (
            state.store.follows(),
            state.wakeup_timer.queues.are_due(now),
            state.wakeup_timer.dropped_locks.are_due(now),
        )
    });
    if follows {
        state::with(|state| state.pending.drop_undelivered());
        end_waits_at_replica(slice);
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
    if queues_are_due {
        let round_is_over = sweep_queues(context, now, Slice::of_micros(SWEEP_SLICE));
        state::with(|state| state.wakeup_timer.queues.went_on(round_is_over, mono()));
    }
    if dropped_locks_are_due {
        let round_is_over = sweep_dropped_locks(context, now, Slice::of_micros(SWEEP_SLICE));
        state::with(|state| state.wakeup_timer.dropped_locks.went_on(round_is_over, mono()));
    }
}

fn hold_back(now: Instant) {
    state::with(|state| state.wakeup_timer.hold_back(now.after(RETRY)));
}

/// The name of a lock whose database is selected, and whether the server would let a client write to it now.
fn name_and_gate(context: Context, db: Db, key: &[u8]) -> (KeyName<'static>, WriteGate) {
    let name = KeyName::copied(db, key);
    context.select(db);
    let gate = context.write_gate(&name);
    (name, gate)
}

fn end_waits(now: Instant, slice: Slice) {
    while let Some(waiter) = state::with(|state| state.store.queues.pop_limit_reached(now)) {
        state::with(|state| count(&mut state.statistics.wait_limits_reached));
        waiters::end_wait(Completion { waiter, outcome: Outcome::NotAcquired });
        if slice.is_over() {
            return;
        }
    }
}

/// Passes on holds whose clients have left.
fn pass_on(context: Context, now: Instant, slice: Slice) {
    while let Some(undelivered) = state::with(|state| state.pending.next_undelivered()) {
        let (name, gate) = name_and_gate(context, undelivered.lock.0, &undelivered.lock.1);
        match gate {
            WriteGate::Open => {
                // If the key holds something else now, the tenure is over.
                let passed_on = transaction::run(context, &name, |decision| {
                    decision.pass_on(&undelivered.owner, undelivered.token);
                });
                let (Ok(()) | Err(WrongType)) = passed_on;
            }
            WriteGate::Refused | WriteGate::Down => {
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

/// Puts locks back into the keyspace that the server has dropped because its wall clock has jumped.
fn put_back(context: Context, now: Instant, slice: Slice) {
    while let Some((db, key)) = state::with(|state| state.store.pop_to_put_back()) {
        let (name, gate) = name_and_gate(context, db, &key);
        match gate {
            WriteGate::Open => transaction::put_back(context, &name),
            WriteGate::Refused | WriteGate::Down => {
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

/// Replicates dropped locks that are new or gone. That is no new write: it only adds what the server's own DEL has left out, so
/// it waits for nothing but the end of a pause.
fn replicate_dropped_locks(context: Context, slice: Slice) {
    while let Some((db, key)) = state::with(|state| state.store.dropped_locks.pop_unreplicated()) {
        context.select(db);
        transaction::replicate_dropped(context, &KeyName::copied(db, &key));
        if slice.is_over() {
            return;
        }
    }
}

/// Serves the wait queues that are due.
fn serve_due(context: Context, now: Instant, slice: Slice) {
    let mut refused = 0;
    while let Some(queue) = state::with(|state| state.store.queues.pop_due(now)) {
        if !expire_and_serve(context, queue, now, slice) {
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

/// Looks for keys that changed without an event: opens waited-for keys one after the other, in slices. In a cluster it also asks
/// whether this node still serves a key that is missing: its slot may have left without an event for it. Returns whether the
/// round is over.
fn sweep_queues(context: Context, now: Instant, slice: Slice) -> bool {
    let queues: Vec<(QueueId, LockName)> = state::with(|state| {
        let queues: Vec<_> = state.store.queues.after(state.sweeps.queue).take(KEYS_IN_SLICE).collect();
        state.sweeps.queue = queues.last().filter(|_| queues.len() == KEYS_IN_SLICE).map(|(queue, _)| *queue);
        queues
    });
    let cluster = context.flags().cluster().then(|| cluster_state(context));
    if cluster == Some(ClusterState::Down) {
        // Not every server ends the waits itself. They end though the lock may be free again soon: another node may serve it
        // then.
        let all: Vec<QueueId> = state::with(|state| state.store.queues.queues().collect());
        end_waits_in_queues(all, Outcome::NotServed, now, slice);
        return false;
    }
    let soon = now.after(SOON);
    for (queue, (db, key)) in queues {
        context.select(db);
        let changed = if key.len() > LONGEST_SWEPT_KEY {
            cluster.is_some_and(|cluster| has_long_key_left(context, queue, db, &key, cluster))
        } else {
            has_changed(context, queue, &KeyName::copied(db, &key), soon, cluster)
        };
        if changed {
            state::with(|state| state.store.queues.set_due(queue, Some(now)));
        }
        if cluster.is_some() && slice.is_over() {
            state::with(|state| state.sweeps.queue = Some(queue));
            return false;
        }
    }
    state::with(|state| state.sweeps.queue.is_none())
}

/// Whether a wait queue must be checked before it is due: something else stands in the key, the lease ends earlier, or this node
/// does not serve the key.
fn has_changed(
    context: Context,
    queue: QueueId,
    name: &KeyName<'_>,
    soon: Instant,
    cluster: Option<ClusterState>,
) -> bool {
    let not_served = || context.slot_gate(name) == WriteGate::NotServed;
    // Opening the key makes the server drop it when its TTL, set by hand, has passed.
    match OpenKey::for_write(context, name).content() {
        Content::Missing => cluster.is_some() && not_served(),
        Content::WrongType => true,
        Content::Lock(lock) => {
            let ends = lock.first_deadline();
            (ends <= Some(soon) && state::with(|state| state.store.queues.due(queue) > ends))
                || (cluster == Some(ClusterState::SlotsMissing) && not_served())
        }
    }
}

/// The same for a long key. The server is asked only about its slot, by a short key of the slot. A lock that is here while its
/// slot moves to this node keeps its waiters.
fn has_long_key_left(context: Context, queue: QueueId, db: Db, key: &[u8], cluster: ClusterState) -> bool {
    let Some(slot_key) = state::with(|state| state.store.queues.slot_key(queue)) else { return false };
    let missing =
        || matches!(OpenKey::for_write(context, &KeyName::copied(db, key)).content(), Content::Missing);
    context.slot_gate(&KeyName::copied(db, &slot_key)) == WriteGate::NotServed
        && (cluster == ClusterState::SlotsMissing || missing())
}

/// Checks dropped locks one after the other, in slices: whether a lease is over, something stands in their place, or another node
/// serves them now. Before the lease is over, one with a long key is checked only in a cluster, by a short key of its slot.
/// Returns whether the round is over.
fn sweep_dropped_locks(context: Context, now: Instant, slice: Slice) -> bool {
    let in_cluster = context.flags().cluster();
    while let Some((db, key)) = next_dropped_lock(context, in_cluster, now, slice) {
        let name = KeyName::copied(db, &key);
        context.select(db);
        let missing = matches!(OpenKey::for_write(context, &name).content(), Content::Missing);
        let runs = |state: &mut State| {
            let dropped = state.store.dropped_locks.get(db, &key);
            dropped.is_some_and(|lock| lock.first_deadline() > Some(now))
        };
        let stands = missing && state::with(runs);
        if !stands || in_cluster {
            match context.write_gate(&name) {
                WriteGate::Open if stands => {}
                // Anything that stands in its place ends it, a lock or not.
                WriteGate::Open => {
                    let (Ok(()) | Err(WrongType)) =
                        transaction::run(context, &name, |decision| decision.expire_and_serve());
                }
                WriteGate::Refused | WriteGate::Down => {}
                WriteGate::NotServed => state::with(|state| state.break_dropped(&name, now)),
            }
        }
        if slice.is_over() {
            return false;
        }
    }
    state::with(|state| state.sweeps.dropped_lock.is_none())
}

/// The next dropped lock of the round whose key is to be checked. None when the round or the slice is over.
fn next_dropped_lock(context: Context, in_cluster: bool, now: Instant, slice: Slice) -> Option<LockName> {
    loop {
        let (position, name) = next_of_round(in_cluster, now, slice)?;
        if let Some(name) = name {
            return Some(name);
        }
        // A long key in a cluster.
        let (db, _) = position;
        context.select(db);
        let slot_key = state::with(|state| state.store.dropped_locks.slot_key_at(position))?;
        if context.slot_gate(&KeyName::copied(db, &slot_key)) == WriteGate::NotServed {
            return state::with(|state| Some((db, state.store.dropped_locks.key_at(position)?.into())));
        }
        if slice.is_over() {
            return None;
        }
    }
}

/// The next position of the round, with the name unless it is a long key of which only the slot is to be checked.
fn next_of_round(in_cluster: bool, now: Instant, slice: Slice) -> Option<(SweepPosition, Option<LockName>)> {
    const CLOCK_READ_EVERY: usize = 64;
    state::with(|state| {
        let last = state.sweeps.dropped_lock;
        state.sweeps.dropped_lock = None;
        for (nth, (position, key, lock)) in state.store.dropped_locks.after(last).enumerate() {
            let is_due = key.len() <= LONGEST_SWEPT_KEY || lock.first_deadline() <= Some(now);
            let pauses = nth % CLOCK_READ_EVERY == 0 && nth > 0 && slice.is_over();
            if is_due || in_cluster || pauses {
                let name = is_due.then(|| (position.0, key.into()));
                state.sweeps.dropped_lock = Some(position);
                return (is_due || in_cluster).then_some((position, name));
            }
        }
        None
    })
}

/// Serves a wait queue, or ends its waits. False while the server allows no write.
fn expire_and_serve(context: Context, queue: QueueId, now: Instant, slice: Slice) -> bool {
    let Some((db, key)) = state::with(|state| state.store.queues.name(queue)) else { return true };
    let (name, gate) = name_and_gate(context, db, &key);
    match gate {
        WriteGate::Open => {
            if let Err(WrongType) = transaction::run(context, &name, |decision| decision.recheck()) {
                end_waits_in(queue, Outcome::WrongType, now, slice);
            }
            true
        }
        WriteGate::Refused | WriteGate::Down => {
            state::with(|state| state.store.queues.set_due(queue, Some(now.after(RETRY))));
            false
        }
        WriteGate::NotServed => {
            state::with(|state| state.break_dropped(&name, now));
            end_waits_in(queue, Outcome::NotServed, now, slice);
            true
        }
    }
}

/// Clients cannot wait at a replica.
fn end_waits_at_replica(slice: Slice) {
    let now = mono();
    let queues: Vec<QueueId> = state::with(|state| {
        if state.store.is_replica() { state.store.queues.queues().collect() } else { Vec::new() }
    });
    end_waits_in_queues(queues, Outcome::BecameReplica, now, slice);
}

/// Ends the waits in queues, as far as there is time.
fn end_waits_in_queues(queues: Vec<QueueId>, outcome: Outcome, now: Instant, slice: Slice) {
    for queue in queues {
        end_waits_in(queue, outcome, now, slice);
        if slice.is_over() {
            return;
        }
    }
}

/// Ends the waits in a queue. If there is no time for all, the rest is due in the next pass.
fn end_waits_in(queue: QueueId, outcome: Outcome, now: Instant, slice: Slice) {
    while let Some((waiter, _)) = state::with(|state| state.store.queues.pop_front(queue)) {
        waiters::end_wait(Completion { waiter, outcome });
        if slice.is_over() {
            state::with(|state| state.set_due(queue, Some(now), now));
            return;
        }
    }
}
