//! The threads that query the primaries, one thread for each primary. So a primary that does not answer delays only its
//! own figures.

use std::collections::HashMap;
use std::io;
use std::ops::AddAssign;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisError};

use crate::duration;
use crate::failure::Failure;
use crate::locks::{Contended, Lock, info_command, is_about_a_key, read_contended};
use crate::primaries::{Primary, Servers};

/// How many waiters of the selected lock are shown, at most.
const QUEUE_LENGTH: u64 = 200;
/// How many holders of the selected lock are shown, at most.
const HOLDERS: u64 = 100;

/// The state of one primary at one instant.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) totals: Totals,
    pub(super) locks: Vec<(Contended, Option<Lock>)>,
    /// The key of the lock whose queue is shown, if this primary serves the key. The state of the lock is `None` if nobody
    /// holds the lock.
    pub(super) focus: Option<(Vec<u8>, Option<Lock>)>,
    /// The warning for the user, if the server is a replica.
    pub(super) warning: Option<String>,
}

/// Figures of INFO lock.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) held: u64,
    pub(super) waiting: u64,
    pub(super) events: Events,
}

/// Numbers of events, either since the server started or per second.
#[derive(Clone, Copy, Default)]
pub(super) struct Events {
    pub(super) handed_off: u64,
    pub(super) acquired: u64,
    pub(super) leases_ended: u64,
}

/// A message from the polling threads about the primaries.
pub(super) enum Update {
    /// No primary is known, for this reason.
    NoPrimary(String),
    /// The server with this address is no longer a primary.
    Gone(String),
    /// The server with this address has answered, or the poll failed for this reason.
    Polled(String, Result<Box<Sample>, String>),
}

pub(super) struct Poller {
    updates: Receiver<Update>,
    focus: Arc<Focus>,
}

/// The lock whose queue is shown. When the user opens another queue, the threads poll at once.
#[derive(Default)]
struct Focus {
    key: Mutex<Option<Vec<u8>>>,
    changed: Condvar,
}

impl Poller {
    pub(super) fn start(servers: Servers, interval: Duration, count: u64) -> io::Result<Self> {
        let (sender, updates) = channel();
        let focus = Arc::new(Focus::default());
        let shared = Arc::clone(&focus);
        servers.follow(Vec::new(), move |found| {
            let primary = match found {
                Ok(primary) => primary,
                Err(failure) => return send(&sender, Update::NoPrimary(failure.to_string())),
            };
            let thread = PollerThread {
                primary,
                count,
                interval,
                focus: Arc::clone(&shared),
                updates: sender.clone(),
            };
            if let Err(error) = thread::Builder::new().name("poller".into()).spawn(move || thread.run()) {
                send(&sender, Update::NoPrimary(error.to_string()));
            }
        })?;
        Ok(Self { updates, focus })
    }

    /// The updates since the last call.
    pub(super) fn updates(&self) -> impl Iterator<Item = Update> {
        self.updates.try_iter()
    }

    /// Sets the lock whose queue to query.
    pub(super) fn set_focus(&self, key: Option<Vec<u8>>) {
        let mut focus = self.focus.lock();
        if *focus != key {
            *focus = key;
            self.focus.changed.notify_all();
        }
    }
}

/// Sends an update. The send fails only when the program ends, so the result is ignored.
fn send(updates: &Sender<Update>, update: Update) {
    let _ = updates.send(update);
}

impl Focus {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this time, or until the key differs from `polled`.
    fn wait(&self, time: Duration, polled: &Option<Vec<u8>>) {
        // A poisoned mutex only shortens the wait.
        let _ = self.changed.wait_timeout_while(self.lock(), time, |key| key == polled);
    }
}

struct PollerThread {
    primary: Primary,
    count: u64,
    interval: Duration,
    focus: Arc<Focus>,
    updates: Sender<Update>,
}

impl PollerThread {
    fn run(self) {
        let address = self.primary.server.address().to_owned();
        let mut connected = None;
        while self.primary.is_current() {
            let next = Instant::now() + self.interval;
            let focus = self.focus.lock().clone();
            let polled = self.poll(&mut connected, focus.as_deref());
            if polled.is_err() {
                connected = None;
                self.primary.note_failure();
            }
            let polled = polled.map(Box::new).map_err(|failure| failure.to_string());
            send(&self.updates, Update::Polled(address.clone(), polled));
            self.focus.wait(next.saturating_duration_since(Instant::now()), &focus);
        }
        send(&self.updates, Update::Gone(address));
    }

    fn poll(
        &self,
        connected: &mut Option<(Connection, Option<String>)>,
        focus: Option<&[u8]>,
    ) -> Result<Sample, Failure> {
        let server = &self.primary.server;
        let (connection, warning) = match connected {
            Some(connected) => connected,
            none => none.insert(server.connect_with_module()?),
        };
        let sample = sample(connection, self.count, focus).map_err(|error| server.failure(&error))?;
        Ok(Sample { warning: warning.clone(), ..sample })
    }
}

fn sample(connection: &mut Connection, count: u64, focus: Option<&[u8]>) -> Result<Sample, RedisError> {
    let totals = Totals::of(&redis::cmd("INFO").arg("lock").query::<String>(connection)?);
    let locks = read_contended(connection, count, 1)?;
    let focus = match focus.map(|key| (key, info_command(key, HOLDERS, Some(QUEUE_LENGTH)).query(connection)))
    {
        Some((_, Err(error))) if is_about_a_key(&error) => None,
        Some((key, lock)) => Some((key.to_vec(), lock?)),
        None => None,
    };
    Ok(Sample { at: Instant::now(), totals, locks, focus, warning: None })
}

impl Totals {
    fn of(info: &str) -> Self {
        let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let field =
            |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or_default();
        Self {
            held: field("lock_held"),
            waiting: field("lock_waiting"),
            events: Events {
                handed_off: field("lock_handed_off"),
                acquired: field("lock_acquired"),
                leases_ended: field("lock_leases_ended"),
            },
        }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.held += other.held;
        self.waiting += other.waiting;
        self.events += other.events;
    }
}

impl AddAssign for Events {
    fn add_assign(&mut self, other: Self) {
        self.handed_off += other.handed_off;
        self.acquired += other.acquired;
        self.leases_ended += other.leases_ended;
    }
}

impl Events {
    /// The events per second between two polls. `None` if a number has decreased, because the server was restarted, or if
    /// no time has passed.
    pub(super) fn rates(before: Self, now: Self, span: Duration) -> Option<Self> {
        let ms = Some(duration::ms(span)).filter(|ms| *ms > 0)?;
        let rate = |before: u64, now: u64| Some((now.checked_sub(before)? * 1_000 + ms / 2) / ms);
        Some(Self {
            handed_off: rate(before.handed_off, now.handed_off)?,
            acquired: rate(before.acquired, now.acquired)?,
            leases_ended: rate(before.leases_ended, now.leases_ended)?,
        })
    }
}
