//! An owner: any 1 to 1,024 bytes.
//!
//! By convention an owner is `UUID:thread`, and there may be millions of owners. So an owner takes 24 bytes and no heap
//! memory if it is one of these:
//!
//! - a UUID of 36 characters in lower case, alone or followed by a colon and a number;
//! - 32 hexadecimal digits in lower case;
//! - a name of at most 23 bytes.
//!
//! All other owners are stored on the heap. Every owner is read back byte for byte.

use crate::decimal;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;

/// The number of bytes of a stored UUID, and of the suffix after the UUID.
const UUID: usize = 16;
const SUFFIX: usize = 7;

/// The longest name that is not stored on the heap. With this size, a lock with one holder is a single small
/// allocation.
const INLINE: usize = UUID + SUFFIX;

/// The lengths in characters: of a UUID without hyphens, of a UUID with hyphens, and of the longest number
/// after a UUID.
const DIGITS: usize = 2 * UUID;
const UUID_TEXT: usize = DIGITS + 4;
const THREAD_DIGITS: usize = 17;

/// An owner: any binary string of 1 to 1,024 bytes, by convention `UUID:thread`.
#[derive(Clone, PartialEq, Eq)]
pub struct Owner(Name);

/// The same bytes are always stored in the same form, so that equal owners compare as equal.
#[derive(Clone, PartialEq, Eq)]
enum Name {
    Short(Short),
    Heap(Box<[u8]>),
}

/// An owner without heap memory: a UUID and its suffix, or digits, or a short name that is filled up with zeros.
///
/// The fields are whole machine words. An owner is copied more often than it is compared, and a copy is slow
/// if a processor reads memory in larger or smaller pieces than it wrote (store forwarding fails).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Short {
    first: [u8; UUID],
    /// The lowest byte is the length of the name, or [`IS_UUID`] or [`IS_DIGITS`]. The other bytes are the suffix. For
    /// a name, the suffix is the rest of the name. For a UUID without a number, the suffix is 0. For a UUID with a
    /// number, the suffix is the number plus one.
    kind_and_suffix: NonZeroU64,
}

/// These values replace the length and mark a UUID or digits. No short name has such a length.
const IS_UUID: u8 = u8::MAX;
const IS_DIGITS: u8 = u8::MAX - 1;

/// Hashes the fields in one piece, because a keyed hash takes extra time for each piece.
impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Name::Short(Short { first, kind_and_suffix }) => {
                let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *first;
                let last = kind_and_suffix.get().to_le_bytes();
                state.write([[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p], last].as_flattened());
            }
            Name::Heap(name) => state.write(name),
        }
    }
}

impl Short {
    fn new(first: [u8; UUID], suffix: [u8; SUFFIX], kind: u8) -> Option<Self> {
        let [a, b, c, d, e, f, g] = suffix;
        let kind_and_suffix = NonZeroU64::new(u64::from_le_bytes([kind, a, b, c, d, e, f, g]))?;
        Some(Self { first, kind_and_suffix })
    }

    /// A name of at most [`INLINE`] bytes, or of 32 hexadecimal digits.
    fn of_name(name: &[u8]) -> Option<Self> {
        if let Ok(digits) = name.try_into() {
            return Self::new(read_digits(digits)?, [0; SUFFIX], IS_DIGITS);
        }
        let len = u8::try_from(name.len()).ok().filter(|_| name.len() <= INLINE)?;
        let (mut first, mut suffix) = ([0; UUID], [0; SUFFIX]);
        let (begin, end) = name.split_at(name.len().min(UUID));
        first.get_mut(..begin.len())?.copy_from_slice(begin);
        suffix.get_mut(..end.len())?.copy_from_slice(end);
        Self::new(first, suffix, len)
    }

    const fn kind_and_suffix(self) -> (u8, [u8; SUFFIX]) {
        let [kind, suffix @ ..] = self.kind_and_suffix.get().to_le_bytes();
        (kind, suffix)
    }

    fn name(self) -> Vec<u8> {
        let (len, suffix) = self.kind_and_suffix();
        if len == IS_DIGITS {
            return self.first.into_iter().flat_map(digits_of).collect();
        }
        let mut name = [&self.first[..], &suffix].concat();
        name.truncate(len.into());
        name
    }
}

impl Owner {
    /// The longest owner, in bytes.
    pub const MAX_LEN: usize = 1_024;

    /// The owner with these bytes; `None` when there are no bytes or too many bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if let Some(owner) = Self::read_uuid(bytes) {
            return Some(owner);
        }
        Self::of_name(bytes)
    }

    #[inline(never)]
    fn of_name(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > Self::MAX_LEN {
            return None;
        }
        Some(Self(Short::of_name(bytes).map_or_else(|| Name::Heap(bytes.into()), Name::Short)))
    }

    /// The owner with this UUID and, if `suffix` is not 0, a colon and the number `suffix` - 1. `None` for a suffix of
    /// more than 7 bytes.
    pub(crate) fn from_uuid(uuid: [u8; UUID], suffix: u64) -> Option<Self> {
        let [suffix @ .., 0] = suffix.to_le_bytes() else { return None };
        Short::new(uuid, suffix, IS_UUID).map(|short| Self(Name::Short(short)))
    }

    /// The UUID and the suffix from which [`Owner::from_uuid`] makes this owner.
    pub(crate) fn as_uuid(&self) -> Option<([u8; UUID], u64)> {
        let Name::Short(short) = self.0 else { return None };
        let (IS_UUID, [a, b, c, d, e, f, g]) = short.kind_and_suffix() else { return None };
        Some((short.first, u64::from_le_bytes([a, b, c, d, e, f, g, 0])))
    }

    fn read_uuid(text: &[u8]) -> Option<Self> {
        let (uuid, rest) = text.split_first_chunk()?;
        let uuid = read_uuid(uuid)?;
        let suffix = match rest {
            [] => 0,
            [b':', thread @ ..] => decimal::parse_u64(thread)?.checked_add(1)?,
            _ => return None,
        };
        Self::from_uuid(uuid, suffix)
    }

    /// The owner's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        match &self.0 {
            Name::Short(short) => Cow::Owned(
                self.as_uuid().map_or_else(|| short.name(), |(uuid, suffix)| uuid_text(uuid, suffix)),
            ),
            Name::Heap(bytes) => Cow::Borrowed(bytes),
        }
    }

    /// The size of the owner's heap memory in bytes.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Name::Short(_) => 0,
            Name::Heap(bytes) => bytes.len(),
        }
    }

    /// The heap memory of the owner. A defragmenter moves this memory.
    pub fn heap_part(&mut self) -> Option<&mut Box<[u8]>> {
        match &mut self.0 {
            Name::Short(_) => None,
            Name::Heap(bytes) => Some(bytes),
        }
    }
}

fn uuid_text(uuid: [u8; UUID], suffix: u64) -> Vec<u8> {
    let mut text = String::with_capacity(UUID_TEXT + 1 + THREAD_DIGITS);
    for (at, byte) in uuid.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.extend(digits_of(byte).map(char::from));
    }
    if let Some(thread) = suffix.checked_sub(1) {
        // Writing to a string does not fail.
        let _ = write!(text, ":{thread}");
    }
    text.into_bytes()
}

/// The two hexadecimal digits of a byte.
fn digits_of(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 0x0f].map(|digit| digit.wrapping_add(if digit < 10 { b'0' } else { b'a' - 10 }))
}

/// Reads a UUID in the form that [`Owner::to_bytes`] writes.
fn read_uuid(text: &[u8; UUID_TEXT]) -> Option<[u8; UUID]> {
    /// Where each group of four digits begins.
    const FOURS: [usize; 8] = [0, 4, 9, 14, 19, 24, 28, 32];
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let mut digits = [0; DIGITS];
    for (four, at) in digits.chunks_exact_mut(4).zip(FOURS) {
        four.copy_from_slice(text.get(at..)?.first_chunk::<4>()?);
    }
    let uuid = read_digits(&digits);
    let hyphens = HYPHENS.iter().all(|at| text.get(*at) == Some(&b'-'));
    uuid.filter(|_| hyphens)
}

/// Reads lower-case hexadecimal digits.
#[inline(always)]
fn read_digits(digits: &[u8; DIGITS]) -> Option<[u8; UUID]> {
    // The code has no branches, because it runs for each command. A byte that is no digit becomes a value above 15, and
    // the check at the end finds this value.
    let digits = digits.map(|digit| match digit.wrapping_sub(b'0') {
        digit @ ..10 => digit,
        _ => digit.wrapping_sub(b'a').saturating_add(10),
    });
    let wrong = digits.iter().fold(0, |wrong, digit| wrong | digit) > 0x0f;
    let mut uuid = [0; UUID];
    for (byte, [high, low]) in uuid.iter_mut().zip(digits.as_chunks().0) {
        *byte = high << 4 | low;
    }
    (!wrong).then_some(uuid)
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.to_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

    fn owner(name: impl AsRef<[u8]>) -> Owner {
        Owner::new(name.as_ref()).unwrap()
    }

    #[test]
    fn an_owner_of_every_length_is_read_back_unchanged() {
        assert!(Owner::new(&[]).is_none());
        assert!(Owner::new(&[7; Owner::MAX_LEN + 1]).is_none());
        for len in 1..=Owner::MAX_LEN {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let owner = owner(&bytes);
            assert_eq!(owner.to_bytes(), bytes);
            assert_eq!(owner.heap_size() == 0, len <= 23);
        }
    }

    #[test]
    fn a_uuid_with_a_number_is_stored_without_heap_memory_and_read_back_unchanged() {
        let bytes =
            [0x0f, 0x8f, 0xad, 0x5b, 0xd9, 0xcb, 0x46, 0x9f, 0xa1, 0x65, 0x70, 0x86, 0x77, 0x28, 0x95, 0x0e];
        for (rest, suffix) in [
            ("", 0),
            (":0", 1),
            (":1", 2),
            (":17", 18),
            (":140234567891234", 140_234_567_891_235),
            (":72057594037927934", (1 << 56) - 1),
        ] {
            let name = format!("{UUID}{rest}");
            assert_eq!(owner(&name).as_uuid(), Some((bytes, suffix)), "{name}");
            assert_eq!(Owner::from_uuid(bytes, suffix), Some(owner(&name)));
            assert_eq!(owner(&name).to_bytes(), name.as_bytes());
            assert_eq!(owner(&name).heap_size(), 0);
        }
        assert!(Owner::from_uuid(bytes, 1 << 56).is_none());
    }

    #[test]
    fn a_name_that_is_almost_a_uuid_is_read_back_unchanged() {
        let with = |at: usize, byte: u8| {
            let mut name = format!("{UUID}:17").into_bytes();
            name[at] = byte;
            name
        };
        // Tries every byte at every index. If the byte is a digit, the text is another UUID or number.
        for at in 0..UUID.len() + 3 {
            for byte in 0..=u8::MAX {
                let name = with(at, byte);
                let is_hyphen = matches!(at, 8 | 13 | 18 | 23);
                let fits = match at {
                    _ if is_hyphen => byte == b'-',
                    36 => byte == b':',
                    37 => matches!(byte, b'1'..=b'9'),
                    38 => byte.is_ascii_digit(),
                    _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
                };
                let owner = owner(&name);
                assert_eq!(owner.to_bytes(), name);
                assert_eq!(owner.as_uuid().is_some(), fits, "{owner:?}");
                assert_eq!(owner == Owner::new(&with(0, b'0')).unwrap(), name == with(0, b'0'), "{owner:?}");
            }
        }
        for name in [
            format!("{UUID}:"),
            format!("{UUID}:-1"),
            format!("{UUID}:+1"),
            format!("{UUID}:01"),
            format!("{UUID}: 1"),
            format!("{UUID}17"),
            format!("{UUID}:1:1"),
            // The first number that is too large for a suffix, and numbers near the limit of 64 bits.
            format!("{UUID}:72057594037927935"),
            format!("{UUID}:9223372036854775807"),
            format!("{UUID}:9223372036854775808"),
            format!("{UUID}:18446744073709551616"),
            UUID[1..].to_owned(),
            UUID.to_uppercase(),
            format!("{{{UUID}}}"),
        ] {
            assert_eq!(owner(&name).as_uuid(), None, "{name}");
            assert_eq!(owner(&name).to_bytes(), name.as_bytes());
        }
    }

    #[test]
    fn hexadecimal_digits_are_stored_without_heap_memory_and_read_back_unchanged() {
        let digits = UUID.replace('-', "");
        assert_eq!(owner(&digits).heap_size(), 0);
        for at in 0..DIGITS {
            for byte in 0..=u8::MAX {
                let mut name = digits.clone().into_bytes();
                name[at] = byte;
                let is_digit = matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                assert_eq!(owner(&name).to_bytes(), name);
                assert_eq!(owner(&name).heap_size() == 0, is_digit, "{:?}", owner(&name));
                assert_eq!(owner(&name) == owner(&digits), name == digits.as_bytes());
            }
        }
        assert_ne!(owner(&digits), owner(UUID));
        assert_eq!(owner(&digits).as_uuid(), None, "the encoding writes it as its bytes");
    }

    #[test]
    fn the_sixteen_bytes_of_a_uuid_are_another_owner_than_its_text() {
        let (bytes, _) = owner(UUID).as_uuid().unwrap();
        assert_ne!(owner(bytes), owner(UUID));
        assert_ne!(owner(bytes), owner(UUID.replace('-', "")));
        assert_eq!(owner(bytes).to_bytes(), &bytes[..]);
        assert_ne!(owner(UUID), owner(format!("{UUID}:0")));
    }

    #[test]
    fn names_that_end_in_zeros_differ() {
        for len in 1..INLINE + 2 {
            assert_ne!(owner(vec![0; len]), owner(vec![0; len + 1]));
        }
    }

    #[test]
    fn only_a_long_owner_takes_heap_memory() {
        let (mut short, mut long) = (owner([7; INLINE]), owner([8; INLINE + 1]));
        assert!(short.heap_part().is_none());
        assert!(owner(UUID).heap_part().is_none());
        assert_eq!(long.heap_size(), INLINE + 1);
        *long.heap_part().unwrap() = Box::new([9; INLINE + 1]);
        assert_eq!(*long.to_bytes(), [9; INLINE + 1], "a defragmenter has moved the owner");
    }

    #[test]
    fn the_debug_output_of_an_owner_escapes_bytes_that_are_not_text() {
        assert_eq!(format!("{:?}", owner(b"A \"b\" \x00")), r#""A \"b\" \x00""#);
        assert_eq!(format!("{:?}", owner(UUID)), format!("\"{UUID}\""));
    }

    #[test]
    fn equal_owners_have_the_same_hash_and_others_have_another() {
        use std::hash::{BuildHasher, RandomState};
        let state = RandomState::new();
        assert_eq!(state.hash_one(owner(b"A")), state.hash_one(owner(b"A")));
        assert_ne!(state.hash_one(owner(b"A")), state.hash_one(owner(b"B")));
        assert_ne!(state.hash_one(owner(UUID)), state.hash_one(owner(format!("{UUID}:1"))));
    }
}
