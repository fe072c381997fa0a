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
mod guard;
mod held;
mod lock;

pub use guard::Guard;
pub use lock::Lock;

use crate::address::Address;
use crate::client::Client;
use crate::error::Error;
use crate::servers::passes;
use crate::settings::Settings;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How long a server has to reply, unless the settings say otherwise. A majority waits for none that is slower.
const RESPONSE_LIMIT: Duration = Duration::from_millis(250);
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
    /// Which of them did not answer when they were last asked.
    silent: Arc<[AtomicBool]>,
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
        let silent = servers.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { servers, silent, patience: settings.patience, errands })
    }

    /// A lock, to be acquired. Any bytes are a name.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.clone(), key.as_ref().to_vec())
    }

    fn needed(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    fn was_silent(&self, at: usize) -> bool {
        self.silent.get(at).is_some_and(|silent| silent.load(Ordering::Relaxed))
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
