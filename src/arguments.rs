//! The arguments of a command, read one after the other.
//!
//! Everything is parsed and checked here before anything is looked at, changed or replied. Numbers are what Redis takes
//! for one: digits with at most a minus sign, nothing before, between or after.

use crate::errors::Error;
use crate::server::KeyName;
use crate::server::string_bytes;
use crate::settings;
use lockward_core::{Db, FencingToken, Owner, Span};
use redis_module::raw;
use std::ops::Deref;

/// A cursor over the arguments behind the command's name.
pub struct Arguments<'a> {
    db: Db,
    rest: std::slice::Iter<'a, *mut raw::RedisModuleString>,
}

impl<'a> Arguments<'a> {
    /// The arguments of a command given in `db`. Every string in `argv` is valid for `'a`.
    pub fn new(db: Db, argv: &'a [*mut raw::RedisModuleString]) -> Self {
        Self { db, rest: argv.get(1..).unwrap_or_default().iter() }
    }

    /// The next argument, if there is one.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        // SAFETY: valid for 'a, as `new` says; the server does not change a command's arguments.
        self.rest.next().map(|string| unsafe { string_bytes(*string) })
    }

    /// The next option's name; `None` at the end.
    pub fn option(&mut self) -> Option<OptionName> {
        self.next().map(OptionName::of)
    }

    /// The value of an option.
    pub fn value(&mut self) -> Result<&'a [u8], Error> {
        self.next().ok_or(Error::Syntax)
    }

    /// The key.
    pub fn key(&mut self) -> Result<KeyName<'a>, Error> {
        let string = self.rest.next().ok_or(Error::WrongArity)?;
        // SAFETY: valid for 'a, as `new` says.
        Ok(unsafe { KeyName::new(self.db, *string) })
    }

    /// An owner.
    pub fn owner(&mut self) -> Result<Owner, Error> {
        Owner::new(self.next().ok_or(Error::WrongArity)?).ok_or(Error::Owner)
    }

    /// A number.
    pub fn integer(&mut self) -> Result<i64, Error> {
        parse_integer(self.value()?).ok_or(Error::NotAnInteger)
    }

    /// A count of holds from `least` on.
    pub fn holds(&mut self, least: u32) -> Result<u32, Error> {
        let holds = u32::try_from(self.integer()?).map_err(|_| Error::HoldsOutOfRange)?;
        if holds < least { Err(Error::HoldsOutOfRange) } else { Ok(holds) }
    }

    /// A fencing token.
    pub fn token(&mut self) -> Result<FencingToken, Error> {
        let token = u64::try_from(self.integer()?).ok().and_then(FencingToken::new);
        token.ok_or(Error::TokenOutOfRange)
    }

    /// A count of things to show, from `least` on.
    pub fn count(&mut self, least: usize) -> Result<usize, Error> {
        let count = usize::try_from(self.integer()?).map_err(|_| Error::CountOutOfRange)?;
        if count < least { Err(Error::CountOutOfRange) } else { Ok(count) }
    }

    /// A lease for `command`, in units of `unit` milliseconds.
    pub fn lease(&mut self, unit: u64, command: &'static str) -> Result<Span, Error> {
        let units = u64::try_from(self.integer()?).ok().filter(|units| *units > 0);
        let millis = units.and_then(|units| units.checked_mul(unit)).ok_or(Error::InvalidLease(command))?;
        // Above the longest span it is longer than any setting, too.
        let lease = Span::from_millis(millis).ok_or(Error::LongerThanMaxLease(command))?;
        if lease > settings::max_lease() {
            Err(Error::LongerThanMaxLease(command))
        } else if settings::quarantine().is_some_and(|quarantine| lease > quarantine) {
            Err(Error::LongerThanQuarantine(command))
        } else {
            Ok(lease)
        }
    }

    /// A wait limit; `None` when it is 0, which is no limit.
    pub fn wait_limit(&mut self) -> Result<Option<Span>, Error> {
        let millis = parse_integer(self.value()?).ok_or(Error::LimitNotAnInteger)?;
        let millis = u64::try_from(millis).map_err(|_| Error::LimitNegative)?;
        let limit = Span::from_millis(millis).ok_or(Error::LimitOutOfRange)?;
        Ok((limit > Span::default()).then_some(limit))
    }
}

/// The name of an option, in lower case. One that is longer than any there is, is empty.
pub struct OptionName {
    bytes: [u8; 8],
    len: usize,
}

impl OptionName {
    fn of(given: &[u8]) -> Self {
        let mut bytes = [0; 8];
        let len = given.len();
        let Some(room) = bytes.get_mut(..len) else { return Self { bytes, len: 0 } };
        room.copy_from_slice(given);
        room.make_ascii_lowercase();
        Self { bytes, len }
    }
}

impl Deref for OptionName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// A value that an option may set once.
pub fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::Syntax),
    }
}

/// A number as Redis reads one: no sign but minus, no leading zeros, no spaces.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    match digits {
        [b'0'] => return (!negative).then_some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Counted below zero, where there is room for one more.
    let mut number = 0_i64;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number = number.checked_mul(10)?.checked_sub(digit)?;
    }
    if negative { Some(number) } else { number.checked_neg() }
}
