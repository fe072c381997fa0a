//! The one timer of the module.
//!
//! It is set for the first of: a lease that somebody waits on, a wait limit, the end of the quarantine, work left over
//! by an event. While anybody waits it also goes off ten times a second, to find keys that changed behind our back.
//!
//! The server keeps its timers by the wall clock: when that is set back, they stand still. So the server's cron asks
//! [`Alarm::overdue`], which goes by the monotonic clock.

use crate::callbacks::timer::{self, TimerId};
use crate::client::Client;
use lockward_core::{Instant, Span, WaitingRoom};

/// How often waited-for keys are looked at unasked.
pub const PATROL: Span = match Span::from_millis(100) {
    Some(span) => span,
    None => Span::MAX,
};

/// The timer, when it is set.
pub struct Alarm {
    set: Option<(TimerId, Instant)>,
    patrolled: Instant,
    held_back_until: Option<Instant>,
}

impl Alarm {
    /// A timer that is not set.
    pub const fn new() -> Self {
        Self { set: None, patrolled: Instant::from_micros(0), held_back_until: None }
    }

    /// Sets the timer for the next work to do. Left as it is when it goes off early enough.
    pub fn rearm(&mut self, room: &WaitingRoom<Client>, work_left: bool, now: Instant) {
        let patrol = room.lines().next().is_some().then(|| self.patrolled.after(PATROL));
        let next = room.next_due().into_iter().chain(patrol).chain(work_left.then_some(now)).min();
        let Some(next) = next.map(|next| self.held_back_until.map_or(next, |until| next.max(until))) else {
            return;
        };
        match self.set {
            Some((_, set)) if set <= next => {}
            Some((id, _)) => {
                timer::stop(id);
                self.set = Some((timer::start(now.until(next)), next));
            }
            None => self.set = Some((timer::start(now.until(next)), next)),
        }
    }

    /// The timer has gone off: it is not set any more.
    pub const fn gone_off(&mut self) {
        self.set = None;
        self.held_back_until = None;
    }

    /// Lets no work begin before `until`: the server does not take writes now.
    pub const fn hold_back(&mut self, until: Instant) {
        self.held_back_until = Some(until);
    }

    /// Whether it is time to look at all waited-for keys; if so, the next time is counted from now.
    pub fn patrol(&mut self, now: Instant) -> bool {
        let time = now >= self.patrolled.after(PATROL);
        if time {
            self.patrolled = now;
        }
        time
    }

    /// Stops a timer that should have gone off and has not, so that it is set anew.
    pub fn drop_if_overdue(&mut self, now: Instant) {
        if let Some((id, due)) = self.set
            && due.after(PATROL) <= now
        {
            timer::stop(id);
            self.set = None;
        }
    }
}
