//! The list of the peers.

use crate::peers::job::Job;
use crate::peers::server::Kind;

#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub name: &'static str,
    pub title: &'static str,
    pub server: Kind,
    /// The language of the library; a dash if there is no library.
    pub language: &'static str,
    pub jobs: &'static [Job],
}

const EXCLUSIVE: &[Job] = &[Job::Uncontended, Job::Contended];
const READERS: &[Job] = &[Job::Readers];
const PERMITS: &[Job] = &[Job::Permits, Job::Weights];
const ALL: &[Job] = &[Job::Uncontended, Job::Contended, Job::Readers, Job::Permits, Job::Weights];

const REDIS: Kind = Kind::Redis { server: None, is_loaded: false };
const ZOOKEEPER: Kind = Kind::Other("zookeeper");
const LOCKWARD: Kind = Kind::Redis { server: None, is_loaded: true };

/// The newest servers of scripts/servers. These servers have a command that deletes a SET NX PX lock if the owner
/// matches.
const NEW_REDIS: &str = "redis-experimental";
const NEW_VALKEY: &str = "valkey-testing";

/// All peers, in the order of the tables. The peers are grouped by language and by kind of server, and Lockward comes
/// first in each group.
pub const PEERS: [Peer; 24] = [
    peer("lockward", "Lockward", LOCKWARD, "-", ALL),
    peer("lockward-new-redis", "Lockward, newest Redis", on(NEW_REDIS, true), "-", EXCLUSIVE),
    peer("set-delex", "SET NX PX + DELEX", on(NEW_REDIS, false), "-", EXCLUSIVE),
    peer("lockward-new-valkey", "Lockward, newest Valkey", on(NEW_VALKEY, true), "-", EXCLUSIVE),
    peer("set-delifeq", "SET NX PX + DELIFEQ", on(NEW_VALKEY, false), "-", EXCLUSIVE),
    peer("lockward-rust", "Lockward (Rust)", LOCKWARD, "Rust", ALL),
    peer("lockward-java", "Lockward (Java)", LOCKWARD, "Java", ALL),
    peer("redisson-rlock", "Redisson RLock", REDIS, "Java", EXCLUSIVE),
    peer("redisson-fair", "Redisson RFairLock", REDIS, "Java", EXCLUSIVE),
    peer("curator", "Curator InterProcessMutex", ZOOKEEPER, "Java", EXCLUSIVE),
    peer("redisson-rw", "Redisson RReadWriteLock", REDIS, "Java", READERS),
    peer("curator-rw", "Curator InterProcessReadWriteLock", ZOOKEEPER, "Java", READERS),
    peer("redisson-semaphore", "Redisson RSemaphore", REDIS, "Java", PERMITS),
    peer("redisson-permits", "Redisson RPermitExpirableSemaphore", REDIS, "Java", PERMITS),
    peer("curator-semaphore", "Curator InterProcessSemaphoreV2", ZOOKEEPER, "Java", PERMITS),
    peer("lockward-python", "Lockward (Python)", LOCKWARD, "Python", ALL),
    peer("redis-py", "redis-py Lock", REDIS, "Python", EXCLUSIVE),
    peer("lockward-go", "Lockward (Go)", LOCKWARD, "Go", ALL),
    peer("redsync", "redsync", REDIS, "Go", EXCLUSIVE),
    peer("etcd", "etcd concurrency.Mutex", Kind::Other("etcd"), "Go", EXCLUSIVE),
    peer("mariadb", "MariaDB GET_LOCK", Kind::Other("mariadb"), "Go", EXCLUSIVE),
    peer("postgres", "PostgreSQL advisory lock", Kind::Other("postgres"), "Go", EXCLUSIVE),
    peer("lockward-node", "Lockward (Node.js)", LOCKWARD, "Node.js", ALL),
    peer("node-redlock", "node-redlock", REDIS, "Node.js", EXCLUSIVE),
];

const fn on(server: &'static str, is_loaded: bool) -> Kind {
    Kind::Redis { server: Some(server), is_loaded }
}

const fn peer(
    name: &'static str,
    title: &'static str,
    server: Kind,
    language: &'static str,
    jobs: &'static [Job],
) -> Peer {
    Peer { name, title, server, language, jobs }
}
