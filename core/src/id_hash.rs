//! A hash for what this process itself has numbered: line ids, and the caller's handles. Nobody outside chooses them, so
//! they need no hash that keeps collisions secret, as keys and owners do.

use std::hash::{BuildHasherDefault, Hasher};

/// For a map whose keys are such numbers.
pub(crate) type ById = BuildHasherDefault<IdHasher>;

/// Multiplies by 2^64 over the golden ratio (Knuth, The Art of Computer Programming, 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(u64::try_from(number).unwrap_or(u64::MAX));
    }

    fn finish(&self) -> u64 {
        // The high bits are the well mixed ones, and a table looks at the low ones too.
        self.0 ^ self.0.rotate_left(32)
    }
}
