//! The sweeps check waited-for keys and dropped locks, to find changes for which the server sends no event. A dropped
//! lock is a held lock that the server evicted or expired early. In each round a sweep checks all its keys, in slices,
//! so that the server can serve clients in between.

use crate::server::clock::Slice;
use crate::server::{ClusterState, Context, KeyName, OpenKey, WriteGate, WrongType, cluster_state};
use crate::state::{self, State};
use crate::{transaction, waiters};
use lockward_core::{
    Db, Instant, LONGEST_SWEPT_KEY, LockName, Outcome, QueueId, QueueSweepPosition, SweepPosition,
};

/// How many waited-for keys are checked before clients are served again. A check of 500 keys takes about 0.4 ms,
/// because the sweep opens only keys with short names. By default there may be at most 10,000 waited-for keys. A round
/// through these keys takes 20 slices and 0.17 seconds.
const KEYS_IN_SLICE: usize = 500;

/// Looks for keys that changed without an event: opens waited-for keys one after the other, in slices. In a cluster,
/// this function also asks whether this node still serves a missing key, because the key's slot may have moved without
/// an event. Returns whether the round is over.
pub fn sweep_queues(context: Context, now: Instant, slice: Slice) -> bool {
    let queues: Vec<(QueueSweepPosition, LockName)> = state::with(|state| {
        let queues: Vec<_> = state.store.queues.after(state.last_swept_queue).take(KEYS_IN_SLICE).collect();
        state.last_swept_queue = queues.last().filter(|_| queues.len() == KEYS_IN_SLICE).map(|(at, _)| *at);
        queues
    });
    let cluster = context.flags().cluster().then(|| cluster_state(context));
    if cluster == Some(ClusterState::Down) {
        // Not every server ends the waits itself when its cluster is down, so the module ends the waits. The module
        // does not wait until the cluster is up again, because another node may serve the key then.
        waiters::end_all_waits(Outcome::NotServed, now, slice);
        return false;
    }
    for (position, (db, key)) in queues {
        let (.., queue) = position;
        context.select(db);
        let changed = if key.len() > LONGEST_SWEPT_KEY {
            cluster.is_some_and(|cluster| has_long_key_left(context, queue, db, &key, cluster))
        } else {
            has_changed(context, queue, &KeyName::copied(db, &key), cluster)
        };
        if changed {
            state::with(|state| state.store.queues.set_changed(queue, now));
        }
        if cluster.is_some() && slice.is_over() {
            state::with(|state| state.last_swept_queue = Some(position));
            return false;
        }
    }
    state::with(|state| state.last_swept_queue.is_none())
}

/// Whether a wait queue must be checked before its due time: the key holds another value, this node does not serve the
/// key, or a lease ends before the due time. In the last case, a lock has got the name of a missing key, for example by
/// RENAME.
fn has_changed(context: Context, queue: QueueId, name: &KeyName<'_>, cluster: Option<ClusterState>) -> bool {
    let not_served = || context.slot_gate(name) == WriteGate::NotServed;
    // If a client has set a TTL that has passed, the server deletes the key when the module opens it.
    match OpenKey::for_write(context, name).content() {
        Ok(None) => cluster.is_some() && not_served(),
        Err(WrongType) => true,
        Ok(Some(lock)) => {
            let missed = |ends| state::with(|state| state.store.queues.has_missed_change(queue, ends));
            lock.first_deadline().is_some_and(missed)
                || (cluster == Some(ClusterState::SlotsMissing) && not_served())
        }
    }
}

/// Whether this node does not serve a long key any more. The function asks the server only about the slot, with a short
/// key of the same slot. While a slot moves to this node, the waiters for a lock that has already arrived stay in the
/// queue.
fn has_long_key_left(context: Context, queue: QueueId, db: Db, key: &[u8], cluster: ClusterState) -> bool {
    let Some(slot_key) = state::with(|state| state.store.queues.slot_key(queue)) else { return false };
    let missing = || matches!(OpenKey::for_write(context, &KeyName::copied(db, key)).content(), Ok(None));
    context.slot_gate(&KeyName::copied(db, &slot_key)) == WriteGate::NotServed
        && (cluster == ClusterState::SlotsMissing || missing())
}

/// Checks dropped locks one after the other, in slices: whether a lease is over, the key holds another value, or
/// another node serves the key now. Before its lease is over, a dropped lock with a long key is checked only in a
/// cluster, by a short key of its slot. Returns whether the round is over.
pub fn sweep_dropped_locks(context: Context, now: Instant, slice: Slice) -> bool {
    let in_cluster = context.flags().cluster();
    while let Some((db, key)) = next_dropped_lock(context, in_cluster, now, slice) {
        let name = KeyName::copied(db, &key);
        context.select(db);
        let missing = matches!(OpenKey::for_write(context, &name).content(), Ok(None));
        let runs = |state: &mut State| {
            let dropped = state.store.dropped_locks.get(db, &key);
            dropped.is_some_and(|lock| lock.first_deadline() > Some(now))
        };
        let stands = missing && state::with(runs);
        if !stands || in_cluster {
            match context.write_gate(&name) {
                WriteGate::Open if stands => {}
                // Any value under the key of the dropped lock ends this lock, even another lock.
                WriteGate::Open => {
                    let (Ok(()) | Err(WrongType)) =
                        transaction::run(context, &name, |decision| decision.expire_and_serve());
                }
                WriteGate::Refused => {}
                WriteGate::NotServed => state::with(|state| state.break_dropped(&name, now)),
            }
        }
        if slice.is_over() {
            return false;
        }
    }
    state::with(|state| state.last_swept_dropped_lock.is_none())
}

/// The next dropped lock of the round whose key must be checked. None when the round or the slice is over.
fn next_dropped_lock(context: Context, in_cluster: bool, now: Instant, slice: Slice) -> Option<LockName> {
    loop {
        let (position, name) = next_of_round(in_cluster, now, slice)?;
        if let Some(name) = name {
            return Some(name);
        }
        // For a long key in a cluster, `next_of_round` returns no name. For such a key, only the slot is
        // checked.
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

/// The next position of the round. The name is missing for a long key of which only the slot must be checked.
fn next_of_round(in_cluster: bool, now: Instant, slice: Slice) -> Option<(SweepPosition, Option<LockName>)> {
    const CLOCK_READ_EVERY: usize = 64;
    state::with(|state| {
        let last = state.last_swept_dropped_lock;
        state.last_swept_dropped_lock = None;
        for (nth, (position, key, lock)) in state.store.dropped_locks.after(last).enumerate() {
            let is_due = key.len() <= LONGEST_SWEPT_KEY || lock.first_deadline() <= Some(now);
            let pauses = nth % CLOCK_READ_EVERY == 0 && nth > 0 && slice.is_over();
            if is_due || in_cluster || pauses {
                let name = is_due.then(|| (position.0, key.into()));
                state.last_swept_dropped_lock = Some(position);
                return (is_due || in_cluster).then_some((position, name));
            }
        }
        None
    })
}
