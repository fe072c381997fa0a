//! The lock commands and their replies.

use crate::error::Error;
use crate::time::millis;
use redis::{Arg, Cmd, Value, cmd};
use std::time::Duration;

/// A lock and an owner of it. Most lock commands begin with these two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnedKey {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

/// How long the server lets an acquisition wait.
#[derive(Clone, Copy)]
pub(crate) enum Block {
    No,
    For(Duration),
    WithoutLimit,
}

/// How much of a lock a tenure takes, and how much may be held in all while it lasts. The default is an exclusive lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    pub(crate) limit: Limit,
    pub(crate) weight: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Limit {
    #[default]
    Exclusive,
    Shared,
    Slots(u32),
}

impl Mode {
    pub(crate) fn check(self) -> Result<(), Error> {
        match (self.limit, self.weight) {
            (Limit::Slots(0 | 1_000_001..), _) => Err(Error::Invalid("slots must be 1 to 1,000,000")),
            (Limit::Slots(slots), Some(weight)) if weight == 0 || weight > slots => {
                Err(Error::Invalid("a weight must be 1 to the number of slots"))
            }
            (Limit::Exclusive | Limit::Shared, Some(_)) => Err(Error::Invalid("a weight needs slots")),
            _ => Ok(()),
        }
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

/// The reply to LOCK.ACQUIRE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) holds: u32,
    /// How much of the lease was left when the lock was granted, in milliseconds.
    pub(crate) lease: u64,
}

impl OwnedKey {
    fn command(&self, name: &str) -> Cmd {
        cmd(name).arg(&self.key).arg(&self.owner).to_owned()
    }

    /// Acquires a hold, so that the owner has `holds`. The lease is in milliseconds; `None` is the server's default.
    pub(crate) fn acquire(&self, lease: Option<u64>, holds: u32, mode: Mode, block: Block) -> Cmd {
        let mut cmd = self.command("LOCK.ACQUIRE");
        if let Some(lease) = lease {
            cmd.arg("PX").arg(lease);
        }
        cmd.arg("HOLDS").arg(holds);
        mode.add_to(&mut cmd);
        match block {
            Block::No => &mut cmd,
            // Rounded up, as 0 waits without limit.
            Block::For(limit) => cmd.arg("BLOCK").arg(millis(limit).saturating_add(1)),
            Block::WithoutLimit => cmd.arg("BLOCK").arg(0),
        };
        cmd
    }

    /// Sets a new lease, in milliseconds. In quarantine this restores the tenure.
    pub(crate) fn renew(&self, lease: u64, token: u64, holds: u32, mode: Mode) -> Cmd {
        let mut cmd = self.command("LOCK.RENEW");
        cmd.arg("PX").arg(lease).arg("TOKEN").arg(token).arg("HOLDS").arg(holds);
        mode.add_to(&mut cmd);
        cmd
    }

    /// Releases one hold. The owner keeps `left` holds.
    pub(crate) fn release(&self, left: u32, token: u64) -> Cmd {
        self.command("LOCK.RELEASE").arg("HOLDS").arg(left).arg("TOKEN").arg(token).to_owned()
    }

    /// Releases all holds of a tenure.
    pub(crate) fn release_all(&self, token: u64) -> Cmd {
        self.command("LOCK.RELEASE").arg("ALL").arg("TOKEN").arg(token).to_owned()
    }

    /// Releases whatever the server has granted to the owner.
    pub(crate) fn withdraw(&self) -> Cmd {
        self.command("LOCK.RELEASE").arg("HOLDS").arg(0).to_owned()
    }

    /// Runs `inner` while the token is that of a present holder. An empty command only checks the token.
    pub(crate) fn guard(&self, token: u64, inner: &Cmd) -> Cmd {
        let mut guarded = cmd("LOCK.GUARD").arg(&self.key).arg(token).to_owned();
        for arg in inner.args_iter() {
            if let Arg::Simple(bytes) = arg {
                guarded.arg(bytes);
            } else {
                guarded.cursor_arg(0);
            }
        }
        guarded
    }
}

/// Reads the reply to LOCK.ACQUIRE.
pub(crate) fn read_grant(reply: Value) -> Result<Option<Grant>, Error> {
    let grant: Option<(u64, u32, u64)> = read(reply)?;
    Ok(grant.map(|(token, holds, lease)| Grant { token, holds, lease }))
}

/// Turns an error that the server has replied into an [`Error`].
pub(crate) fn check_reply(reply: Value) -> Result<Value, Error> {
    if let Value::ServerError(error) = &reply {
        return Err(Error::from_server(error));
    }
    Ok(reply)
}

/// Converts a reply.
///
/// # Errors
/// [`Error::Reply`] when it has another type.
pub(crate) fn read<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))
}
