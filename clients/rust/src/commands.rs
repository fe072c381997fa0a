//! The lock commands and their replies.

use crate::error::{Error, Loss};
use redis::{Arg, Cmd, ToRedisArgs, Value, cmd};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A key and an owner. Most lock commands begin with these two arguments.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct OwnedKey {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

/// What the server has granted for a key.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// The kinds that the lock may have. There are several kinds after downgrades whose replies were lost. The next
    /// renewal names the first kind.
    pub(crate) kinds: Vec<Kind>,
}

impl Grant {
    pub(crate) fn kind(&self) -> Kind {
        self.kinds.first().copied().unwrap_or_default()
    }

    pub(crate) fn downgrade(&mut self, limit: Limit) {
        let kind = self.kind().downgraded(limit);
        self.kinds.retain(|other| *other != kind);
        self.kinds.insert(0, kind);
    }

    /// Called when the server has refused a renewal with this kind. `may_have_run` says whether the server may have
    /// carried out an earlier attempt. Returns whether the next renewal names another kind.
    pub(crate) fn reject(&mut self, kind: Kind, may_have_run: bool) -> bool {
        let (refused, mut others): (Vec<_>, Vec<_>) = self.kinds.iter().partition(|other| **other == kind);
        if others.is_empty() {
            return false;
        }
        others.extend(refused.into_iter().filter(|_| may_have_run));
        self.kinds = others;
        true
    }
}

/// Keys of one owner, sorted, and their grants.
pub(crate) type Grants = BTreeMap<Arc<OwnedKey>, Grant>;

/// The largest number of slots.
const MAX_SLOTS: u32 = 1_000_000;

/// How many holders a lock may have while a tenure lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of holders that all ask for `Shared`: readers.
    Shared,
    /// Holders whose weights add up to at most this number, 1 to 1,000,000: a semaphore.
    Slots(u32),
}

/// The limit and the weight of a tenure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kind {
    pub(crate) limit: Limit,
    pub(crate) weight: Option<u32>,
}

impl Kind {
    /// This kind with another limit. The server refuses `SHARED` with a weight, but a renewal in quarantine must name
    /// the weight. A renewal without a limit keeps the old limit. So for an exclusive lock the result names one slot.
    fn downgraded(self, limit: Limit) -> Self {
        let limit = match limit {
            Limit::Exclusive => Limit::Slots(1),
            Limit::Shared if self.weight.is_some() => Limit::Slots(MAX_SLOTS),
            Limit::Shared | Limit::Slots(_) => limit,
        };
        Self { limit, ..self }
    }

    /// The arguments `SHARED`, `SLOTS` and `WEIGHT` of a command.
    fn args(self) -> impl ToRedisArgs {
        let shared = (self.limit == Limit::Shared).then_some("SHARED");
        let slots = if let Limit::Slots(slots) = self.limit { Some(("SLOTS", slots)) } else { None };
        (shared, slots, self.weight.map(|weight| ("WEIGHT", weight)))
    }
}

impl OwnedKey {
    /// The key, for a person to read.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }

    pub(crate) fn lost_by(&self, loss: Loss) -> Error {
        Error::Lost { key: self.shown(), loss }
    }

    fn command(&self, name: &str, args: impl ToRedisArgs) -> Cmd {
        cmd(name).arg(&self.key).arg(&self.owner).arg(args).take()
    }

    /// Acquires the lock. The lease is in milliseconds; `None` means the server's default. `wait` has two times in
    /// milliseconds: how long the command waits, and how long the server then keeps the queue position.
    pub(crate) fn acquire(&self, lease: Option<u64>, wait: Option<(u64, Option<u64>)>, kind: Kind) -> Cmd {
        let lease = lease.map(|lease| ("PX", lease));
        let wait = wait.map(|(block, keep)| (("BLOCK", block), keep.map(|keep| ("KEEP", keep))));
        self.command("LOCK.ACQUIRE", (lease, wait, ("HOLDS", 1), kind.args()))
    }

    /// Sets a new lease, in milliseconds. A server in quarantine also restores the tenure if it has forgotten the
    /// tenure.
    pub(crate) fn renew(&self, token: u64, lease: u64, kind: Kind) -> Cmd {
        self.command("LOCK.RENEW", (("PX", lease), ("TOKEN", token), ("HOLDS", 1), kind.args()))
    }

    /// Releases all holds of a tenure.
    pub(crate) fn release(&self, token: u64) -> Cmd {
        self.command("LOCK.RELEASE", ("ALL", "TOKEN", token))
    }

    /// Ends the owner's waits, its kept queue position, and every hold that the server may have granted.
    pub(crate) fn give_up(&self) -> Cmd {
        self.command("LOCK.RELEASE", ("HOLDS", 0))
    }

    /// Runs `inner` if the token is the token of a present holder. An empty command only checks the token.
    pub(crate) fn guard(&self, token: u64, inner: &Cmd) -> Cmd {
        // `Arg::Cursor` is the cursor of a scan, which begins with 0.
        let args = inner.args_iter().map(|arg| if let Arg::Simple(bytes) = arg { bytes } else { b"0" });
        cmd("LOCK.GUARD").arg(&self.key).arg(token).arg(args.collect::<Vec<_>>()).take()
    }
}

/// Converts a reply to `T`.
///
/// # Errors
/// [`Error::Reply`] when the reply has another type.
pub(crate) fn read<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))
}

/// Converts the reply to a request of one key.
///
/// # Errors
/// The errors of [`read`].
pub(crate) fn read_one<T: redis::FromRedisValue>(mut replies: Vec<Value>) -> Result<T, Error> {
    read(replies.pop().unwrap_or(Value::Nil))
}
