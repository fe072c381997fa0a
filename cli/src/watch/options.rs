//! The options of `lockward watch`, and the output.

use std::collections::HashMap;
use std::ffi::OsString;
use std::process;

use clap::Args;

use super::fact::{Fact, What};
use crate::exit_code;
use crate::failure::Failure;
use crate::output;

#[derive(Args)]
pub(super) struct Options {
    /// Only locks whose key matches this pattern, as in KEYS: order:*
    #[arg(value_name = "PATTERN", default_value = "*", hide_default_value = true)]
    pub(super) pattern: OsString,

    /// Add the missing classes to the setting notify-keyspace-events of each primary
    #[arg(long)]
    pub(super) configure: bool,

    /// Print one line of JSON for each change
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Prints a line. Ends the program if the output fails.
    pub(super) fn tell(&self, fact: &Fact) {
        let line = if self.json { output::json(fact) } else { Ok(fact.line()) };
        if let Err(failure) = line.and_then(|line| output::print(&(line + "\n"))) {
            output::complain(&failure.to_string());
            process::exit(exit_code::ERROR.into());
        }
    }

    /// Prints why a server is not watched, unless the output says so already.
    pub(super) fn tell_lost(
        &self,
        address: String,
        failure: &Failure,
        reported: &mut HashMap<String, String>,
    ) {
        let reason = format!("{failure}; events may be missed from now on");
        if reported.insert(address, reason.clone()).as_ref() != Some(&reason) {
            self.tell(&Fact::of_server(What::Disconnected, reason));
        }
    }
}
