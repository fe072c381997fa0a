//! The tenure that a majority of the servers has granted, as this process knows it.

use crate::error::{Error, Loss};
use crate::guard::Guard as ServerGuard;
use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A tenure of the majority.
///
/// **The tenure has no gaps.** A vote that is lost stays lost, and the client adds a vote only while the majority is
/// held. So if the majority is held now, it has been held since the beginning.
pub(super) struct Majority {
    pub(super) key: Vec<u8>,
    /// How many votes are needed.
    pub(super) needed: usize,
    /// Notifies when a vote is added, and when the tenure ends.
    state: watch::Sender<State>,
}

struct State {
    /// The vote of each server, if the server has granted one.
    votes: Vec<Option<Arc<ServerGuard>>>,
    end: Option<Loss>,
}

impl Majority {
    pub(super) fn new(key: Vec<u8>, needed: usize, votes: Vec<Option<Arc<ServerGuard>>>) -> Self {
        Self { key, needed, state: watch::Sender::new(State { votes, end: None }) }
    }

    /// The leases of the votes, the longest first, if the majority is held. If the majority is lost, this function
    /// releases the remaining votes, so that another owner can get them.
    pub(super) fn leases(&self) -> Result<Vec<Duration>, Loss> {
        let leases = self.state.borrow().leases(self.needed);
        leases.inspect_err(|loss| drop(self.end(loss.clone())))
    }

    /// # Errors
    /// [`Error::Lost`] if the majority is lost.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.leases().map(drop).map_err(|loss| self.lost_by(loss))
    }

    pub(super) fn lost_by(&self, loss: Loss) -> Error {
        Error::Lost { key: String::from_utf8_lossy(&self.key).into_owned(), loss }
    }

    /// Adds a vote if the majority is held and has no vote of this server. If not, the drop of `guard` releases the
    /// vote.
    pub(super) fn add_vote(&self, server: usize, guard: ServerGuard) {
        self.state.send_if_modified(|state| {
            let is_held = state.leases(self.needed).is_ok();
            let vote = state.votes.get_mut(server).filter(|vote| is_held && !is_valid(vote));
            vote.map(|vote| *vote = Some(Arc::new(guard))).is_some()
        });
    }

    /// Ends the tenure, and returns the votes. The caller must release or drop the votes.
    pub(super) fn end(&self, loss: Loss) -> Vec<Arc<ServerGuard>> {
        let mut votes = Vec::new();
        self.state.send_if_modified(|state| {
            votes.extend(state.votes.drain(..).flatten());
            let is_first = state.end.is_none();
            state.end.get_or_insert(loss);
            is_first
        });
        votes
    }

    pub(super) fn votes(&self) -> Vec<Arc<ServerGuard>> {
        self.state.borrow().votes.iter().flatten().cloned().collect()
    }

    /// The servers without a vote.
    pub(super) fn missing_servers(&self) -> Vec<usize> {
        let state = self.state.borrow();
        let missing = state.votes.iter().enumerate().filter(|(_, vote)| !is_valid(vote));
        missing.map(|(server, _)| server).collect()
    }

    /// Resolves at the next change after this call: a vote is added or lost, or the majority ends.
    pub(super) fn next_change(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.state.subscribe();
        // This code uses the votes only while it borrows the state: the caller of `end` must get the only reference to
        // each vote.
        let mut losses: FuturesUnordered<_> = {
            let state = self.state.borrow();
            let held = state.votes.iter().flatten().filter(|guard| guard.is_held());
            held.map(|guard| guard.lost()).collect()
        };
        async move {
            tokio::select! {
                _ = changes.changed() => {}
                _ = losses.next() => {}
            }
        }
    }

    /// Resolves when the majority has ended.
    pub(super) async fn ended(&self) -> Loss {
        loop {
            let change = self.next_change();
            match self.leases() {
                Err(loss) => return loss,
                Ok(_) => change.await,
            }
        }
    }
}

impl State {
    /// The majority consists of the `needed` votes with the longest leases. The majority is held until the shortest of
    /// these leases ends.
    fn leases(&self, needed: usize) -> Result<Vec<Duration>, Loss> {
        if let Some(loss) = &self.end {
            return Err(loss.clone());
        }
        let mut leases: Vec<_> = self.votes.iter().flatten().map(|guard| guard.lease_left()).collect();
        leases.retain(|left| !left.is_zero());
        leases.sort_unstable_by(|one, other| other.cmp(one));
        if leases.len() >= needed { Ok(leases) } else { Err(self.loss()) }
    }

    /// Why the majority was lost: the error of a server, the end of the hold limit, or the end of a lease.
    fn loss(&self) -> Loss {
        let lost = self.votes.iter().flatten().filter(|guard| guard.lease_left().is_zero());
        let mut losses = lost.filter_map(|guard| guard.lost().now_or_never());
        losses.find(|loss| *loss != Loss::LeaseOver).unwrap_or(Loss::LeaseOver)
    }
}

fn is_valid(vote: &Option<Arc<ServerGuard>>) -> bool {
    vote.as_ref().is_some_and(|guard| guard.is_held())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use lockward_tests::{Server, eventually};
    use std::sync::Barrier;
    use std::thread;

    #[tokio::test]
    async fn a_late_vote_does_not_bridge_a_gap() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let client = Client::connect(&url).await.expect("a client");
        let vote = async |key, lease| {
            let lock = client.lock(key).lease(Duration::from_millis(lease)).without_renewal();
            lock.acquire().await.expect("a guard")
        };
        let (first, second) = (vote("a", 200).await, vote("b", 600_000).await);
        let majority =
            Majority::new(b"a".to_vec(), 2, vec![Some(Arc::new(first)), Some(Arc::new(second)), None]);
        assert!(majority.leases().is_ok());
        let [first, ..] = &majority.votes()[..] else { panic!("votes") };
        eventually("one of two is lost", || !first.is_held());
        // This vote makes two votes valid again. But in between another owner may have had a majority.
        majority.add_vote(2, vote("c", 600_000).await);
        assert!(matches!(majority.leases(), Err(Loss::LeaseOver)));
    }

    #[tokio::test]
    async fn the_last_guard_gets_all_votes_while_another_task_watches_them() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let client = Client::connect(&url).await.expect("a client");
        let runtime = tokio::runtime::Handle::current();
        let mut vote = client.lock("a").acquire().await.expect("a guard");
        for _ in 0..2_000 {
            let majority = Majority::new(b"a".to_vec(), 1, vec![Some(Arc::new(vote))]);
            let started = Barrier::new(2);
            vote = thread::scope(|scope| {
                let watching = scope.spawn(|| {
                    let _entered = runtime.enter();
                    started.wait();
                    while majority.next_change().now_or_never().is_none() {}
                });
                started.wait();
                let votes = majority.end(Loss::Released);
                let vote = votes.into_iter().find_map(Arc::into_inner).expect("the only reference");
                watching.join().expect("no panic");
                vote
            });
        }
    }
}
