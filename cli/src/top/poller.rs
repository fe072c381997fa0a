//! The thread that polls the primaries. It asks all primaries at the same time, and keeps their connections.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisError};

use crate::failure::Failure;
use crate::locks::{Contended, Lock, info_command, is_about_a_key, read_contended};
use crate::primaries::Servers;
use crate::server::{Connected, Server, all_answers, ask_all};
use crate::text::Name;

/// How often to look for other primaries.
const LOOK: Duration = Duration::from_secs(5);
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

/// The answers of the primaries, and the failures of the primaries that did not answer. Fails if no primary answers.
pub(super) type Poll = Result<(Vec<Sample>, Vec<Failure>), Failure>;

/// The state of one primary at one instant.
pub(super) struct Sample {
    pub(super) address: String,
    pub(super) at: Instant,
    pub(super) figures: Figures,
    pub(super) rows: Vec<Row>,
    /// The lock whose queue is shown, if this primary serves its key.
    pub(super) open: Option<Open>,
    /// The warning for the user, if the server is a replica.
    pub(super) warning: Option<String>,
}

/// A lock with waiters.
pub(super) struct Row {
    pub(super) lock: Contended,
    pub(super) held: Option<Lock>,
    pub(super) at: Instant,
}

/// A lock whose queue is shown.
pub(super) struct Open {
    pub(super) key: Name,
    /// `None` means that nobody holds the lock.
    pub(super) lock: Option<Lock>,
    pub(super) at: Instant,
}

/// Starts the thread. The thread polls after each interval, and at once when it gets the key of another lock whose queue
/// is shown.
pub(super) fn start(
    servers: Servers,
    interval: Duration,
    count: u64,
) -> (Sender<Option<Name>>, Receiver<Poll>) {
    let (open_sender, open_keys) = channel();
    let (polls, receiver) = channel();
    thread::spawn(move || {
        let mut poller = Poller { servers, count, primaries: Vec::new(), looked: None, kept: Arc::default() };
        let mut open = None;
        loop {
            let next = Instant::now() + interval;
            if polls.send(poller.poll(open.clone())).is_err() {
                return;
            }
            match open_keys.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(key) => open = key,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    (open_sender, receiver)
}

struct Poller {
    servers: Servers,
    count: u64,
    primaries: Vec<Server>,
    /// When the last search for primaries began. `None` means that the next poll searches.
    looked: Option<Instant>,
    /// The connections, by the addresses of their servers.
    kept: Arc<Mutex<HashMap<String, Connected>>>,
}

impl Poller {
    fn poll(&mut self, open: Option<Name>) -> Poll {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.looked = Some(Instant::now());
            match self.servers.primaries_after(&self.primaries) {
                Ok(primaries) => {
                    self.primaries = primaries;
                    let stays =
                        |address: &String| self.primaries.iter().any(|server| server.address() == address);
                    lock(&self.kept).retain(|address, _| stays(address));
                }
                Err(failure) if self.primaries.is_empty() => return Err(failure),
                Err(_) => {}
            }
        }
        let (count, kept) = (self.count, Arc::clone(&self.kept));
        let poll = all_answers(ask_all(self.primaries.clone(), move |server| {
            let connected = lock(&kept).remove(server.address());
            let (mut connection, warning) = connected.map_or_else(|| server.connect_with_module(), Ok)?;
            let sample = sample(server, &mut connection, warning.clone(), count, open.as_ref());
            let sample = sample.map_err(|error| server.failure(&error))?;
            lock(&kept).insert(server.address().to_owned(), (connection, warning));
            Ok(sample)
        }));
        if poll.as_ref().map_or(true, |(_, failures)| !failures.is_empty()) {
            // Another server may be the primary now.
            self.looked = None;
        }
        poll
    }
}

fn lock(kept: &Mutex<HashMap<String, Connected>>) -> MutexGuard<'_, HashMap<String, Connected>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sample(
    server: &Server,
    connection: &mut Connection,
    warning: Option<String>,
    count: u64,
    open: Option<&Name>,
) -> Result<Sample, RedisError> {
    let info: String = redis::cmd("INFO").arg("lock").query(connection)?;
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let figure = |Figure { field, .. }| fields.get(field).and_then(|value| value.parse().ok()).unwrap_or(0);
    let contended = read_contended(connection, count, 1)?;
    let open =
        match open.map(|key| (key, info_command(&key.0, HOLDERS, Some(QUEUE_LENGTH)).query(connection))) {
            Some((_, Err(error))) if is_about_a_key(&error) => None,
            Some((key, lock)) => Some((key.clone(), lock?)),
            None => None,
        };
    let at = Instant::now();
    Ok(Sample {
        address: server.address().to_owned(),
        at,
        figures: FIGURES.map(figure),
        rows: contended.into_iter().map(|(lock, held)| Row { lock, held, at }).collect(),
        open: open.map(|(key, lock)| Open { key, lock, at }),
        warning,
    })
}
