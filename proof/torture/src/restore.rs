//! Rounds in which a server forgets tenures, and the holders restore them.
//!
//! In each round, owners acquire, re-enter, renew and release locks, and hand them over to waiters. Then the
//! server forgets all locks, or a replica that has missed changes is promoted. Each owner whose lease is not over on
//! its own clock renews with TOKEN and HOLDS, and must get its tenure back. Before and after these renewals, other
//! owners try to acquire the same locks, and must get no grant.

use crate::recording_client::{PendingCall, RecordingClient};
use lockward_checker::bounds::Bounds;
use lockward_checker::checker;
use lockward_checker::history::{History, HoldsReleased, Mode, Nanos, Operation, Outcome, Token, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Client, Link, Random, Reply, Server, Setup, eventually};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const MS: Nanos = 1_000_000;
const QUARANTINE: Nanos = 6_000 * MS;
const PATIENCE: Duration = Duration::from_secs(20);
const LOCKS: u64 = 4;
/// The modes of the locks.
const MODES: [Mode; 4] = [Mode::EXCLUSIVE, Mode::SHARED, Mode::of_slots(3, 1), Mode::of_slots(5, 2)];

/// How often each event happened, by the name of the event.
type Counts = Mutex<BTreeMap<&'static str, usize>>;

/// Runs the rounds, six at a time, and checks the history. Returns a report, and whether there is no violation. Panics
/// if a holder does not get its tenure back, or another owner is granted the lock.
pub(crate) fn run(rounds: u32, seed: u64, file: &Path) -> (String, bool) {
    let recorder = Recorder::create(file).expect("a file for the history");
    let (counts, next) = (Counts::default(), AtomicU32::new(0));
    // Several rounds run at the same time, because each round mostly waits.
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= rounds {
                        break;
                    }
                    let random = Random::from_seed(seed ^ (u64::from(number) << 32));
                    let (recorder, counts) = (&recorder, &counts);
                    Round { number, random, recorder, counts, owners: 0, held: Vec::new() }.run();
                }
            });
        }
    });
    recorder.finish().expect("a whole history");
    let history = History::read(file).expect("a history");
    // Replies may be late, because the servers of other rounds start at the same time.
    let bounds = Bounds { answer: 10_000 * MS, ..Bounds::default() };
    let checks = [
        checker::tenures_never_overlap,
        checker::tokens_grow_and_have_one_owner,
        checker::every_call_is_answered,
    ];
    let violations: Vec<_> = checks.into_iter().flat_map(|check| check(&history, &bounds)).collect();
    let counts = counts.into_inner().expect("no round has panicked");
    let mut report = format!("restore · seed {seed}: {} calls", history.calls().count());
    for (event, count) in counts {
        report += &format!(", {count} × {event}");
    }
    for violation in violations.iter().take(3) {
        report += &format!("\n{}", violation.report(&history));
    }
    (report, violations.is_empty())
}

/// A tenure, as its holder knows it.
#[derive(Clone, Debug)]
struct HeldTenure {
    key: String,
    owner: String,
    token: Token,
    holds: u32,
    mode: Mode,
    /// The end of the lease on the holder's clock.
    until: Nanos,
}

struct Round<'r> {
    number: u32,
    random: Random,
    recorder: &'r Recorder,
    counts: &'r Counts,
    owners: u32,
    held: Vec<HeldTenure>,
}

impl<'r> Round<'r> {
    fn run(mut self) {
        match self.random.between(0, 10) {
            0..5 => self.wipe(),
            5..9 => self.promote(false),
            _ => self.promote(true),
        }
    }

    /// The server is killed and restarts empty.
    fn wipe(&mut self) {
        let mut server = Setup::new().start();
        self.run_workload(server.port(), 12);
        let start = now();
        server.change_setup(|setup| setup.module(&format!("quarantine {}", QUARANTINE / MS)));
        server.kill_and_start_again();
        self.record_fault("kill and wipe", start);
        self.restore_tenures(&server);
    }

    /// Promotes a replica that did not receive the last grants. If `is_isolated`, the old primary continues without
    /// replicas, and accepts writes until it notices their loss. Otherwise the old primary is killed.
    fn promote(&mut self, is_isolated: bool) {
        let setup = || Setup::new().config("min-replicas-to-write 1").config("min-replicas-max-lag 1");
        let replica = || setup().module(&format!("quarantine {}", QUARANTINE / MS)).start();
        let (mut primary, one, other) = (setup().start(), replica(), replica());
        let links = [Link::to(&primary), Link::to(&primary)];
        for (replica, link) in [&one, &other].into_iter().zip(&links) {
            replica.follow_through(link, &primary);
        }
        see_replicas(&mut primary.client());
        let replicated = self.random.between(0, 10);
        self.run_workload(primary.port(), replicated);
        one.see_in_sync_with(&primary);
        links.iter().for_each(Link::swallow);
        let start = now();
        self.run_workload(primary.port(), 10);
        if is_isolated {
            while self.act(primary.port()) {
                thread::park_timeout(Duration::from_millis(10));
            }
        } else {
            primary.kill();
        }
        one.promote();
        other.follow(&one);
        let name = if is_isolated { "promotion beside an isolated primary" } else { "stale promotion" };
        self.record_fault(name, start);
        see_replicas(&mut one.client());
        self.restore_tenures(&one);
    }

    fn record_fault(&self, name: &'static str, start: Nanos) {
        self.count(name);
        self.recorder.fault(name, None, start);
    }

    fn count(&self, event: &'static str) {
        *self.counts.lock().expect("no round has panicked").entry(event).or_default() += 1;
    }

    /// The holders restore their tenures, while other owners ask for the same locks.
    fn restore_tenures(&mut self, server: &Server) {
        let mut observer = server.client();
        let keys: Vec<String> = (0..LOCKS).map(|lock| self.key(lock)).collect();
        for key in &keys {
            self.check_excluded(server.port(), key);
        }
        let waiters: Vec<PendingCall<'r>> = keys.iter().map(|key| self.wait(server.port(), key)).collect();
        let mut restored = Vec::new();
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_cached_key(|_| self.random.number());
        for held in held {
            let known = observer.info(&held.key).map(|info| info.holders).unwrap_or_default();
            let known = known.into_iter().find(|known| known.owner == held.owner);
            if !self.restore(server.port(), &held) {
                self.count("tenure too late");
                continue;
            }
            self.count(match known {
                None => "unknown tenure restored",
                Some(known) if (known.holds, known.slots) != (held.holds.into(), held.mode.slots.into()) => {
                    "tenure with another count or limit restored"
                }
                Some(_) => "known tenure restored",
            });
            let holders = observer.info(&held.key).expect("a held lock").holders;
            let holder = holders.iter().find(|holder| holder.owner == held.owner).expect("a restored tenure");
            let token = i64::try_from(held.token).expect("a token");
            assert_eq!(holder.tenure(), (held.owner.as_str(), held.holds.into(), token));
            assert_eq!(holder.slots, i64::from(held.mode.slots), "{held:?}");
            self.check_excluded(server.port(), &held.key);
            restored.push(held);
        }
        for held in restored {
            let release = Operation::Release { released: HoldsReleased::All, token: Some(held.token) };
            let outcome = self.call(server.port(), &held.key, &held.owner, release);
            assert_eq!(outcome, Outcome::Left { holds: 0 }, "{held:?}");
            self.check_excluded(server.port(), &held.key);
        }
        // Now the quarantine can end: each forgotten tenure is restored, or its lease is over.
        assert_eq!(observer.call("CONFIG SET lock.quarantine 0"), Reply::ok());
        for (key, waiter) in keys.iter().zip(waiters) {
            let (_, call) = waiter.answer(PATIENCE);
            assert!(call.granted().is_some(), "{key}: {call:?}");
        }
    }

    /// Renews with TOKEN until the server accepts the renewal. Returns `false` if the lease ended first.
    fn restore(&mut self, port: u16, held: &HeldTenure) -> bool {
        let (token, holds, mode) = (Some(held.token), Some(held.holds), Some(held.mode));
        let operation = Operation::Renew { lease: QUARANTINE, token, holds, mode };
        // A renewal that the holder sends in the last 50 ms of the lease may reach the server after the lease.
        while now() + 50 * MS < held.until {
            match self.call(port, &held.key, &held.owner, operation.clone()) {
                Outcome::Renewed { token } => {
                    assert_eq!(token, held.token);
                    return true;
                }
                outcome if lacks_replicas(&outcome) => thread::park_timeout(Duration::from_millis(5)),
                outcome => panic!("{held:?} is not restored: {outcome:?}"),
            }
        }
        false
    }

    fn check_excluded(&mut self, port: u16, key: &str) {
        let owner = self.owner();
        let outcome = self.call(port, key, &owner, Operation::exclusive(QUARANTINE, Wait::No));
        assert!(matches!(outcome, Outcome::NotAcquired | Outcome::Error(_)), "{key}: {outcome:?}");
        self.count("other owner refused");
    }

    /// Performs `count` random actions.
    fn run_workload(&mut self, port: u16, count: u64) {
        for _ in 0..count {
            self.act(port);
        }
    }

    /// Performs a random action. Returns `false` if the server refused the action because it has too few
    /// replicas.
    fn act(&mut self, port: u16) -> bool {
        let lock = self.random.between(0, LOCKS);
        let mode = usize::try_from(lock).ok().and_then(|lock| MODES.get(lock).copied()).unwrap_or_default();
        let key = self.key(lock);
        let lease = self.random.between(2_000, QUARANTINE / MS) * MS;
        self.held.retain(|held| now() < held.until);
        let holders: Vec<_> = (0..self.held.len()).filter(|&at| self.held[at].key == key).collect();
        let beside = !mode.is_alone() && self.random.percent(30);
        let acquire = |mode| Operation::acquire(lease, Wait::No, mode);
        let Some(at) = self.random.pick(&holders).copied().filter(|_| !beside) else {
            let owner = self.owner();
            let start = now();
            let outcome = self.call(port, &key, &owner, acquire(mode));
            if let Outcome::Granted { token, holds } = outcome {
                self.held.push(HeldTenure { key, owner, token, holds, mode, until: start + lease });
            }
            return !lacks_replicas(&outcome);
        };
        let HeldTenure { owner, token, mode, .. } = self.held[at].clone();
        let start = now();
        let outcome = match self.random.between(0, 7) {
            0..2 => {
                let outcome = self.call(port, &key, &owner, acquire(mode));
                if let Outcome::Granted { holds, .. } = outcome {
                    self.held[at].holds = holds;
                    self.held[at].until = self.held[at].until.max(start + lease);
                }
                outcome
            }
            2 => {
                // Sometimes the renewal raises the limit, so that more owners can hold the lock.
                let larger = mode.slots != 0 && self.random.percent(50);
                let mode = if larger { Mode::of_slots(mode.slots + 3, mode.weight) } else { mode };
                let operation = Operation::Renew { lease, token: Some(token), holds: None, mode: Some(mode) };
                let outcome = self.call(port, &key, &owner, operation);
                if let Outcome::Renewed { .. } = outcome {
                    (self.held[at].until, self.held[at].mode) = (start + lease, mode);
                }
                outcome
            }
            3..5 => {
                let release = Operation::Release { released: HoldsReleased::One, token: Some(token) };
                let outcome = self.call(port, &key, &owner, release);
                match outcome {
                    Outcome::Left { holds: 0 } => drop(self.held.remove(at)),
                    Outcome::Left { holds } => self.held[at].holds = holds,
                    _ => {}
                }
                outcome
            }
            // With several holders, a release would not make the lock free for a waiter.
            _ if holders.len() > 1 => return true,
            _ => {
                let waiter = self.wait(port, &key);
                let release = Operation::Release { released: HoldsReleased::All, token: Some(token) };
                let outcome = self.call(port, &key, &owner, release);
                let left = matches!(outcome, Outcome::Left { .. });
                let (_, call) = waiter.answer(if left { PATIENCE } else { Duration::ZERO });
                if left {
                    self.held.remove(at);
                    let (Some((token, holds)), Operation::Acquire { lease, .. }) =
                        (call.granted(), &call.operation)
                    else {
                        panic!("the waiter was not granted the lock: {:?}", call.outcome);
                    };
                    let until = call.start + lease;
                    let (owner, mode) = (call.owner.clone(), Mode::EXCLUSIVE);
                    self.held.push(HeldTenure { key, owner, token, holds, mode, until });
                }
                outcome
            }
        };
        !lacks_replicas(&outcome)
    }

    /// A new owner that waits for a lock.
    fn wait(&mut self, port: u16, key: &str) -> PendingCall<'r> {
        let owner = self.owner();
        let operation = Operation::exclusive(QUARANTINE, Wait::Unlimited);
        self.connect(port).ask(key, &owner, operation).expect("a server that takes it")
    }

    fn call(&mut self, port: u16, key: &str, owner: &str, operation: Operation) -> Outcome {
        let outcome = self.connect(port).call(key, owner, operation, PATIENCE).1.outcome;
        assert_ne!(outcome, Outcome::Unknown, "{key}: no reply to {owner}");
        outcome
    }

    fn connect(&self, port: u16) -> RecordingClient<'r> {
        RecordingClient::connect(self.recorder, self.number, port).expect("a connection")
    }

    fn key(&self, lock: u64) -> String {
        format!("lock-{}:{lock}", self.number)
    }

    fn owner(&mut self) -> String {
        self.owners += 1;
        format!("owner-{}:{}", self.number, self.owners)
    }
}

fn lacks_replicas(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Error(word) if word == "NOREPLICAS")
}

/// Waits until the primary counts a replica as online.
fn see_replicas(client: &mut Client) {
    eventually("the primary sees a replica", || {
        client.server_info("replication", "min_slaves_good_slaves") != "0"
    });
}
