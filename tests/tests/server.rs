//! The claims of Lockward, tested on real servers: one test a claim, each on its own server.

mod server {
    mod access;
    mod acquire;
    mod bytes;
    mod clock;
    mod cluster;
    mod commands;
    mod crashes;
    mod damage;
    mod docs;
    mod edges;
    mod effects;
    mod endings;
    mod errors;
    mod events;
    mod exclusion;
    mod faults;
    mod harness;
    mod holds;
    mod info;
    mod keys;
    mod lost_replies;
    mod memory;
    mod newcomer;
    mod panics;
    mod payloads;
    mod persistence;
    mod protocol;
    mod quarantine;
    mod races;
    mod release;
    mod renew;
    mod replication;
    mod resync;
    mod returns;
    mod role_changes;
    mod same_turn;
    mod settings;
    mod slot_migration;
    mod stale;
    mod steps;
    mod tokens;
    mod transactions;
    mod waiting;
    mod writes;
}
