//! How the cost grows with the number of locks, waiters, holders, connections and nodes.

pub mod cluster;
pub mod curves;
pub mod holders;
pub mod locks;
pub mod page;
pub mod replica;
pub mod sizing;
pub mod slots;
pub mod waiters;

use crate::suite::Stage;

/// All curves, in the order of the page.
pub const STAGES: [Stage; 6] = [
    (locks::STAGE, "pairs, memory, snapshots and their loading, by the number of locks", locks::measure),
    (waiters::STAGE, "hand-offs and memory, by the number of waiters", waiters::measure),
    (holders::STAGE, "pairs and memory, by the number of holders of one semaphore", holders::measure),
    (replica::STAGE, "replica lag, by the number of connections that acquire and release", replica::measure),
    (cluster::STAGE, "pairs in a cluster, by the number of nodes", cluster::measure),
    (slots::STAGE, "a slot that moves, by the number of its locks", slots::measure),
];
