//! A hash for what this process itself has numbered: line ids, and the caller's handles. Nobody outside chooses them, so
//! they need no hash that keeps collisions secret, as keys and owners do.

use std::hash::{BuildHasherDefault, Hasher};

/// For a map whose keys are such numbers.
pub type ById = BuildHasherDefault<IdHasher>;

/// Multiplies by 2^64 over the golden ratio (Knuth, The Art of Computer Programming, 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    fn hash(id: impl Hash) -> u64 {
        ById::default().hash_one(id)
    }

    #[test]
    fn numbers_in_a_row_spread_over_the_bits_that_a_table_looks_at() {
        let (ids, addresses) = (0..1_024_u64, (0..1_024_usize).map(|number| 0x7f00_1234_5000 + number * 64));
        for hashes in [ids.map(hash).collect::<Vec<_>>(), addresses.map(hash).collect()] {
            // The lowest choose the place, the highest tell apart what stands there.
            for bits in [|hash: &u64| hash & 0x3ff, |hash: &u64| hash >> 54] {
                let taken: HashSet<u64> = hashes.iter().map(bits).collect();
                assert!(taken.len() > 512, "{} of 1,024 places are taken", taken.len());
            }
        }
    }

    #[test]
    fn every_part_counts() {
        let pairs: HashSet<u64> = (0..32_u64).flat_map(|a| (0..32_u64).map(move |b| hash((a, b)))).collect();
        assert_eq!(pairs.len(), 1_024);
        let bytes: HashSet<u64> = (0..1_024_u16).map(hash).collect();
        assert_eq!(bytes.len(), 1_024);
    }
}
