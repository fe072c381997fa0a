//! Whether there is an audience for changes: a replica, the backlog for one, or the AOF.
//!
//! Replication is the most costly part of a change, and the server finds only at the end of it that there is no audience. So the
//! module asks beforehand. Asking is costly too, so it asks once in each run of the server's cron. Until the cron has
//! found that there is no audience, there may be one. Why no change is missed in between:
//!
//! - The cron asks for the same facts by which the server itself decides whether to send anything. While they hold, the server
//!   drops everything it is given, by this module as by its own commands.
//! - An audience comes when a replica asks for a snapshot, when an AOF is switched on, with another role and with other
//!   data. The server sends an event for all but the first, and for each snapshot: for the child process that writes it, and for
//!   one that is saved in the foreground. From that event on there may be an audience.
//! - A replica that waits for its snapshot is not sent changes. They go into the backlog that is made for it, under a new
//!   replication id. Others learn this id from the snapshot alone, together with the offset in the backlog at which to go on:
//!   behind everything that was given before.
//! - A server that starts makes its backlog and its AOF before its cron runs for the first time.
//! - The cron does not run within a transaction or a script, so its answer does not change within one.
//!
//! In a cluster a slot that moves may have an audience of its own, so there the module always replicates. It also does on servers
//! whose source was not read for this. The file server/info.rs names the functions.

/// Whether there may be an audience for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicationAudience {
    none: bool,
    can_be_known: bool,
}

impl ReplicationAudience {
    /// There may be one. Whether the module can find out depends on the server.
    pub const fn new(can_be_known: bool) -> Self {
        Self { none: false, can_be_known }
    }

    /// Whether the module can find out.
    pub const fn can_be_known(self) -> bool {
        self.can_be_known
    }

    /// Whether there is certainly none.
    pub const fn none(self) -> bool {
        self.none
    }

    /// From now on there may be one.
    pub const fn may_come(&mut self) {
        self.none = false;
    }

    /// The server's cron has found whether there is none.
    pub const fn found(&mut self, none: bool) {
        self.none = none;
    }
}
