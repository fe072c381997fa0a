//! The arguments of a command, within the limits of the settings.
//!
//! A command parses and checks all its arguments before it reads or changes anything.

use crate::errors::Error;
use crate::server::{ArgumentStrings, Context, KeyName};
use crate::settings;
use lockward_core::Span;
use lockward_core::arguments::{self, ParseError};

/// A cursor over the arguments after the command's name.
pub type Arguments<'a> = arguments::Arguments<ArgumentStrings<'a>>;

/// The next argument as the name of a key in the selected database.
pub fn read_key<'a>(context: Context, arguments: &mut Arguments<'a>) -> Result<KeyName<'a>, ParseError> {
    let string = arguments.next_argument().ok_or(ParseError::WrongArity)?;
    Ok(string.key_name(context.db()))
}

/// A lease for `command`, in units of `unit` milliseconds.
pub fn read_lease(arguments: &mut Arguments<'_>, unit: u64, command: &'static str) -> Result<Span, Error> {
    let lease = match arguments.lease(unit) {
        Ok(lease) => Some(lease),
        Err(ParseError::LeaseTooLong) => None,
        Err(ParseError::Lease) => return Err(Error::InvalidLease(command)),
        Err(error) => return Err(error.into()),
    };
    let longest = settings::longest_lease();
    lease.filter(|lease| *lease <= longest.span()).ok_or(Error::LeaseTooLong(command, longest))
}
