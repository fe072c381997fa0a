//! The servers that vote.

use crate::client::Client;
use crate::error::Error;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

#[derive(Clone, Debug)]
pub(super) struct Voters {
    /// One client for each server.
    pub(super) clients: Arc<[Client]>,
    /// Which servers did not answer the last request.
    unreachable: Arc<[AtomicBool]>,
    pub(super) patience: Duration,
    /// The runtime in which the background work of guards runs.
    pub(super) runtime: Handle,
}

impl Voters {
    pub(super) fn new(clients: Arc<[Client]>, patience: Duration, runtime: Handle) -> Self {
        let unreachable = clients.iter().map(|_| AtomicBool::new(false)).collect();
        Self { clients, unreachable, patience, runtime }
    }

    /// How many votes are a majority.
    pub(super) fn majority(&self) -> usize {
        self.clients.len() / 2 + 1
    }

    /// How many servers may fail while the other servers are still a majority.
    pub(super) fn spare(&self) -> usize {
        self.clients.len() - self.majority()
    }

    pub(super) fn was_unreachable(&self, server: usize) -> bool {
        self.unreachable.get(server).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    pub(super) fn note_unreachable(&self, server: usize, is_unreachable: bool) {
        if let Some(flag) = self.unreachable.get(server) {
            flag.store(is_unreachable, Ordering::Relaxed);
        }
    }

    /// Waits until a majority answers.
    pub(super) async fn reach(&self) -> Result<(), Error> {
        let mut replies: FuturesUnordered<_> = self.clients.iter().map(Client::reach).collect();
        let mut failures = Vec::new();
        while let Some(reply) = replies.next().await {
            failures.extend(reply.err());
            if replies.len() + failures.len() == self.spare() {
                return Ok(());
            }
        }
        Err(self
            .error_without_majority(failures)
            .unwrap_or_else(|| Error::invalid("a Redlock needs servers")))
    }

    /// The error when too few servers grant a request. `failures` are the errors of the other servers. A permanent
    /// error would come again after a repeat, so it takes precedence over a transient error. `None` means that other
    /// owners hold the lock on too many servers.
    pub(super) fn error_without_majority(&self, failures: Vec<Error>) -> Option<Error> {
        let spare = self.spare();
        let are_too_many = failures.len() > spare;
        let (transient, mut permanent): (Vec<_>, Vec<_>) = failures.into_iter().partition(|error| {
            matches!(error, Error::Unreachable { .. }) || matches!(error.code(), Some("BUSY" | "NOREPLICAS"))
        });
        match permanent.pop() {
            Some(error) if permanent.len() >= spare => Some(error),
            last => {
                let error = last.or(transient.into_iter().next()).filter(|_| are_too_many);
                error.map(|error| Error::NoMajority(Box::new(error)))
            }
        }
    }
}
