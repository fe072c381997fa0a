//! The data on the screen, and the selection.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::poller::{Sample, Totals, Update};
use crate::duration;
use crate::locks::Lock;

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

/// Events per second.
pub(super) struct Rates {
    pub(super) handed_off: u64,
    pub(super) acquired: u64,
    pub(super) leases_ended: u64,
}

pub(super) struct State {
    pub(super) sample: Option<Sample>,
    /// The reason why the last poll failed, and the time of the first failure since the last successful poll.
    pub(super) error: Option<(String, Instant)>,
    pub(super) rates: Option<Rates>,
    pub(super) is_paused: bool,
    pub(super) order: Order,
    pub(super) page: Page,
    pub(super) selection: TableState,
    interval: Duration,
    /// The key of the selected lock. The lock stays selected when the order changes.
    selected: Option<Vec<u8>>,
    /// The totals from which the next rates are computed.
    previous: Option<(Totals, Instant)>,
}

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            sample: None,
            error: None,
            rates: None,
            is_paused: false,
            order: Order::Waiters,
            page: Page::Locks,
            selection: TableState::new(),
            interval,
            selected: None,
            previous: None,
        }
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Err(why) => {
                let since = self.error.take().map_or_else(Instant::now, |(_, since)| since);
                self.error = Some((why, since));
                self.rates = None;
                self.previous = None;
            }
            Ok(sample) if self.is_paused => {
                self.error = None;
                let key = |sample: &Sample| sample.focus.as_ref().map(|(key, _)| key.clone());
                // The user may open a queue during the pause.
                if let Some(shown) = self.sample.as_mut().filter(|shown| key(shown) != key(&sample)) {
                    shown.focus = sample.focus;
                }
            }
            Ok(sample) => {
                self.error = None;
                self.update_rates(&sample);
                self.sample = Some(sample);
                self.sort_locks();
            }
        }
    }

    fn update_rates(&mut self, sample: &Sample) {
        if let Some((before, then)) = self.previous {
            let span = sample.at.saturating_duration_since(then);
            // When the user opens a queue, the poller polls at once. The span before this poll is too short for a rate.
            if span < self.interval / 2 {
                return;
            }
            self.rates = Rates::between(before, sample.totals, span);
        }
        self.previous = Some((sample.totals, sample.at));
    }

    /// The age of the shown data in milliseconds. 0 while the view is paused, so that the shown times do not change.
    pub(super) fn age_ms(&self, now: Instant) -> u64 {
        let sample = self.sample.as_ref().filter(|_| !self.is_paused);
        sample.map_or(0, |sample| duration::ms(now.saturating_duration_since(sample.at)))
    }

    fn sort_locks(&mut self) {
        let order = self.order;
        let Some(sample) = &mut self.sample else { return };
        let lease = |lock: &Option<Lock>| {
            lock.as_ref().and_then(|lock| lock.holders.first()).map_or(u64::MAX, |holder| holder.lease_left)
        };
        sample.locks.sort_by(|(one, one_held), (other, other_held)| match order {
            Order::Waiters => one.rank().cmp(&other.rank()),
            Order::LongestWait => Reverse(one.longest_wait).cmp(&Reverse(other.longest_wait)),
            Order::Lease => lease(one_held).cmp(&lease(other_held)),
            Order::Name => one.key.cmp(&other.key),
        });
        let keys = || sample.locks.iter().map(|(lock, _)| &lock.key);
        let position = self.selected.as_ref().and_then(|selected| keys().position(|key| key == selected));
        // If the selected lock is gone, the lock that is now at its position is selected.
        let last = sample.locks.len().checked_sub(1);
        let position = position.or_else(|| last.map(|last| self.selection.selected().unwrap_or(0).min(last)));
        self.selection.select(position);
        if self.page != Page::Queue {
            self.selected =
                position.and_then(|position| sample.locks.get(position)).map(|(lock, _)| lock.key.clone());
        }
    }

    pub(super) fn select_by(&mut self, steps: isize) {
        if self.page != Page::Locks {
            return;
        }
        let Some(sample) = &self.sample else { return };
        let Some(last) = sample.locks.len().checked_sub(1) else { return };
        let position = self.selection.selected().unwrap_or(0).saturating_add_signed(steps).min(last);
        self.selection.select(Some(position));
        self.selected = sample.locks.get(position).map(|(lock, _)| lock.key.clone());
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

impl Rates {
    /// `None` if a counter has decreased: a server was restarted, or another server is the primary.
    fn between(before: Totals, now: Totals, span: Duration) -> Option<Self> {
        let ms = Some(duration::ms(span)).filter(|ms| *ms > 0)?;
        let rate = |before: u64, now: u64| Some((now.checked_sub(before)? * 1_000 + ms / 2) / ms);
        Some(Self {
            handed_off: rate(before.handed_off, now.handed_off)?,
            acquired: rate(before.acquired, now.acquired)?,
            leases_ended: rate(before.leases_ended, now.leases_ended)?,
        })
    }
}
