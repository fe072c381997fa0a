//! What all curves share: the points, the plots, and the check of free memory.

use crate::plot::{Line, Plot};
use crate::report::Report;
use crate::results::{Row, Unit, whole};
use crate::rounds::Series;
use std::fs;

/// A curve: the name of its rows, what was measured, and the unit.
pub type Curve<'a> = (&'a str, &'a str, Unit);

/// One place on the x axis of the curves of a stage.
#[derive(Clone, Debug)]
pub struct Point {
    stage: &'static str,
    /// The number of locks, waiters, holders or nodes.
    pub number: usize,
    at: String,
}

impl Point {
    /// The point for `number` things. `thing` is a singular noun, for example `lock`.
    pub fn new(stage: &'static str, number: usize, thing: &str) -> Self {
        let plural = if number == 1 { "" } else { "s" };
        Self { stage, number, at: format!("{} {thing}{plural}", whole(number as f64)) }
    }

    /// Adds a figure of this point.
    pub fn row(&self, report: &mut Report, (name, what, unit): Curve<'_>, series: &Series) {
        let name = format!("{}/{name}-{}", self.stage, self.number);
        report.row(Row::figure(&name, what, unit, series).at(&self.at));
    }

    /// Adds both sides of a comparison, and their ratio. The sides are two curves of the same unit.
    pub fn compared(
        &self,
        report: &mut Report,
        (name, what, unit): Curve<'_>,
        against: &str,
        [ours, theirs]: [&Series; 2],
    ) {
        self.row(report, (name, what, unit), ours);
        self.row(report, (&format!("{name}-against"), &format!("{what}: {against}"), unit), theirs);
        let name = format!("{}/{name}-ratio-{}", self.stage, self.number);
        report.row(Row::ratio(&name, what, ours, against, theirs).of(unit).at(&self.at));
    }
}

/// Adds a plot of a stage. `lines` has the name of each line, and the name of its curve. Numbers are divided by
/// `scale`.
pub fn plot(report: &mut Report, plot: Plot, lines: &[(&str, &str)], scale: f64) {
    let stage = plot.name.split('-').next().unwrap_or_default();
    let points = |curve: &str| -> Vec<(f64, f64)> {
        let prefix = format!("{stage}/{curve}-");
        let point = |row: &Row| {
            Some((row.name.strip_prefix(&prefix)?.parse::<u32>().ok()?.into(), row.measured / scale))
        };
        report.rows.iter().filter_map(point).collect()
    };
    let lines: Vec<Line> =
        lines.iter().map(|(name, curve)| Line { name: (*name).to_owned(), points: points(curve) }).collect();
    // A line needs two points.
    if lines.iter().all(|line| line.points.len() > 1) {
        report.plot(Plot { lines, ..plot });
    }
}

/// A plot that has no lines yet. Lower is better.
pub fn axes(name: &str, title: &str, x: &str, y: &str) -> Plot {
    let [name, title, x, y] = [name, title, x, y].map(str::to_owned);
    Plot { name, title, hint: "Lower is better.".to_owned(), x, y, lines: Vec::new() }
}

/// Whether this machine has `needed` bytes of free memory. If not, prints a line.
pub fn has_memory(report: &Report, needed: f64, what: &str) -> bool {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let left = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix(" kB"));
    let left = left.and_then(|left| left.trim().parse::<f64>().ok()).unwrap_or(0.0) * 1024.0;
    if left < needed {
        let [needed, left] = [needed, left].map(|bytes| bytes / 1e9);
        report.say(&format!(
            "        {what} need {needed:.1} GB, but only {left:.1} GB are free: the curve ends before this point"
        ));
    }
    left >= needed
}
