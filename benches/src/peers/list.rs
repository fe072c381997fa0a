//! The list of the peers.

use crate::peers::job::Job;
use crate::peers::programs::Program;
use crate::peers::server::Kind;

/// A lock that a library offers.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name on the command line.
    pub name: &'static str,
    /// The name in the tables.
    pub title: &'static str,
    pub server: Kind,
    pub program: Program,
    pub jobs: &'static [Job],
}

const EXCLUSIVE: &[Job] = &[Job::Uncontended, Job::Contended];
const READERS: &[Job] = &[Job::Readers];
const PERMITS: &[Job] = &[Job::Permits, Job::Weights];
const ALL: &[Job] = &[Job::Uncontended, Job::Contended, Job::Readers, Job::Permits, Job::Weights];

const REDIS: Kind = Kind::Redis { server: None, is_loaded: false };
const LOCKWARD: Kind = Kind::Redis { server: None, is_loaded: true };

/// The newest servers of scripts/servers. These servers have a command that deletes a SET NX PX lock if the owner
/// matches.
const NEW_REDIS: &str = "redis-experimental";
const NEW_VALKEY: &str = "valkey-testing";

/// All peers, in the order of the tables. The peers are grouped by language and by kind of server, and Lockward comes
/// first in each group.
pub const PEERS: [Peer; 24] = [
    peer("lockward", "Lockward", LOCKWARD, Program::Commands, ALL),
    peer("lockward-new-redis", "Lockward, newest Redis", on(NEW_REDIS, true), Program::Commands, EXCLUSIVE),
    peer("set-delex", "SET NX PX + DELEX", on(NEW_REDIS, false), Program::Commands, EXCLUSIVE),
    peer(
        "lockward-new-valkey",
        "Lockward, newest Valkey",
        on(NEW_VALKEY, true),
        Program::Commands,
        EXCLUSIVE,
    ),
    peer("set-delifeq", "SET NX PX + DELIFEQ", on(NEW_VALKEY, false), Program::Commands, EXCLUSIVE),
    peer("lockward-rust", "Lockward (Rust)", LOCKWARD, Program::Rust, ALL),
    peer("lockward-java", "Lockward (Java)", LOCKWARD, Program::Java, ALL),
    peer("redisson-rlock", "Redisson RLock", REDIS, Program::Java, EXCLUSIVE),
    peer("redisson-fair", "Redisson RFairLock", REDIS, Program::Java, EXCLUSIVE),
    peer("curator", "Curator InterProcessMutex", Kind::Zookeeper, Program::Java, EXCLUSIVE),
    peer("redisson-rw", "Redisson RReadWriteLock", REDIS, Program::Java, READERS),
    peer("curator-rw", "Curator InterProcessReadWriteLock", Kind::Zookeeper, Program::Java, READERS),
    peer("redisson-semaphore", "Redisson RSemaphore", REDIS, Program::Java, PERMITS),
    peer("redisson-permits", "Redisson RPermitExpirableSemaphore", REDIS, Program::Java, PERMITS),
    peer("curator-semaphore", "Curator InterProcessSemaphoreV2", Kind::Zookeeper, Program::Java, PERMITS),
    peer("lockward-python", "Lockward (Python)", LOCKWARD, Program::Python, ALL),
    peer("redis-py", "redis-py Lock", REDIS, Program::Python, EXCLUSIVE),
    peer("lockward-go", "Lockward (Go)", LOCKWARD, Program::Go, ALL),
    peer("redsync", "redsync", REDIS, Program::Go, EXCLUSIVE),
    peer("etcd", "etcd concurrency.Mutex", Kind::Etcd, Program::Go, EXCLUSIVE),
    peer("mariadb", "MariaDB GET_LOCK", Kind::Mariadb, Program::Go, EXCLUSIVE),
    peer("postgres", "PostgreSQL advisory lock", Kind::Postgres, Program::Go, EXCLUSIVE),
    peer("lockward-node", "Lockward (Node.js)", LOCKWARD, Program::Node, ALL),
    peer("node-redlock", "node-redlock", REDIS, Program::Node, EXCLUSIVE),
];

impl Peer {
    /// Whether this is Lockward.
    pub fn is_ours(&self) -> bool {
        self.name.starts_with("lockward")
    }
}

const fn on(server: &'static str, is_loaded: bool) -> Kind {
    Kind::Redis { server: Some(server), is_loaded }
}

const fn peer(
    name: &'static str,
    title: &'static str,
    server: Kind,
    program: Program,
    jobs: &'static [Job],
) -> Peer {
    Peer { name, title, server, program, jobs }
}
