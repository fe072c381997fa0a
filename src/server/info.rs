//! What the module reads from the server's INFO.

use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::ops::RangeInclusive;
use std::ptr;

/// The servers whose source code the authors read for [`crate::replication_audience`]: Redis 7.0.15, 7.2.6,
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

/// Whether this server is in the list `KNOWN`.
pub fn is_known() -> bool {
    // Valkey reports both fields, so the field of Valkey comes first in the list.
    let named = KNOWN.iter().find_map(|(field, known)| Some((text(c"server", field)?, known)));
    named.is_some_and(|(version, known)| {
        major_and_minor(&version).is_some_and(|version| known.iter().any(|range| range.contains(&version)))
    })
}

fn major_and_minor(version: &[u8]) -> Option<[u32; 2]> {
    let mut numbers = version.split(|byte| *byte == b'.').map(|part| str::from_utf8(part).ok()?.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Whether the server leaves a client of MOVE or COPY in the other database if a module is subscribed to the
/// events of these commands. This is a fault of Valkey 8.1, fixed in 9.1 (`moduleNotifyKeyspaceEvent`). The
/// authors have not read the source of 9.0.
pub fn events_move_clients() -> bool {
    let version = text(c"server", c"valkey_version").and_then(|version| major_and_minor(&version));
    version.is_some_and(|version| ([8, 1]..[9, 1]).contains(&version))
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
pub fn has_no_replication_audience() -> bool {
    NO_AUDIENCE.iter().all(|(section, fields)| {
        let section = Section::new(section);
        fields.iter().all(|field| section.number(field) == Some(0))
    })
}

/// Counts of the server that grow until CONFIG RESETSTAT sets them to 0. After a reset, one count may exceed
/// its old value again before the next check. It is very unlikely that all three counts exceed their old values.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicStats([u64; 3]);

impl MonotonicStats {
    const FIELDS: [&CStr; 3] =
        [c"total_connections_received", c"total_commands_processed", c"total_net_input_bytes"];

    pub fn read() -> Self {
        let section = Section::new(c"stats");
        Self(Self::FIELDS.map(|field| section.number(field).unwrap_or_default()))
    }

    /// Whether a count is smaller than before.
    pub fn is_set_back_from(&self, before: &Self) -> bool {
        self.0.iter().zip(&before.0).any(|(now, before)| now < before)
    }
}

/// A field of a section; `None` when the server has no such field.
pub fn text(section: &CStr, field: &CStr) -> Option<Vec<u8>> {
    let section = Section::new(section);
    // SAFETY: the text belongs to the section, and the module copies it while the section lives.
    unsafe {
        let text = api!(RedisModule_ServerInfoGetFieldC(section.0, field.as_ptr()));
        (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes().to_vec())
    }
}

struct Section(*mut raw::RedisModuleServerInfoData);

impl Section {
    fn new(name: &CStr) -> Self {
        // SAFETY: the API allows a null context.
        Self(unsafe { api!(RedisModule_GetServerInfo(ptr::null_mut(), name.as_ptr())) })
    }

    /// The number in a field; `None` when there is no such field.
    fn number(&self, field: &CStr) -> Option<u64> {
        let mut status: c_int = 0;
        // SAFETY: the server returned this section in `new`, and it is still valid.
        let number =
            unsafe { api!(RedisModule_ServerInfoGetFieldUnsigned(self.0, field.as_ptr(), &raw mut status)) };
        (status == raw::REDISMODULE_OK as c_int).then_some(number)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        // SAFETY: the server returned this section in `new`, and it is freed once.
        unsafe { api!(RedisModule_FreeServerInfo(ptr::null_mut(), self.0)) };
    }
}
