//! When each tenure is renewed next, and the task that does it.
//!
//! The task only waits for the next instant. Each renewal is a task of its own, so a server that does not answer delays the
//! renewals of its own locks alone. Those that are due together go out together, on the connection that all requests to a
//! server share.

use crate::mutex::locked;
use crate::time::{FAR_FUTURE, from_now};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;
use tokio::time::sleep_until;

/// What is renewed: a tenure.
pub(crate) trait Renewable: Send + Sync {
    /// Unique in this process.
    fn id(&self) -> u64;
    /// The slot of its key.
    fn slot(&self) -> u16;
    /// When to renew it next, if at all.
    fn next_renewal(&self) -> Option<Instant>;
    /// The instant that it is scheduled for.
    fn due(&self) -> &Mutex<Option<Instant>>;
    /// Renews it in the background, and adds it again.
    fn start_renewal(self: Arc<Self>);
}

/// All tenures to be renewed.
#[derive(Default)]
pub(crate) struct Renewals {
    schedule: Mutex<Schedule>,
    is_earlier: Notify,
}

#[derive(Default)]
struct Schedule {
    /// By instant, then by the id of the tenure.
    due: BTreeMap<(Instant, u64), Arc<dyn Renewable>>,
    /// The task sleeps until then. `None`: until it is notified.
    wakes_at: Option<Instant>,
}

impl Renewals {
    /// Renews the tenure at its next instant, if it has one.
    pub(crate) fn add(&self, tenure: Arc<dyn Renewable>) {
        let mut schedule = locked(&self.schedule);
        // Under the mutex, so that `remove` comes after it or prevents it.
        let Some(due) = tenure.next_renewal() else { return };
        if let Some(earlier) = locked(tenure.due()).replace(due) {
            schedule.due.remove(&(earlier, tenure.id()));
        }
        schedule.due.insert((due, tenure.id()), tenure);
        if schedule.wakes_at.is_none_or(|wakes_at| due < wakes_at) {
            self.is_earlier.notify_one();
        }
    }

    /// Renews the tenure no more. It has ended, or another process goes on with it.
    pub(crate) fn remove(&self, tenure: &dyn Renewable) {
        let mut schedule = locked(&self.schedule);
        if let Some(due) = locked(tenure.due()).take() {
            schedule.due.remove(&(due, tenure.id()));
        }
    }

    /// Renews the tenures of these slots now.
    pub(crate) fn renew_now(&self, is_at: impl Fn(u16) -> bool) {
        let mut schedule = locked(&self.schedule);
        let now = Instant::now();
        let (at, others) = std::mem::take(&mut schedule.due).into_iter().partition(|(_, t)| is_at(t.slot()));
        schedule.due = others;
        let at: BTreeMap<_, Arc<dyn Renewable>> = at;
        for tenure in at.into_values() {
            *locked(tenure.due()) = Some(now);
            schedule.due.insert((now, tenure.id()), tenure);
        }
        self.is_earlier.notify_one();
    }

    /// The tenures to renew now.
    fn take_due(&self) -> (Vec<Arc<dyn Renewable>>, Option<Instant>) {
        let mut schedule = locked(&self.schedule);
        let later = schedule.due.split_off(&(Instant::now(), u64::MAX));
        let due = std::mem::replace(&mut schedule.due, later);
        schedule.wakes_at = schedule.due.keys().next().map(|(at, _)| *at);
        (due.into_values().collect(), schedule.wakes_at)
    }
}

/// Renews until it is aborted.
pub(crate) async fn run(renewals: Arc<Renewals>) {
    loop {
        let (due, next) = renewals.take_due();
        for tenure in due {
            tenure.start_renewal();
        }
        tokio::select! {
            () = sleep_until(next.unwrap_or_else(|| from_now(FAR_FUTURE)).into()) => {}
            () = renewals.is_earlier.notified() => {}
        }
    }
}
