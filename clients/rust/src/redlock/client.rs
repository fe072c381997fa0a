//! A client of several independent servers.

use crate::address::Address;
use crate::client::Client;
use crate::error::Error;
use crate::settings::Settings;
use crate::time::from_now;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::runtime::Handle;

/// The response limit of [`Redlock::connect`]. A slower server counts as down.
const RESPONSE_LIMIT: Duration = Duration::from_millis(250);

/// A client of several independent servers that vote. Clones share connections.
///
/// The background work of the client runs in the tokio runtime in which the client was created. When this runtime ends,
/// the client stops renewing, and guards are lost when their leases are over.
#[derive(Clone, Debug)]
pub struct Redlock {
    pub(super) voters: Arc<[Voter]>,
    pub(super) patience: Duration,
    /// The runtime in which the background work of guards runs.
    pub(super) runtime: Handle,
}

/// A server that votes.
#[derive(Debug)]
pub(super) struct Voter {
    pub(super) client: Client,
    /// Whether the server did not answer the last request.
    pub(super) is_unreachable: AtomicBool,
}

/// Waits until `needed` of the calls have succeeded.
///
/// # Errors
/// The errors of the other calls, if fewer calls succeed.
pub(super) async fn successes(
    needed: usize,
    calls: impl IntoIterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Vec<Error>> {
    let mut replies: FuturesUnordered<_> = calls.into_iter().collect();
    let (mut succeeded, mut failures) = (0, Vec::new());
    while succeeded < needed {
        match replies.next().await {
            Some(Ok(())) => succeeded += 1,
            Some(Err(error)) => failures.push(error),
            None => return Err(failures),
        }
    }
    Ok(())
}

impl Redlock {
    /// Creates a client for the servers at these URLs, and waits until a majority of them answers. [`Address`]
    /// describes the forms of a URL. A server that is named twice has one vote. A server that does not answer within
    /// 250 milliseconds counts as down.
    ///
    /// # Errors
    /// [`Error::NoMajority`] when too few servers answer within [`Settings::patience`]; [`Error::Invalid`] when a URL
    /// is not valid; and the errors of [`Redlock::new`].
    pub async fn connect<U: AsRef<str>>(urls: &[U]) -> Result<Self, Error> {
        let addresses = urls.iter().map(|url| url.as_ref().parse()).collect::<Result<Vec<_>, _>>()?;
        let redlock = Self::new(addresses, Settings::default().response_limit(RESPONSE_LIMIT))?;
        let end = from_now(redlock.patience);
        let replies = redlock.voters.iter().map(|voter| voter.client.reach(end));
        let failures = successes(redlock.majority(), replies).await.err().unwrap_or_default();
        redlock.error_without_majority(failures).map_or(Ok(redlock), Err)
    }

    /// Creates a client for the servers at these addresses. The client connects at the first request.
    ///
    /// A server that does not accept a connection and reply within [`Settings::response_limit`] counts as down. Make
    /// the limit much shorter than a lease, and long enough for the reply of any server that works.
    /// [`Settings::patience`] limits how long an acquisition without a wait limit keeps trying while too few servers
    /// answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no address, when an address names no server, or outside a tokio runtime.
    pub fn new(addresses: impl IntoIterator<Item = Address>, settings: Settings) -> Result<Self, Error> {
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("create the client in a tokio runtime"))?;
        // The client does not repeat a request to a server that is down, because the other servers may be enough.
        let each = settings.clone().patience(settings.response_limit);
        let voters = addresses.into_iter().map(|address| {
            let client = Client::new(address, each.clone())?;
            Ok(Voter { client, is_unreachable: AtomicBool::new(false) })
        });
        let voters = voters.collect::<Result<Arc<[_]>, Error>>()?;
        if voters.is_empty() {
            return Err(Error::invalid("a Redlock needs servers"));
        }
        Ok(Self { voters, patience: settings.patience, runtime })
    }

    /// How many votes are a majority.
    pub(super) fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// How many servers may fail while the other servers are still a majority.
    pub(super) fn spare(&self) -> usize {
        self.voters.len() - self.majority()
    }

    /// The error when too few servers grant a request. `failures` are the errors of the other servers. A permanent
    /// error would come again after a repeat, so it takes precedence over a transient error. `None` means that other
    /// owners hold the lock on too many servers.
    pub(super) fn error_without_majority(&self, failures: Vec<Error>) -> Option<Error> {
        let spare = self.spare();
        let are_too_many = failures.len() > spare;
        let (mut permanent, transient): (Vec<_>, Vec<_>) = failures
            .into_iter()
            .partition(|error| !matches!(error, Error::Unreachable { .. }) && error.code() != Some("BUSY"));
        if permanent.len() > spare {
            return permanent.pop();
        }
        let error = permanent.into_iter().chain(transient).next().filter(|_| are_too_many);
        error.map(|error| Error::NoMajority(Box::new(error)))
    }
}
