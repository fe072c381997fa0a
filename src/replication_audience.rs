//! Whether there is an audience for changes: a replica, the replication backlog, or the AOF.
//!
//! Replication is the most costly part of a change. The server finds only at the end of replication that there is no
//! audience. So the module asks the server beforehand. Asking is costly too, so the module asks once in each run of the
//! server's cron. Until the cron has found that there is no audience, the module assumes an audience. An audience that
//! comes between two runs of the cron still misses no change, for these reasons:
//!
//! - The cron asks for the same facts by which the server itself decides whether to send changes. While these facts
//!   hold, the server drops the changes of this module and of the server's own commands.
//! - An audience comes when a replica asks for a snapshot, when an AOF is switched on, when the role changes, or when
//!   other data is loaded. The server sends an event in each of these cases, except when a replica asks for a snapshot.
//!   But the server also sends an event for each snapshot, whether a child process or the server itself makes the
//!   snapshot. After such an event the module assumes an audience, until the cron has found that there is none.
//! - The server does not send changes to a replica that waits for its snapshot. These changes go into the
//!   backlog for that replica, under a new replication id. Other servers learn this id only from the
//!   snapshot, together with the offset in the backlog from which they must continue. This offset comes after
//!   all earlier changes.
//! - A server that starts makes its backlog and its AOF before its cron runs for the first time.
//! - The cron does not run within a transaction or a script, so the answer stays the same until the transaction or
//!   script ends.
//!
//! In a cluster, the node to which a slot moves is one more audience. So the module always replicates in a cluster. The
//! module also always replicates on a server version whose source code the authors have not checked for these reasons.
//! The file server/info.rs names the functions to check.

/// Whether there may be an audience for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicationAudience {
    none: bool,
    can_be_known: bool,
}

impl ReplicationAudience {
    /// At first the module assumes an audience. `can_be_known` says whether the module can find out on this server
    /// whether there is an audience.
    pub const fn new(can_be_known: bool) -> Self {
        Self { none: false, can_be_known }
    }

    /// Whether the module can find out whether there is an audience.
    pub const fn can_be_known(self) -> bool {
        self.can_be_known
    }

    /// Whether there is certainly no audience.
    pub const fn none(self) -> bool {
        self.none
    }

    /// Records that there may be an audience from now on.
    pub const fn may_come(&mut self) {
        self.none = false;
    }

    /// Records the result of the server's cron: whether there is no audience.
    pub const fn found(&mut self, none: bool) {
        self.none = none;
    }
}
