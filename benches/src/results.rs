//! Series of measurements, the figures that are computed from them, and whether the figures meet their targets.

/// If a figure misses its target by more than this part of the target, noise does not excuse the miss.
const FORGIVEN: f64 = 0.03;

/// A figure is too noisy if its noise is more than this part of the figure.
const TOO_NOISY: f64 = 0.10;

/// The measurements of one thing, a number for each round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    pub fn once(number: f64) -> Self {
        Self(vec![number])
    }

    pub fn push(&mut self, number: f64) {
        self.0.push(number);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The smallest number, for measurements that noise can only make larger.
    pub fn least(&self) -> Self {
        Self::once(self.quantile(0.0))
    }

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
        1.57 * (self.quantile(0.75) - self.quantile(0.25)) / (self.0.len() as f64).sqrt()
    }

    /// This series divided by the other series, round by round.
    fn ratios(&self, other: &Self) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "the rounds of both series");
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Lockward's side divided by the other side.
    Times,
    Nanoseconds,
    Milliseconds,
    Bytes,
    Percent,
}

impl Unit {
    pub fn show(self, number: f64) -> String {
        match self {
            Self::Times if number < 0.1 => format!("{number:.4}"),
            Self::Times => format!("{number:.2}"),
            Self::Nanoseconds if number >= 1e9 => format!("{:.2} s", number / 1e9),
            Self::Nanoseconds if number >= 1e6 => format!("{:.2} ms", number / 1e6),
            Self::Nanoseconds if number >= 10_000.0 => format!("{:.1} µs", number / 1e3),
            Self::Nanoseconds => format!("{number:.0} ns"),
            Self::Milliseconds => format!("{number:.2} ms"),
            Self::Percent => format!("{number:.0} %"),
            Self::Bytes => format!("{} bytes", whole(number)),
        }
    }
}

/// A number without a fraction, in groups of three digits.
pub fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Whether a figure is above its limit by more than its noise, or is too noisy to judge.
fn misses(limit: f64, measured: f64, noise: f64) -> bool {
    let excess = measured - limit;
    // A figure that is below its limit by more than its noise is never too noisy. Without this rule, a figure near 0
    // would always be too noisy.
    let is_too_noisy = noise > TOO_NOISY * measured.abs() && excess + noise > 0.0;
    is_too_noisy || excess > noise.min(FORGIVEN * limit)
}

/// The place of a figure on a curve: a number of things, such as 1,000 locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub number: usize,
    /// A singular noun.
    pub thing: &'static str,
}

impl Point {
    pub fn shown(self) -> String {
        let plural = if self.number == 1 { "" } else { "s" };
        format!("{} {}{plural}", whole(self.number as f64), self.thing)
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured. All points of a curve have the same text, and no other figure has it.
    pub what: String,
    pub at: Option<Point>,
    pub against: Option<String>,
    pub unit: Unit,
    pub measured: f64,
    /// The figure of the other side, if the row shows both sides.
    pub theirs: Option<f64>,
    /// The uncertainty of the figure: see [`Series::noise`].
    noise: f64,
    /// The largest allowed figure.
    limit: Option<f64>,
}

impl Row {
    pub fn figure(what: &str, unit: Unit, ours: &Series) -> Self {
        let (what, measured, noise) = (what.to_owned(), ours.median(), ours.noise());
        Self { what, at: None, against: None, unit, measured, theirs: None, noise, limit: None }
    }

    /// The median of `ours` divided by the median of `theirs`. The noise is the noise of
    /// the ratios of the rounds.
    pub fn ratio(what: &str, ours: &Series, against: &str, theirs: &Series) -> Self {
        let measured = ours.median() / theirs.median();
        let ratios = Self::figure(what, Unit::Times, &ours.ratios(theirs));
        Self { measured, against: Some(against.to_owned()), ..ratios }
    }

    /// Adds the measurements of the other side, in the unit of the figure.
    pub fn against(self, against: &str, theirs: &Series) -> Self {
        Self { against: Some(against.to_owned()), theirs: Some(theirs.median()), ..self }
    }

    pub fn at_most(self, limit: f64) -> Self {
        Self { limit: Some(limit), ..self }
    }

    pub fn at(self, number: usize, thing: &'static str) -> Self {
        Self { at: Some(Point { number, thing }), ..self }
    }

    pub fn is_missed(&self) -> bool {
        self.limit.is_some_and(|limit| misses(limit, self.measured, self.noise))
    }

    /// The figure with its unit, bold if it misses its target or is too noisy.
    pub fn shown(&self) -> String {
        let figure = self.unit.show(self.measured);
        if self.is_missed() { format!("**{figure}**") } else { figure }
    }

    pub fn compared(&self) -> String {
        self.theirs.map(|theirs| Unit::Times.show(self.measured / theirs)).unwrap_or_default()
    }

    pub fn target(&self) -> String {
        self.limit.map(|limit| format!("at most {}", self.unit.show(limit))).unwrap_or_default()
    }

    pub fn line(&self) -> String {
        let at = self.at.map(|at| format!(", {}", at.shown())).unwrap_or_default();
        let against = self.against.as_ref().map(|text| format!(", compared with {text}"));
        let noise = 100.0 * self.noise / self.measured.abs().max(f64::MIN_POSITIVE);
        let target = self.limit.map(|_| format!(" ({})", self.target()));
        let [against, target] = [against, target].map(Option::unwrap_or_default);
        format!("{}{at}{against}: {} ± {noise:.1} %{target}", self.what, self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_excuses_only_a_small_miss_of_a_target() {
        let meets = |measured, noise| !misses(1.25, measured, noise);
        assert!(meets(1.25, 0.01));
        assert!(meets(1.26, 0.02), "within the noise");
        assert!(!meets(1.26, 0.005));
        assert!(!meets(1.30, 0.06), "noise excuses no more than 3 %");
        assert!(!meets(1.20, 0.30), "too noisy");
        assert!(meets(0.50, 0.30), "far within the target");
    }

    #[test]
    fn the_noise_of_a_median_comes_from_the_spread_of_the_rounds() {
        let mut series = Series::default();
        (0..101).for_each(|round| series.push(f64::from(round)));
        assert!((series.median() - 50.0).abs() < 1e-9);
        assert!((series.noise() - 1.57 * 50.0 / 101f64.sqrt()).abs() < 1e-9);
        assert!(Series::once(3.0).noise() == 0.0);
    }
}
