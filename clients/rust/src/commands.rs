//! The lock commands and their replies.

use crate::error::{Error, Loss};
use redis::{Arg, Cmd, Value, cmd};
use std::sync::Arc;

/// How long the server keeps the queue position of a waiter that has left, in milliseconds.
const KEEP: u64 = 5_000;

/// A key and an owner. Most lock commands begin with these two arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnedKey {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

/// Keys of one owner, and their tokens.
pub(crate) type Tokens = Vec<(Arc<OwnedKey>, u64)>;

/// How many holders a lock may have while a tenure lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of holders, all of them shared: readers.
    Shared,
    /// Holders whose weights add up to at most this number, 1 to 1,000,000: a semaphore.
    Slots(u32),
}

/// The mode of a tenure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kind {
    pub(crate) limit: Limit,
    pub(crate) weight: Option<u32>,
}

/// One part of a wait.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    pub(crate) millis: u64,
    /// The last part does not ask the server to keep the queue position.
    pub(crate) is_last: bool,
}

impl Kind {
    pub(crate) fn check(self) -> Result<(), Error> {
        let why = match (self.limit, self.weight) {
            (Limit::Slots(0 | 1_000_001..), _) => "slots must be 1 to 1,000,000",
            (Limit::Slots(slots), Some(weight)) if weight == 0 || weight > slots => {
                "a weight must be 1 to the number of slots"
            }
            (Limit::Exclusive | Limit::Shared, Some(_)) => "a weight needs slots",
            _ => return Ok(()),
        };
        Err(Error::invalid(why))
    }

    fn add_to(self, cmd: &mut Cmd) {
        match self.limit {
            Limit::Exclusive => {}
            Limit::Shared => drop(cmd.arg("SHARED")),
            Limit::Slots(slots) => drop(cmd.arg("SLOTS").arg(slots)),
        }
        if let Some(weight) = self.weight {
            cmd.arg("WEIGHT").arg(weight);
        }
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

    fn command(&self, name: &str) -> Cmd {
        let mut cmd = cmd(name);
        cmd.arg(&self.key).arg(&self.owner);
        cmd
    }

    /// Acquires the lock. The lease is in milliseconds; `None` is the server's default. Without a slice the command
    /// does not wait.
    pub(crate) fn acquire(&self, lease: Option<u64>, slice: Option<Slice>, kind: Kind) -> Cmd {
        let mut cmd = self.command("LOCK.ACQUIRE");
        if let Some(lease) = lease {
            cmd.arg("PX").arg(lease);
        }
        if let Some(Slice { millis, is_last }) = slice {
            cmd.arg("BLOCK").arg(millis);
            if !is_last {
                cmd.arg("KEEP").arg(KEEP);
            }
        }
        cmd.arg("HOLDS").arg(1);
        kind.add_to(&mut cmd);
        cmd
    }

    /// Sets a new lease, in milliseconds. A server in quarantine also restores the tenure if it has forgotten the
    /// tenure.
    pub(crate) fn renew(&self, token: u64, lease: u64, kind: Kind) -> Cmd {
        let mut cmd = self.command("LOCK.RENEW");
        cmd.arg("PX").arg(lease).arg("TOKEN").arg(token).arg("HOLDS").arg(1);
        kind.add_to(&mut cmd);
        cmd
    }

    /// Releases all holds of a tenure.
    pub(crate) fn release(&self, token: u64) -> Cmd {
        self.command("LOCK.RELEASE").arg("ALL").arg("TOKEN").arg(token).to_owned()
    }

    /// Ends the owner's waits, its kept queue position, and every hold that the server may have granted.
    pub(crate) fn give_up(&self) -> Cmd {
        self.command("LOCK.RELEASE").arg("HOLDS").arg(0).to_owned()
    }

    /// Runs `inner` if the token is the token of a present holder. An empty command only checks the token.
    pub(crate) fn guard(&self, token: u64, inner: &Cmd) -> Cmd {
        let mut guarded = cmd("LOCK.GUARD");
        guarded.arg(&self.key).arg(token);
        for arg in inner.args_iter() {
            // The other kind of argument is the cursor of a scan, which begins with 0.
            guarded.arg(if let Arg::Simple(bytes) = arg { bytes } else { b"0" });
        }
        guarded
    }
}

/// Converts a reply.
///
/// # Errors
/// [`Error::Reply`] when the reply has another type.
pub(crate) fn read<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))
}
