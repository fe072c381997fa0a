//! Locks, as LOCK.INFO and LOCK.TOP report them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use redis::{Cmd, Connection, FromRedisValue, ParsingError, RedisError, Value};
use serde::Serialize;

use crate::server::send_all;
use crate::text::{self, Name};

/// The type of a lock in TYPE and SCAN.
const TYPE: &str = "lockward-";

/// How many keys the server scans before it serves other clients again.
const SCAN_COUNT: u64 = 1_000;

/// How many locks one request reads.
const BATCH: usize = 1_000;

/// The limit and the weight of a tenure or a request. The mode of a lock is the smallest limit of its tenures and the
/// sum of their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mode {
    /// 0 means no limit.
    pub(crate) slots: u64,
    pub(crate) weight: u64,
}

impl Mode {
    pub(crate) fn is_exclusive(self) -> bool {
        self.slots == 1
    }
}

/// `exclusive`, `shared`, or how many of the slots are taken: `2 of 5`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slots {
            0 => f.write_str("shared"),
            1 => f.write_str("exclusive"),
            slots => write!(f, "{} of {slots}", self.weight),
        }
    }
}

/// A lock that is held.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lock {
    #[serde(flatten)]
    pub(crate) mode: Mode,
    /// The number of holders.
    pub(crate) holding: u64,
    /// The first holders, in the order of their tokens.
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: u64,
    /// `None` means that the waiters were not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<Vec<Waiter>>,
}

/// An owner that holds a lock. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) owner: Name,
    pub(crate) holds: u64,
    pub(crate) token: u64,
    #[serde(flatten)]
    pub(crate) mode: Mode,
    pub(crate) lease_left: u64,
    pub(crate) held_for: u64,
}

impl Lock {
    /// A lock that nobody holds.
    pub(crate) fn free(waiters: u64) -> Self {
        let mode = Mode { slots: 0, weight: 0 };
        Self { mode, holding: 0, holders: Vec::new(), waiters, queue: None }
    }

    /// The first holder and the number of other holders: `alice and 11 more`. `None` means that nobody holds the lock.
    pub(crate) fn show_holders(&self) -> Option<String> {
        let first = self.holders.first()?.owner.to_string();
        Some(match self.holding.saturating_sub(1) {
            0 => first,
            more => format!("{first} and {more} more"),
        })
    }

    /// The key, the mode and the number of holders: `pool (3 of 5, 2 holders)`.
    pub(crate) fn title(&self, key: &[u8]) -> String {
        let (key, mode) = (text::show(key), self.mode);
        match self.holding {
            1 => format!("{key} ({mode})"),
            holding => format!("{key} ({mode}, {holding} holders)"),
        }
    }
}

/// A client that waits for a lock. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Waiter {
    pub(crate) owner: Name,
    #[serde(flatten)]
    pub(crate) mode: Mode,
    pub(crate) client_id: u64,
    pub(crate) waited: u64,
    /// `None` means no limit.
    pub(crate) wait_left: Option<u64>,
}

/// A lock that a server has found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FoundLock {
    pub(crate) key: Name,
    /// The longest wait in milliseconds, if LOCK.TOP has found the lock.
    #[serde(skip)]
    pub(crate) longest_wait: u64,
    #[serde(flatten)]
    pub(crate) lock: Lock,
}

impl FoundLock {
    /// Sorts the lock with the most waiters first, and locks with equally many waiters by their longest wait.
    pub(crate) fn rank(&self) -> (Reverse<u64>, Reverse<u64>) {
        (Reverse(self.lock.waiters), Reverse(self.longest_wait))
    }
}

/// The command LOCK.INFO. Its reply has at most `holders` holders. If `waiters` is set, the reply also has at most this
/// number of waiters from the front of the queue.
pub(crate) fn info_command(key: &[u8], holders: u64, waiters: Option<u64>) -> Cmd {
    let mut cmd = redis::cmd("LOCK.INFO");
    cmd.arg(key).arg("HOLDERS").arg(holders);
    if let Some(waiters) = waiters {
        cmd.arg("WAITERS").arg(waiters);
    }
    cmd
}

/// The command SCAN for the locks whose keys match the pattern.
pub(crate) fn scan_command(cursor: u64, pattern: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("SCAN");
    cmd.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg(TYPE);
    cmd
}

/// Reads locks that another command has found, with at most `holders` holders of each lock. `None` means that the lock is
/// free, that the user may not read the lock, that the key now has another type, or that another server has the key.
pub(crate) fn read_all<'a>(
    connection: &mut Connection,
    keys: impl Iterator<Item = &'a Vec<u8>>,
    holders: u64,
) -> Result<Vec<Option<Lock>>, RedisError> {
    let requests: Vec<Cmd> = keys.map(|key| info_command(key, holders, None)).collect();
    let mut locks = Vec::with_capacity(requests.len());
    for batch in requests.chunks(BATCH) {
        for (request, reply) in batch.iter().zip(send_all(connection, batch)?) {
            let reply = match reply {
                // Perhaps the slot of the key is being moved to this server. Then the server accepts the request after
                // ASKING.
                Err(error) if error.code() == Some("MOVED") => {
                    redis::cmd("ASKING").exec(connection).and_then(|()| request.query(connection))
                }
                reply => reply,
            };
            locks.push(match reply {
                Err(error) if is_about_a_key(&error) => None,
                reply => redis::from_redis_value(reply?)?,
            });
        }
    }
    Ok(locks)
}

/// The `count` locks of a server with the most waiters. A lock has no holders if the holder has released the lock since
/// LOCK.TOP, if a server in quarantine does not know the holder, or if the user may not read the lock.
pub(crate) fn read_contended(
    connection: &mut Connection,
    count: u64,
    holders: u64,
) -> Result<Vec<FoundLock>, RedisError> {
    let mut contended: Vec<FoundLock> = redis::cmd("LOCK.TOP").arg("COUNT").arg(count).query(connection)?;
    let locks = read_all(connection, contended.iter().map(|found| &found.key.0), holders)?;
    for (found, lock) in contended.iter_mut().zip(locks) {
        found.lock = lock.unwrap_or_else(|| found.lock.clone());
    }
    Ok(contended)
}

/// Whether the error concerns one key, and not the whole command. NOPERM concerns a key if the error's text names a
/// key.
pub(crate) fn is_about_a_key(error: &RedisError) -> bool {
    match error.code() {
        Some("WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN") => true,
        Some("NOPERM") => error.detail().is_some_and(|detail| detail.contains(" key")),
        _ => false,
    }
}

/// A map reply.
struct Fields(HashMap<String, Value>);

impl Fields {
    fn of(value: Value) -> Result<Self, ParsingError> {
        HashMap::from_redis_value(value).map(Self)
    }

    fn take<T: FromRedisValue>(&mut self, name: &str) -> Result<T, ParsingError> {
        T::from_redis_value(self.0.remove(name).unwrap_or(Value::Nil))
    }

    fn mode(&mut self) -> Result<Mode, ParsingError> {
        Ok(Mode { slots: self.take("slots")?, weight: self.take("weight")? })
    }
}

impl FromRedisValue for Lock {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields::of(value)?;
        let queue = match fields.0.remove("queue") {
            Some(queue) => Some(Vec::from_redis_value(queue)?),
            None => None,
        };
        Ok(Self {
            mode: fields.mode()?,
            holding: fields.take("holding")?,
            holders: fields.take("holders")?,
            waiters: fields.take("waiters")?,
            queue,
        })
    }
}

impl FromRedisValue for Holder {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            owner: fields.take("owner")?,
            holds: fields.take("holds")?,
            token: fields.take("token")?,
            mode: fields.mode()?,
            lease_left: fields.take("lease-left")?,
            held_for: fields.take("held-for")?,
        })
    }
}

impl FromRedisValue for Waiter {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields::of(value)?;
        let wait_left: i64 = fields.take("wait-left")?;
        Ok(Self {
            owner: fields.take("owner")?,
            mode: fields.mode()?,
            client_id: fields.take("client-id")?,
            waited: fields.take("waited")?,
            wait_left: u64::try_from(wait_left).ok(),
        })
    }
}

/// A lock in the reply to LOCK.TOP.
impl FromRedisValue for FoundLock {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            key: fields.take("key")?,
            longest_wait: fields.take("longest-wait")?,
            lock: Lock::free(fields.take("waiters")?),
        })
    }
}
