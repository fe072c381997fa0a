//! Pseudo-random numbers. The same seed gives the same numbers.

/// The generator SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `least..most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.number() % (most - least).max(1)
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, of_hundred: u64) -> bool {
        self.between(0, 100) < of_hundred
    }

    /// A random element; `None` if there is none.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let len = u64::try_from(all.len()).ok().filter(|&len| len > 0)?;
        all.get(usize::try_from(self.between(0, len)).ok()?)
    }
}
