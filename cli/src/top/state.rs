//! The data on the screen, and the selection.

use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::poller::{FIGURES, Figures, Open, Poll, Sample};
use crate::duration;
use crate::failure::Failure;
use crate::locks::FoundLock;
use crate::text::Name;

/// The answers of all primaries together.
pub(super) struct Shown {
    pub(super) addresses: String,
    pub(super) figures: Figures,
    /// The events per second, for the figures that count events. `None` if there is no earlier poll of the same servers.
    pub(super) rates: Option<Figures>,
    pub(super) rows: Vec<FoundLock>,
    pub(super) open: Option<Open>,
    /// The lines for the user about servers that do not answer or are replicas.
    warnings: Vec<String>,
    pub(super) at: Instant,
    /// How many primaries have answered.
    pub(super) answered: usize,
    /// How many primaries have not answered.
    pub(super) failed: usize,
}

pub(super) struct State {
    /// The last answers. `None` until a primary answers.
    pub(super) shown: Option<Shown>,
    /// Why no primary answers. `None` while one answers.
    pub(super) failure: Option<String>,
    pub(super) selection: TableState,
    /// The key of the selected lock. The lock stays selected when its position changes.
    selected: Option<Name>,
    /// The key of the lock whose queue is shown in place of the list.
    pub(super) open: Option<Name>,
    /// How many locks are shown, at most.
    count: usize,
}

impl State {
    pub(super) fn new(count: usize) -> Self {
        Self { shown: None, failure: None, selection: TableState::new(), selected: None, open: None, count }
    }

    pub(super) fn update(&mut self, poll: Poll) {
        match poll {
            Ok((samples, failures)) => {
                self.failure = None;
                self.shown = Some(self.merge(samples, &failures));
                self.select_again();
            }
            // The view keeps the last answers.
            Err(failure) => self.failure = Some(failure.to_string()),
        }
    }

    fn merge(&self, mut samples: Vec<Sample>, failures: &[Failure]) -> Shown {
        samples.sort_by(|one, other| one.address.cmp(&other.address));
        let addresses: Vec<&str> = samples.iter().map(|sample| sample.address.as_str()).collect();
        let addresses = addresses.join(" ");
        let figures = samples.iter().map(|sample| sample.figures).fold([0; FIGURES.len()], add);
        let before = self.shown.as_ref().filter(|before| before.addresses == addresses);
        let replicas = samples.iter().filter_map(|sample| sample.warning.clone());
        let mut shown = Shown {
            rates: before.and_then(|before| rates_between(before.figures, figures, before.at.elapsed())),
            warnings: failures.iter().map(Failure::to_string).chain(replicas).collect(),
            open: samples.iter().find_map(|sample| sample.open.clone()),
            at: Instant::now(),
            answered: samples.len(),
            failed: failures.len(),
            rows: samples.into_iter().flat_map(|sample| sample.rows).collect(),
            addresses,
            figures,
        };
        shown.rows.sort_by_key(FoundLock::rank);
        shown.rows.truncate(self.count);
        shown
    }

    pub(super) fn warnings(&self) -> &[String] {
        match (&self.failure, &self.shown) {
            (Some(failure), _) => std::slice::from_ref(failure),
            (None, Some(shown)) => &shown.warnings,
            (None, None) => &[],
        }
    }

    fn select_again(&mut self) {
        let mut rows = self.shown.iter().flat_map(|shown| &shown.rows);
        let selected = rows.position(|row| Some(&row.key) == self.selected.as_ref());
        // If the selected lock is gone, the lock that is now at its position is selected.
        self.select(selected.or(self.selection.selected()).unwrap_or(0));
    }

    /// Selects the lock at this position of the list, or the last lock.
    fn select(&mut self, position: usize) {
        let rows = self.shown.as_ref().map_or(&[][..], |shown| &shown.rows);
        let position = rows.len().checked_sub(1).map(|last| position.min(last));
        self.selection.select(position);
        self.selected = position.and_then(|position| rows.get(position)).map(|row| row.key.clone());
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
fn rates_between(before: Figures, now: Figures, span: Duration) -> Option<Figures> {
    let ms = Some(duration::ms(span)).filter(|ms| *ms > 0)?;
    let mut rates = now;
    for (rate, before) in rates.iter_mut().zip(before) {
        *rate = (rate.saturating_sub(before) * 1_000 + ms / 2) / ms;
    }
    Some(rates)
}
