//! The threads that poll the primaries. Each primary has its own thread, so a primary that does not answer delays only
//! the data of its own locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisError};

use crate::failure::Failure;
use crate::locks::{Contended, Lock, info_command, is_about_a_key, read_contended};
use crate::primaries::Servers;
use crate::server::{Connected, Server};
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

/// What the threads report.
pub(super) enum Update {
    /// The answer or the failure of the primary with this address.
    Polled(String, Result<Box<Sample>, Failure>),
    /// The server with this address is no primary any more.
    Gone(String),
    /// No primary is found.
    NoPrimary(Failure),
}

/// The state of one primary at one instant.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) figures: Figures,
    pub(super) rows: Vec<Row>,
    /// The lock whose queue is shown, if this primary serves its key.
    pub(super) open: Option<Open>,
    /// The warning for the user, if the server is a replica.
    pub(super) warning: Option<String>,
}

/// A lock with waiters.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) lock: Contended,
    pub(super) held: Option<Lock>,
    pub(super) at: Instant,
}

/// A lock whose queue is shown.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) key: Name,
    /// `None` means that nobody holds the lock.
    pub(super) lock: Option<Lock>,
    pub(super) at: Instant,
}

/// The key of the lock whose queue is shown. A change wakes all threads.
#[derive(Default)]
pub(super) struct OpenKey {
    key: Mutex<Option<Name>>,
    changed: Condvar,
}

impl OpenKey {
    fn get(&self) -> MutexGuard<'_, Option<Name>> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, key: Option<Name>) {
        *self.get() = key;
        self.changed.notify_all();
    }

    /// Waits until the key differs from `key`, or until `end`.
    fn wait_for_change(&self, key: Option<&Name>, end: Instant) {
        let limit = end.saturating_duration_since(Instant::now());
        drop(self.changed.wait_timeout_while(self.get(), limit, |open| open.as_ref() == key));
    }
}

/// Starts the threads. They poll after each interval, and at once when the queue of another lock is shown.
pub(super) fn start(servers: Servers, interval: Duration, count: u64) -> (Arc<OpenKey>, Receiver<Update>) {
    let (updates, receiver) = channel();
    let open = Arc::<OpenKey>::default();
    let (shared, failures) = (Arc::clone(&open), updates.clone());
    let poll = move |server: &Server, is_primary: &AtomicBool| {
        let mut kept = None;
        while is_primary.load(Ordering::Relaxed) {
            let next = Instant::now() + interval;
            let key = shared.get().clone();
            let polled = sample(server, &mut kept, count, key.as_ref());
            send(&updates, Update::Polled(server.address().to_owned(), polled));
            shared.wait_for_change(key.as_ref(), next);
        }
        send(&updates, Update::Gone(server.address().to_owned()));
    };
    let no_primary = move |failure| send(&failures, Update::NoPrimary(failure));
    thread::spawn(move || servers.at_each_primary(Vec::new(), poll, no_primary));
    (open, receiver)
}

/// The receiver ends only with the program.
fn send(updates: &Sender<Update>, update: Update) {
    let _ = updates.send(update);
}

/// Reads the state of a primary. Keeps the connection for the next poll, unless the poll fails.
fn sample(
    server: &Server,
    kept: &mut Option<Connected>,
    count: u64,
    open: Option<&Name>,
) -> Result<Box<Sample>, Failure> {
    let (mut connection, warning) = kept.take().map_or_else(|| server.connect_with_module(), Ok)?;
    let sample = query(&mut connection, count, open).map_err(|error| server.failure(&error))?;
    *kept = Some((connection, warning.clone()));
    Ok(Box::new(Sample { warning, ..sample }))
}

fn query(connection: &mut Connection, count: u64, open: Option<&Name>) -> Result<Sample, RedisError> {
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
        at,
        figures: FIGURES.map(figure),
        rows: contended.into_iter().map(|(lock, held)| Row { lock, held, at }).collect(),
        open: open.map(|(key, lock)| Open { key, lock, at }),
        warning: None,
    })
}
