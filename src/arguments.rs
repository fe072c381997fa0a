//! The arguments of a command, within the limits of the settings.
//!
//! A command parses and checks all its arguments before it reads or changes anything.

use crate::errors::Error;
use crate::server::{ArgumentStrings, KeyName};
use crate::settings;
use lockward_core::arguments::{self, ParseError};
use lockward_core::{Db, Span};
use std::ops::{Deref, DerefMut};

/// A cursor over the arguments after the command's name.
pub struct Arguments<'a> {
    db: Db,
    rest: arguments::Arguments<ArgumentStrings<'a>>,
}

impl<'a> Arguments<'a> {
    /// The arguments of a command that runs in `db`.
    pub fn new(db: Db, strings: ArgumentStrings<'a>) -> Self {
        Self { db, rest: arguments::Arguments::new(strings) }
    }

    pub fn key(&mut self) -> Result<KeyName<'a>, ParseError> {
        let string = self.rest.next_argument().ok_or(ParseError::WrongArity)?;
        Ok(string.key_name(self.db))
    }

    pub fn rest(self) -> ArgumentStrings<'a> {
        self.rest.rest()
    }

    /// A lease for `command`, in units of `unit` milliseconds.
    pub fn lease(&mut self, unit: u64, command: &'static str) -> Result<Span, Error> {
        let lease = match self.rest.lease(unit) {
            Ok(lease) => Some(lease),
            Err(ParseError::LeaseTooLong) => None,
            Err(ParseError::Lease) => return Err(Error::InvalidLease(command)),
            Err(error) => return Err(error.into()),
        };
        // The quarantine could not protect a lease that is longer than the quarantine. The error names the smaller of
        // the two limits, because a lease of that length is within both limits.
        let most = settings::max_lease();
        let (most, setting) = match settings::quarantine() {
            Some(quarantine) if quarantine < most => (quarantine, "lock.quarantine"),
            Some(_) | None => (most, "lock.max-lease"),
        };
        lease.filter(|lease| *lease <= most).ok_or(Error::LeaseTooLong(command, most, setting))
    }
}

impl<'a> Deref for Arguments<'a> {
    type Target = arguments::Arguments<ArgumentStrings<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.rest
    }
}

impl DerefMut for Arguments<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.rest
    }
}
