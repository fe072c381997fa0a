//! The keyspace events of locks, as a watcher reads them.

use std::time::SystemTime;

/// How many changes of one lock are kept until the lock is read. Of later changes, only the acquisitions are counted.
const KEPT: usize = 64;

/// What an event says about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Acquired,
    /// A hold was released: the last hold, or one of several holds.
    Released,
    /// A lease ended. The event may also mean that the server only dropped the key, and the module kept the tenure.
    Expired,
    /// The key was removed or replaced, for this reason.
    Broken(&'static str),
    /// The key came from another name, from another database or from a dump. The text says which.
    Arrived(&'static str),
    /// LOCK.RENEW changed the lease or the limit.
    Renewed,
    /// The event says nothing about the tenures.
    Other,
}

impl Change {
    /// The change that the event of this name reports.
    pub(super) fn of(event: &[u8]) -> Self {
        match event {
            b"lock.acquired" => Self::Acquired,
            b"lock.released" => Self::Released,
            b"expired" => Self::Expired,
            b"del" => Self::Broken("deleted"),
            b"rename_from" => Self::Broken("renamed"),
            b"move_from" => Self::Broken("moved to another database"),
            b"rename_to" => Self::Arrived("renamed"),
            b"move_to" => Self::Arrived("moved from another database"),
            b"restore" => Self::Arrived("restored"),
            b"lock.renewed" => Self::Renewed,
            b"expire" | b"persist" | b"evicted" | b"new" | b"keymiss" => Self::Other,
            // Events of other data types mean that another value has replaced the lock.
            _ => Self::Broken("overwritten"),
        }
    }

    /// Whether a key that the watcher does not know may be a lock after this event.
    pub(super) fn may_create(self) -> bool {
        matches!(self, Self::Acquired | Self::Released | Self::Arrived(_) | Self::Renewed)
    }

    /// Whether the change may end a tenure.
    pub(super) fn is_end(self) -> bool {
        // A key that arrives from elsewhere replaces a lock too, but `Comparison::ended_without_event` reports this
        // end.
        matches!(self, Self::Released | Self::Expired | Self::Broken(_))
    }
}

/// The changes of one lock since its last reading, in their order. At most [`KEPT`] changes are stored.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) changes: Vec<(Change, SystemTime)>,
    /// The number of acquisitions that are not in `changes`.
    pub(super) more_acquired: usize,
    pub(super) renewed: bool,
}

impl Published {
    /// Adds a change that was reported at this time.
    pub(super) fn add(&mut self, change: Change, at: SystemTime) {
        match change {
            Change::Other => {}
            Change::Renewed => self.renewed = true,
            _ if self.changes.len() < KEPT => self.changes.push((change, at)),
            Change::Acquired => self.more_acquired += 1,
            Change::Released | Change::Expired | Change::Broken(_) | Change::Arrived(_) => {}
        }
    }
}
