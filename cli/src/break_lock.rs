//! `lockward break`: ends the tenure of a lock's holder.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::exit_code;
use crate::failure::Failure;
use crate::info;
use crate::locks::Holder;
use crate::primaries::{Primaries, ServerUrl};
use crate::text;

/// Release a lock in place of its holder
///
/// It shows the holder, asks, and ends that tenure, so the first waiter gets the lock. It does not delete the key: an owner that got
/// the lock in the meantime keeps it. The former holder gets no message and may still be working. It learns of the loss when
/// it next renews or releases.
///
/// The exit code is 0 if the lock was broken, 1 if nobody holds it or the answer was no, and 2 after an error.
#[derive(Args)]
pub(crate) struct Break {
    /// The lock
    key: OsString,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    server: ServerUrl,
}

impl Break {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.try_run().map_err(|failure| failure.with_code(exit_code::ERROR))
    }

    fn try_run(self) -> Result<ExitCode, Failure> {
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !self.yes && !can_ask {
            return Err(Failure::new(
                "there is no terminal to ask on; give --yes to break the lock without a question",
            ));
        }
        let key = self.key.as_bytes();
        let name = text::show(key);
        let mut primaries = Primaries::connect(&self.server)?;
        let Some(lock) = primaries.info(key, 3)? else {
            println!("nobody holds {name}");
            return Ok(ExitCode::FAILURE);
        };
        if !self.yes && !confirm(&info::tables(key, &lock))? {
            println!("{name} is unchanged");
            return Ok(ExitCode::FAILURE);
        }
        for holder in &lock.holders {
            let owner = text::show(&holder.owner);
            if !release(&mut primaries, key, holder)? {
                println!("{owner} does not hold {name} any more");
                return Ok(ExitCode::FAILURE);
            }
            println!("broken: {owner} held {name} with token {}", holder.token);
        }
        let now = primaries.info(key, 0)?;
        match now.as_ref().and_then(|lock| lock.holders.first()) {
            Some(next) => println!("now {} holds it with token {}", text::show(&next.owner), next.token),
            None => println!("now nobody holds it"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Ends the tenure with this token. `false`: it is over already.
fn release(primaries: &mut Primaries, key: &[u8], holder: &Holder) -> Result<bool, Failure> {
    let mut release = redis::cmd("LOCK.RELEASE");
    release.arg(key).arg(&holder.owner).arg("ALL").arg("TOKEN").arg(holder.token);
    match primaries.query::<()>(&release) {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some("NOTHELD") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Asks the user. Every answer other than yes is no.
fn confirm(tables: &str) -> Result<bool, Failure> {
    let mut out = io::stderr().lock();
    write!(out, "{tables}\nThe holder gets no message and may still be working. Break the lock? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
