//! The data on the screen, and the selection.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::poller::{Sample, Totals, Update};
use crate::locks::{Holder, Lock};

/// How many rates are kept for the curve.
const CURVE_LENGTH: usize = 300;

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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) handed_off: f64,
    pub(super) acquired: f64,
    pub(super) leases_ended: f64,
}

pub(super) struct State {
    pub(super) sample: Option<Sample>,
    /// The reason why the last poll failed, and the time of the first failure since the last successful poll.
    pub(super) error: Option<(String, Instant)>,
    pub(super) rates: Option<Rates>,
    /// Hand-offs per second, the latest last.
    pub(super) curve: VecDeque<u64>,
    pub(super) is_paused: bool,
    pub(super) order: Order,
    pub(super) page: Page,
    pub(super) selection: TableState,
    interval: Duration,
    /// The key of the selected lock. The lock stays selected when the order changes.
    selected: Option<Vec<u8>>,
    /// The totals from which the next rates are computed.
    previous: Option<(Totals, Instant)>,
    /// The longest lease that was shown for each tenure, in ms, by fencing token.
    longest_leases: HashMap<u64, u64>,
}

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            sample: None,
            error: None,
            rates: None,
            curve: VecDeque::new(),
            is_paused: false,
            order: Order::Waiters,
            page: Page::Locks,
            selection: TableState::new(),
            interval,
            selected: None,
            previous: None,
            longest_leases: HashMap::new(),
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
            Ok(_) if self.is_paused => self.error = None,
            Ok(sample) => {
                self.error = None;
                self.update_rates(&sample);
                self.update_longest_leases(&sample);
                self.sample = Some(sample);
                self.sort_locks();
            }
        }
    }

    fn update_rates(&mut self, sample: &Sample) {
        if let Some((before, then)) = self.previous {
            let span = sample.at.saturating_duration_since(then);
            // The user has opened a queue, which causes an extra poll. The span before it is too short for a rate.
            if span < self.interval / 2 {
                return;
            }
            self.rates = Rates::between(before, sample.totals, span);
            if let Some(rates) = self.rates {
                self.curve.push_back(round(rates.handed_off));
                while self.curve.len() > CURVE_LENGTH {
                    self.curve.pop_front();
                }
            }
        }
        self.previous = Some((sample.totals, sample.at));
    }

    fn update_longest_leases(&mut self, sample: &Sample) {
        let before = std::mem::take(&mut self.longest_leases);
        let focused = sample.focus.iter().filter_map(|(_, lock)| lock.as_ref());
        let locks = sample.locks.iter().filter_map(|(_, lock)| lock.as_ref()).chain(focused);
        for holder in locks.flat_map(|lock| &lock.holders) {
            let longest = before.get(&holder.token).copied().unwrap_or_default().max(holder.lease_left);
            self.longest_leases.insert(holder.token, longest);
        }
    }

    /// The remaining lease, divided by the longest lease seen in this tenure.
    pub(super) fn share_left(&self, holder: &Holder, left: u64) -> f64 {
        let longest = self.longest_leases.get(&holder.token).copied().unwrap_or(holder.lease_left).max(1);
        (as_f64(left) / as_f64(longest)).clamp(0.0, 1.0)
    }

    /// The age of the data that is shown.
    pub(super) fn age(&self, now: Instant) -> Duration {
        match &self.sample {
            Some(sample) if !self.is_paused => now.saturating_duration_since(sample.at),
            Some(_) | None => Duration::ZERO,
        }
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
        let seconds = span.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |before: u64, now: u64| now.checked_sub(before).map(|more| as_f64(more) / seconds);
        Some(Self {
            handed_off: rate(before.handed_off, now.handed_off)?,
            acquired: rate(before.acquired, now.acquired)?,
            leases_ended: rate(before.leases_ended, now.leases_ended)?,
        })
    }
}

#[allow(clippy::cast_precision_loss, reason = "only the first digits are shown")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is never negative, and the cast saturates"
)]
pub(super) fn round(number: f64) -> u64 {
    number.round() as u64
}
