//! The thread that queries the servers.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use redis::RedisError;

use crate::failure::Failure;
use crate::locks::{Contended, Lock, if_readable, info_command};
use crate::primaries::{self, Primaries, ServerUrl};

/// How many waiters of the selected lock are shown.
const QUEUE_LENGTH: u64 = 200;
/// How often to look for other primaries.
const LOOK: Duration = Duration::from_secs(5);
/// How many holders of the selected lock are shown.
const HOLDERS: u64 = 100;

/// The state of the servers at one instant.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) servers: String,
    pub(super) totals: Totals,
    pub(super) locks: Vec<(Contended, Option<Lock>)>,
    /// The lock whose queue is shown, and its state if it is held.
    pub(super) focus: Option<(Vec<u8>, Option<Lock>)>,
}

/// Figures of INFO lock, summed over all primaries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) held: u64,
    pub(super) waiting: u64,
    pub(super) handed_off: u64,
    pub(super) acquired: u64,
    pub(super) leases_ended: u64,
}

/// A sample, or the reason why the poll failed.
pub(super) type Update = Result<Sample, String>;

pub(super) struct Poller {
    updates: Receiver<Update>,
    focus: Sender<Option<Vec<u8>>>,
}

impl Poller {
    pub(super) fn start(server: ServerUrl, interval: Duration, count: u64) -> io::Result<Self> {
        let (sender, updates) = channel();
        let (focus, focus_changes) = channel();
        let thread = PollerThread { server, count, primaries: None, looked: Instant::now(), focus: None };
        thread::Builder::new()
            .name("poller".into())
            .spawn(move || thread.run(interval, &sender, &focus_changes))?;
        Ok(Self { updates, focus })
    }

    /// The updates since the last call.
    pub(super) fn updates(&self) -> impl Iterator<Item = Update> {
        self.updates.try_iter()
    }

    /// Sets the lock whose queue to query.
    pub(super) fn set_focus(&self, focus: Option<Vec<u8>>) {
        // The send cannot fail: the thread ends only after this `Poller` is dropped.
        let _ = self.focus.send(focus);
    }
}

struct PollerThread {
    server: ServerUrl,
    count: u64,
    primaries: Option<Primaries>,
    looked: Instant,
    focus: Option<Vec<u8>>,
}

impl PollerThread {
    fn run(mut self, interval: Duration, sender: &Sender<Update>, focus_changes: &Receiver<Option<Vec<u8>>>) {
        loop {
            let next = Instant::now() + interval;
            let update = self.poll().map_err(|failure| failure.to_string());
            if update.is_err() {
                self.primaries = None;
            }
            if sender.send(update).is_err() {
                return;
            }
            loop {
                match focus_changes.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(focus) if focus == self.focus => {}
                    Ok(focus) => {
                        self.focus = focus;
                        break;
                    }
                }
            }
        }
    }

    fn poll(&mut self) -> Result<Sample, Failure> {
        // When other nodes of a cluster become the primaries, the connections to the former primaries stay open.
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            if let Ok(found) = primaries::find(&self.server) {
                self.primaries.take_if(|primaries| !primaries.are(&found));
            }
        }
        let primaries = match &mut self.primaries {
            Some(primaries) => primaries,
            none => none.insert(Primaries::connect(&self.server)?),
        };
        Ok(sample(primaries, self.count, self.focus.as_deref())?)
    }
}

fn sample(primaries: &mut Primaries, count: u64, focus: Option<&[u8]>) -> Result<Sample, RedisError> {
    let mut totals = Totals::default();
    for connection in primaries.connections() {
        let info: String = redis::cmd("INFO").arg("lock").query(connection)?;
        totals.add(&info);
    }
    let mut locks = Vec::new();
    for lock in primaries.most_contended(count)? {
        let held = if_readable(primaries.query(&info_command(&lock.key, 1, None)))?;
        locks.push((lock, held));
    }
    let focus = match focus {
        Some(key) => Some((key.to_vec(), primaries.query(&info_command(key, HOLDERS, Some(QUEUE_LENGTH)))?)),
        None => None,
    };
    let servers = primaries.addresses().collect::<Vec<_>>().join(" ");
    Ok(Sample { at: Instant::now(), servers, totals, locks, focus })
}

impl Totals {
    fn add(&mut self, info: &str) {
        let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let field =
            |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or_default();
        self.held += field("lock_held");
        self.waiting += field("lock_waiting");
        self.handed_off += field("lock_handed_off");
        self.acquired += field("lock_acquired");
        self.leases_ended += field("lock_leases_ended");
    }
}
