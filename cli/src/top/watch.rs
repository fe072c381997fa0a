//! The thread that asks the servers.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use redis::RedisError;

use crate::failure::Failure;
use crate::locks::{Contended, Lock, info, most_contended};
use crate::primaries::{Place, Primaries};

/// So many of a queue are shown.
const QUEUE: u64 = 200;

/// What the servers told at one time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) servers: String,
    pub(super) totals: Totals,
    pub(super) locks: Vec<(Contended, Option<Lock>)>,
    /// The lock that is looked at, if anybody holds it.
    pub(super) focus: Option<(Vec<u8>, Option<Lock>)>,
}

/// From INFO lock, of all primaries together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) held: u64,
    pub(super) waiting: u64,
    pub(super) handed_off: u64,
    pub(super) acquired: u64,
    pub(super) leases_ended: u64,
}

/// A sample, or why there is none.
pub(super) type News = Result<Sample, String>;

pub(super) struct Watch {
    told: Receiver<News>,
    focus: Sender<Option<Vec<u8>>>,
}

impl Watch {
    pub(super) fn start(place: Place, interval: Duration, count: u64) -> io::Result<Self> {
        let (teller, told) = channel();
        let (focus, asked) = channel();
        let watcher = Watcher { place, count, primaries: None, focus: None };
        thread::Builder::new()
            .name("watch".into())
            .spawn(move || watcher.watch(interval, &teller, &asked))?;
        Ok(Self { told, focus })
    }

    /// What has been told since.
    pub(super) fn news(&self) -> impl Iterator<Item = News> {
        self.told.try_iter()
    }

    /// Which lock to tell all of.
    pub(super) fn look_at(&self, focus: Option<Vec<u8>>) {
        // The thread ends only after this.
        let _ = self.focus.send(focus);
    }
}

struct Watcher {
    place: Place,
    count: u64,
    primaries: Option<Primaries>,
    focus: Option<Vec<u8>>,
}

impl Watcher {
    fn watch(mut self, interval: Duration, teller: &Sender<News>, asked: &Receiver<Option<Vec<u8>>>) {
        loop {
            let next = Instant::now() + interval;
            let news = self.ask().map_err(|failure| failure.to_string());
            if news.is_err() {
                self.primaries = None;
            }
            if teller.send(news).is_err() {
                return;
            }
            loop {
                match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
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

    fn ask(&mut self) -> Result<Sample, Failure> {
        let primaries = match &mut self.primaries {
            Some(primaries) => primaries,
            none => none.insert(Primaries::connect(&self.place)?),
        };
        Ok(sample(primaries, self.count, self.focus.as_deref())?)
    }
}

fn sample(primaries: &mut Primaries, count: u64, focus: Option<&[u8]>) -> Result<Sample, RedisError> {
    let mut totals = Totals::default();
    for connection in primaries.connections() {
        let told: String = redis::cmd("INFO").arg("lock").query(connection)?;
        totals.add(&told);
    }
    let mut locks = Vec::new();
    for lock in most_contended(primaries, count)? {
        let held = primaries.ask(&info(&lock.key, None))?;
        locks.push((lock, held));
    }
    let focus = match focus {
        Some(key) => Some((key.to_vec(), primaries.ask(&info(key, Some(QUEUE)))?)),
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
