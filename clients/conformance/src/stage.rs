//! The stage of a scenario: servers, workers, a proxy that records all lock commands, and measurements.

use crate::log::Log;
use crate::worker::{Idle, Worker};
use lockward_tests::{Client, Fate, Proxy, Reply, Server, locked};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time that the suite allows beyond each bound of the protocol, because machines may be busy and the suite measures
/// outside the client's process.
pub(crate) const SLACK: Duration = Duration::from_millis(200);

/// For each kind of event: the longest delay of an event after its due time, and the bound of the protocol for this
/// delay.
pub(crate) type Latenesses = Mutex<BTreeMap<&'static str, (Duration, Duration)>>;

pub(crate) struct Stage {
    /// The words that start the worker.
    pub(crate) worker: Vec<String>,
    /// The port of a real server that all scripts share.
    pub(crate) server: u16,
    pub(crate) log: Log,
    pub(crate) latenesses: Arc<Latenesses>,
    /// Worker processes of earlier scenarios, for reuse.
    pub(crate) idle: Arc<Idle>,
    /// The number of workers that the scenario has started.
    pub(crate) workers: Mutex<u32>,
}

impl Stage {
    /// Starts a worker for the server on `port`.
    #[track_caller]
    pub(crate) fn worker(&self, port: u16) -> Worker {
        self.worker_with(port, &[])
    }

    /// Starts a worker for the server on `port`, with settings such as `"patience=500"`.
    #[track_caller]
    pub(crate) fn worker_with(&self, port: u16, settings: &[&str]) -> Worker {
        self.worker_at(&format!("redis://127.0.0.1:{port}"), settings)
    }

    /// Starts a worker with an address.
    #[track_caller]
    pub(crate) fn worker_at(&self, address: &str, settings: &[&str]) -> Worker {
        let name = {
            let mut workers = locked(&self.workers);
            *workers += 1;
            format!("worker{workers}")
        };
        let address: Vec<String> = [&[address], settings].concat().into_iter().map(str::to_owned).collect();
        Worker::open(&name, &self.worker, &address, &self.idle, &self.log)
    }

    /// Writes a line to the log.
    pub(crate) fn note(&self, line: &str) {
        self.log.add(format_args!("-- {line}"));
    }

    /// Checks that an event came at most `bound` (in milliseconds) plus [`SLACK`] after `due`, and remembers its
    /// delay.
    #[track_caller]
    pub(crate) fn on_time(&self, what: &'static str, due: Instant, bound: u64, came: Instant) {
        let (bound, late) = (Duration::from_millis(bound), came.saturating_duration_since(due));
        let mut latenesses = locked(&self.latenesses);
        let worst = latenesses.entry(what).or_default();
        *worst = (worst.0.max(late), bound);
        drop(latenesses);
        self.log.add(format_args!("-- {what}: {late:?} after it was due"));
        assert!(
            late <= bound + SLACK,
            "{what}: {late:?} late, but at most {bound:?} plus a slack of {SLACK:?} is expected"
        );
    }

    /// Starts a proxy in front of a server. The proxy records all lock commands.
    #[track_caller]
    pub(crate) fn gate(&self, server: &Server) -> Gate {
        let proxy = Proxy::start_two_way(server.port());
        let gate = Gate { proxy, seen: Arc::default(), log: self.log.clone() };
        gate.plan("forward all", |_| Fate::Carried);
        gate
    }
}

/// The number of renewals that a server has answered.
#[track_caller]
pub(crate) fn renewals(client: &mut Client) -> u64 {
    let stats = client.call("INFO commandstats").text();
    let calls = stats.split("lock.renew:calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// A request that has come to a [`Gate`].
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) words: Vec<String>,
    pub(crate) fate: Fate,
}

/// A proxy that records all lock commands, and loses requests by a plan.
pub(crate) struct Gate {
    pub(crate) proxy: Proxy,
    seen: Arc<Mutex<Vec<Seen>>>,
    log: Log,
}

impl Gate {
    pub(crate) const fn port(&self) -> u16 {
        self.proxy.port()
    }

    /// Decides the fate of each later request.
    pub(crate) fn plan(&self, name: &str, mut plan: impl FnMut(&[String]) -> Fate + Send + 'static) {
        self.log.add(format_args!("-- the proxy: {name}"));
        let (seen, log) = (Arc::clone(&self.seen), self.log.clone());
        self.proxy.set_plan(move |request| {
            let words: Vec<String> = request.iter().map(Reply::text).collect();
            let fate = plan(&words);
            if fate != Fate::Carried || words[0].starts_with("LOCK.") {
                log.add(format_args!("proxy > {} ({fate:?})", words.join(" ")));
                locked(&seen).push(Seen { at: Instant::now(), words, fate });
            }
            fate
        });
    }

    /// Applies `fate` to the next request that has all these words, and forwards all other requests.
    pub(crate) fn once(&self, words: &'static [&'static str], fate: Fate) {
        let mut is_over = false;
        self.plan(&format!("{fate:?} once for {words:?}"), move |request| {
            if !is_over && words.iter().all(|word| request.iter().any(|other| other == word)) {
                is_over = true;
                return fate;
            }
            Fate::Carried
        });
    }

    /// Holds back all requests from now on.
    pub(crate) fn hang(&self) {
        self.plan("silence", |_| Fate::Held);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.log.add("-- the proxy: cut");
        self.proxy.cut();
    }

    /// All lock commands so far, and all other requests that the proxy has not forwarded normally.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        locked(&self.seen).clone()
    }

    /// The number of requests so far that begin with these words.
    pub(crate) fn count(&self, start: &str) -> usize {
        let fits = |seen: &&Seen| start.split(' ').zip(&seen.words).all(|(start, word)| start == word);
        locked(&self.seen).iter().filter(fits).count()
    }

    /// The times of the last two forwarded requests that set the lease of `key`, the newest first. The client may not
    /// have received the reply to the newest request.
    #[track_caller]
    pub(crate) fn last_leases(&self, key: &str) -> (Instant, Instant) {
        let seen = self.seen();
        let is_lease = |seen: &&Seen| {
            seen.fate == Fate::Carried
                && ["LOCK.ACQUIRE", "LOCK.RENEW"].contains(&&*seen.words[0])
                && seen.words[1] == key
        };
        let mut leases = seen.iter().rev().filter(is_lease).map(|seen| seen.at);
        let last = leases.next().unwrap_or_else(|| panic!("no request has set a lease of {key}"));
        (last, leases.next().unwrap_or(last))
    }
}
