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
//! [`KNOWN`] names the functions to check.

use crate::server::info::{self, Section};
use std::ffi::CStr;
use std::ops::RangeInclusive;

/// The servers whose source code the authors read for this file: Redis 7.0.15, 7.2.6,
/// 7.4.1, 8.0.6 and 8.6.3, and Valkey 7.2.7, 8.0.1, 8.1.1 and 9.1.2. On other servers the module always
/// assumes an audience.
///
/// These functions of the server show that the audience misses no change (Valkey writes `replica` for `slave`):
///
/// - Without replica, backlog and AOF: `alsoPropagate` asks `shouldPropagate`, which checks for these three, and drops
///   the command.
/// - A new replica: `canFeedReplicaReplBuffer` sends this replica no changes until
///   `replicationSetupSlaveForFullResync`. That function runs with `redisFork`, which fires FORK_CHILD.
/// - A replica that joins the snapshot of another replica: it can join only after the fork
///   (`SLAVE_STATE_WAIT_BGSAVE_END`).
/// - A replica with a second connection for the snapshot: the main connection waits too (Redis 8,
///   `SLAVE_STATE_WAIT_RDB_CHANNEL`), or is no replica before the fork (Valkey 8, `addRdbReplicaToPsyncWait`).
/// - A replica that continues without a snapshot: it needs the id of a backlog (`masterTryPartialResynchronization`). A
///   new backlog has a new id (`replicationCron`, `syncCommand`). The id is sent in +FULLRESYNC at the fork, and
///   written to RDB files, for which `startSaving` fires PERSISTENCE.
/// - A replica that comes after this server has changed its role: `replicationSetMaster` and `replicationUnsetMaster`
///   fire ROLE_CHANGED. A full resync fires LOADING.
/// - An AOF that is switched on: `feedAppendOnlyFile` drops commands until the server forks the child of the rewrite.
///   The fork fires FORK_CHILD. If the rewrite has to wait (`startAppendOnly`, `bgrewriteaofCommand`), the module has
///   assumed an audience since the CONFIG event, which fires before the rewrite.
/// - An AOF in other cases: when the server starts, the AOF exists before the cron runs for the first time. After
///   RM_RdbLoad, RM_ResetDataset and REPLICAOF NO ONE, the AOF begins with a fork. `restartAOFWithSyncRdb` (Valkey 9.1)
///   runs on replicas only.
/// - A node that gets a slot by atomic migration (Redis 8.6, `asmMigrateInProgress`): only in a cluster, where the
///   module always replicates.
/// - During MULTI/EXEC or a script: the server refuses SYNC, PSYNC and (in scripts) CONFIG. No AOF
///   begins, and the cron does not run.
///
/// To add a server: read these functions; look for new callers of `fork`, and for new ways to send a snapshot without a
/// fork; run the tests of the replication audience with `LOCKWARD_LONG=1`; then add the server's version to the list.
const KNOWN: [(&CStr, &[RangeInclusive<[u32; 2]>]); 2] =
    [(c"valkey_version", &[[7, 2]..=[9, 1]]), (c"redis_version", &[[7, 0]..=[8, 0], [8, 6]..=[8, 6]])];

/// Whether this server is in the list [`KNOWN`].
pub fn can_be_known() -> bool {
    // Valkey reports both fields, so the field of Valkey comes first in the list.
    let named = KNOWN.iter().find_map(|(field, known)| Some((info::version(field)?, known)));
    named.is_some_and(|(version, known)| known.iter().any(|range| range.contains(&version)))
}

/// The fields that are all 0 when there is no audience for changes. If a server lacks one of these fields, the module
/// assumes an audience.
const NO_AUDIENCE: [(&CStr, &[&CStr]); 3] = [
    (c"replication", &[c"connected_slaves", c"repl_backlog_active"]),
    (
        c"persistence",
        &[
            c"loading",
            c"aof_enabled",
            c"aof_rewrite_in_progress",
            c"aof_rewrite_scheduled",
            c"rdb_bgsave_in_progress",
        ],
    ),
    (c"cluster", &[c"cluster_enabled"]),
];

/// Whether this server has none of these: a replica, a replication backlog, an AOF, a child process that makes a
/// snapshot, data to load, a cluster.
pub fn is_absent() -> bool {
    NO_AUDIENCE.iter().all(|(section, fields)| {
        let section = Section::new(section);
        fields.iter().all(|field| section.number(field) == Some(0))
    })
}
