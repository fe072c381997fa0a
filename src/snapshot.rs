//! How dropped locks (held locks that the server evicted or expired early) are written to snapshots and read from
//! snapshots.
//!
//! A snapshot contains only the keyspace. So while a snapshot is written, each database with dropped locks
//! has one more key, a *snapshot key*. All dropped locks of the database are written as the value of this
//! key. Usually the key exists only in the child process that writes the snapshot, where no client sees it.
//! For SAVE and at a shutdown the key exists in the server itself, which serves no client meanwhile. When a
//! snapshot key is read, its locks become dropped locks at once, before the AOF or the primary sends changes
//! of these locks. The key itself is deleted when the data set is loaded.
//!
//! The locks are not written as keys of their own. With such keys, a replica or an AOF would have more keys than the
//! primary. SETNX of such a key would have a different result on the replica, or when the AOF is loaded.

use crate::server::{Context, KeyName, OpenKey, clock, global_flags, subscriptions};
use crate::{state, stored};
use lockward_core::{Db, Lock, Now};
use uuid::Uuid;

/// A dropped lock in the value of a snapshot key.
pub struct Carried {
    /// The key of the lock.
    pub key: Vec<u8>,
    /// The lock, encoded.
    pub payload: Vec<u8>,
}

/// A snapshot is about to be written.
pub fn begins(context: Context) {
    let databases: Vec<Db> = state::with(|state| state.store.dropped_locks.databases().collect());
    for db in databases {
        // The name is new each time, because a key of a fixed name might already exist with a TTL that has
        // passed.
        let key = format!("lockward:dropped:{}", Uuid::new_v4()).into_bytes();
        let name = KeyName::copied(db, &key);
        context.select(db);
        OpenKey::for_write(context, &name).create_snapshot_key();
        state::with(|state| state.snapshot_keys.push((db, key.into())));
    }
}

/// A snapshot has been written, or a data set has been loaded: snapshot keys are no longer needed.
pub fn ends(context: Context) {
    for (db, key) in state::with(|state| std::mem::take(&mut state.snapshot_keys)) {
        let name = KeyName::copied(db, &key);
        context.select(db);
        OpenKey::for_write(context, &name).delete_snapshot_key();
    }
}

/// The value of the snapshot key of a database: each dropped lock under its key, as `append` encodes it.
pub fn carried(db: Db, append: impl Fn(&mut Vec<u8>, &Lock, Now)) -> Vec<Carried> {
    let now = clock::read();
    let carry = |(key, lock): (&[u8], &Lock)| {
        let mut payload = Vec::new();
        append(&mut payload, lock, now);
        Carried { key: key.to_vec(), payload }
    };
    state::with(|state| state.store.dropped_locks.of(db).map(carry).collect())
}

/// A snapshot key with this name has been read. Returns false to refuse the key: the server is not loading, or the
/// value does not consist of locks.
pub fn load(db: Db, name: &[u8], all: &[Carried]) -> bool {
    if !global_flags().loading_or_async_loading() {
        return false;
    }
    subscriptions::subscribe_new_keys();
    let locks = all.iter().map(|carried| stored::load(&carried.payload));
    let Some(locks) = locks.collect::<Option<Vec<Lock>>>() else { return false };
    state::with(|state| {
        all.iter().zip(locks).for_each(|(carried, lock)| state.store.load_dropped(db, &carried.key, lock));
        state.snapshot_keys.push((db, name.into()));
    });
    true
}
