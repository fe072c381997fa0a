//! The four kinds of lock that the demo compares.
//!
//! The two home-made locks are correct: they set the lease atomically and check the owner before the release. So the difference
//! that remains is the cost of polling.

use std::time::Duration;

use redis::{Cmd, Connection, RedisResult, Script};

use crate::duration;
use crate::failure::Failure;

/// Much longer than an increment takes, so that no lease ends during the demo.
const LEASE_MS: u64 = 30_000;
const WAIT_LIMIT_MS: u64 = 60_000;

/// How long a connection waits for a reply. LOCK.ACQUIRE blocks for a shorter time.
pub(super) const REPLY_LIMIT: Duration = Duration::from_millis(WAIT_LIMIT_MS + 5_000);

/// A client of the demo. It stands for one thread of an application.
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) owner: String,
}

/// A kind of lock. All clients share the value, so it has no state.
pub(super) trait LockKind: Sync {
    fn name(&self) -> String;

    /// Runs once, before the round starts.
    fn prepare(&self, _control: &mut Connection) -> RedisResult<()> {
        Ok(())
    }

    /// Tries once. `false` means that the client sleeps for [`LockKind::pause`] and tries again.
    fn acquire(&self, client: &mut Client, lock: &str) -> RedisResult<bool>;

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether clients wait for each other.
    fn waits(&self) -> bool {
        true
    }

    fn release(&self, client: &mut Client, lock: &str) -> Result<(), Failure>;
}

/// No lock at all.
pub(super) struct NoLock;

impl LockKind for NoLock {
    fn name(&self) -> String {
        "no lock".into()
    }

    fn waits(&self) -> bool {
        false
    }

    fn acquire(&self, _client: &mut Client, _lock: &str) -> RedisResult<bool> {
        Ok(true)
    }

    fn release(&self, _client: &mut Client, _lock: &str) -> Result<(), Failure> {
        Ok(())
    }
}

/// SET NX PX. A script deletes the key only for its owner.
pub(super) struct SetNx {
    release: Script,
    retry: Duration,
}

impl SetNx {
    pub(super) fn new(retry: Duration) -> Self {
        let release = Script::new(
            "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
             return redis.call('DEL', KEYS[1])",
        );
        Self { release, retry }
    }
}

impl LockKind for SetNx {
    fn name(&self) -> String {
        format!("SET NX PX, retry {}", duration::show(self.retry))
    }

    fn prepare(&self, control: &mut Connection) -> RedisResult<()> {
        self.release.load(control).map(drop)
    }

    fn acquire(&self, client: &mut Client, lock: &str) -> RedisResult<bool> {
        let taken: Option<String> = redis::cmd("SET")
            .arg(lock)
            .arg(&client.owner)
            .arg("NX")
            .arg("PX")
            .arg(LEASE_MS)
            .query(&mut client.connection)?;
        Ok(taken.is_some())
    }

    fn pause(&self) -> Duration {
        self.retry
    }

    fn release(&self, client: &mut Client, lock: &str) -> Result<(), Failure> {
        let deleted = self.release.key(lock).arg(&client.owner).invoke(&mut client.connection)?;
        if deleted { Ok(()) } else { Err(lease_ended()) }
    }
}

/// A re-entrant lock: scripts change a hash with owner and holds.
pub(super) struct ReentrantHash {
    acquire: Script,
    release: Script,
    retry: Duration,
}

impl ReentrantHash {
    pub(super) fn new(retry: Duration) -> Self {
        let acquire = Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 0 then
               redis.call('HSET', KEYS[1], ARGV[1], 1)
             elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
               redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
             else
               return 0
             end
             redis.call('PEXPIRE', KEYS[1], ARGV[2])
             return 1",
        );
        let release = Script::new(
            "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
             if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
             redis.call('DEL', KEYS[1])
             return 1",
        );
        Self { acquire, release, retry }
    }
}

impl LockKind for ReentrantHash {
    fn name(&self) -> String {
        format!("Lua hash, retry {}", duration::show(self.retry))
    }

    fn prepare(&self, control: &mut Connection) -> RedisResult<()> {
        self.acquire.load(control)?;
        self.release.load(control).map(drop)
    }

    fn acquire(&self, client: &mut Client, lock: &str) -> RedisResult<bool> {
        self.acquire.key(lock).arg(&client.owner).arg(LEASE_MS).invoke(&mut client.connection)
    }

    fn pause(&self) -> Duration {
        self.retry
    }

    fn release(&self, client: &mut Client, lock: &str) -> Result<(), Failure> {
        let freed: Option<bool> = self.release.key(lock).arg(&client.owner).invoke(&mut client.connection)?;
        if freed == Some(true) { Ok(()) } else { Err(lease_ended()) }
    }
}

/// LOCK.ACQUIRE and LOCK.RELEASE.
pub(super) struct LockCommands;

impl LockKind for LockCommands {
    fn name(&self) -> String {
        "LOCK.ACQUIRE BLOCK".into()
    }

    fn acquire(&self, client: &mut Client, lock: &str) -> RedisResult<bool> {
        // With HOLDS a repeated call does not count twice.
        let granted: Option<(u64, u64, u64)> = lock_command("LOCK.ACQUIRE", client, lock)
            .arg("PX")
            .arg(LEASE_MS)
            .arg("BLOCK")
            .arg(WAIT_LIMIT_MS)
            .arg("HOLDS")
            .arg(1)
            .query(&mut client.connection)?;
        Ok(granted.is_some())
    }

    fn release(&self, client: &mut Client, lock: &str) -> Result<(), Failure> {
        lock_command("LOCK.RELEASE", client, lock).arg("HOLDS").arg(0).exec(&mut client.connection)?;
        Ok(())
    }
}

fn lock_command(name: &str, client: &Client, lock: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(lock).arg(&client.owner);
    command
}

fn lease_ended() -> Failure {
    Failure::new(format!(
        "a lease of {LEASE_MS} ms ended before its owner released the lock; is the machine overloaded?"
    ))
}
