//! The one task of a client: it renews all tenures, and does what callers that have left cannot do any more.
//!
//! It waits on a timer queue, on errands and on what is under way, and never for one of them alone: a server that is
//! silent holds up only the requests to that server. Renewals that are due together go out together, on one
//! connection.

use crate::error::Error;
use crate::request::{Block, Claim};
use crate::servers::{Lane, Servers};
use crate::tenure::{FAR, Tenure};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

/// The timer queue takes nothing that is further away than two years.
const A_DAY: Duration = Duration::from_secs(24 * 3_600);

/// What the keeper is asked to do.
pub(crate) enum Errand {
    /// Renew a tenure for as long as anybody guards it. Whoever enters one asks again: it may just have been forgotten.
    Keep(Arc<Tenure>),
    /// A guard is gone: give back its hold.
    Settle(Arc<Tenure>),
    /// Nobody guards the tenure with this id any more, unless somebody has entered it since.
    Forget(u64),
    /// Nobody waits any more for what this may have been granted.
    GiveBack(Abandoned),
    /// A connection is broken. A server that has forgotten tenures takes them from who claims them first.
    RenewAll,
    /// Drop this once nothing is under way any more but renewals.
    Tell(oneshot::Sender<()>),
}

/// An acquisition whose caller has left, or whose reply was lost.
pub(crate) struct Abandoned {
    pub(crate) claim: Claim,
    /// Whether it may still stand in the queue.
    pub(crate) waited: bool,
    /// When what it may have been granted ends by itself, if it is granted now, as far as that is known.
    pub(crate) lease: Duration,
    /// Until this is done, nobody in this process asks in this owner's name.
    pub(crate) turn: Option<OwnedMutexGuard<Weak<Tenure>>>,
}

struct Kept {
    tenure: Weak<Tenure>,
    /// Its place in the timer queue, unless its renewal is under way.
    due: Option<Key>,
}

enum Done {
    Renewed(u64),
    Other,
}

/// Runs until nobody is left who could send errands, and all is done.
pub(crate) async fn keep(servers: Arc<Servers>, mut errands: mpsc::UnboundedReceiver<Errand>) {
    let mut kept: HashMap<u64, Kept> = HashMap::new();
    let mut timers: DelayQueue<u64> = DelayQueue::new();
    let mut under_way: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    // Those of them that are no renewals.
    let mut left_behind = 0_u32;
    let mut to_tell: Vec<oneshot::Sender<()>> = Vec::new();
    let mut is_over = false;
    while !is_over || !under_way.is_empty() {
        tokio::select! {
            errand = errands.recv(), if !is_over => match errand {
                None => is_over = true,
                Some(Errand::Keep(tenure)) => {
                    kept.entry(tenure.id).or_insert_with(|| {
                        let due = Some(timers.insert(tenure.id, until_renewal(&tenure)));
                        Kept { tenure: Arc::downgrade(&tenure), due }
                    });
                }
                Some(Errand::Settle(tenure)) => {
                    let servers = Arc::clone(&servers);
                    left_behind += 1;
                    under_way.push(settle(servers, tenure).boxed());
                }
                Some(Errand::Forget(id)) => {
                    let is_left = |kept: &Kept| kept.tenure.upgrade().is_none_or(|tenure| tenure.guards() == 0);
                    if kept.get(&id).is_some_and(is_left)
                        && let Some(due) = kept.remove(&id).and_then(|kept| kept.due)
                    {
                        timers.remove(&due);
                    }
                }
                Some(Errand::GiveBack(abandoned)) => {
                    left_behind += 1;
                    under_way.push(give_back(Arc::clone(&servers), abandoned).boxed());
                }
                Some(Errand::RenewAll) => {
                    for due in kept.values().filter_map(|kept| kept.due.as_ref()) {
                        timers.reset(due, Duration::ZERO);
                    }
                }
                Some(Errand::Tell(listener)) => to_tell.push(listener),
            },
            Some(due) = timers.next(), if !timers.is_empty() => {
                let id = due.into_inner();
                let tenure = kept.get_mut(&id).and_then(|kept| {
                    kept.due = None;
                    kept.tenure.upgrade()
                });
                match tenure.filter(|tenure| tenure.guards() > 0 && tenure.standing().loss().is_none()) {
                    Some(tenure) => under_way.push(renew(Arc::clone(&servers), tenure, id).boxed()),
                    None => drop(kept.remove(&id)),
                }
            }
            Some(done) = under_way.next(), if !under_way.is_empty() => {
                left_behind -= u32::from(matches!(done, Done::Other));
                // One that was forgotten and kept anew meanwhile has its place in the timer queue.
                if let Done::Renewed(id) = done
                    && kept.get(&id).is_some_and(|kept| kept.due.is_none())
                {
                    let tenure = kept.get(&id).and_then(|kept| kept.tenure.upgrade());
                    match tenure.filter(|tenure| tenure.standing().loss().is_none()) {
                        Some(tenure) => {
                            let due = Some(timers.insert(id, until_renewal(&tenure)));
                            kept.insert(id, Kept { tenure: Arc::downgrade(&tenure), due });
                        }
                        None => drop(kept.remove(&id)),
                    }
                }
            }
        }
        if left_behind == 0 {
            to_tell.clear();
        }
    }
}

/// A third of the lease after it was set; where that has passed, since a renewal has failed, soon. At the latest in a
/// day.
fn until_renewal(tenure: &Tenure) -> Duration {
    let lease = Duration::from_millis(tenure.lease.millis());
    let standing = tenure.standing();
    let now = Instant::now();
    let left = standing.until.saturating_duration_since(now);
    // The last lease is not to be renewed: it is looked after once more when it is over.
    if tenure.lease.last.is_some_and(|last| standing.until + lease / 100 >= last) {
        return left.min(A_DAY);
    }
    left.saturating_sub(lease * 2 / 3).max(lease / 20).min(left).min(A_DAY)
}

async fn renew(servers: Arc<Servers>, tenure: Arc<Tenure>, id: u64) -> Done {
    // A renewal that has failed has been repeated for as long as it can help. Its tenure then says so itself.
    let _ = tenure.renew(&servers, None).await;
    if let Some(loss) = tenure.standing().loss() {
        tenure.end(loss);
    }
    Done::Renewed(id)
}

async fn settle(servers: Arc<Servers>, tenure: Arc<Tenure>) -> Done {
    // What cannot be given back ends with its lease.
    let _ = tenure.settle(&servers, None).await;
    Done::Other
}

/// Takes the owner out of the queue, and gives back what it may have been granted.
async fn give_back(servers: Arc<Servers>, abandoned: Abandoned) -> Done {
    let Abandoned { claim, waited, lease, turn } = abandoned;
    let mut attempts = servers.attempts(&claim.key, Instant::now() + lease.min(FAR));
    let limit = Some(servers.settings.response_limit);
    // The server may not have heard yet that who waits there has left. So its place is taken over, for an instant.
    let mut line = None;
    let mut is_out = !waited;
    loop {
        let sent = match is_out {
            false => {
                let take_over = claim.acquire(Some(1), 1, Block::For(Duration::ZERO));
                attempts.send(&mut Lane::Own(&mut line), &take_over, limit).await
            }
            true => attempts.send(&mut Lane::Shared, &claim.release(0, None), limit).await,
        };
        match sent {
            Ok(_) if is_out => break,
            Ok(_) => is_out = true,
            Err(setback) => {
                // An error of the server's own says that nothing stands in its queue any more.
                match attempts.after(setback).await {
                    Ok(()) => {}
                    Err(Error::Server { .. }) if !is_out => is_out = true,
                    Err(_) => break,
                }
            }
        }
    }
    if let Some(line) = line {
        servers.put_back(line);
    }
    drop(turn);
    Done::Other
}
