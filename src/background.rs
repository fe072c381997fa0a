//! The work that no command asks for: leases that end while somebody waits, wait limits, keys that vanished, grants
//! that could not be told, shadows of which replicas and the AOF do not know.
//!
//! Done when the alarm goes off. What a waiter is granted here is a write, and obeys what would refuse a client's
//! write; until it may be done, it is tried again. Ending a wait is not a write, and is never refused.

use crate::info_section;
use crate::server::{
    Content, Context, KeyName, OpenKey, WriteGate, WrongType, clock, info, mono, stop_watching_commands,
};
use crate::state;
use crate::statistics::count;
use crate::transaction;
use crate::waiters;
use lockward_core::{Completion, Db, Instant, LONGEST_SWEPT_KEY, LockName, Outcome, QueueId, Span};

/// How long the work goes on before clients are let in again, in microseconds. By time and not by count, as what one piece
/// of work costs depends on names, on the server and on who listens.
const AT_ONCE: i64 = 1_000;

/// How many waited-for keys are looked at before clients are let in again. Their names are short, so a number is a bound: some
/// 0.4 ms. With 10,000 waited-for keys, the most there may be by default, a round takes 20 slices and 0.17 seconds.
const KEYS_AT_ONCE: usize = 500;

/// Leases that end later than this are left to the next round.
const SOON: Span = match Span::from_millis(1_000) {
    Some(span) => span,
    None => Span::MAX,
};

/// How long keys in a cluster, and shadows, are looked at before clients are let in again, in microseconds: the server is asked
/// more about them.
const LOOKS_AT_ONCE: i64 = 300;

/// After so many refused writes in one slice, the work pauses for [`HELD_BACK`].
const REFUSED_AT_ONCE: usize = 100;

/// How soon work that the server does not allow now is tried again.
const HELD_BACK: Span = match Span::from_millis(20) {
    Some(span) => span,
    None => Span::MAX,
};

/// The alarm has gone off.
pub fn timer_fired() {
    state::with(|state| state.wakeup_timer.fired());
}

/// The server's cron: reads the wall clock for the steps to come, finds out whether nobody listens, and sets the alarm:
/// should the wall clock have been set back, the server's timers stand still. And sees whether the statistics begin anew.
pub fn tick() {
    clock::read();
    if state::with(|state| state.unlinked.is_none()) {
        stop_watching_commands();
    }
    info_section::notice_reset_now_and_then();
    if state::with(|state| !state.follows() && state.replication_audience.can_be_known()) {
        let none = info::has_no_replication_audience();
        state::with(|state| state.replication_audience.found(none));
    }
    rearm();
}

/// Sets the alarm for the next work.
pub fn rearm() {
    let now = mono();
    state::with(|state| state.look_at(&[], now));
}

/// The part of a turn of the event loop that some work may take. There is always time for one piece of it.
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

/// Does what is due, for one slice of time. What is left is due in the next turn of the event loop.
pub fn work(context: Context) {
    let now = mono();
    let slice = Slice::of_micros(AT_ONCE);
    end_waits(now, slice);
    // What was unlinked in an earlier turn of the event loop has been told by now.
    stop_watching_commands();
    let (follows, lines_are_due, shadows_are_due) = state::with(|state| {
        state.note_unlinked(now);
        if state.quarantine.ends(now).is_none() {
            state.forget_seen();
        }
        (
            state.follows(),
            state.wakeup_timer.queues.are_due(now),
            state.wakeup_timer.dropped_locks.are_due(now),
        )
    });
    if follows {
        state::with(|state| state.pending.drop_undelivered());
        send_replicas_waiters_away(slice);
        return;
    }
    if Context::paused() {
        hold_back(now);
        return;
    }
    pass_on(context, now, slice);
    put_back(context, now, slice);
    tell_of_shadows(context, slice);
    serve_due(context, now, slice);
    if lines_are_due {
        let round_is_over = sweep(context, now, Slice::of_micros(LOOKS_AT_ONCE));
        state::with(|state| state.wakeup_timer.queues.went_on(round_is_over, mono()));
    }
    if shadows_are_due {
        let round_is_over = patrol_shadows(context, now, Slice::of_micros(LOOKS_AT_ONCE));
        state::with(|state| state.wakeup_timer.dropped_locks.went_on(round_is_over, mono()));
    }
}

fn hold_back(now: Instant) {
    state::with(|state| state.wakeup_timer.hold_back(now.after(HELD_BACK)));
}

/// The name of a lock whose database is selected, and whether the server would let a client write to it now.
fn name_and_gate(context: Context, db: Db, key: &[u8]) -> (KeyName<'static>, WriteGate) {
    let name = KeyName::copied(db, key);
    context.select(db);
    let gate = context.write_gate(&name);
    (name, gate)
}

fn end_waits(now: Instant, slice: Slice) {
    while let Some(waiter) = state::with(|state| state.queues.pop_limit_reached(now)) {
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
                let passed_on = transaction::run(context, &name, |step| {
                    step.pass_on(&undelivered.owner, undelivered.token);
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
    while let Some((db, key)) = state::with(|state| state.to_put_back.pop_front()) {
        let (name, gate) = name_and_gate(context, db, &key);
        match gate {
            WriteGate::Open => transaction::put_back(context, &name),
            WriteGate::Refused | WriteGate::Down => {
                state::with(|state| state.to_put_back.push_back((db, key)));
                return hold_back(now);
            }
            WriteGate::NotServed => state::with(|state| state.break_shadow(&name, now)),
        }
        if slice.is_over() {
            return;
        }
    }
    state::with(|state| state.to_put_back.shrink_to_fit());
}

/// Tells replicas and the AOF of shadows that were kept or forgotten. That is nothing new: it only says what the server's
/// own DEL has left out, and waits for nothing but the end of a pause.
fn tell_of_shadows(context: Context, slice: Slice) {
    while let Some((db, key)) = state::with(|state| state.dropped_locks.pop_unreplicated()) {
        context.select(db);
        transaction::tell_of_shadow(context, &KeyName::copied(db, &key));
        if slice.is_over() {
            return;
        }
    }
}

/// Serves those who wait for locks that are due.
fn serve_due(context: Context, now: Instant, slice: Slice) {
    let mut refused = 0;
    while let Some(queue) = state::with(|state| state.queues.pop_due(now)) {
        if !expire_and_serve(context, queue, now, slice) {
            refused += 1;
        }
        let is_over = slice.is_over();
        if refused == REFUSED_AT_ONCE || (refused > 0 && is_over) {
            return hold_back(now);
        }
        if is_over {
            return;
        }
    }
}

/// Looks for keys that changed without an event: opens waited-for keys in turn, some at a time. In a cluster it also asks whether
/// this node still serves a key that is missing: its slot may have left without an event for it. Returns whether all keys have had
/// their turn.
fn sweep(context: Context, now: Instant, slice: Slice) -> bool {
    let queues: Vec<(QueueId, LockName)> = state::with(|state| {
        let queues: Vec<_> = state.queues.after(state.swept).take(KEYS_AT_ONCE).collect();
        state.swept = queues.last().filter(|_| queues.len() == KEYS_AT_ONCE).map(|(queue, _)| *queue);
        queues
    });
    let cluster = context.flags().cluster().then(|| info::cluster_state(context));
    if cluster == Some(ClusterState::Down) {
        // Not every server tells those who wait. A lock that may be handed over again soon is no reason to keep them: it
        // may be another node that does it.
        let all: Vec<QueueId> = state::with(|state| state.queues.queues().collect());
        send_all_away(all, Outcome::NotServed, now, slice);
        return false;
    }
    let soon = now.after(SOON);
    for (queue, (db, key)) in queues {
        let name = KeyName::copied(db, &key);
        context.select(db);
        // To open it makes the server drop it when its TTL, set by hand, has passed.
        let mut key = OpenKey::for_write(context, &name);
        let changed = match key.content() {
            Content::Missing => in_cluster && context.slot_gate(&name) == WriteGate::NotServed,
            Content::WrongType => true,
            Content::Lock(lock) => {
                let ends = lock.first_deadline();
                ends <= Some(soon) && state::with(|state| state.queues.due(queue) > ends)
            }
        };
        if changed {
            state::with(|state| state.queues.set_due(queue, Some(now)));
        }
        if cluster.is_some() && slice.is_over() {
            state::with(|state| state.swept = Some(queue));
            return false;
        }
    }
    state::with(|state| state.swept.is_none())
}

/// Whether the cluster is down, in which no node serves this key or any other.
fn is_down(context: Context, key: &[u8]) -> bool {
    context.slot_gate(&KeyName::copied(Db(0), key)) == WriteGate::Down
}

/// The same for a long key, of which only the slot is asked, by a short key of it. A lock that is here while its slot is on its way
/// to this node keeps its waiters.
fn has_long_key_left(context: Context, queue: QueueId, db: Db, key: &[u8], cluster: ClusterState) -> bool {
    let Some(slot_key) = state::with(|state| state.queues.slot_key(queue)) else { return false };
    context.slot_gate(GATE, &OwnedName::new(db, &slot_key).name()) == WriteGate::NotServed
        && (cluster == ClusterState::SlotsMissing
            || matches!(
                OpenKey::for_write(context, &OwnedName::new(db, key).name()).content(),
                Content::Missing
            ))
}

/// Looks at dropped locks in turn, some at a time: whether a lease is over, something stands in their place, or another node
/// serves them now. Before the lease is over, a long key is looked at only in a cluster, by a short key of its slot. Returns whether
/// all have had their turn.
fn patrol_shadows(context: Context, now: Instant, slice: Slice) -> bool {
    let in_cluster = context.flags().cluster();
    while let Some((db, key)) = next_shadow(now, slice) {
        let name = KeyName::copied(db, &key);
        context.select(db);
        let missing = matches!(OpenKey::for_write(context, &name).content(), Content::Missing);
        let runs = |state: &mut state::State| {
            let dropped_lock = state.dropped_locks.get(db, &key);
            dropped_lock.is_some_and(|lock| lock.first_deadline() > Some(now))
        };
        let stands = missing && state::with(runs);
        if !stands || in_cluster {
            match context.write_gate(&name) {
                WriteGate::Open if stands => {}
                // What stands in its place breaks it, a lock or not.
                WriteGate::Open => {
                    let (Ok(()) | Err(WrongType)) =
                        transaction::run(context, &name, |step| step.expire_and_serve());
                }
                WriteGate::Refused | WriteGate::Down => {}
                WriteGate::NotServed => state::with(|state| state.break_shadow(&name, now)),
            }
        }
        if slice.is_over() {
            return false;
        }
    }
    state::with(|state| state.patrolled_shadow.is_none())
}

/// The next dropped lock of the round whose key is to be looked at. Where the round is over, or the slice, there is none.
fn next_shadow(context: Context, in_cluster: bool, now: Instant, slice: Slice) -> Option<LockName> {
    loop {
        let (position, name) = next_of_round(in_cluster, now, slice)?;
        if let Some(name) = name {
            return Some(name);
        }
        // A long key in a cluster.
        let (db, _) = position;
        context.select(db);
        let slot_key = state::with(|state| state.dropped_locks.slot_key_at(position))?;
        if context.slot_gate(GATE, &OwnedName::new(db, &slot_key).name()) == WriteGate::NotServed {
            return state::with(|state| Some((db, state.dropped_locks.key_at(position)?.into())));
        }
        if slice.is_over() {
            return None;
        }
    }
}

/// The next position of the round, with the name unless it is a long key of which only the slot is to be looked at.
fn next_of_round(in_cluster: bool, now: Instant, slice: Slice) -> Option<(SweepPosition, Option<LockName>)> {
    const BETWEEN_LOOKS_AT_THE_CLOCK: usize = 64;
    state::with(|state| {
        let last = state.patrolled_shadow;
        state.patrolled_shadow = None;
        for (nth, (position, key, lock)) in state.dropped_locks.after(last).enumerate() {
            let is_due = key.len() <= LONGEST_SWEPT_KEY || lock.first_deadline() <= Some(now);
            let rests = nth % BETWEEN_LOOKS_AT_THE_CLOCK == 0 && nth > 0 && slice.is_over();
            if is_due || in_cluster || rests {
                let name = is_due.then(|| (position.0, key.into()));
                state.patrolled_shadow = Some(position);
                return (is_due || in_cluster).then_some((position, name));
            }
        }
        None
    })
}

/// Serves those who wait in a line, or sends them away. False while the server allows no write.
fn expire_and_serve(context: Context, queue: QueueId, now: Instant, slice: Slice) -> bool {
    let Some((db, key)) = state::with(|state| state.queues.name(queue)) else { return true };
    let (name, gate) = name_and_gate(context, db, &key);
    match gate {
        WriteGate::Open => {
            if let Err(WrongType) = transaction::run(context, &name, |step| step.recheck()) {
                send_away(queue, Outcome::WrongType, now, slice);
            }
            true
        }
        WriteGate::Refused | WriteGate::Down => {
            state::with(|state| state.queues.set_due(queue, Some(now.after(HELD_BACK))));
            false
        }
        WriteGate::NotServed => {
            state::with(|state| state.break_shadow(&name, now));
            send_away(queue, Outcome::NotServed, now, slice);
            true
        }
    }
}

/// Nobody waits at a replica.
fn send_replicas_waiters_away(slice: Slice) {
    let now = mono();
    let queues: Vec<QueueId> =
        state::with(|state| if state.replica { state.queues.queues().collect() } else { Vec::new() });
    send_all_away(queues, Outcome::BecameReplica, now, slice);
}

/// Ends the waits in lines, as far as there is time.
fn send_all_away(queues: Vec<QueueId>, outcome: Outcome, now: Instant, slice: Slice) {
    for queue in queues {
        send_away(queue, outcome, now, slice);
        if slice.is_over() {
            return;
        }
    }
}

/// Ends the waits in a line. Those for which there is no time now are looked at again in the next turn.
fn send_away(queue: QueueId, outcome: Outcome, now: Instant, slice: Slice) {
    while let Some((waiter, _)) = state::with(|state| state.queues.pop_front(queue)) {
        waiters::end_wait(Completion { waiter, outcome });
        if slice.is_over() {
            state::with(|state| state.set_due(queue, Some(now), now));
            return;
        }
    }
}
