//! The figures and plots of a run, and the progress that it shows.

use crate::plot::Plot;
use crate::results::Row;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How often progress is shown within a stage.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

/// The figures and plots so far.
#[derive(Debug)]
pub struct Report {
    /// The figures.
    pub rows: Vec<Row>,
    /// The plots.
    pub plots: Vec<Plot>,
    /// Limits that replace those of rows, by the name of the row.
    limits: BTreeMap<String, f64>,
    /// The stages to run: `STAGE` or `STAGE/CASE`. All of them if this is empty.
    asked: Vec<String>,
    begin: Instant,
    stage: String,
    shown: Instant,
}

impl Report {
    /// An empty report. `limits` replace the targets of the rows that they name. `asked` are the stages to run
    /// (`STAGE`), or single cases of them (`STAGE/CASE`); all stages if it is empty.
    pub fn new(limits: BTreeMap<String, f64>, asked: Vec<String>) -> Self {
        let now = Instant::now();
        Self {
            rows: Vec::new(),
            plots: Vec::new(),
            limits,
            asked,
            begin: now,
            stage: String::new(),
            shown: now,
        }
    }

    /// Whether to run a stage, or a case of it.
    pub fn is_stage_asked(&self, stage: &str) -> bool {
        self.asked.is_empty() || self.asked.iter().any(|asked| asked.split('/').next() == Some(stage))
    }

    /// Whether to run a case of the current stage.
    pub fn is_asked(&self, case: &str) -> bool {
        let stage = &self.stage;
        self.asked.is_empty()
            || [stage.clone(), format!("{stage}/{case}")].iter().any(|name| self.asked.contains(name))
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// A stage begins.
    pub fn stage(&mut self, name: &str, about: &str) {
        name.clone_into(&mut self.stage);
        self.say(&format!("{} {name}: {about}", self.clock()));
    }

    /// Shows the progress of a stage.
    pub fn progress(&mut self, done: usize, of: usize) {
        if stderr().is_terminal() && self.shown.elapsed() >= SHOWN_EVERY {
            self.shown = Instant::now();
            eprint!("\r{} {}: {:3.0} %", self.clock(), self.stage, 100.0 * done as f64 / of as f64);
        }
    }

    /// Adds a figure.
    pub fn row(&mut self, mut row: Row) {
        if let (Some(target), Some(limit)) = (row.target, self.limits.get(&row.name)) {
            row.target = Some(target.with_limit(*limit));
        }
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

    /// Adds a plot.
    pub fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    fn clock(&self) -> String {
        let seconds = self.begin.elapsed().as_secs();
        format!("[{}:{:02}]", seconds / 60, seconds % 60)
    }

    /// Shows a line.
    #[allow(clippy::unused_self, reason = "nothing is said but by a report")]
    pub fn say(&self, line: &str) {
        let wipe = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
        let _ = writeln!(stderr(), "{wipe}{line}");
    }
}
