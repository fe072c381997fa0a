//! The data on the screen, and the selection.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::poller::{Events, Sample, Totals, Update};
use crate::duration;
use crate::locks::{Contended, Lock};

/// How the locks are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Waiters,
    LongestWait,
    Lease,
    Name,
}

/// The view below the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Locks,
    Queue,
    Help,
}

/// What is known about one primary.
#[derive(Default)]
struct Primary {
    /// The last answer. `None` if the last poll failed.
    sample: Option<Box<Sample>>,
    /// The events per second.
    rates: Option<Events>,
    /// The numbers from which the next rates are computed.
    previous: Option<(Events, Instant)>,
    failure: Option<Problem>,
}

/// Why polls fail, and since when.
struct Problem {
    reason: String,
    since: Instant,
}

impl Problem {
    fn new(reason: String, earlier: Option<Self>) -> Self {
        Self { reason, since: earlier.map_or_else(Instant::now, |earlier| earlier.since) }
    }
}

/// A lock with waiters.
pub(super) struct Row {
    pub(super) lock: Contended,
    pub(super) held: Option<Lock>,
    pub(super) at: Instant,
}

/// A lock whose queue is shown.
pub(super) struct Focus {
    pub(super) key: Vec<u8>,
    pub(super) lock: Option<Lock>,
    pub(super) at: Instant,
}

/// The answers of all primaries together.
pub(super) struct Shown {
    pub(super) totals: Totals,
    /// The events per second.
    pub(super) rates: Option<Events>,
    pub(super) rows: Vec<Row>,
    pub(super) focus: Option<Focus>,
}

/// Whether the primaries answer.
pub(super) enum Health {
    Connecting,
    Connected,
    /// The number of primaries that answer, and the number of all primaries.
    Partial(usize, usize),
    /// No primary answers, since this instant.
    Failed(Instant),
}

pub(super) struct State {
    /// `None` until a primary answers. If no primary answers any more, these are the last answers.
    pub(super) shown: Option<Shown>,
    pub(super) is_paused: bool,
    pub(super) order: Order,
    pub(super) page: Page,
    pub(super) selection: TableState,
    /// The primaries by their addresses.
    primaries: BTreeMap<String, Primary>,
    /// Why no primary is known.
    search_failure: Option<Problem>,
    interval: Duration,
    /// How many locks are shown, at most.
    count: usize,
    /// The key of the selected lock. The lock stays selected when the order changes.
    selected: Option<Vec<u8>>,
}

impl State {
    pub(super) fn new(interval: Duration, count: usize) -> Self {
        Self {
            shown: None,
            is_paused: false,
            order: Order::Waiters,
            page: Page::Locks,
            selection: TableState::new(),
            primaries: BTreeMap::new(),
            search_failure: None,
            interval,
            count,
            selected: None,
        }
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::NoPrimary(reason) => {
                self.search_failure = Some(Problem::new(reason, self.search_failure.take()));
            }
            Update::Gone(address) => {
                self.primaries.remove(&address);
                self.refresh();
            }
            Update::Polled(address, answer) => {
                self.search_failure = None;
                self.primaries.entry(address).or_default().update(answer, self.interval);
                self.refresh();
            }
        }
    }

    /// Makes the view from the last answers of the primaries that answer.
    fn refresh(&mut self) {
        let wanted = self.focus();
        let focus_of = |sample: &Sample| {
            let (key, lock) = sample.focus.clone().filter(|(key, _)| Some(key) == wanted.as_ref())?;
            Some(Focus { key, lock, at: sample.at })
        };
        let samples = || self.primaries.values().filter_map(|primary| primary.sample.as_deref());
        let focus = samples().find_map(focus_of);
        if let Some(shown) = self.shown.as_mut().filter(|_| self.is_paused) {
            // During a pause the view changes only if the user opens another queue.
            let is_shown = |shown: &Focus| Some(&shown.key) == wanted.as_ref();
            if !shown.focus.as_ref().is_some_and(is_shown) {
                shown.focus = focus;
            }
            return;
        }
        if samples().next().is_none() {
            // No primary answers. The view keeps the last answers, but not the rates.
            self.shown.iter_mut().for_each(|shown| shown.rates = None);
            return;
        }
        let mut shown = Shown { totals: Totals::default(), rates: None, rows: Vec::new(), focus };
        for sample in samples() {
            shown.totals += sample.totals;
            let row = |(lock, held): &(Contended, Option<Lock>)| Row {
                lock: lock.clone(),
                held: held.clone(),
                at: sample.at,
            };
            shown.rows.extend(sample.locks.iter().map(row));
        }
        for rates in self.primaries.values().filter_map(|primary| primary.rates) {
            *shown.rates.get_or_insert_default() += rates;
        }
        shown.rows.sort_by_key(|row| row.lock.rank());
        shown.rows.truncate(self.count);
        self.shown = Some(shown);
        self.sort_locks();
    }

    /// Whether the primaries answer.
    pub(super) fn health(&self) -> Health {
        let failures = || self.primaries.values().filter_map(|primary| primary.failure.as_ref());
        let (failed, all) = (failures().count(), self.primaries.len());
        let since = self.search_failure.iter().chain(failures()).map(|problem| problem.since).min();
        match since {
            Some(since) if failed == all => Health::Failed(since),
            Some(_) if failed > 0 => Health::Partial(all - failed, all),
            _ if self.shown.is_none() => Health::Connecting,
            _ => Health::Connected,
        }
    }

    /// The addresses of the primaries.
    pub(super) fn addresses(&self) -> String {
        self.primaries.keys().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// The warnings for the user. If no primary is known, the first line says why. Each server that does not answer or
    /// is a replica has a line.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &str> {
        let search_failure = self.search_failure.iter().map(|failure| &*failure.reason);
        search_failure.chain(self.primaries.values().filter_map(Primary::warning))
    }

    /// The age, in milliseconds, of data that was read at `at`. While the view is paused, the age is 0, so that the
    /// shown times do not change.
    pub(super) fn age_ms(&self, at: Instant, now: Instant) -> u64 {
        if self.is_paused { 0 } else { duration::ms(now.saturating_duration_since(at)) }
    }

    fn sort_locks(&mut self) {
        let order = self.order;
        let Some(shown) = &mut self.shown else { return };
        let lease = |lock: &Option<Lock>| {
            lock.as_ref().and_then(|lock| lock.holders.first()).map_or(u64::MAX, |holder| holder.lease_left)
        };
        shown.rows.sort_by(|one, other| match order {
            Order::Waiters => one.lock.rank().cmp(&other.lock.rank()),
            Order::LongestWait => Reverse(one.lock.longest_wait).cmp(&Reverse(other.lock.longest_wait)),
            Order::Lease => lease(&one.held).cmp(&lease(&other.held)),
            Order::Name => one.lock.key.cmp(&other.lock.key),
        });
        let keys = || shown.rows.iter().map(|row| &row.lock.key);
        let position = self.selected.as_ref().and_then(|selected| keys().position(|key| key == selected));
        // If the selected lock is gone, the lock that is now at its position is selected.
        let last = shown.rows.len().checked_sub(1);
        let position = position.or_else(|| last.map(|last| self.selection.selected().unwrap_or(0).min(last)));
        self.selection.select(position);
        if self.page != Page::Queue {
            self.selected =
                position.and_then(|position| shown.rows.get(position)).map(|row| row.lock.key.clone());
        }
    }

    pub(super) fn select_by(&mut self, steps: isize) {
        if self.page != Page::Locks {
            return;
        }
        let Some(shown) = &self.shown else { return };
        let Some(last) = shown.rows.len().checked_sub(1) else { return };
        let position = self.selection.selected().unwrap_or(0).saturating_add_signed(steps).min(last);
        self.selection.select(Some(position));
        self.selected = shown.rows.get(position).map(|row| row.lock.key.clone());
    }

    pub(super) fn open(&mut self) {
        if self.page == Page::Locks && self.selected.is_some() {
            self.page = Page::Queue;
        }
    }

    /// Goes back to the list of locks. `false` means that the list was already shown.
    pub(super) fn close(&mut self) -> bool {
        let is_elsewhere = self.page != Page::Locks;
        self.page = Page::Locks;
        is_elsewhere
    }

    pub(super) fn toggle_help(&mut self) {
        self.page = if self.page == Page::Help { Page::Locks } else { Page::Help };
    }

    pub(super) fn toggle_pause(&mut self) {
        self.is_paused = !self.is_paused;
    }

    pub(super) fn sort(&mut self, order: Order) {
        self.order = order;
        self.sort_locks();
    }

    /// The lock whose queue is shown.
    pub(super) fn focus(&self) -> Option<Vec<u8>> {
        self.selected.clone().filter(|_| self.page == Page::Queue)
    }
}

impl Primary {
    /// Why the last poll failed, or that the server is a replica.
    fn warning(&self) -> Option<&str> {
        let failure = self.failure.as_ref().map(|failure| &*failure.reason);
        failure.or_else(|| self.sample.as_ref()?.warning.as_deref())
    }

    fn update(&mut self, answer: Result<Box<Sample>, String>, interval: Duration) {
        match answer {
            Ok(sample) => {
                self.failure = None;
                self.update_rates(&sample, interval);
                self.sample = Some(sample);
            }
            Err(reason) => {
                *self = Self { failure: Some(Problem::new(reason, self.failure.take())), ..Self::default() };
            }
        }
    }

    fn update_rates(&mut self, sample: &Sample, interval: Duration) {
        if let Some((before, then)) = self.previous {
            let span = sample.at.saturating_duration_since(then);
            // When the user opens a queue, the poller polls at once. The span before this poll is too short for a rate.
            if span < interval / 2 {
                return;
            }
            self.rates = Events::rates(before, sample.totals.events, span);
        }
        self.previous = Some((sample.totals.events, sample.at));
    }
}
