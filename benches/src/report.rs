//! The figures and plots of a run, its progress on the terminal, and the rounds of its measurements.

use crate::plot::Plot;
use crate::results::Row;
use crate::rounds::Series;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How often progress is shown within a stage.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

/// The figures and plots so far.
#[derive(Debug)]
pub struct Report {
    pub rows: Vec<Row>,
    pub plots: Vec<Plot>,
    /// See [`Report::new`].
    asked: Vec<String>,
    begin: Instant,
    stage: String,
    shown: Instant,
}

impl Report {
    /// An empty report. `asked` names the stages to run (`STAGE`), and single cases of stages (`STAGE/CASE`). If
    /// `asked` is empty, all stages run.
    pub fn new(asked: Vec<String>) -> Self {
        let now = Instant::now();
        Self { rows: Vec::new(), plots: Vec::new(), asked, begin: now, stage: String::new(), shown: now }
    }

    /// Whether to run a stage or some of its cases.
    pub fn is_stage_asked(&self, stage: &str) -> bool {
        self.asked.is_empty() || self.asked.iter().any(|asked| asked.split('/').next() == Some(stage))
    }

    /// Whether to run a case of the current stage.
    pub fn is_asked(&self, case: &str) -> bool {
        let stage = &self.stage;
        self.asked.is_empty()
            || [stage.clone(), format!("{stage}/{case}")].iter().any(|name| self.asked.contains(name))
    }

    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Begins a stage, and prints a line about it.
    pub fn stage(&mut self, name: &str, about: &str) {
        name.clone_into(&mut self.stage);
        self.say(&format!("{} {name}: {about}", self.clock()));
    }

    pub fn progress(&mut self, done: usize, of: usize) {
        if stderr().is_terminal() && self.shown.elapsed() >= SHOWN_EVERY {
            self.shown = Instant::now();
            eprint!("\r{} {}: {:3.0} %", self.clock(), self.stage, 100.0 * done as f64 / of as f64);
        }
    }

    /// Measures `count` things alternately, `rounds` times each. `measure` gets the number of a thing, and returns its
    /// `N` figures. Each figure becomes a series. The order of the things rotates by one from round to round. An
    /// additional first round is a warm-up and does not count.
    pub fn alternate<const N: usize>(
        &mut self,
        rounds: usize,
        count: usize,
        mut measure: impl FnMut(usize) -> [f64; N],
    ) -> Vec<[Series; N]> {
        let mut all: Vec<[Series; N]> =
            (0..count).map(|_| std::array::from_fn(|_| Series::default())).collect();
        for round in 0..=rounds {
            self.progress(round, rounds);
            for turn in 0..count {
                let which = (round + turn) % count;
                let numbers = measure(which);
                if round > 0 {
                    all[which].iter_mut().zip(numbers).for_each(|(series, number)| series.push(number));
                }
            }
        }
        all
    }

    /// Measures `COUNT` things alternately, `rounds` times each, as [`Report::alternate`] does. Each thing has one
    /// figure.
    pub fn compare<const COUNT: usize>(
        &mut self,
        rounds: usize,
        mut measure: impl FnMut(usize) -> f64,
    ) -> [Series; COUNT] {
        let all = self.alternate(rounds, COUNT, |which| [measure(which)]);
        let all: Vec<Series> = all.into_iter().map(|[series]| series).collect();
        all.try_into().expect("a series of each")
    }

    pub fn row(&mut self, row: Row) {
        let target = row
            .target
            .map_or_else(String::new, |_| format!(" ({}: {})", row.target_shown(), row.verdict_shown()));
        self.say(&format!(
            "        {} {}: {}{}",
            row.name,
            row.title(),
            row.shown(),
            target.replace("**", "")
        ));
        self.rows.push(row);
    }

    pub fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    fn clock(&self) -> String {
        let seconds = self.begin.elapsed().as_secs();
        format!("[{}:{:02}]", seconds / 60, seconds % 60)
    }

    #[allow(clippy::unused_self, reason = "only a report prints lines")]
    pub fn say(&self, line: &str) {
        let wipe = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
        let _ = writeln!(stderr(), "{wipe}{line}");
    }
}
