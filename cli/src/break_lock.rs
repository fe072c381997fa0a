//! `lockward break`: ends the tenures of a lock's holders.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use redis::{Connection, RedisError};

use crate::failure::Failure;
use crate::info;
use crate::locks::{Holder, Lock};
use crate::output;
use crate::primaries::Servers;
use crate::text;

/// No lock has more holders than this, so a request for this number of holders returns all holders.
const ALL: u64 = u32::MAX as u64;

/// Release a lock in place of its holders
///
/// lockward shows the holders, asks for confirmation, and ends their tenures. The first waiters then get the lock. The
/// key is not deleted: an owner that got the lock in the meantime keeps it. A former holder gets no message and may
/// still be working. That holder learns of the loss when it next renews or releases.
///
/// The exit code is 0 if lockward ended a tenure, 1 if nobody holds the lock or you answered no, and 2 after an error.
#[derive(Args)]
pub(crate) struct Break {
    /// The lock
    key: OsString,

    /// End only the tenure of this owner
    #[arg(long, value_name = "NAME")]
    owner: Option<OsString>,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    servers: Servers,
}

impl Break {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let key = self.key.as_bytes();
        let name = text::show(key);
        let (Some(mut lock), server) = info::read(&self.servers, key, ALL, 3)? else {
            say(&format!("nobody holds {name}"));
            return Ok(ExitCode::FAILURE);
        };
        if let Some(owner) = &self.owner {
            lock.holders.retain(|holder| holder.owner.0 == owner.as_bytes());
            if lock.holders.is_empty() {
                say(&format!("{} does not hold {name}", text::show(owner.as_bytes())));
                return Ok(ExitCode::FAILURE);
            }
        }
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !self.yes && !can_ask {
            return Err(Failure::new(
                "there is no terminal to ask on; give --yes to break the lock without a question",
            ));
        }
        if !self.yes && !confirm(&info::tables(key, &lock))? {
            say(&format!("{name} is unchanged"));
            return Ok(ExitCode::FAILURE);
        }
        // While lockward waited for the user's answer, the server may have closed the first connection.
        let mut connection = server.connect()?;
        let mut any_broken = false;
        for holder in &lock.holders {
            let owner = &holder.owner;
            if release(&mut connection, key, holder).map_err(|error| server.failure(&error))? {
                say(&format!("broken: {owner} held {name} with token {}", holder.token));
                any_broken = true;
            } else {
                say(&format!("{owner} does not hold {name} any more"));
            }
        }
        if !any_broken {
            return Ok(ExitCode::FAILURE);
        }
        let (now, _) = info::read(&self.servers, key, 1, 0)?;
        say(&match now.as_ref().and_then(Lock::show_holders) {
            Some(holders) => format!("now held by {holders}"),
            None => "now nobody holds it".to_owned(),
        });
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints a line. If the output is closed, lockward continues without it.
fn say(line: &str) {
    let _ = output::print(&format!("{line}\n"));
}

/// Ends the tenure of a holder. `false` means that the tenure had already ended.
fn release(connection: &mut Connection, key: &[u8], holder: &Holder) -> Result<bool, RedisError> {
    let mut release = redis::cmd("LOCK.RELEASE");
    release.arg(key).arg(&holder.owner.0).arg("ALL").arg("TOKEN").arg(holder.token);
    match release.query::<()>(connection) {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some("NOTHELD") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks the user for confirmation. Every answer other than `y` or `yes` means no.
fn confirm(tables: &str) -> Result<bool, Failure> {
    write!(
        io::stderr(),
        "{tables}\nA holder gets no message and may still be working. Break the lock? [y/N] "
    )?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
