//! Tests against real servers. Each test states one claim, and runs on its own server.

mod commands {
    mod access;
    mod acquire;
    mod argument_limits;
    mod binary_names;
    mod errors;
    mod fencing_tokens;
    mod guard;
    mod guarded_arguments;
    mod holds;
    mod info;
    mod metadata;
    mod modes;
    mod protocol;
    mod release;
    mod renew;
    mod server_tools;
    mod settings;
    mod statistics;
    mod transactions;
}
mod queue {
    mod exclusion;
    mod grant_races;
    mod kept_places;
    mod locks_that_end;
    mod many_waiters;
    mod one_event_loop_iteration;
    mod one_queue;
    mod random_requests;
    mod slow_clients;
    mod undelivered_grants;
    mod waiting;
}
mod keyspace {
    mod dropped_locks;
    mod events;
    mod events_table;
    mod eviction_policies;
    mod foreign_writes;
    mod keys;
    mod leave_and_return;
    mod memory;
    mod other_modules;
    mod several_holders;
}
mod replication {
    mod audience;
    mod failover;
    mod primary_and_replica;
    mod quarantine;
    mod quarantine_of_several;
    mod replication_stream;
    mod resync;
    mod role_changes;
    mod stale_promotion;
}
mod persistence {
    mod crashes;
    mod damaged_files;
    mod rdb_and_aof;
    pub(crate) mod restore_payloads;
}
mod cluster {
    mod slot_migration;
    mod slots;
}
mod clock {
    mod random_steps;
    mod steps;
}
mod robustness {
    mod docs;
    mod first_minutes;
    mod harness;
    mod lifecycle;
    mod lost_replies;
    mod memory_growth;
    mod panics;
    mod regressions;
}
