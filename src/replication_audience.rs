//! Whether anybody may hear what changes: a replica, the backlog for one, or the AOF.
//!
//! Telling is the dearest part of a change, and most of it is done before the server finds that nobody listens. So the
//! module asks beforehand, and not at each change, since asking is dear too: at each turn of the server's cron, and until
//! that has found nobody, somebody listens. Why nothing is missed in between:
//!
//! - What the cron finds is what the server itself goes by when it is given something to send. While that stays so, it
//!   drops all that it is given, of this module as of its own commands.
//! - It ends when a replica asks for a snapshot, when an AOF is switched on, with another role and with other data. The
//!   server tells of all but the first, and of each snapshot: of the child that makes it, and of one that is saved in the
//!   foreground. From then on somebody listens.
//! - A replica that waits for its snapshot is not sent what changes. The backlog that is made for it is, but under a new
//!   replication id, which others learn from the snapshot alone, along with where in the backlog to go on: behind all
//!   that was given before.
//! - A server that starts makes its backlog and its AOF before its cron runs for the first time.
//! - The cron does not run within a transaction or a script, so nobody is found only in between.
//!
//! In a cluster a slot that moves may have listeners of its own, so there somebody always listens; and on a server that is
//! newer than those whose source has been read for all this. docs/design.md names the functions.

/// Whether anybody may hear what changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicationAudience {
    none: bool,
    can_be_known: bool,
}

impl ReplicationAudience {
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
