//! The data on the screen, and the selection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::poller::{FIGURES, Figures, Open, Poll, Row, Sample};
use crate::duration;
use crate::failure::Failure;
use crate::text::Name;

/// The answers of all primaries together.
pub(super) struct Shown {
    pub(super) addresses: String,
    pub(super) figures: Figures,
    pub(super) rows: Vec<Row>,
    pub(super) open: Option<Open>,
    pub(super) at: Instant,
    /// How many primaries have answered.
    pub(super) answered: usize,
}

pub(super) struct State {
    /// The last answers. `None` until a primary answers.
    pub(super) shown: Option<Shown>,
    /// The events per second, for the figures that count events.
    pub(super) rates: Option<Figures>,
    /// The failures of the last poll. `Err` means that no primary has answered.
    pub(super) failures: Result<Vec<Failure>, Failure>,
    /// The warnings about servers that have answered.
    replica_warnings: Vec<String>,
    pub(super) selection: TableState,
    /// The key of the selected lock. The lock stays selected when its position changes.
    selected: Option<Name>,
    /// The key of the lock whose queue is shown in place of the list.
    pub(super) open: Option<Name>,
    /// The figures of each primary from which the next rates are computed.
    before: HashMap<String, (Instant, Figures)>,
    interval: Duration,
    /// How many locks are shown, at most.
    count: usize,
}

impl State {
    pub(super) fn new(interval: Duration, count: usize) -> Self {
        Self {
            shown: None,
            rates: None,
            failures: Ok(Vec::new()),
            replica_warnings: Vec::new(),
            selection: TableState::new(),
            selected: None,
            open: None,
            before: HashMap::new(),
            interval,
            count,
        }
    }

    pub(super) fn update(&mut self, poll: Poll) {
        let (mut samples, mut failures) = match poll {
            Ok(answers) => answers,
            Err(failure) => {
                // The view keeps the last answers, but not the rates.
                self.failures = Err(failure);
                self.rates = None;
                self.before.clear();
                return;
            }
        };
        // The answers arrive in any order.
        samples.sort_by(|one, other| one.address.cmp(&other.address));
        failures.sort_by_key(Failure::to_string);
        self.failures = Ok(failures);
        self.replica_warnings = samples.iter().filter_map(|sample| sample.warning.clone()).collect();
        self.update_rates(&samples);
        let mut shown = Shown {
            addresses: samples.iter().map(|sample| &*sample.address).collect::<Vec<_>>().join(" "),
            figures: samples.iter().fold([0; FIGURES.len()], |sum, sample| add(sum, sample.figures)),
            rows: Vec::new(),
            open: None,
            at: Instant::now(),
            answered: samples.len(),
        };
        for sample in samples {
            shown.rows.extend(sample.rows);
            shown.open = shown.open.or(sample.open);
        }
        shown.rows.sort_by_key(|row| row.lock.rank());
        shown.rows.truncate(self.count);
        self.shown = Some(shown);
        self.select_again();
    }

    fn update_rates(&mut self, samples: &[Sample]) {
        // When the user opens a queue, the poller polls at once. The span before this poll is too short for a rate.
        if self.before.values().any(|(then, _)| then.elapsed() < self.interval / 2) {
            return;
        }
        let rates = samples.iter().filter_map(|sample| {
            let (then, before) = self.before.get(&sample.address)?;
            rates(*before, sample.figures, sample.at.saturating_duration_since(*then))
        });
        self.rates = rates.reduce(add);
        self.before =
            samples.iter().map(|sample| (sample.address.clone(), (sample.at, sample.figures))).collect();
    }

    /// The lines for the user about servers that do not answer or are replicas.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let failures = match &self.failures {
            Ok(failures) => failures.as_slice(),
            Err(failure) => std::slice::from_ref(failure),
        };
        failures.iter().map(Failure::to_string).chain(self.replica_warnings.iter().cloned())
    }

    fn select_again(&mut self) {
        let mut rows = self.shown.iter().flat_map(|shown| &shown.rows);
        let selected = rows.position(|row| Some(&row.lock.key) == self.selected.as_ref());
        // If the selected lock is gone, the lock that is now at its position is selected.
        self.select(selected.or(self.selection.selected()).unwrap_or(0));
    }

    /// Selects the lock at this position of the list, or the last lock.
    fn select(&mut self, position: usize) {
        let rows = self.shown.as_ref().map_or(&[][..], |shown| &shown.rows);
        let position = rows.len().checked_sub(1).map(|last| position.min(last));
        self.selection.select(position);
        self.selected = position.and_then(|position| rows.get(position)).map(|row| row.lock.key.clone());
    }

    pub(super) fn select_by(&mut self, steps: isize) {
        if self.open.is_none() {
            self.select(self.selection.selected().unwrap_or(0).saturating_add_signed(steps));
        }
    }

    /// Shows the queue of the selected lock.
    pub(super) fn open(&mut self) {
        if self.open.is_none() {
            self.open.clone_from(&self.selected);
        }
    }

    /// Goes back to the list of locks. `false` means that the list was already shown.
    pub(super) fn close(&mut self) -> bool {
        self.open.take().is_some()
    }
}

fn add(one: Figures, other: Figures) -> Figures {
    let mut sum = one;
    sum.iter_mut().zip(other).for_each(|(sum, more)| *sum += more);
    sum
}

/// The events per second between two polls. `None` if no time has passed. A restart of the server makes the rates 0.
fn rates(before: Figures, now: Figures, span: Duration) -> Option<Figures> {
    let ms = Some(duration::ms(span)).filter(|ms| *ms > 0)?;
    let mut rates = now;
    for (rate, before) in rates.iter_mut().zip(before) {
        *rate = (rate.saturating_sub(before) * 1_000 + ms / 2) / ms;
    }
    Some(rates)
}
