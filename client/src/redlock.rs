//! Redlock: one lock on several independent servers, held while a majority of them says so.
//!
//! ```
//! use lockward_client::redlock::Redlock;
//! use std::time::Duration;
//! # #[tokio::main] async fn main() -> Result<(), lockward_client::Error> {
//! # let servers: Vec<_> = (0..3).map(|_| lockward_tests::Server::start()).collect();
//! # let urls: Vec<_> = servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
//! # let urls: Vec<_> = urls.iter().map(|url| url.as_str()).collect();
//! # async fn work() {}
//!
//! let redlock = Redlock::connect(&urls).await?;
//! let guard = redlock.lock("order:42").wait(Duration::from_secs(60)).acquire().await?;
//! tokio::select! {
//!     () = work() => guard.release().await?,
//!     loss = guard.lost() => eprintln!("stopped: {loss}"),
//! }
//! # Ok(()) }
//! ```
//!
//! **Every server needs a quarantine** (`lock.quarantine`) no shorter than the longest lease. A server that comes
//! back without its data has forgotten its vote, and would give it to the next owner while the first still counts
//! on it.
//!
//! # How it is held
//!
//! Each server has a tenure of its own, under an owner name of its own, which is acquired, renewed, restored after
//! a restart and given back as any other [`Guard`](crate::Guard). The lock is held while more than half of these
//! tenures are, each by the lease that this process counts for it. No two owners can hold it at once: their
//! majorities share a server, and that has one tenure at a time. A server that loses its tenure is asked for a new
//! one while the others still are a majority.
//!
//! # What it does not give
//!
//! There is **no fencing token**: tokens of different servers do not compare. There is no queue either, and no
//! order among those who wait. Where what the lock protects must not be written by a holder that was paused past
//! its lease, use [one server](crate::Client) with replicas and a quarantine, and its tokens.

use crate::address::Address;
use crate::client::Client;
use crate::error::{Error, Loss};
use crate::guard::Guard as Tenure;
use crate::servers::{locked, passes};
use crate::settings::Settings;
use crate::tenure::FAR;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

/// How long a server has to reply, unless the settings say otherwise. A majority waits for none that is slower.
const RESPONSE_LIMIT: Duration = Duration::from_millis(250);

/// The lease where none is named.
const LEASE: Duration = Duration::from_secs(30);

/// Pauses between tries: the first, and the longest. Each is twice the one before, and half of it less or more by
/// chance: those who have split the votes do not meet again.
const PAUSES: [Duration; 2] = [Duration::from_millis(8), Duration::from_millis(256)];

/// A client of several independent servers that vote. Clones share connections.
///
/// It belongs to the tokio runtime that it was made in; when that ends, guards are not renewed any more, and are
/// lost when their leases are over.
#[derive(Clone, Debug)]
pub struct Redlock {
    servers: Arc<[Client]>,
    patience: Duration,
    /// Where guards leave what is to be done for as long as they are there.
    errands: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
}

impl Redlock {
    /// A client of the servers at these URLs, once a majority of them has answered. Each may be whatever an
    /// [`Address`] names. A server that is named twice has one vote. A server that does not answer within 250
    /// milliseconds is counted as down.
    ///
    /// # Errors
    /// [`Error::NoMajority`] when too few answer within [`Settings::patience`]; [`Error::Connection`] when a URL
    /// is not understood; else as [`Redlock::new`].
    pub async fn connect<U: AsRef<str>>(urls: &[U]) -> Result<Self, Error> {
        let addresses = urls.iter().map(|url| url.as_ref().parse()).collect::<Result<Vec<_>, _>>()?;
        let redlock = Self::new(addresses, Settings::default().response_limit(RESPONSE_LIMIT))?;
        let until = Instant::now() + redlock.patience;
        let [mut pause, longest] = PAUSES;
        loop {
            match redlock.reach().await {
                Err(Error::NoMajority(_)) if Instant::now() + pause < until => sleep(pause).await,
                reached => return reached.map(|()| redlock),
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// A client of the servers at these addresses. It connects when it first has to.
    ///
    /// [`Settings::response_limit`] is what each server has to connect and to reply before it is counted as down:
    /// much less than a lease, and enough for any server that works. [`Settings::patience`] is how long an
    /// acquisition without a wait limit bears that there is no majority.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no address, when one names no server, or outside a tokio runtime.
    pub fn new(addresses: impl IntoIterator<Item = Address>, settings: Settings) -> Result<Self, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::Invalid("a client is made in a tokio runtime"));
        };
        // One server that is down is not worth a second attempt: the others may do.
        let each = settings.clone().patience(settings.response_limit);
        let servers = addresses.into_iter().map(|address| Client::new(address, each.clone()));
        let servers = servers.collect::<Result<Arc<[_]>, _>>()?;
        if servers.is_empty() {
            return Err(Error::Invalid("there are no servers to vote"));
        }
        let (errands, received) = mpsc::unbounded_channel();
        runtime.spawn(keep(received));
        Ok(Self { servers, patience: settings.patience, errands })
    }

    /// A lock, to be acquired. Any bytes are a name.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock {
            redlock: self.clone(),
            key: key.as_ref().to_vec(),
            lease: LEASE,
            is_renewed: true,
            hold_limit: None,
            wait: None,
        }
    }

    fn needed(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Sees that a majority answers.
    async fn reach(&self) -> Result<(), Error> {
        let mut asked: FuturesUnordered<_> =
            self.servers.iter().map(|server| server.shared.servers.reach()).collect();
        let mut failures = Vec::new();
        while let Some(told) = asked.next().await {
            failures.extend(told.err());
            if asked.len() + failures.len() == self.servers.len() - self.needed() {
                return Ok(());
            }
        }
        Err(self.verdict(failures))
    }

    /// What to make of it that too few servers have granted something, and some have failed.
    fn verdict(&self, failures: Vec<Error>) -> Error {
        let spare = self.servers.len() - self.needed();
        let are_too_many = failures.len() > spare;
        let (passing, mut refused): (Vec<_>, Vec<_>) = failures.into_iter().partition(passes);
        match refused.pop() {
            Some(refusal) if refused.len() >= spare => refusal,
            last => match last.or(passing.into_iter().next()) {
                Some(failure) if are_too_many => Error::NoMajority(Box::new(failure)),
                _ => Error::Busy,
            },
        }
    }
}

/// A lock that may be acquired, and how.
#[derive(Clone, Debug)]
#[must_use = "a lock is not acquired until `acquire` is called"]
pub struct Lock {
    redlock: Redlock,
    key: Vec<u8>,
    lease: Duration,
    is_renewed: bool,
    hold_limit: Option<Duration>,
    wait: Option<Duration>,
}

impl Lock {
    /// How long the lock stays held when this process is not heard of any more: 30 seconds, no longer than the
    /// quarantine of the servers. At each server it is renewed each time a third of it has passed.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Does not renew the lease: the lock is lost when it is over.
    pub fn without_renewal(self) -> Self {
        Self { is_renewed: false, ..self }
    }

    /// Renews the lease no further than so long after the lock was acquired.
    pub fn hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: Some(limit), ..self }
    }

    /// How long [`acquire`](Self::acquire) tries: without limit, unless this is called.
    pub fn wait(self, limit: Duration) -> Self {
        Self { wait: Some(limit), ..self }
    }

    /// Tries once to acquire the lock.
    ///
    /// # Errors
    /// [`Error::Busy`] if others hold too many of the servers; two who try at once may both be told so. Otherwise
    /// as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Guard, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Acquires the lock, and tries again and again, at random intervals of a quarter of a second at most, while
    /// it is held. All servers are asked at once; what was granted without a majority is given back before the
    /// next try. Nobody waits in a server's queue: two owners that each have some of the servers, and wait for the
    /// rest, would wait for each other.
    ///
    /// **If the future is dropped**, all that has been granted, or may be, is given back in the background.
    ///
    /// # Errors
    /// [`Error::Busy`] when the wait limit is reached, [`Error::NoMajority`] when it is reached and too few
    /// servers answer, or when too few have answered for as long as the client's patience where there is no limit,
    /// [`Error::Server`] and such when so many servers refuse that no majority is left.
    pub async fn acquire(self) -> Result<Guard, Error> {
        let limit = self.wait.map(|wait| Instant::now() + wait.min(FAR));
        let patience = self.redlock.patience;
        let mut bears_until = Instant::now() + patience;
        let [mut pause, longest] = PAUSES;
        // The first try is worth its time whatever the limit is.
        let mut told = self.round().await;
        loop {
            let error = match told {
                Ok(guard) => return Ok(guard),
                Err(error) => error,
            };
            match (&error, limit) {
                (Error::Busy, _) => bears_until = Instant::now() + patience,
                (Error::NoMajority(_), Some(_)) => {}
                (Error::NoMajority(_), None) if Instant::now() < bears_until => {}
                _ => return Err(error),
            }
            let next = Instant::now() + pause.mul_f64(0.5 + fastrand::f64());
            pause = (pause * 2).min(longest);
            sleep_until(limit.map_or(next, |limit| limit.min(next)).into()).await;
            told = match limit {
                Some(limit) if limit <= next => return Err(error),
                Some(limit) => timeout_at(limit.into(), self.round()).await.unwrap_or(Err(error)),
                None => self.round().await,
            };
        }
    }

    /// Asks all servers at once. What is granted without a majority is given back.
    async fn round(&self) -> Result<Guard, Error> {
        let last = self.hold_limit.map(|limit| Instant::now() + limit.min(FAR));
        let count = self.redlock.servers.len();
        let needed = self.redlock.needed();
        let mut tries: FuturesUnordered<_> = (0..count).map(|at| self.clone().ask(at, last)).collect();
        let mut seats: Vec<Option<Arc<Tenure>>> = vec![None; count];
        let mut busy = 0;
        let mut failures = Vec::new();
        while let Some((at, told)) = tries.next().await {
            match told {
                Ok(tenure) => {
                    if let Some(seat) = seats.get_mut(at) {
                        *seat = Some(Arc::new(tenure));
                    }
                }
                Err(Error::Busy) => busy += 1,
                Err(error) => failures.push(error),
            }
            if seats.iter().flatten().count() == needed {
                let held = Arc::new(Held::new(needed, seats));
                // The others are seated as they answer.
                let kept = keep_seated(self.clone(), Arc::clone(&held), tries, last);
                let _ = self.redlock.errands.send(kept.boxed());
                let guard = Guard { held, key: self.key.clone(), is_left: false };
                // What has taken longer than the lease is no grant.
                return guard.held.look().map(|_| guard).map_err(|_| Error::Busy);
            }
            if busy + failures.len() > count - needed {
                break;
            }
        }
        drop(tries);
        // Not to meet ourselves at the next try.
        let granted = seats.into_iter().flatten().filter_map(Arc::into_inner);
        join_all(granted.map(Tenure::release)).await;
        Err(self.redlock.verdict(failures))
    }

    /// Asks one server.
    async fn ask(self, at: usize, last: Option<Instant>) -> (usize, Result<Tenure, Error>) {
        let Some(server) = self.redlock.servers.get(at) else { return (at, Err(Error::Busy)) };
        let mut lock = server.lock(&self.key).lease(self.lease);
        if !self.is_renewed {
            lock = lock.without_renewal();
        }
        if let Some(last) = last {
            lock = lock.hold_limit(last.saturating_duration_since(Instant::now()));
        }
        (at, lock.try_acquire().await)
    }
}

/// One hold of a lock that a majority of the servers has granted.
///
/// While there is a guard, its leases are renewed. **The lock may be lost all the same**: this process stands
/// still past its lease, too few servers are reached, somebody breaks the lock by hand on enough of them.
/// [`lost`](Self::lost) tells of it as it happens, [`is_held`](Self::is_held) when asked. Neither stops a write
/// that is under way, and there is no token by which what the lock protects could refuse it.
///
/// A guard that is dropped gives its hold back in the background.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    held: Arc<Held>,
    key: Vec<u8>,
    is_left: bool,
}

impl Guard {
    /// The name of the lock.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// How many guards of this tenure there are. They are counted in this process: servers know of one hold.
    pub fn holds(&self) -> u32 {
        self.held.guards.load(Ordering::Acquire)
    }

    /// How many of the servers hold the lock for it now, by what this process knows. Zero when it is lost.
    pub fn votes(&self) -> usize {
        self.held.look().map_or(0, |standing| standing.votes)
    }

    /// Whether a majority holds the lock for it now, by what this process knows. Once lost it stays lost.
    pub fn is_held(&self) -> bool {
        self.held.look().is_ok()
    }

    /// How long a majority will hold the lock, should no lease be renewed any more. Zero when it is lost.
    pub fn lease_left(&self) -> Duration {
        self.held.look().map_or(Duration::ZERO, |standing| standing.left)
    }

    /// Resolves when the lock is lost, with how the last tenures of the majority have ended. It also resolves,
    /// with [`Loss::Released`], when the last guard is released or dropped. It needs no guard, and may be moved to
    /// another task; it is to be awaited in a tokio runtime.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let held = Arc::clone(&self.held);
        async move { held.over().await }
    }

    /// Enters the lock again: one more guard of this tenure. The lock is given back with the last of them. No
    /// server is asked.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost.
    pub fn re_enter(&self) -> Result<Self, Error> {
        self.held.look().map_err(Error::Lost)?;
        self.held.guards.fetch_add(1, Ordering::AcqRel);
        Ok(Self { held: Arc::clone(&self.held), key: self.key.clone(), is_left: false })
    }

    /// Renews the lease at all servers now, and returns when a majority has. (A guard is renewed by itself, unless
    /// that was declined.)
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::NoMajority`] if too few servers answer, and then the lock may
    /// still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.held.look().map_err(Error::Lost)?;
        let tenures = self.held.tenures();
        let mut asked: FuturesUnordered<_> =
            tenures.into_iter().map(|tenure| async move { tenure.renew().await }).collect();
        let mut renewed = 0;
        let mut last = None;
        while let Some(told) = asked.next().await {
            match told {
                Ok(()) => renewed += 1,
                Err(error) => last = Some(error),
            }
            if renewed == self.held.needed {
                break;
            }
        }
        self.held.look().map_err(Error::Lost)?;
        match last {
            Some(error) if renewed < self.held.needed => Err(Error::NoMajority(Box::new(error))),
            _ => Ok(()),
        }
    }

    /// Gives the hold back. With the last guard the lock is given back at all servers; this returns when a
    /// majority has confirmed it. If the future is dropped, the rest is done in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before: the work was not protected up to its end.
    /// [`Error::NoMajority`] if too few servers answer; the client tries on in the background, and the leases end
    /// it at the latest.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_left = true;
        let standing = self.held.look();
        if self.held.guards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return standing.map(|_| ()).map_err(Error::Lost);
        }
        let tenures = self.held.end(Loss::Released);
        standing.map_err(Error::Lost)?;
        let needed = self.held.needed;
        let mut asked: FuturesUnordered<_> =
            tenures.into_iter().filter_map(Arc::into_inner).map(Tenure::release).collect();
        let (mut released, mut silent, mut loss) = (0, None, Loss::LeaseOver);
        let mut unknown = 0;
        while let Some(told) = asked.next().await {
            match told {
                Ok(()) => released += 1,
                Err(Error::Lost(how)) => loss = how,
                Err(error) => {
                    unknown += 1;
                    silent = Some(error);
                }
            }
            if released == needed {
                return Ok(());
            }
        }
        match silent {
            // They may have held it up to now.
            Some(error) if released + unknown >= needed => Err(Error::NoMajority(Box::new(error))),
            _ => Err(Error::Lost(loss)),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_left && self.held.guards.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(self.held.end(Loss::Released));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Guard")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("votes", &self.votes())
            .finish_non_exhaustive()
    }
}

/// A tenure of the majority.
///
/// **It has no gaps.** A tenure at one server that is lost stays lost. A seat is taken only while a majority is
/// held, so that a majority that is held at any later time has been held since.
struct Held {
    needed: usize,
    state: Mutex<State>,
    /// Told whenever a seat is taken, and at the end.
    news: watch::Sender<()>,
    guards: AtomicU32,
}

struct State {
    /// What each server has granted, as far as anything.
    seats: Vec<Option<Arc<Tenure>>>,
    end: Option<Loss>,
}

struct Standing {
    votes: usize,
    /// How long a majority will be held without another renewal.
    left: Duration,
}

impl Held {
    fn new(needed: usize, seats: Vec<Option<Arc<Tenure>>>) -> Self {
        let state = Mutex::new(State { seats, end: None });
        Self { needed, state, news: watch::Sender::new(()), guards: AtomicU32::new(1) }
    }

    /// How it stands. If the majority is lost, all that is left is given back: those few would only be in the way
    /// of others.
    fn look(&self) -> Result<Standing, Loss> {
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
    fn seat(&self, at: usize, tenure: Tenure) {
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
    fn end(&self, loss: Loss) -> Vec<Arc<Tenure>> {
        let tenures = locked(&self.state).finish(loss);
        self.news.send_replace(());
        tenures
    }

    fn tenures(&self) -> Vec<Arc<Tenure>> {
        locked(&self.state).seats.iter().flatten().cloned().collect()
    }

    /// The servers that do not hold it, while a majority does.
    fn vacant(&self) -> Result<Vec<usize>, Loss> {
        self.look()?;
        let state = locked(&self.state);
        let vacant = state.seats.iter().enumerate();
        let vacant = vacant.filter(|(_, seat)| !seat.as_ref().is_some_and(|tenure| tenure.is_held()));
        Ok(vacant.map(|(at, _)| at).collect())
    }

    /// Resolves when a seat is taken or lost, or it has ended, since this was called.
    fn change(&self) -> impl Future<Output = ()> + Send + use<> {
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
    async fn over(&self) -> Loss {
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

/// Seats the servers that have not answered yet, and those that have lost their tenure, for as long as a majority
/// is held.
async fn keep_seated(
    lock: Lock,
    held: Arc<Held>,
    mut tries: FuturesUnordered<impl Future<Output = (usize, Result<Tenure, Error>)>>,
    last: Option<Instant>,
) {
    while let Some((at, told)) = tries.next().await {
        if let Ok(tenure) = told {
            held.seat(at, tenure);
        }
    }
    loop {
        let change = held.change();
        let Ok(vacant) = held.vacant() else { return };
        let is_last = last.is_some_and(|last| last <= Instant::now());
        if vacant.is_empty() || !lock.is_renewed || is_last {
            change.await;
            continue;
        }
        if timeout((lock.lease / 3).mul_f64(0.75 + fastrand::f64() / 2.0), held.over()).await.is_ok() {
            return;
        }
        let mut tries: FuturesUnordered<_> =
            vacant.into_iter().map(|at| lock.clone().ask(at, last)).collect();
        while let Some((at, told)) = tries.next().await {
            if let Ok(tenure) = told {
                held.seat(at, tenure);
            }
        }
    }
}

/// Does what is left to it, until nobody is left who could leave anything.
async fn keep(mut errands: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    let mut under_way = FuturesUnordered::new();
    let mut is_over = false;
    while !is_over || !under_way.is_empty() {
        tokio::select! {
            errand = errands.recv(), if !is_over => match errand {
                Some(errand) => under_way.push(errand),
                None => is_over = true,
            },
            _ = under_way.next(), if !under_way.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
