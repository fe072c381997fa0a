//! The peers there are.

use crate::peers::contest::Job;
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
    /// The jobs that it can do.
    pub jobs: &'static [Job],
}

const EXCLUSIVE: &[Job] = &[Job::Uncontended, Job::Contended];
const READERS: &[Job] = &[Job::Readers];
const PERMITS: &[Job] = &[Job::Permits, Job::Weights];
const ALL: &[Job] = &[Job::Uncontended, Job::Contended, Job::Readers, Job::Permits, Job::Weights];

/// All of them, in the order of the tables.
pub const PEERS: [Peer; 14] = [
    peer("lockward", "Lockward", Kind::Lockward, Program::Rust, ALL),
    peer("redisson-rlock", "Redisson RLock", Kind::Redis, Program::Java, EXCLUSIVE),
    peer("redisson-fair", "Redisson RFairLock", Kind::Redis, Program::Java, EXCLUSIVE),
    peer("redis-py", "redis-py Lock", Kind::Redis, Program::Python, EXCLUSIVE),
    peer("redsync", "redsync", Kind::Redis, Program::Go, EXCLUSIVE),
    peer("etcd", "etcd concurrency.Mutex", Kind::Etcd, Program::Go, EXCLUSIVE),
    peer("curator", "Curator InterProcessMutex", Kind::Zookeeper, Program::Java, EXCLUSIVE),
    peer("mariadb", "MariaDB GET_LOCK", Kind::Mariadb, Program::Go, EXCLUSIVE),
    peer("postgres", "PostgreSQL advisory lock", Kind::Postgres, Program::Go, EXCLUSIVE),
    peer("redisson-rw", "Redisson RReadWriteLock", Kind::Redis, Program::Java, READERS),
    peer("curator-rw", "Curator InterProcessReadWriteLock", Kind::Zookeeper, Program::Java, READERS),
    peer("redisson-semaphore", "Redisson RSemaphore", Kind::Redis, Program::Java, PERMITS),
    peer("redisson-permits", "Redisson RPermitExpirableSemaphore", Kind::Redis, Program::Java, PERMITS),
    peer("curator-semaphore", "Curator InterProcessSemaphoreV2", Kind::Zookeeper, Program::Java, PERMITS),
];

const fn peer(
    name: &'static str,
    title: &'static str,
    server: Kind,
    program: Program,
    jobs: &'static [Job],
) -> Peer {
    Peer { name, title, server, program, jobs }
}
