//! Numbers from many rounds, and how two series of them compare.

/// The measurements of one thing, a number for each round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// Adds the number of the next round.
    pub fn push(&mut self, number: f64) {
        self.0.push(number);
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The number below which a `part` of the series lies.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(!sorted.is_empty(), "nothing was measured");
        let place = part * (sorted.len() - 1) as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    }

    /// Round by round, how many times the other series this one is.
    pub fn ratios(&self, other: &Self) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "as many rounds of one as of the other");
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }
}
