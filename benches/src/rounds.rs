//! Series of measurements from many rounds, and the ratios of two series.

use serde::{Deserialize, Serialize};

/// The measurements of one thing, a number for each round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series(Vec<f64>);

impl Series {
    /// A series with one measurement.
    pub fn once(number: f64) -> Self {
        Self(vec![number])
    }

    pub fn push(&mut self, number: f64) {
        self.0.push(number);
    }

    pub fn rounds(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn least(&self) -> f64 {
        self.quantile(0.0)
    }

    /// The quantile of `part` (the median is 0.5).
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(!sorted.is_empty(), "nothing was measured");
        let place = part * (sorted.len() - 1) as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    }

    /// Half the width of the 95 % confidence interval of the median: 1.57 times the interquartile range divided by the
    /// square root of the number of rounds (the notch of a box plot).
    pub fn noise(&self) -> f64 {
        1.57 * (self.quantile(0.75) - self.quantile(0.25)) / (self.rounds() as f64).sqrt()
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// This series divided by the other series, round by round.
    pub fn ratios(&self, other: &Self) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "the rounds of both series");
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }
}
