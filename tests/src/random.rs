//! Repeatable random numbers.

use std::env;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// The generator SplitMix64. The same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with the seed in `LOCKWARD_SEED`, or with a new seed. Prints the seed, so that the log of a failed
    /// test shows the seed.
    #[track_caller]
    pub fn new() -> Self {
        let seed = env::var("LOCKWARD_SEED").map_or_else(
            |_| SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").subsec_nanos().into(),
            |seed| seed.parse().expect("LOCKWARD_SEED is a number"),
        );
        println!("LOCKWARD_SEED={seed}");
        Self::from_seed(seed)
    }

    /// A generator with this seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number within `range`, which is not empty.
    pub fn within(&mut self, range: Range<i64>) -> i64 {
        let size = range.end.wrapping_sub(range.start).cast_unsigned();
        range.start.wrapping_add((self.number() % size).cast_signed())
    }

    /// A number in `least..most`; `least` if the range is empty.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.number() % most.saturating_sub(least).max(1)
    }

    /// True with a probability of one in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.number().is_multiple_of(times)
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, of_hundred: u64) -> bool {
        self.between(0, 100) < of_hundred
    }

    /// A random element of a list that is not empty.
    #[track_caller]
    pub fn one_of<T: Clone>(&mut self, several: &[T]) -> T {
        self.pick(several).expect("an element").clone()
    }

    /// A random element; `None` if there is none.
    pub fn pick<'a, T>(&mut self, several: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(several.len()).ok().filter(|count| *count > 0)?;
        several.get(usize::try_from(self.between(0, count)).ok()?)
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
