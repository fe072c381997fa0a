//! Repeatable random numbers.

use lockward_checker::random;
use std::env;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// A random number generator with a seed.
#[derive(Clone, Debug)]
pub struct Random(random::Random);

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
        Self(random::Random::new(seed))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// A number within `range`, which is not empty.
    pub fn within(&mut self, range: Range<i64>) -> i64 {
        let size = range.end.wrapping_sub(range.start).cast_unsigned();
        range.start.wrapping_add((self.number() % size).cast_signed())
    }

    /// True with a probability of one in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.number().is_multiple_of(times)
    }

    /// A random element.
    pub fn one_of<T: Clone>(&mut self, several: &[T]) -> T {
        let index = self.number() % several.len() as u64;
        several[usize::try_from(index).expect("an index")].clone()
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
