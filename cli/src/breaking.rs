//! `lockward break`: takes a lock from whoever holds it.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;
use crate::info::page;
use crate::primaries::{Place, Primaries, TROUBLE};
use crate::text;

/// Take a lock from whoever holds it
///
/// Shows who holds it and asks first. It ends the very tenure that was shown: whoever got the lock meanwhile keeps it. The
/// first waiter has the lock then. The former holder is not told: it learns of it when it next renews or releases,
/// and may be at work until then.
///
/// Exits with 0 if the lock was broken, 1 if it was not, as nobody holds it or the answer was no, 2 if that failed.
#[derive(Args)]
pub(crate) struct Break {
    /// The lock
    key: OsString,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    place: Place,
}

impl Break {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.play().map_err(|failure| failure.exit(TROUBLE))
    }

    fn play(self) -> Result<ExitCode, Failure> {
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !self.yes && !can_ask {
            return Err(Failure::new(
                "there is no terminal to ask on; say --yes to break it without a question",
            ));
        }
        let key = self.key.as_bytes();
        let name = text::show(key);
        let mut primaries = Primaries::connect(&self.place)?;
        let Some(lock) = primaries.look_at(key, 3)? else {
            println!("nobody holds {name}");
            return Ok(ExitCode::FAILURE);
        };
        if !self.yes && !confirm(&page(key, &lock))? {
            println!("{name} was left as it is");
            return Ok(ExitCode::FAILURE);
        }
        for holder in &lock.holders {
            let mut release = redis::cmd("LOCK.RELEASE");
            release.arg(key).arg(&holder.owner).arg("ALL").arg("TOKEN").arg(holder.token);
            match primaries.ask::<()>(&release) {
                Ok(()) => {
                    println!("broken: {} held {name} with token {}", text::show(&holder.owner), holder.token)
                }
                Err(error) if error.code() == Some("NOTHELD") => {
                    println!("{} does not hold {name} any more", text::show(&holder.owner));
                    return Ok(ExitCode::FAILURE);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let now = primaries.look_at(key, 0)?;
        match now.as_ref().and_then(|lock| lock.holders.first()) {
            Some(next) => println!("now {} holds it with token {}", text::show(&next.owner), next.token),
            None => println!("now nobody holds it"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether the person at the terminal says yes. Anything else is no.
fn confirm(page: &str) -> Result<bool, Failure> {
    let mut out = io::stderr().lock();
    write!(out, "{page}\nThe holder is not told, and may be at work. Break the lock? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
