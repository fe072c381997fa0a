//! The peers there are.

use crate::peers::programs::Program;
use crate::peers::server::Kind;

/// A lock that a library offers.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What its users call it.
    pub title: &'static str,
    /// The server that it needs.
    pub server: Kind,
    /// The program that does jobs with it.
    pub program: Program,
}

/// All of them, in the order of the tables.
pub const PEERS: [Peer; 9] = [
    peer("lockward", "Lockward", Kind::Lockward, Program::Rust),
    peer("redisson-rlock", "Redisson RLock", Kind::Redis, Program::Java),
    peer("redisson-fair", "Redisson RFairLock", Kind::Redis, Program::Java),
    peer("redis-py", "redis-py Lock", Kind::Redis, Program::Python),
    peer("redsync", "redsync", Kind::Redis, Program::Go),
    peer("etcd", "etcd concurrency.Mutex", Kind::Etcd, Program::Go),
    peer("curator", "Curator InterProcessMutex", Kind::Zookeeper, Program::Java),
    peer("mariadb", "MariaDB GET_LOCK", Kind::Mariadb, Program::Go),
    peer("postgres", "PostgreSQL advisory lock", Kind::Postgres, Program::Go),
];

const fn peer(name: &'static str, title: &'static str, server: Kind, program: Program) -> Peer {
    Peer { name, title, server, program }
}
