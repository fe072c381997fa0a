//! The results of a run, as written to `results.json`, and whether they meet their targets.

use crate::markdown::table;
use crate::plot::Plot;
pub use crate::plot::whole;
use crate::rounds::Series;
use serde::{Deserialize, Serialize};

/// If a figure misses its target by more than this part of the target, noise does not excuse the miss.
const FORGIVEN: f64 = 0.03;

/// A figure is too noisy if its noise is more than this part of the figure.
const TOO_NOISY: f64 = 0.10;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The server's name and version.
    pub server: String,
    pub machine: Machine,
    /// The day, as `YYYY-MM-DD`.
    pub day: String,
    /// How long the run took, in seconds.
    pub seconds: f64,
    pub rows: Vec<Row>,
    pub plots: Vec<Plot>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model.
    pub processor: String,
    /// How many CPUs this run could use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Kernel and its version.
    pub kernel: String,
    /// Whether client and server had priority over all other processes.
    pub goes_before_others: bool,
    /// The load average of the minute before the run.
    pub load_before: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The stage, and the name of the figure within it: `pairs/set`.
    pub name: String,
    /// What was measured.
    pub what: String,
    /// The position in a series of similar figures, for example the number of waiters or the percentile. The figures of
    /// a series share a row of a table.
    #[serde(default)]
    pub at: Option<String>,
    /// What the figure is compared with.
    pub against: Option<String>,
    pub unit: Unit,
    /// The unit of `ours` and `theirs`.
    pub each: Unit,
    pub measured: f64,
    /// The uncertainty of the figure: see [`Series::noise`].
    pub noise: f64,
    /// How the figure is computed from the rounds.
    #[serde(default)]
    pub statistic: Statistic,
    pub target: Option<Target>,
    /// Lockward's measurements, round by round.
    pub ours: Series,
    /// The measurements of the other side, if there is one.
    pub theirs: Option<Series>,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Lockward's side divided by the other side.
    Times,
    /// The other side divided by Lockward's side.
    Cheaper,
    Nanoseconds,
    Milliseconds,
    Bytes,
    Percent,
    /// How many per second, for example pairs of commands.
    Rate,
}

/// How a figure is computed from a series of rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    #[default]
    Median,
    /// The smallest value, for measurements that noise can only make larger.
    Least,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The figure meets the target.
    Met,
    /// The figure misses the target, but by no more than its noise and no more than 3 % of the target.
    WithinNoise,
    Missed,
    /// The rounds differ so much that the figure has no meaning.
    TooNoisy,
}

impl Target {
    pub const fn limit(self) -> f64 {
        match self {
            Self::AtMost(limit) | Self::AtLeast(limit) => limit,
        }
    }

    fn judge(self, measured: f64, noise: f64) -> Verdict {
        let missed_by = match self {
            Self::AtMost(limit) => measured - limit,
            Self::AtLeast(limit) => limit - measured,
        };
        // A figure that meets its target by more than its noise is never too noisy. Without this rule, a figure near 0
        // would always be too noisy.
        if noise > TOO_NOISY * measured.abs() && missed_by + noise > 0.0 {
            Verdict::TooNoisy
        } else if missed_by <= 0.0 {
            Verdict::Met
        } else if missed_by <= noise.min(FORGIVEN * self.limit()) {
            Verdict::WithinNoise
        } else {
            Verdict::Missed
        }
    }
}

impl Row {
    /// The median of `ours` divided by the median of `theirs`. The noise is that of the series of ratios, one ratio for
    /// each round.
    pub fn ratio(name: &str, what: &str, ours: &Series, against: &str, theirs: &Series) -> Self {
        Self {
            against: Some(against.to_owned()),
            each: Unit::Nanoseconds,
            measured: ours.median() / theirs.median(),
            noise: ours.ratios(theirs).noise(),
            theirs: Some(theirs.clone()),
            ..Self::figure(name, what, Unit::Times, ours)
        }
    }

    /// How many times cheaper `ours` is than `theirs`.
    pub fn cheaper(name: &str, what: &str, ours: &Series, against: &str, theirs: &Series) -> Self {
        let (measured, noise) = (theirs.median() / ours.median(), theirs.ratios(ours).noise());
        Self { unit: Unit::Cheaper, measured, noise, ..Self::ratio(name, what, ours, against, theirs) }
    }

    /// The smallest number of `ours`, compared with the smallest number of `theirs`: for measurements that noise can
    /// only make larger.
    pub fn least(name: &str, what: &str, unit: Unit, ours: &Series, against: &str, theirs: &Series) -> Self {
        let (measured, statistic) = (ours.least(), Statistic::Least);
        let (against, theirs) = (Some(against.to_owned()), Some(theirs.clone()));
        Self { measured, noise: 0.0, statistic, against, theirs, ..Self::figure(name, what, unit, ours) }
    }

    /// A figure without a comparison.
    pub fn figure(name: &str, what: &str, unit: Unit, ours: &Series) -> Self {
        Self {
            name: name.to_owned(),
            what: what.to_owned(),
            at: None,
            against: None,
            unit,
            each: unit,
            measured: ours.median(),
            noise: ours.noise(),
            statistic: Statistic::Median,
            target: None,
            ours: ours.clone(),
            theirs: None,
        }
    }

    pub fn target(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Makes the figure a member of a series, at this position.
    pub fn at(self, at: &str) -> Self {
        Self { at: Some(at.to_owned()), ..self }
    }

    /// Sets the unit of the two sides of a ratio. The default is nanoseconds.
    pub fn of(self, each: Unit) -> Self {
        Self { each, ..self }
    }

    /// Whether the figure meets its target, if it has one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.target.map(|target| target.judge(self.measured, self.noise))
    }

    /// What was measured, in words.
    pub fn title(&self) -> String {
        format!("{}{}", self.what_shown(), self.against_shown())
    }

    /// What was measured, without what it is compared with.
    pub fn what_shown(&self) -> String {
        let at = self.at.as_ref().map(|at| format!(", {at}")).unwrap_or_default();
        format!("{}{at}", self.what)
    }

    /// What was measured, in words, for the whole series.
    pub fn series_title(&self) -> String {
        format!("{}{}", self.what, self.against_shown())
    }

    fn against_shown(&self) -> String {
        self.against.as_ref().map(|against| format!(", compared with {against}")).unwrap_or_default()
    }

    /// The figure with its unit.
    pub fn shown(&self) -> String {
        self.unit.show(self.measured)
    }

    /// The figure with its unit, bold if it misses its target or is too noisy.
    pub fn judged(&self) -> String {
        match self.verdict() {
            Some(Verdict::Missed | Verdict::TooNoisy) => format!("**{}**", self.shown()),
            None | Some(Verdict::Met | Verdict::WithinNoise) => self.shown(),
        }
    }

    pub fn target_shown(&self) -> String {
        let Some(target) = self.target else { return String::new() };
        match target {
            Target::AtMost(limit) => format!("at most {}", self.unit.show(limit)),
            Target::AtLeast(limit) => format!("at least {}", self.unit.show(limit)),
        }
    }

    pub fn verdict_shown(&self) -> &'static str {
        match self.verdict() {
            None => "",
            Some(Verdict::Met) => "yes",
            Some(Verdict::WithinNoise) => "within noise",
            Some(Verdict::Missed) => "**no**",
            Some(Verdict::TooNoisy) => "**too noisy**",
        }
    }

    /// The noise, in per cent of the figure.
    pub fn noise_shown(&self) -> String {
        if self.ours.rounds() == 1 || self.statistic == Statistic::Least {
            return String::new();
        }
        format!("{:.1} %", 100.0 * self.noise / self.measured.abs().max(f64::MIN_POSITIVE))
    }

    /// The figure of the other side, if there is one.
    pub fn theirs_shown(&self) -> Option<String> {
        self.theirs.as_ref().map(|theirs| self.side_shown(theirs))
    }

    fn sides_shown(&self) -> String {
        let ours = self.side_shown(&self.ours);
        self.theirs_shown().map_or_else(String::new, |theirs| format!("{ours} against {theirs}"))
    }

    fn side_shown(&self, side: &Series) -> String {
        self.each.show(match self.statistic {
            Statistic::Median => side.median(),
            Statistic::Least => side.least(),
        })
    }
}

impl Unit {
    /// A number with this unit.
    pub fn show(self, number: f64) -> String {
        match self {
            Self::Times if number < 10.0 => format!("{number:.2}"),
            Self::Times => format!("{number:.0}"),
            Self::Cheaper if number < 10.0 => format!("{number:.2} times cheaper"),
            Self::Cheaper => format!("{number:.0} times cheaper"),
            Self::Nanoseconds if number >= 1e9 => format!("{:.2} s", number / 1e9),
            Self::Nanoseconds if number >= 1e6 => format!("{:.2} ms", number / 1e6),
            Self::Nanoseconds if number >= 10_000.0 => format!("{:.1} µs", number / 1e3),
            Self::Nanoseconds => format!("{number:.0} ns"),
            Self::Milliseconds => format!("{number:.2} ms"),
            Self::Percent => format!("{number:.0} %"),
            Self::Bytes => format!("{} bytes", whole(number)),
            Self::Rate => format!("{} a second", whole(number)),
        }
    }
}

impl Results {
    /// The names of the figures that do not meet their targets.
    pub fn missed(&self) -> Vec<&str> {
        let good = [None, Some(Verdict::Met), Some(Verdict::WithinNoise)];
        let missed = self.rows.iter().filter(|row| !good.contains(&row.verdict()));
        missed.map(|row| row.name.as_str()).collect()
    }

    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    pub fn table(&self) -> String {
        let heads = ["what", "target", "measured", "met?", "± noise", "the two sides"];
        let rows = self.rows.iter().map(|row| {
            let met = row.verdict_shown().to_owned();
            vec![row.title(), row.target_shown(), row.shown(), met, row.noise_shown(), row.sides_shown()]
        });
        table(&heads, heads.len(), rows)
    }

    /// Server, day and machine, for the foot of a plot.
    pub fn short_circumstances(&self) -> String {
        self.circumstances().split(';').next().unwrap_or_default().to_owned()
    }

    /// The machine and the run in one sentence.
    pub fn circumstances(&self) -> String {
        let Machine { processor, cpus, memory, kernel, goes_before_others, load_before } = &self.machine;
        let priority = if *goes_before_others { "real-time" } else { "normal" };
        format!(
            "{}, {}, {cpus} CPUs ({processor}), {:.0} GB, {kernel}; {priority} priority, load average before the run {load_before:.1}, {:.0} seconds.",
            self.server,
            self.day,
            *memory as f64 / 1e9,
            self.seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_excuses_only_a_small_miss_of_a_target() {
        let at_most = |measured, noise| Target::AtMost(1.25).judge(measured, noise);
        assert_eq!(at_most(1.25, 0.01), Verdict::Met);
        assert_eq!(at_most(1.26, 0.02), Verdict::WithinNoise);
        assert_eq!(at_most(1.26, 0.005), Verdict::Missed);
        assert_eq!(at_most(1.30, 0.06), Verdict::Missed, "noise excuses no more than 3 %");
        assert_eq!(at_most(1.20, 0.30), Verdict::TooNoisy);
        assert_eq!(at_most(0.50, 0.30), Verdict::Met, "far within the target");
        let at_least = |measured, noise| Target::AtLeast(15.0).judge(measured, noise);
        assert_eq!(at_least(15.0, 0.1), Verdict::Met);
        assert_eq!(at_least(14.8, 0.3), Verdict::WithinNoise);
        assert_eq!(at_least(14.8, 0.1), Verdict::Missed);
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
