//! The one timer of the module.
//!
//! The timer is set for the earliest of these: the end of a lease that a client waits for, a wait limit, the end of the
//! quarantine, and work that an event has caused. While there are waiters or dropped locks (held locks that the server
//! evicted or expired early), the timer also fires ten times a second, to sweep for keys that changed without an event.
//!
//! The server's timers follow the wall clock: when the wall clock is set back, the timers do not fire. So every
//! decision on a lock with waiters, and the server's cron, set the timer again if it is overdue by the monotonic clock.

use crate::server::timer::{self, TimerId};
use lockward_core::{Instant, Span};

/// How often a new round of a sweep begins.
const ROUND: Span = Span::millis(100);

/// The time until the next slice of a round that was not finished.
const BETWEEN_SLICES: Span = Span::millis(7);

/// The module sets a timer again when the timer is overdue by this time. Either the server's timers do not fire, or the
/// server is so busy that setting the timer again does not matter.
const OVERDUE: Span = Span::millis(10);

/// The one timer of the module, and the sweeps that it starts.
#[derive(Default)]
pub struct WakeupTimer {
    set: Option<(TimerId, Instant)>,
    /// The sweep of waited-for keys.
    pub queues: Rounds,
    /// The sweep of dropped locks.
    pub dropped_locks: Rounds,
    held_back_until: Option<Instant>,
}

impl WakeupTimer {
    /// Sets the timer for the next work, or for the next slice of a sweep that has keys to check. If the
    /// timer is already set early enough and is not overdue, this function changes nothing.
    pub fn rearm(&mut self, work: Option<Instant>, has_queues: bool, has_dropped: bool, now: Instant) {
        let queues = has_queues.then_some(self.queues.next);
        let dropped_locks = has_dropped.then_some(self.dropped_locks.next);
        let next = work.into_iter().chain(queues).chain(dropped_locks).min();
        let Some(next) = next.map(|next| self.held_back_until.map_or(next, |until| next.max(until))) else {
            return;
        };
        if let Some((id, set)) = self.set {
            if set <= next && now < set.after(OVERDUE) {
                return;
            }
            timer::stop(id);
        }
        self.set = Some((timer::start(now.until(next)), next));
    }

    /// The timer has fired: it is not set any more.
    pub const fn fired(&mut self) {
        self.set = None;
        self.held_back_until = None;
    }

    /// Delays all work until `until`, because the server does not accept writes now. Until then, waits do not
    /// end at their limits either.
    pub const fn hold_back(&mut self, until: Instant) {
        self.held_back_until = Some(until);
    }
}

/// The rounds of a sweep. Each round checks all keys of the sweep, in slices of time.
pub struct Rounds {
    next: Instant,
    began: Instant,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { next: Instant::from_micros(0), began: Instant::from_micros(0) }
    }
}

impl Rounds {
    /// Whether it is time for the next slice.
    pub fn are_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// A slice is over. Sets the instant at which the round goes on or the next round begins.
    pub fn went_on(&mut self, round_is_over: bool, now: Instant) {
        self.next = now.after(BETWEEN_SLICES);
        if round_is_over {
            self.next = self.next.max(self.began.after(ROUND));
            self.began = self.next;
        }
    }
}
