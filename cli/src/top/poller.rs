//! The thread that polls the primaries.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisError};

use crate::failure::Failure;
use crate::locks::{FoundLock, Lock, info_command, is_about_a_key, read_contended};
use crate::primaries::Servers;
use crate::server::{Connected, Server, all_answers, ask_all};
use crate::text::Name;

/// How many waiters of the selected lock are shown, at most.
const QUEUE_LENGTH: u64 = 200;
/// How many holders of the selected lock are shown, at most.
const HOLDERS: u64 = 100;

/// A number that the line above the locks shows.
pub(super) struct Figure {
    pub(super) title: &'static str,
    /// The field of INFO lock.
    field: &'static str,
    /// Whether the field counts events since the server started. Then the line shows the events per second.
    pub(super) is_rate: bool,
}

pub(super) const FIGURES: [Figure; 5] = [
    Figure { title: "held", field: "lock_held", is_rate: false },
    Figure { title: "waiting", field: "lock_waiting", is_rate: false },
    Figure { title: "hand-offs", field: "lock_handed_off", is_rate: true },
    Figure { title: "acquired", field: "lock_acquired", is_rate: true },
    Figure { title: "leases ended", field: "lock_leases_ended", is_rate: true },
];

/// The values of [`FIGURES`].
pub(super) type Figures = [u64; FIGURES.len()];

/// The answers of the primaries, and the failures of those that did not answer. `Err` means that no primary answers.
pub(super) type Poll = Result<(Vec<Sample>, Vec<Failure>), Failure>;

/// The state of one primary at one instant.
pub(super) struct Sample {
    pub(super) address: String,
    pub(super) figures: Figures,
    pub(super) rows: Vec<FoundLock>,
    /// The lock whose queue is shown, if this primary serves its key.
    pub(super) open: Option<Open>,
    /// The warning for the user, if the server is a replica.
    pub(super) warning: Option<String>,
}

/// A lock whose queue is shown, with its key. `None` means that nobody holds the lock.
pub(super) type Open = (Name, Option<Lock>);

/// Starts the thread. It polls after each interval, and at once when it receives the key of another lock whose queue is
/// shown.
pub(super) fn start(
    servers: Servers,
    interval: Duration,
    count: u64,
) -> (Sender<Option<Name>>, Receiver<Poll>) {
    let (opener, opened) = channel();
    let (sender, polls) = channel();
    thread::spawn(move || {
        let mut poller = Poller { servers, count, primaries: Vec::new(), connections: Arc::default() };
        let mut open = None;
        loop {
            let next = Instant::now() + interval;
            if sender.send(poller.poll(open.clone())).is_err() {
                return;
            }
            match opened.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(key) => open = key,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    (opener, polls)
}

struct Poller {
    servers: Servers,
    count: u64,
    primaries: Vec<Server>,
    /// The connections of the last poll, by the addresses of the servers. The servers may accept no new connections when
    /// the user most needs `top`.
    connections: Arc<Mutex<HashMap<String, Connected>>>,
}

impl Poller {
    fn poll(&mut self, open: Option<Name>) -> Poll {
        match self.servers.primaries(&self.primaries) {
            Ok(found) => self.primaries = found,
            Err(failure) if self.primaries.is_empty() => return Err(failure),
            // While no Sentinel or no node of a cluster answers, the known primaries stay.
            Err(_) => {}
        }
        let (count, connections) = (self.count, Arc::clone(&self.connections));
        all_answers(ask_all(self.primaries.clone(), move |server| {
            let address = server.address();
            let connections = || connections.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = connections().remove(address);
            let (mut connection, warning) = kept.map_or_else(|| server.connect_with_module(), Ok)?;
            let sample =
                query(&mut connection, count, open.as_ref()).map_err(|error| server.failure(&error))?;
            connections().insert(address.to_owned(), (connection, warning.clone()));
            Ok(Sample { address: address.to_owned(), warning, ..sample })
        }))
    }
}

fn query(connection: &mut Connection, count: u64, open: Option<&Name>) -> Result<Sample, RedisError> {
    let info: String = redis::cmd("INFO").arg("lock").query(connection)?;
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let figure = |Figure { field, .. }| fields.get(field).and_then(|value| value.parse().ok()).unwrap_or(0);
    let rows = read_contended(connection, count, 1)?;
    let open =
        match open.map(|key| (key, info_command(&key.0, HOLDERS, Some(QUEUE_LENGTH)).query(connection))) {
            Some((_, Err(error))) if is_about_a_key(&error) => None,
            Some((key, lock)) => Some((key.clone(), lock?)),
            None => None,
        };
    Ok(Sample { address: String::new(), figures: FIGURES.map(figure), rows, open, warning: None })
}
