//! The kinds of lock under test.

use lockward_tests::Client;
use serde_json::{Value, json};

/// A lease that is much longer than a run.
const LEASE: &str = "36000000";

/// A common re-entrant lock: a hash of owners and their holds.
const ACQUIRE_HASH: &str = "\
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";
const RELEASE_HASH: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('DEL', KEYS[1])
return 1";

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Lockward with HOLDS, as documented.
    Lockward,
    /// Lockward without HOLDS: a control.
    WithoutHolds,
    /// A hash that scripts change: a control.
    Hash,
}

/// The owner argument of a command.
pub(crate) fn owner_of<'a, T>(command: &'a [T], name: &str) -> Option<&'a T> {
    match name {
        "LOCK.ACQUIRE" | "LOCK.RELEASE" | "LOCK.RENEW" => command.get(2),
        "EVAL" => command.get(4),
        _ => None,
    }
}

impl LockKind {
    pub(crate) const ALL: [Self; 3] = [Self::Lockward, Self::WithoutHolds, Self::Hash];

    /// The prefix of the keys.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Lockward => "lockward",
            Self::WithoutHolds => "without-holds",
            Self::Hash => "hash",
        }
    }

    /// Whether an owner can wait for a lock of this kind.
    pub(crate) const fn can_wait(self) -> bool {
        !matches!(self, Self::Hash)
    }

    /// The command that adds a hold, so that the owner has this number of holds.
    pub(crate) fn acquire(self, key: &str, owner: &str, holds: i64, waits: bool) -> Vec<String> {
        let block: &[&str] = if waits { &["BLOCK", "600000"] } else { &[] };
        match self {
            Self::Hash => words(&["EVAL", ACQUIRE_HASH, "1", key, owner, LEASE]),
            Self::Lockward | Self::WithoutHolds => {
                let command = words(&[&["LOCK.ACQUIRE", key, owner, "PX", LEASE], block].concat());
                self.with_holds(command, holds)
            }
        }
    }

    /// The command that releases one hold and leaves `holds`, with TOKEN if `token` is set.
    pub(crate) fn release(self, key: &str, owner: &str, holds: i64, token: Option<i64>) -> Vec<String> {
        match self {
            Self::Hash => words(&["EVAL", RELEASE_HASH, "1", key, owner]),
            Self::Lockward | Self::WithoutHolds => {
                let mut command = words(&["LOCK.RELEASE", key, owner]);
                command.extend(token.into_iter().flat_map(|token| ["TOKEN".to_owned(), token.to_string()]));
                self.with_holds(command, holds)
            }
        }
    }

    /// The command that renews the lease of a tenure with `holds` holds. `None` for a hash, because a renewal of a hash
    /// would not test the hold count.
    pub(crate) fn renew(self, key: &str, owner: &str, holds: i64, token: Option<i64>) -> Option<Vec<String>> {
        let command = words(&["LOCK.RENEW", key, owner, "PX", LEASE, "TOKEN", &token?.to_string()]);
        Some(self.with_holds(command, holds))
    }

    fn with_holds(self, mut command: Vec<String>, holds: i64) -> Vec<String> {
        if self == Self::Lockward {
            command.extend(["HOLDS".to_owned(), holds.to_string()]);
        }
        command
    }

    /// The correct reply to [`Self::acquire`] in a tenure with this token.
    pub(crate) fn granted(self, holds: i64, token: Option<i64>) -> Value {
        match self {
            Self::Hash => json!(1),
            Self::Lockward | Self::WithoutHolds => {
                json!([token, holds, LEASE.parse::<i64>().expect("a lease")])
            }
        }
    }

    /// The correct reply to [`Self::release`].
    pub(crate) fn released(self, holds: i64) -> Value {
        match self {
            Self::Hash => json!(i64::from(holds == 0)),
            Self::Lockward | Self::WithoutHolds => json!(holds),
        }
    }

    /// The number of holds on the server. An error if another owner holds the lock or waits for the lock.
    pub(crate) fn counted(self, server: &mut Client, key: &str, owner: &str) -> Result<i64, String> {
        if self == Self::Hash {
            let reply = server.call(["HGET", key, owner]);
            return Ok(if reply.is_null() { 0 } else { reply.text().parse().expect("a count") });
        }
        let Some(info) = server.info(key) else { return Ok(0) };
        match &info.holders[..] {
            [holder] if holder.owner == owner && info.waiters == 0 => Ok(holder.holds),
            _ => Err(format!("{owner} is not the only owner at the lock: {info:?}")),
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
