//! The data on the screen, and the selection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::poller::{FIGURES, Figures, Open, Row, Sample, Update};
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

/// A primary, as of its last poll.
struct Primary {
    polled: Result<Box<Sample>, Failure>,
    /// The events per second, for the figures that count events.
    rates: Option<Figures>,
    /// The figures from which the next rates are computed.
    before: Option<(Instant, Figures)>,
}

pub(super) struct State {
    /// The primaries, by their addresses.
    primaries: BTreeMap<String, Primary>,
    /// The last answers. `None` until a primary answers.
    pub(super) shown: Option<Shown>,
    /// The sums of the rates of all primaries that answer.
    pub(super) rates: Option<Figures>,
    /// The failures of the last polls. `Err` means that no primary answers.
    pub(super) failures: Result<Vec<String>, String>,
    pub(super) selection: TableState,
    /// The key of the selected lock. The lock stays selected when its position changes.
    selected: Option<Name>,
    /// The key of the lock whose queue is shown in place of the list.
    pub(super) open: Option<Name>,
    interval: Duration,
    /// How many locks are shown, at most.
    count: usize,
}

impl State {
    pub(super) fn new(interval: Duration, count: usize) -> Self {
        Self {
            primaries: BTreeMap::new(),
            shown: None,
            rates: None,
            failures: Ok(Vec::new()),
            selection: TableState::new(),
            selected: None,
            open: None,
            interval,
            count,
        }
    }

    pub(super) fn update(&mut self, update: Update) {
        let no_primary = match update {
            Update::Polled(address, polled) => {
                let known = self.primaries.remove(&address);
                self.primaries.insert(address, Primary::new(polled, known, self.interval));
                None
            }
            Update::Gone(address) => {
                self.primaries.remove(&address);
                return;
            }
            Update::NoPrimary(failure) => Some(failure),
        };
        let answers = || {
            self.primaries
                .iter()
                .filter_map(|(address, primary)| Some((address, primary.polled.as_ref().ok()?)))
        };
        let failures: Vec<_> = self
            .primaries
            .values()
            .filter_map(|primary| primary.polled.as_ref().err())
            .chain(&no_primary)
            .collect();
        let rates = self.primaries.values().filter_map(|primary| primary.rates);
        self.rates = rates.reduce(add);
        if answers().next().is_none() {
            // The view keeps the last answers.
            self.failures = Err(Failure::all(failures).to_string());
            return;
        }
        self.failures = Ok(failures.into_iter().map(Failure::to_string).collect());
        let mut shown = Shown {
            addresses: answers().map(|(address, _)| &**address).collect::<Vec<_>>().join(" "),
            figures: answers().fold([0; FIGURES.len()], |sum, (_, sample)| add(sum, sample.figures)),
            rows: answers().flat_map(|(_, sample)| &sample.rows).cloned().collect(),
            open: answers().find_map(|(_, sample)| sample.open.clone()),
            at: Instant::now(),
            answered: answers().count(),
        };
        shown.rows.sort_by_key(|row| row.lock.rank());
        shown.rows.truncate(self.count);
        self.shown = Some(shown);
        self.select_again();
    }

    /// The lines for the user about servers that do not answer or are replicas.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &str> {
        let failures = match &self.failures {
            Ok(failures) => failures.as_slice(),
            Err(failure) => std::slice::from_ref(failure),
        };
        let answers = self.primaries.values().filter_map(|primary| primary.polled.as_ref().ok());
        let replicas = answers.filter_map(|sample| sample.warning.as_deref());
        failures.iter().map(String::as_str).chain(replicas)
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

impl Primary {
    fn new(polled: Result<Box<Sample>, Failure>, known: Option<Self>, interval: Duration) -> Self {
        let (rates, before) = known.map_or((None, None), |known| (known.rates, known.before));
        let Some((at, figures)) = polled.as_ref().ok().map(|sample| (sample.at, sample.figures)) else {
            return Self { polled, rates: None, before: None };
        };
        match before {
            None => Self { polled, rates: None, before: Some((at, figures)) },
            // When the user opens a queue, top polls at once. The span before this poll is too short for a rate.
            Some((then, _)) if at.saturating_duration_since(then) < interval / 2 => {
                Self { polled, rates, before }
            }
            Some((then, before)) => {
                let rates = rates_between(before, figures, at.saturating_duration_since(then));
                Self { polled, rates, before: Some((at, figures)) }
            }
        }
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
