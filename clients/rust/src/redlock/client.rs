//! A client of several independent servers.

use crate::address::Address;
use crate::client::Client;
use crate::error::Error;
use crate::redlock::lock::Lock;
use crate::redlock::voters::Voters;
use crate::settings::Settings;
use crate::time::pause_after;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::time::sleep;

/// The response limit of [`Redlock::connect`]. A slower server counts as down.
const RESPONSE_LIMIT: Duration = Duration::from_millis(250);

/// A client of several independent servers that vote. Clones share connections.
///
/// The background work of the client runs in the tokio runtime in which the client was created. When this runtime ends,
/// the client stops renewing, and guards are lost when their leases are over.
#[derive(Clone, Debug)]
pub struct Redlock {
    voters: Voters,
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
        let deadline = Instant::now() + redlock.voters.patience;
        let mut failures = 0;
        loop {
            failures += 1;
            let pause = pause_after(failures, 8, 256);
            match redlock.voters.reach().await {
                Err(Error::NoMajority(_)) if Instant::now() + pause < deadline => sleep(pause).await,
                reached => return reached.map(|()| redlock),
            }
        }
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
        let clients = addresses.into_iter().map(|address| Client::new(address, each.clone()));
        let clients = clients.collect::<Result<Arc<[_]>, _>>()?;
        if clients.is_empty() {
            return Err(Error::invalid("a Redlock needs servers"));
        }
        Ok(Self { voters: Voters::new(clients, settings.patience, runtime) })
    }

    /// A request for a lock: see [`Lock::acquire`]. The key may be any bytes.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.voters.clone(), key.as_ref().to_vec())
    }
}
