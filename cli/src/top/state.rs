//! What is shown, and what of it is selected.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui::widgets::TableState;

use super::watch::{News, Sample, Totals};
use crate::locks::{Contended, Holder, Lock};

/// How many rates are kept for the curve.
const KEPT: usize = 300;

/// What the locks are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Waiters,
    LongestWait,
    Lease,
    Name,
}

/// What is shown below the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Locks,
    Queue,
    Help,
}

/// What happens a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) handed_off: f64,
    pub(super) acquired: f64,
    pub(super) leases_ended: f64,
}

pub(super) struct State {
    pub(super) sample: Option<Sample>,
    /// Why the last attempt brought none, and since when it has been so.
    pub(super) trouble: Option<(String, Instant)>,
    pub(super) rates: Option<Rates>,
    /// Hand-offs a second, the latest last.
    pub(super) curve: VecDeque<u64>,
    pub(super) is_paused: bool,
    pub(super) order: Order,
    pub(super) page: Page,
    pub(super) selection: TableState,
    interval: Duration,
    /// The lock that is selected: it keeps the selection when others pass it.
    selected: Option<Vec<u8>>,
    /// What the next rates are reckoned from.
    counted: Option<(Totals, Instant)>,
    /// The longest that each tenure has been seen to have left: by token, and in milliseconds.
    leases: HashMap<u64, u64>,
}

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            sample: None,
            trouble: None,
            rates: None,
            curve: VecDeque::new(),
            is_paused: false,
            order: Order::Waiters,
            page: Page::Locks,
            selection: TableState::new(),
            interval,
            selected: None,
            counted: None,
            leases: HashMap::new(),
        }
    }

    pub(super) fn hear(&mut self, news: News) {
        match news {
            Err(why) => {
                let since = self.trouble.take().map_or_else(Instant::now, |(_, since)| since);
                self.trouble = Some((why, since));
                self.rates = None;
                self.counted = None;
            }
            Ok(_) if self.is_paused => self.trouble = None,
            Ok(sample) => {
                self.trouble = None;
                self.count(&sample);
                self.note_leases(&sample);
                self.sample = Some(sample);
                self.arrange();
            }
        }
    }

    fn count(&mut self, sample: &Sample) {
        if let Some((before, then)) = self.counted {
            let span = sample.at.saturating_duration_since(then);
            // Asked out of turn, for a queue that was opened: too short a time for a rate.
            if span < self.interval / 2 {
                return;
            }
            self.rates = Rates::between(before, sample.totals, span);
            if let Some(rates) = self.rates {
                self.curve.push_back(whole(rates.handed_off));
                while self.curve.len() > KEPT {
                    self.curve.pop_front();
                }
            }
        }
        self.counted = Some((sample.totals, sample.at));
    }

    fn note_leases(&mut self, sample: &Sample) {
        let before = std::mem::take(&mut self.leases);
        let focused = sample.focus.iter().filter_map(|(_, lock)| lock.as_ref());
        let locks = sample.locks.iter().filter_map(|(_, lock)| lock.as_ref()).chain(focused);
        for holder in locks.flat_map(|lock| &lock.holders) {
            let longest = before.get(&holder.token).copied().unwrap_or_default().max(holder.lease_left);
            self.leases.insert(holder.token, longest);
        }
    }

    /// How much of its lease a holder has left, from 0 to 1, as far as has been seen.
    pub(super) fn share_left(&self, holder: &Holder, left: u64) -> f64 {
        let longest = self.leases.get(&holder.token).copied().unwrap_or(holder.lease_left).max(1);
        (as_f64(left) / as_f64(longest)).clamp(0.0, 1.0)
    }

    /// How long ago the servers told what is shown.
    pub(super) fn age(&self, now: Instant) -> Duration {
        match &self.sample {
            Some(sample) if !self.is_paused => now.saturating_duration_since(sample.at),
            Some(_) | None => Duration::ZERO,
        }
    }

    fn arrange(&mut self) {
        let order = self.order;
        let Some(sample) = &mut self.sample else { return };
        let lease = |lock: &Option<Lock>| {
            lock.as_ref().and_then(|lock| lock.holders.first()).map_or(u64::MAX, |holder| holder.lease_left)
        };
        sample.locks.sort_by(|(one, one_held), (other, other_held)| match order {
            Order::Waiters => busiest(one).cmp(&busiest(other)),
            Order::LongestWait => Reverse(one.longest_wait).cmp(&Reverse(other.longest_wait)),
            Order::Lease => lease(one_held).cmp(&lease(other_held)),
            Order::Name => one.key.cmp(&other.key),
        });
        let keys = || sample.locks.iter().map(|(lock, _)| &lock.key);
        let place = self.selected.as_ref().and_then(|selected| keys().position(|key| key == selected));
        // It is gone: what stands in its place is selected, once there is something.
        let last = sample.locks.len().checked_sub(1);
        let place = place.or_else(|| last.map(|last| self.selection.selected().unwrap_or(0).min(last)));
        self.selection.select(place);
        if self.page != Page::Queue {
            self.selected = place.and_then(|place| sample.locks.get(place)).map(|(lock, _)| lock.key.clone());
        }
    }

    pub(super) fn select_by(&mut self, steps: isize) {
        if self.page != Page::Locks {
            return;
        }
        let Some(sample) = &self.sample else { return };
        let Some(last) = sample.locks.len().checked_sub(1) else { return };
        let place = self.selection.selected().unwrap_or(0).saturating_add_signed(steps).min(last);
        self.selection.select(Some(place));
        self.selected = sample.locks.get(place).map(|(lock, _)| lock.key.clone());
    }

    pub(super) fn open(&mut self) {
        if self.page == Page::Locks && self.selected.is_some() {
            self.page = Page::Queue;
        }
    }

    /// Back to the locks; `false` if that is where it is.
    pub(super) fn close(&mut self) -> bool {
        let is_elsewhere = self.page != Page::Locks;
        self.page = Page::Locks;
        is_elsewhere
    }

    pub(super) fn help(&mut self) {
        self.page = if self.page == Page::Help { Page::Locks } else { Page::Help };
    }

    pub(super) fn pause(&mut self) {
        self.is_paused = !self.is_paused;
    }

    pub(super) fn sort(&mut self, order: Order) {
        self.order = order;
        self.arrange();
    }

    /// The lock whose queue is shown.
    pub(super) fn focus(&self) -> Option<Vec<u8>> {
        self.selected.clone().filter(|_| self.page == Page::Queue)
    }
}

impl Rates {
    /// `None` where a server was started anew, or another one is asked.
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

fn busiest(lock: &Contended) -> (Reverse<u64>, Reverse<u64>) {
    (Reverse(lock.waiters), Reverse(lock.longest_wait))
}

#[allow(clippy::cast_precision_loss, reason = "it is shown to three digits")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is never below 0, and a cast never beyond"
)]
pub(super) fn whole(rate: f64) -> u64 {
    rate.round() as u64
}
