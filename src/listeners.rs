//! Whether anybody may hear what changes: a replica, the backlog for one, or the AOF.
//!
//! Telling is the dearest part of a change, and most of it is done before the server finds that nobody listens. So the
//! module asks beforehand, and not at each change, since asking is dear too. It takes for granted that somebody listens
//! until the server's cron has asked, and does so again at once when that may have ended:
//!
//! - A replica needs a snapshot before it can hear changes, and so does an AOF that is switched on. A snapshot is made by
//!   a child process, and the server says when it forks one. What changes before the fork is in the snapshot.
//! - A replica that goes on without a snapshot finds what it missed in the backlog. Where there is one, somebody listens.
//! - A server that starts makes its backlog and its AOF before its cron runs for the first time.
//! - A server that becomes primary or replica, or loads data, says so.
//!
//! In a cluster a slot that moves may have listeners of its own, so there somebody always listens; and on a server that is
//! newer than those whose source has been read for all this.

/// Whether anybody may hear what changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listeners {
    none: bool,
    can_be_known: bool,
}

impl Listeners {
    /// There may be some. Whether that can change depends on the server.
    pub const fn new(can_be_known: bool) -> Self {
        Self { none: false, can_be_known }
    }

    /// Whether it is worth asking if there are any.
    pub const fn can_be_known(self) -> bool {
        self.can_be_known
    }

    /// Whether there are none, for certain.
    pub const fn none(self) -> bool {
        self.none
    }

    /// From now on there may be some.
    pub const fn may_come(&mut self) {
        self.none = false;
    }

    /// What the server's cron has found: whether there are none.
    pub const fn found(&mut self, none: bool) {
        self.none = none;
    }
}
