//! Who holds or wants a lock: any 1 to 1,024 bytes.

use std::fmt;
use std::hash::{Hash, Hasher};

/// Long enough for `UUID:thread` with nine digits; with it a lock of one holder is a single allocation.
const INLINE: usize = 46;

/// An owner: any binary string of 1 to 1,024 bytes, by convention `UUID:thread`.
#[derive(Clone)]
pub struct Owner(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Owner {
    /// The longest owner, in bytes.
    pub const MAX_LEN: usize = 1_024;

    /// The owner named by `bytes`; `None` when they are none or too many.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > Self::MAX_LEN {
            return None;
        }
        let mut inline = [0; INLINE];
        Some(Self(match (inline.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(bytes);
                Bytes::Inline { len, bytes: inline }
            }
            _ => Bytes::Heap(bytes.into()),
        }))
    }

    /// The owner's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The bytes it takes on the heap, beside its own size.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Bytes::Inline { .. } => 0,
            Bytes::Heap(bytes) => bytes.len(),
        }
    }

    /// The part that lies on the heap, for a defragmenter to move.
    pub fn heap_part(&mut self) -> Option<&mut Box<[u8]>> {
        match &mut self.0 {
            Bytes::Inline { .. } => None,
            Bytes::Heap(bytes) => Some(bytes),
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_as_it_was() {
        assert!(Owner::new(&[]).is_none());
        assert!(Owner::new(&[7; Owner::MAX_LEN + 1]).is_none());
        for len in 1..=Owner::MAX_LEN {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let owner = Owner::new(&bytes).unwrap();
            assert_eq!(owner.as_bytes(), bytes);
            assert_eq!(owner.heap_size() == 0, len <= INLINE);
        }
    }
    #[test]
    fn only_what_does_not_fit_inside_lies_on_the_heap() {
        let (mut short, mut long) =
            (Owner::new(&[7; INLINE]).unwrap(), Owner::new(&[8; INLINE + 1]).unwrap());
        assert!(short.heap_part().is_none());
        assert_eq!(long.heap_size(), INLINE + 1);
        *long.heap_part().unwrap() = Box::new([9; INLINE + 1]);
        assert_eq!(
            long.as_bytes(),
            [9; INLINE + 1],
            "what a defragmenter has moved is read from its new place"
        );
    }

    #[test]
    fn an_owner_is_printed_with_what_is_no_text_escaped() {
        assert_eq!(format!("{:?}", Owner::new(b"A \"b\" \x00").unwrap()), r#""A \"b\" \x00""#);
    }

    #[test]
    fn owners_differ_in_their_hash_and_equal_ones_do_not() {
        use std::hash::{BuildHasher, RandomState};
        let (state, owner) = (RandomState::new(), |name: &[u8]| Owner::new(name).unwrap());
        assert_eq!(state.hash_one(owner(b"A")), state.hash_one(owner(b"A")));
        assert_ne!(state.hash_one(owner(b"A")), state.hash_one(owner(b"B")));
    }
}
