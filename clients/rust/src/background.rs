//! The background task of a client. It renews all tenures, and finishes the work of callers that have left.
//!
//! It waits for timers, tasks and replies at the same time. So a server that does not answer delays only the requests to
//! that server. Renewals that are due at the same time go out together, on one connection.

use crate::servers::Servers;
use crate::tenure::Tenure;
use crate::withdrawal::{AbandonedAcquire, withdraw};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

/// The longest timer: the timer queue takes no more than two years.
const MAX_TIMER: Duration = Duration::from_secs(24 * 3_600);

/// What the background task is asked to do.
pub(crate) enum Task {
    /// Renew a tenure while it has guards. It is sent for each guard, as [`Task::Unwatch`] may have come between.
    Watch(Arc<Tenure>),
    /// Release the holds of guards that are gone.
    ReleaseSurplus(Arc<Tenure>),
    /// Stop renewing the tenure with this id, unless it has guards again.
    Unwatch(u64),
    /// Withdraw an acquisition whose caller has left.
    Withdraw(AbandonedAcquire),
    /// Renew all tenures now: a connection has broken, and a server that has restarted may have forgotten them.
    RenewAll,
    /// Drop this sender as soon as nothing but renewals is in progress.
    NotifyIdle(oneshot::Sender<()>),
}

/// A tenure that is renewed.
struct Watched {
    tenure: Weak<Tenure>,
    /// The timer of the next renewal. `None` while a renewal is in progress.
    timer: Option<Key>,
}

/// What has finished.
enum Finished {
    Renewal(u64),
    Other,
}

struct Background {
    servers: Arc<Servers>,
    watched: HashMap<u64, Watched>,
    timers: DelayQueue<u64>,
    in_progress: FuturesUnordered<BoxFuture<'static, Finished>>,
    /// How many of those in progress are not renewals.
    unfinished: u32,
    idle_listeners: Vec<oneshot::Sender<()>>,
}

/// Runs until no sender of tasks is left, and all is done.
pub(crate) async fn run(servers: Arc<Servers>, mut tasks: mpsc::UnboundedReceiver<Task>) {
    let mut background = Background {
        servers,
        watched: HashMap::new(),
        timers: DelayQueue::new(),
        in_progress: FuturesUnordered::new(),
        unfinished: 0,
        idle_listeners: Vec::new(),
    };
    let mut is_closed = false;
    while !is_closed || !background.in_progress.is_empty() {
        tokio::select! {
            task = tasks.recv(), if !is_closed => match task {
                Some(task) => background.start(task),
                None => is_closed = true,
            },
            Some(due) = background.timers.next(), if !background.timers.is_empty() => {
                background.start_renewal(due.into_inner());
            }
            Some(finished) = background.in_progress.next(), if !background.in_progress.is_empty() => {
                background.finish(finished);
            }
        }
        if background.unfinished == 0 {
            background.idle_listeners.clear();
        }
    }
}

impl Background {
    fn start(&mut self, task: Task) {
        match task {
            Task::Watch(tenure) => {
                self.watched.entry(tenure.id).or_insert_with(|| {
                    let timer = Some(self.timers.insert(tenure.id, until_renewal(&tenure)));
                    Watched { tenure: Arc::downgrade(&tenure), timer }
                });
            }
            Task::ReleaseSurplus(tenure) => {
                let servers = Arc::clone(&self.servers);
                // A hold that cannot be released ends with its lease.
                self.push(async move { drop(tenure.release_surplus(&servers, None).await) });
            }
            Task::Unwatch(id) => {
                let tenure = self.watched.get(&id).map(|watched| watched.tenure.upgrade());
                if tenure.is_some_and(|tenure| tenure.is_none_or(|tenure| tenure.guards() == 0))
                    && let Some(timer) = self.watched.remove(&id).and_then(|watched| watched.timer)
                {
                    self.timers.remove(&timer);
                }
            }
            Task::Withdraw(abandoned) => {
                let servers = Arc::clone(&self.servers);
                self.push(async move { withdraw(&servers, abandoned).await });
            }
            Task::RenewAll => {
                for timer in self.watched.values().filter_map(|watched| watched.timer.as_ref()) {
                    self.timers.reset(timer, Duration::ZERO);
                }
            }
            Task::NotifyIdle(listener) => self.idle_listeners.push(listener),
        }
    }

    fn push(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.unfinished += 1;
        self.in_progress.push(work.map(|()| Finished::Other).boxed());
    }

    fn start_renewal(&mut self, id: u64) {
        let tenure = self.watched.get_mut(&id).and_then(|watched| {
            watched.timer = None;
            watched.tenure.upgrade()
        });
        match tenure.filter(|tenure| tenure.guards() > 0 && tenure.is_held()) {
            Some(tenure) => {
                let servers = Arc::clone(&self.servers);
                self.in_progress.push(renew(servers, tenure).map(move |()| Finished::Renewal(id)).boxed());
            }
            None => drop(self.watched.remove(&id)),
        }
    }

    fn finish(&mut self, finished: Finished) {
        let Finished::Renewal(id) = finished else {
            self.unfinished -= 1;
            return;
        };
        // A tenure may have been unwatched and watched again meanwhile. Then it has its timer already.
        let Some(watched) = self.watched.get_mut(&id).filter(|watched| watched.timer.is_none()) else {
            return;
        };
        match watched.tenure.upgrade().filter(|tenure| tenure.is_held()) {
            Some(tenure) => watched.timer = Some(self.timers.insert(id, until_renewal(&tenure))),
            None => drop(self.watched.remove(&id)),
        }
    }
}

/// How long to wait before the next renewal: until a third of the lease has passed. If that is over, because a renewal has
/// failed, a twentieth of the lease.
fn until_renewal(tenure: &Tenure) -> Duration {
    let lease = Duration::from_millis(tenure.lease.millis());
    let deadline = tenure.state().deadline;
    let left = deadline.saturating_duration_since(Instant::now());
    // The last lease before the hold limit is not renewed. The timer at its end notes the loss.
    if tenure.lease.hold_deadline.is_some_and(|end| deadline + lease / 100 >= end) {
        return left.min(MAX_TIMER);
    }
    left.saturating_sub(lease * 2 / 3).max(lease / 20).min(left).min(MAX_TIMER)
}

async fn renew(servers: Arc<Servers>, tenure: Arc<Tenure>) {
    // After an error the state tells whether the tenure is lost.
    let _ = tenure.renew(&servers, None).await;
    if let Some(loss) = tenure.state().loss() {
        tenure.end(loss);
    }
}
