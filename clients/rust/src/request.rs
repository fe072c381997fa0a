//! The commands, and what their replies mean.

use crate::error::Error;
use redis::{Cmd, Value, cmd};
use std::collections::HashMap;
use std::time::Duration;

/// Whose lock it is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
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

/// What the server grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) holds: u32,
}

/// How a tenure stands at the server, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) lease_left: u64,
    pub(crate) held_for: u64,
}

impl Claim {
    fn about(&self, command: &str) -> Cmd {
        cmd(command).arg(&self.key).arg(&self.owner).to_owned()
    }

    /// The hold that leads to `holds`, with a lease in milliseconds, or the server's default.
    pub(crate) fn acquire(&self, lease: Option<u64>, holds: u32, block: Block) -> Cmd {
        let mut cmd = self.about("LOCK.ACQUIRE");
        if let Some(lease) = lease {
            cmd.arg("PX").arg(lease);
        }
        cmd.arg("HOLDS").arg(holds);
        match block {
            Block::No => &mut cmd,
            // Rounded up, as 0 waits without limit.
            Block::For(limit) => cmd.arg("BLOCK").arg(millis(limit).saturating_add(1)),
            Block::WithoutLimit => cmd.arg("BLOCK").arg(0),
        };
        cmd
    }

    /// What there is to know of who holds the lock.
    pub(crate) fn info(&self) -> Cmd {
        cmd("LOCK.INFO").arg(&self.key).to_owned()
    }

    /// Sets a new lease, in milliseconds, or the server's default.
    pub(crate) fn renew(&self, lease: Option<u64>, token: u64, holds: u32) -> Cmd {
        let mut cmd = self.about("LOCK.RENEW");
        if let Some(lease) = lease {
            cmd.arg("PX").arg(lease);
        }
        cmd.arg("TOKEN").arg(token).arg("HOLDS").arg(holds);
        cmd
    }

    /// Gives back a hold, so that `left` are left.
    pub(crate) fn release(&self, left: u32, token: Option<u64>) -> Cmd {
        let mut cmd = self.about("LOCK.RELEASE");
        cmd.arg("HOLDS").arg(left);
        if let Some(token) = token {
            cmd.arg("TOKEN").arg(token);
        }
        cmd
    }

    /// Ends a tenure, and fails if it has ended already.
    pub(crate) fn end(&self, token: u64) -> Cmd {
        self.about("LOCK.RELEASE").arg("ALL").arg("TOKEN").arg(token).to_owned()
    }
}

/// What LOCK.ACQUIRE has replied.
pub(crate) fn grant(reply: Value) -> Result<Option<Grant>, Error> {
    let grant: Option<(u64, u32)> = read(reply)?;
    Ok(grant.map(|(token, holds)| Grant { token, holds }))
}

/// What LOCK.INFO has replied of the tenure with a token, if there is one.
pub(crate) fn held(reply: Value, token: u64) -> Result<Option<Held>, Error> {
    let lock: Option<HashMap<String, Value>> = read(reply)?;
    let Some(holders) = lock.and_then(|mut lock| lock.remove("holders")) else { return Ok(None) };
    let holders: Vec<HashMap<String, Value>> = read(holders)?;
    for mut holder in holders {
        let mut number = |name: &str| read::<u64>(holder.remove(name).unwrap_or(Value::Nil));
        if number("token")? == token {
            return Ok(Some(Held { lease_left: number("lease-left")?, held_for: number("held-for")? }));
        }
    }
    Ok(None)
}

/// A reply of the kind that is expected.
pub(crate) fn read<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))
}

/// Whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
