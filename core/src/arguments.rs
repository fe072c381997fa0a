//! Reads the arguments of a command, one after the other.

use crate::decimal::parse_i64;
use crate::holder::{Mode, Slots, Weight};
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::Span;
use std::ops::RangeInclusive;

/// Why the arguments are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Too few or too many arguments.
    WrongArity,
    /// An option that is unknown, is given twice, lacks its value, or excludes another given option.
    Syntax,
    /// Not an integer of 64 bits.
    NotAnInteger,
    /// An owner that is empty or too long.
    Owner,
    /// A count of holds that is out of range.
    Holds,
    /// A number of slots that is out of range.
    Slots,
    /// A weight that is out of range, or larger than the limit.
    Weight,
    /// The request names a weight, but no number of slots.
    WeightNeedsSlots,
    /// A KEEP time that is out of range.
    Keep,
    /// A fencing token that is out of range.
    Token,
    /// A count of shown entries that is out of range.
    Count,
    /// A lease that is not above zero, or has too many milliseconds for 64 bits.
    Lease,
    /// A lease that is longer than [`Span::MAX`].
    LeaseTooLong,
    /// A wait limit that is not an integer.
    LimitNotAnInteger,
    /// A wait limit below zero.
    LimitNegative,
    /// A wait limit that is longer than [`Span::MAX`].
    LimitOutOfRange,
}

/// A cursor over the arguments after the command's name.
#[derive(Debug)]
pub struct Arguments<I> {
    rest: I,
}

impl<'a, I: Iterator<Item: Into<&'a [u8]>>> Arguments<I> {
    /// A cursor over `rest`.
    pub const fn new(rest: I) -> Self {
        Self { rest }
    }

    /// The next argument; `None` at the end.
    pub fn next_argument(&mut self) -> Option<I::Item> {
        self.rest.next()
    }

    /// The arguments that are left.
    pub fn rest(self) -> I {
        self.rest
    }

    /// The next argument, which is required.
    ///
    /// # Errors
    /// [`ParseError::WrongArity`]
    pub fn required(&mut self) -> Result<&'a [u8], ParseError> {
        self.next_argument().map(Into::into).ok_or(ParseError::WrongArity)
    }

    /// An owner.
    ///
    /// # Errors
    /// [`ParseError::WrongArity`] or [`ParseError::Owner`].
    pub fn owner(&mut self) -> Result<Owner, ParseError> {
        Owner::new(self.required()?).ok_or(ParseError::Owner)
    }

    /// The name of the next option; `None` at the end.
    pub fn option(&mut self) -> Option<OptionName> {
        self.next_argument().map(|argument| OptionName::of(argument.into()))
    }

    fn number(&mut self) -> Result<Option<i64>, ParseError> {
        self.next_argument().map(|argument| parse_i64(argument.into())).ok_or(ParseError::Syntax)
    }

    fn integer(&mut self) -> Result<i64, ParseError> {
        self.number()?.ok_or(ParseError::NotAnInteger)
    }

    /// A number in `range`.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], `out_of_range`.
    fn in_range<T: TryFrom<i64> + PartialOrd>(
        &mut self,
        range: RangeInclusive<T>,
        out_of_range: ParseError,
    ) -> Result<T, ParseError> {
        let number = T::try_from(self.integer()?).ok();
        number.filter(|number| range.contains(number)).ok_or(out_of_range)
    }

    /// A count of holds, at least `least`.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Holds`].
    pub fn holds(&mut self, least: u32) -> Result<u32, ParseError> {
        self.in_range(least..=u32::MAX, ParseError::Holds)
    }

    /// A number of slots, at least 1.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Slots`].
    pub fn slots(&mut self) -> Result<Slots, ParseError> {
        self.in_range(1..=Slots::MAX, ParseError::Slots).map(Slots)
    }

    /// A weight.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Weight`].
    pub fn weight(&mut self) -> Result<Weight, ParseError> {
        u32::try_from(self.integer()?).ok().and_then(Weight::new).ok_or(ParseError::Weight)
    }

    /// How long a place in the queue is kept after the wait: 1 to 60,000 ms.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Keep`].
    pub fn keep(&mut self) -> Result<Span, ParseError> {
        const LONGEST: u64 = 60_000;
        Span::from_millis(self.in_range(1..=LONGEST, ParseError::Keep)?).ok_or(ParseError::Keep)
    }

    /// A fencing token.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Token`].
    pub fn token(&mut self) -> Result<FencingToken, ParseError> {
        u64::try_from(self.integer()?).ok().and_then(FencingToken::new).ok_or(ParseError::Token)
    }

    /// A count of entries to show, at least `least`.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Count`].
    pub fn count(&mut self, least: usize) -> Result<usize, ParseError> {
        self.in_range(least..=usize::MAX, ParseError::Count)
    }

    /// A lease, in units of `unit` milliseconds.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::NotAnInteger`], [`ParseError::Lease`],
    /// [`ParseError::LeaseTooLong`].
    pub fn lease(&mut self, unit: u64) -> Result<Span, ParseError> {
        let units = u64::try_from(self.integer()?).ok().filter(|units| *units > 0);
        let millis = units.and_then(|units| units.checked_mul(unit)).ok_or(ParseError::Lease)?;
        Span::from_millis(millis).ok_or(ParseError::LeaseTooLong)
    }

    /// A wait limit in milliseconds; `None` for 0, which means no limit.
    ///
    /// # Errors
    /// [`ParseError::Syntax`] when the argument is missing, [`ParseError::LimitNotAnInteger`],
    /// [`ParseError::LimitNegative`], [`ParseError::LimitOutOfRange`].
    pub fn wait_limit(&mut self) -> Result<Option<Span>, ParseError> {
        let millis = self.number()?.ok_or(ParseError::LimitNotAnInteger)?;
        let millis = u64::try_from(millis).map_err(|_| ParseError::LimitNegative)?;
        let limit = Span::from_millis(millis).ok_or(ParseError::LimitOutOfRange)?;
        Ok((limit > Span::default()).then_some(limit))
    }
}

/// The name of an option: two to seven letters in any case, as one number that is quick to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionName(u64);

impl OptionName {
    /// The name with these letters. If the text is no option, the result differs from the names of all options.
    #[must_use]
    pub const fn of(text: &[u8]) -> Self {
        /// In each of seven bytes, the bit that makes a letter lower-case. A byte that is not a letter does not become
        /// a letter when this bit is set.
        const LOWER_CASE: u64 = u64::from_le_bytes([0x20, 0x20, 0x20, 0x20, 0x20, 0x20, 0x20, 0]);
        if text.len() > 7 {
            return Self(0);
        }
        // The code reads the letters in two pieces: the first letters, and the last letters. In a short name the two
        // pieces overlap. The pieces and the length together still determine the name.
        let letters = match (text.first_chunk(), text.last_chunk()) {
            (Some(first), Some(last)) => {
                u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64 >> 8) << 32
            }
            _ => match (text.first_chunk(), text.last_chunk()) {
                (Some(first), Some(last)) => {
                    u16::from_le_bytes(*first) as u64 | (u16::from_le_bytes(*last) as u64) << 16
                }
                _ => 0,
            },
        };
        Self(letters | LOWER_CASE | (text.len() as u64) << 56)
    }
}

/// The names of all options.
pub mod option {
    use crate::arguments::OptionName;

    /// A lease in milliseconds.
    pub const PX: OptionName = OptionName::of(b"px");
    /// A lease in seconds.
    pub const EX: OptionName = OptionName::of(b"ex");
    /// A wait limit.
    pub const BLOCK: OptionName = OptionName::of(b"block");
    /// A count of holds.
    pub const HOLDS: OptionName = OptionName::of(b"holds");
    /// All holds.
    pub const ALL: OptionName = OptionName::of(b"all");
    /// A fencing token.
    pub const TOKEN: OptionName = OptionName::of(b"token");
    /// A limit.
    pub const SLOTS: OptionName = OptionName::of(b"slots");
    /// No limit.
    pub const SHARED: OptionName = OptionName::of(b"shared");
    /// A weight.
    pub const WEIGHT: OptionName = OptionName::of(b"weight");
    /// How long a place in the queue is kept after the wait.
    pub const KEEP: OptionName = OptionName::of(b"keep");
    /// How many holders to show.
    pub const HOLDERS: OptionName = OptionName::of(b"holders");
    /// How many waiters to show.
    pub const WAITERS: OptionName = OptionName::of(b"waiters");
    /// How many locks to show.
    pub const COUNT: OptionName = OptionName::of(b"count");
}

/// Checks the limit and the weight of a request against each other. Only a request with a number of slots may name a
/// weight.
///
/// # Errors
/// [`ParseError::WeightNeedsSlots`] for a weight without a number of slots. [`ParseError::Weight`] for a weight that is
/// larger than the limit.
pub fn check_mode(slots: Option<Slots>, weight: Option<Weight>) -> Result<(), ParseError> {
    match (slots, weight) {
        (_, None) => Ok(()),
        (None | Some(Slots::SHARED), Some(_)) => Err(ParseError::WeightNeedsSlots),
        (Some(slots), Some(weight)) => Mode::new(slots, weight).map(|_| ()).ok_or(ParseError::Weight),
    }
}

/// Sets the value of an option, which can be given only once.
///
/// # Errors
/// [`ParseError::Syntax`] when the option is set already.
pub fn set_once<T>(option: &mut Option<T>, value: T) -> Result<(), ParseError> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(ParseError::Syntax),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_given_twice_is_a_syntax_error() {
        let mut option = None;
        assert_eq!((set_once(&mut option, 1), set_once(&mut option, 2)), (Ok(()), Err(ParseError::Syntax)));
    }

    #[test]
    fn an_option_is_known_by_its_whole_name_in_any_case() {
        for known in [b"WaItErS".as_slice(), b"waiters", b"WAITERS"] {
            assert_eq!(OptionName::of(known), option::WAITERS);
        }
        for word in ["px", "all", "keep", "holds", "shared", "waiters"] {
            let name = OptionName::of(word.as_bytes());
            // Tries every value of each byte, and shorter and longer texts.
            for at in 0..word.len() {
                for byte in 0..=u8::MAX {
                    let mut text = word.as_bytes().to_vec();
                    text[at] = byte;
                    assert_eq!(OptionName::of(&text) == name, text.eq_ignore_ascii_case(word.as_bytes()));
                }
                assert_ne!(OptionName::of(&word.as_bytes()[..at]), name);
                assert_ne!(OptionName::of(&[word.as_bytes(), &word.as_bytes()[at..]].concat()), name);
            }
            let long = [word, &" ".repeat(256 - word.len()), word].concat();
            assert_ne!(OptionName::of(long.as_bytes()), name);
        }
    }

    #[test]
    fn a_missing_argument_is_an_arity_error_and_a_missing_value_a_syntax_error() {
        let mut none = Arguments::new(std::iter::empty::<&[u8]>());
        assert_eq!(none.owner(), Err(ParseError::WrongArity));
        assert!(none.option().is_none());
        assert_eq!((none.holds(1), none.token().err()), (Err(ParseError::Syntax), Some(ParseError::Syntax)));
        assert_eq!((none.lease(1), none.wait_limit()), (Err(ParseError::Syntax), Err(ParseError::Syntax)));
    }

    #[test]
    fn each_number_is_checked_against_its_range() {
        fn read<T>(text: &str, read: impl FnOnce(&mut Arguments<std::iter::Once<&[u8]>>) -> T) -> T {
            read(&mut Arguments::new(std::iter::once(text.as_bytes())))
        }
        assert_eq!(
            ["0", "1", "4294967295", "4294967296"].map(|text| read(text, |a| a.holds(1).ok())),
            [None, Some(1), Some(u32::MAX), None]
        );
        assert_eq!(read("0", |a| a.holds(0)), Ok(0));
        assert_eq!(
            ["0", "1", "1000000", "1000001"].map(|text| read(text, |a| a.slots().ok().map(Slots::number))),
            [None, Some(1), Some(Slots::MAX), None]
        );
        assert_eq!(
            ["0", "9007199254740991", "9007199254740992"].map(|text| read(text, |a| a.token().ok())),
            [None, Some(FencingToken::MAX), None]
        );
        assert_eq!((read("0", |a| a.count(1)), read("1", |a| a.count(1))), (Err(ParseError::Count), Ok(1)));
        for (text, unit, lease) in [
            ("0", 1, Err(ParseError::Lease)),
            ("-1", 1, Err(ParseError::Lease)),
            ("2", 1_000, Ok(Span::from_millis(2_000).unwrap())),
            ("31536000000000", 1, Ok(Span::MAX)),
            ("31536000000001", 1, Err(ParseError::LeaseTooLong)),
            ("18446744073709551", 1_000, Err(ParseError::LeaseTooLong)),
            ("18446744073709552", 1_000, Err(ParseError::Lease)),
        ] {
            assert_eq!(read(text, |a| a.lease(unit)), lease, "{text}");
        }
        for (text, limit) in [
            ("0", Ok(None)),
            ("1", Ok(Span::from_millis(1))),
            ("31536000000000", Ok(Some(Span::MAX))),
            ("31536000000001", Err(ParseError::LimitOutOfRange)),
            ("-1", Err(ParseError::LimitNegative)),
            ("x", Err(ParseError::LimitNotAnInteger)),
        ] {
            assert_eq!(read(text, |a| a.wait_limit()), limit, "{text}");
        }
    }
}
