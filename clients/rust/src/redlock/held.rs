//! What a majority holds, as this process knows it.

use crate::error::Loss;
use crate::guard::Guard as Tenure;
use crate::servers::locked;
use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// A tenure of the majority.
///
/// **It has no gaps.** A tenure at one server that is lost stays lost. A seat is taken only while a majority is
/// held, so that a majority that is held at any later time has been held since.
pub(super) struct Held {
    pub(super) needed: usize,
    state: Mutex<State>,
    /// Told whenever a seat is taken, and at the end.
    news: watch::Sender<()>,
    /// How many guards there are.
    pub(super) guards: AtomicU32,
}

struct State {
    /// What each server has granted, as far as anything.
    seats: Vec<Option<Arc<Tenure>>>,
    end: Option<Loss>,
}

pub(super) struct Standing {
    pub(super) votes: usize,
    /// How long a majority will be held without another renewal.
    pub(super) left: Duration,
}

impl Held {
    pub(super) fn new(needed: usize, seats: Vec<Option<Arc<Tenure>>>) -> Self {
        let state = Mutex::new(State { seats, end: None });
        Self { needed, state, news: watch::Sender::new(()), guards: AtomicU32::new(1) }
    }

    /// How it stands. If the majority is lost, all that is left is given back: those few would only be in the way
    /// of others.
    pub(super) fn look(&self) -> Result<Standing, Loss> {
        let mut state = locked(&self.state);
        let standing = state.look(self.needed);
        if let Err(loss) = &standing
            && state.end.is_none()
        {
            state.finish(loss.clone());
            drop(state);
            self.news.send_replace(());
        }
        standing
    }

    /// Takes a seat, if a majority is held. Whoever comes too late, or finds it taken, is given back.
    pub(super) fn seat(&self, at: usize, tenure: Tenure) {
        let mut state = locked(&self.state);
        let is_held = state.look(self.needed).is_ok();
        if let Some(seat) = state.seats.get_mut(at).filter(|_| is_held)
            && !seat.as_ref().is_some_and(|tenure| tenure.is_held())
        {
            *seat = Some(Arc::new(tenure));
            drop(state);
            self.news.send_replace(());
        }
    }

    /// Ends it, and returns what there is to be given back.
    pub(super) fn end(&self, loss: Loss) -> Vec<Arc<Tenure>> {
        let tenures = locked(&self.state).finish(loss);
        self.news.send_replace(());
        tenures
    }

    pub(super) fn tenures(&self) -> Vec<Arc<Tenure>> {
        locked(&self.state).seats.iter().flatten().cloned().collect()
    }

    /// The servers that do not hold it, while a majority does.
    pub(super) fn vacant(&self) -> Result<Vec<usize>, Loss> {
        self.look()?;
        let state = locked(&self.state);
        let vacant = state.seats.iter().enumerate();
        let vacant = vacant.filter(|(_, seat)| !seat.as_ref().is_some_and(|tenure| tenure.is_held()));
        Ok(vacant.map(|(at, _)| at).collect())
    }

    /// Resolves when a seat is taken or lost, or it has ended, since this was called.
    pub(super) fn change(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut news = self.news.subscribe();
        let held = self.tenures().into_iter().filter(|tenure| tenure.is_held());
        let mut losses: FuturesUnordered<_> = held.map(|tenure| tenure.lost()).collect();
        async move {
            tokio::select! {
                _ = news.changed() => {}
                _ = losses.next() => {}
            }
        }
    }

    /// Resolves when it has ended.
    pub(super) async fn over(&self) -> Loss {
        loop {
            let change = self.change();
            match self.look() {
                Err(loss) => return loss,
                Ok(_) => change.await,
            }
        }
    }
}

impl State {
    /// A majority is held for as long as the shortest lease in it. It is made up of the longest there are.
    fn look(&self, needed: usize) -> Result<Standing, Loss> {
        if let Some(loss) = &self.end {
            return Err(loss.clone());
        }
        let mut left: Vec<_> = self.seats.iter().flatten().map(|tenure| tenure.lease_left()).collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        left.retain(|left| !left.is_zero());
        match left.get(needed - 1) {
            Some(shortest) => Ok(Standing { votes: left.len(), left: *shortest }),
            None => Err(self.loss()),
        }
    }

    /// How the seats were lost: by what a server has said, if one has.
    fn loss(&self) -> Loss {
        let lost = self.seats.iter().flatten().filter(|tenure| tenure.lease_left().is_zero());
        let mut how = lost.filter_map(|tenure| tenure.lost().now_or_never());
        how.find(|loss| matches!(loss, Loss::NotHeld(_))).unwrap_or(Loss::LeaseOver)
    }

    fn finish(&mut self, loss: Loss) -> Vec<Arc<Tenure>> {
        self.end.get_or_insert(loss);
        self.seats.drain(..).flatten().collect()
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use lockward_tests::{Server, eventually};

    #[tokio::test]
    async fn a_seat_that_is_taken_late_bridges_no_gap() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let client = Client::connect(&url).await.expect("a client");
        let tenure = async |key, lease| {
            let lock = client.lock(key).lease(Duration::from_millis(lease)).without_renewal();
            lock.acquire().await.expect("a tenure")
        };
        let (first, second) = (tenure("a", 200).await, tenure("b", 600_000).await);
        let held = Held::new(2, vec![Some(Arc::new(first)), Some(Arc::new(second)), None]);
        assert!(held.look().is_ok());
        let [first, ..] = &held.tenures()[..] else { panic!("seats") };
        eventually("one of two is lost", || !first.is_held());
        // There are two again, but meanwhile another owner may have had a majority.
        held.seat(2, tenure("c", 600_000).await);
        assert!(matches!(held.look(), Err(Loss::LeaseOver)));
    }
}
