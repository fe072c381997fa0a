//! The arguments of a command as the server gives them, and what the settings allow.
//!
//! Everything is parsed and checked here before anything is looked at, changed or replied.

use crate::errors::Error;
use crate::server::{KeyName, string_bytes};
use crate::settings;
use lockward_core::arguments::{self, ParseError};
use lockward_core::{Db, Span};
use redis_module::raw;
use std::ops::{Deref, DerefMut};
use std::slice;

/// A cursor over the arguments behind the command's name.
pub struct Arguments<'a> {
    db: Db,
    rest: arguments::Arguments<Strings<'a>>,
}

/// The server's strings, valid for `'a`.
pub struct Strings<'a>(slice::Iter<'a, *mut raw::RedisModuleString>);

/// One of them.
pub struct Given<'a>(&'a *mut raw::RedisModuleString);

impl<'a> Iterator for Strings<'a> {
    type Item = Given<'a>;

    fn next(&mut self) -> Option<Given<'a>> {
        self.0.next().map(Given)
    }
}

impl<'a> From<Given<'a>> for &'a [u8] {
    fn from(given: Given<'a>) -> Self {
        // SAFETY: valid for 'a, as `Arguments::new` says; the server does not change a command's arguments.
        unsafe { string_bytes(*given.0) }
    }
}

impl<'a> Arguments<'a> {
    /// The arguments of a command given in `db`. Every string in `argv` is valid for `'a`.
    pub fn new(db: Db, argv: &'a [*mut raw::RedisModuleString]) -> Self {
        let rest = Strings(argv.get(1..).unwrap_or_default().iter());
        Self { db, rest: arguments::Arguments::new(rest) }
    }

    /// The key.
    pub fn key(&mut self) -> Result<KeyName<'a>, ParseError> {
        let Given(string) = self.rest.next_argument().ok_or(ParseError::WrongArity)?;
        // SAFETY: valid for 'a, as `new` says.
        Ok(unsafe { KeyName::new(self.db, *string) })
    }

    /// A lease for `command`, in units of `unit` milliseconds.
    pub fn lease(&mut self, unit: u64, command: &'static str) -> Result<Span, Error> {
        let lease = match self.rest.lease(unit) {
            Ok(lease) if lease <= settings::max_lease() => lease,
            Ok(_) | Err(ParseError::LeaseTooLong) => return Err(Error::LongerThanMaxLease(command)),
            Err(ParseError::Lease) => return Err(Error::InvalidLease(command)),
            Err(mistake) => return Err(mistake.into()),
        };
        if settings::quarantine().is_some_and(|quarantine| lease > quarantine) {
            return Err(Error::LongerThanQuarantine(command));
        }
        Ok(lease)
    }
}

impl<'a> Deref for Arguments<'a> {
    type Target = arguments::Arguments<Strings<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.rest
    }
}

impl DerefMut for Arguments<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.rest
    }
}
