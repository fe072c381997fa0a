//! A fast hash for tables whose keys are numbers that no client can choose: queue ids, the handles of blocked clients,
//! and the results of a keyed hash.
//!
//! Clients choose keys and owners, and could choose names whose hashes collide. So tables of keys and owners need a
//! keyed hash. Clients cannot choose the numbers that are hashed in this file, so a plain hash is enough.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// The hasher of a map whose keys are numbers that no client can choose.
pub type ById = BuildHasherDefault<IdHasher>;

/// Multiplies by 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
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
        // The high bits are mixed better than the low bits, but a table uses the low bits too.
        self.0 ^ self.0.rotate_left(32)
    }
}

/// Shrinks a table that is nearly empty. Without this function, a table keeps the memory for the most entries that it
/// ever had. The table shrinks by a factor, so that the mean cost of a removal stays constant.
pub fn shrink_if_sparse<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    const KEPT: usize = 256;
    if table.capacity() > KEPT.saturating_mul(2) && table.len() < table.capacity() / 8 {
        table.shrink_to(KEPT.max(table.len().saturating_mul(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn hash(id: impl Hash) -> u64 {
        ById::default().hash_one(id)
    }

    #[test]
    fn consecutive_numbers_spread_over_the_bits_that_a_table_uses() {
        let (ids, addresses) = (0..1_024_u64, (0..1_024_usize).map(|number| 0x7f00_1234_5000 + number * 64));
        for hashes in [ids.map(hash).collect::<Vec<_>>(), addresses.map(hash).collect()] {
            // A table picks a slot by the low bits, and compares entries by the high bits.
            for bits in [|hash: &u64| hash & 0x3ff, |hash: &u64| hash >> 54] {
                let used: HashSet<u64> = hashes.iter().map(bits).collect();
                assert!(used.len() > 512, "{} of 1,024 values are used", used.len());
            }
        }
    }

    #[test]
    fn every_part_of_a_key_changes_the_hash() {
        let pairs: HashSet<u64> = (0..32_u64).flat_map(|a| (0..32_u64).map(move |b| hash((a, b)))).collect();
        assert_eq!(pairs.len(), 1_024);
        let bytes: HashSet<u64> = (0..1_024_u16).map(hash).collect();
        assert_eq!(bytes.len(), 1_024);
    }

    #[test]
    fn a_table_releases_its_memory_when_it_is_nearly_empty() {
        let with = |len: fn(usize) -> usize| {
            let mut table: HashMap<usize, ()> = HashMap::with_capacity(10_000);
            let before = table.capacity();
            table.extend((0..len(before)).map(|number| (number, ())));
            shrink_if_sparse(&mut table);
            (before, table.len(), table.capacity())
        };
        let (before, _, after) = with(|capacity| capacity / 8);
        assert_eq!(before, after);
        let (before, len, after) = with(|capacity| capacity / 8 - 1);
        assert!((len..before / 2).contains(&after));
        let mut small: HashMap<usize, ()> = HashMap::with_capacity(400);
        let capacity = small.capacity();
        shrink_if_sparse(&mut small);
        assert_eq!(small.capacity(), capacity);
    }
}
