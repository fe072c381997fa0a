//! The keyspace events of locks, as a watcher reads them.

use std::time::SystemTime;

/// How many events of one lock are kept until it is read. The others are only counted.
const KEPT: usize = 64;

/// What an event says about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Acquired,
    /// A hold was released. It was the last one if the tenure is over.
    Released,
    /// A lease ended. Or the server only dropped the key, and the tenure is kept.
    Expired,
    /// The key went away or was replaced, for this reason.
    Broken(&'static str),
    /// The key arrived from another name, database or file, in this way.
    Arrived(&'static str),
    /// Only the lease changed, or nothing.
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
            b"lock.renewed" | b"expire" | b"persist" | b"evicted" | b"new" | b"keymiss" => Self::Other,
            // Only a key that is replaced has events of other types.
            _ => Self::Broken("overwritten"),
        }
    }

    /// Whether a key that is not known as a lock may be a lock after this event.
    pub(super) fn may_create(self, event: &[u8]) -> bool {
        match self {
            Self::Acquired | Self::Released | Self::Arrived(_) => true,
            Self::Other => event == b"lock.renewed",
            Self::Expired | Self::Broken(_) => false,
        }
    }

    /// Whether it may end a tenure.
    pub(super) fn is_end(self) -> bool {
        match self {
            Self::Released | Self::Expired | Self::Broken(_) => true,
            // A key that arrives from elsewhere replaces the lock that was there.
            Self::Arrived(_) | Self::Acquired | Self::Other => false,
        }
    }
}

/// The events of one lock since it was last read, in their order. The memory is bounded.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) changes: Vec<(Change, SystemTime)>,
    /// Acquisitions that are not among the changes.
    pub(super) more_acquired: usize,
    pub(super) renewed: bool,
}

impl Published {
    /// Notes an event that arrived at a time.
    pub(super) fn add(&mut self, event: &[u8], at: SystemTime) {
        let change = Change::of(event);
        self.renewed |= event == b"lock.renewed";
        if change == Change::Other {
            return;
        }
        if self.changes.len() < KEPT {
            self.changes.push((change, at));
        } else if change == Change::Acquired {
            self.more_acquired += 1;
        }
    }
}
