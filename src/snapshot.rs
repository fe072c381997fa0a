//! How shadows get into snapshots, and out of them again.
//!
//! A snapshot holds what is in the keyspace. So for the time in which it is written each database with shadows has one
//! key more, a *carrier*, whose value is written as all of them. Mostly that is in the child that writes it, where nobody
//! sees it; for SAVE and at a shutdown it is in the server itself, which does nothing else meanwhile. Where a carrier is
//! read, its shadows are shadows again at set_once, before whatever the AOF or the primary tells of them next; the key itself
//! goes when the data set is loaded.
//!
//! The locks are not written as keys of their own: a replica, or an AOF, that has a key more than the primary had would
//! come to something else with the next SETNX.

use crate::server::{Context, KeyName, OpenKey, clock, global_flags, subscriptions};
use crate::{state, stored};
use lockward_core::{Db, Lock, Now};
use uuid::Uuid;

/// One shadow as a carrier has it.
pub struct Carried {
    /// The key of the lock.
    pub key: Vec<u8>,
    /// The lock, encoded.
    pub payload: Vec<u8>,
}

/// A snapshot is about to be written.
pub fn begins(context: Context) {
    let databases: Vec<Db> = state::with(|state| state.dropped_locks.databases().collect());
    for db in databases {
        // A name that nobody has: what has this name already, though its TTL has passed, might not be seen.
        let key = format!("lockward:shadows:{}", Uuid::new_v4()).into_bytes();
        let name = KeyName::copied(db, &key);
        context.select(db);
        OpenKey::for_write(context, &name).create_carrier();
        state::with(|state| state.carriers.push((db, key.into())));
    }
}

/// A snapshot has been written, or a data set has been loaded: carriers are not needed any more.
pub fn ends(context: Context) {
    for (db, key) in state::with(|state| std::mem::take(&mut state.carriers)) {
        let name = KeyName::copied(db, &key);
        context.select(db);
        OpenKey::for_write(context, &name).delete_carrier();
    }
}

/// What the carrier of a database is written as: each shadow under its key, as `append` encodes it.
pub fn carried(db: Db, append: impl Fn(&mut Vec<u8>, &Lock, Now)) -> Vec<Carried> {
    let now = clock::read();
    let carry = |(key, lock): (&[u8], &Lock)| {
        let mut payload = Vec::new();
        append(&mut payload, lock, now);
        Carried { key: key.to_vec(), payload }
    };
    state::with(|state| state.dropped_locks.of(db).map(carry).collect())
}

/// A carrier has been read, under this name. False when it is refused: no client has one, and what it holds must be
/// locks.
pub fn load(db: Db, name: &[u8], all: &[Carried]) -> bool {
    if !global_flags().loading_somehow() {
        return false;
    }
    subscriptions::subscribe_new_keys();
    let locks = all.iter().map(|carried| stored::load(&carried.payload));
    let Some(locks) = locks.collect::<Option<Vec<Lock>>>() else { return false };
    state::with(|state| {
        let dropped_locks = state.loaded_beside.as_mut().unwrap_or(&mut state.dropped_locks);
        all.iter().zip(locks).for_each(|(carried, lock)| dropped_locks.put(db, &carried.key, lock));
        state.carriers.push((db, name.into()));
    });
    true
}
