//! Many steps of the wall clock while locks are held and clients wait. The test uses its own monotonic clock to check
//! that each lease ends on time.

use lockward_tests::{Client, Random, Reply, Server, Setup, WallClock, eventually, rounds};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The allowed error of a time. The test and the server read their clocks at different instants, and a TTL counts whole
/// milliseconds.
const TOLERANCE: Duration = Duration::from_millis(2);

/// How late a reply may be if the server's cron runs at least ten times a second. Only time in which the server has
/// certainly run counts ([`Trial::ran`]).
const LATENESS: Duration = Duration::from_millis(200);

/// If two checks are at most this far apart, the time between the checks counts as running time of the server. During a
/// longer gap, the busy machine may have stopped the server or the test.
const SEEN_TO_RUN: Duration = Duration::from_millis(20);

const LOCKS: usize = 24;

/// The kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    /// A lock of Lockward.
    Lock,
    /// `SET key owner NX PX lease`: a key whose TTL is the lease.
    KeyWithTtl,
}

/// The time when a wait limit or a lease ends. The exact time is unknown. The time lies between two instants,
/// because the wait or the lease began between two known instants.
#[derive(Clone, Copy, Debug)]
struct Due {
    earliest: Instant,
    latest: Instant,
}

impl Due {
    fn after(span: Duration, begun: Instant, seen: Instant) -> Self {
        Self { earliest: begun + span, latest: seen + span }
    }
}

/// What the client without the lock does.
#[derive(Clone, Copy, Debug)]
enum Asks {
    /// The client waits for the lock, until the wait limit if there is one. `lease` is the lease in its request.
    Waits { limit: Option<Due>, lease: Duration },
    /// The client tries again at this instant.
    Again(Instant),
}

/// A lock that two clients hold alternately.
#[derive(Debug)]
struct ContendedLock {
    key: String,
    sides: [Client; 2],
    holder: usize,
    token: i64,
    lease: Due,
    asks: Asks,
    /// The test has read all replies that the server sent before this instant.
    replies_read_until: Instant,
    /// The running time of the server ([`Trial::ran`]) when the test first noticed that a reply is overdue.
    overdue_since: Option<Duration>,
}

/// The events that the test has counted.
#[derive(Debug, Default)]
struct Seen {
    steps: usize,
    /// The number of grants after a wait.
    served: usize,
    found: usize,
    limits: usize,
    renewals: usize,
    early: Vec<String>,
    late: Vec<String>,
    latest: Duration,
    stood_still: Duration,
}

struct Trial {
    used: Used,
    lateness: Duration,
    random: Random,
    clock: WallClock,
    pulse: Client,
    locks: Vec<ContendedLock>,
    looked_at: Instant,
    /// The time for which the server has certainly run.
    ran: Duration,
    seen: Seen,
    // Rust drops the fields in this order. This field is the last, so that the clients disconnect before the server
    // ends.
    _server: Server,
}

impl Trial {
    fn start(used: Used, lateness: Duration, setup: Setup) -> Self {
        let clock = WallClock::new();
        let server = setup.clock(&clock).start();
        let now = Instant::now();
        let mut trial = Self {
            used,
            lateness,
            random: Random::new(),
            clock,
            pulse: server.client(),
            locks: Vec::new(),
            looked_at: now,
            ran: Duration::ZERO,
            seen: Seen::default(),
            _server: server,
        };
        for number in 0..LOCKS {
            let mut lock = ContendedLock {
                key: format!("lock-{number}"),
                sides: [trial._server.client(), trial._server.client()],
                holder: 1,
                token: 0,
                lease: Due::after(Duration::ZERO, now, now),
                asks: Asks::Again(now),
                replies_read_until: now,
                overdue_since: None,
            };
            trial.ask_again(&mut lock);
            trial.locks.push(lock);
        }
        trial
    }

    fn some_lease(&mut self) -> Duration {
        Duration::from_millis(self.random.within(50..501).unsigned_abs())
    }

    /// Steps the clock `times` times, each time by half a second to a day.
    fn step(&mut self, times: usize) {
        for _ in 0..times {
            let longest = self.random.one_of(&[1_000, 10_000, 600_000, 10_000_000, 86_400_001]);
            let step = Duration::from_millis(self.random.within(500..longest).unsigned_abs());
            if self.random.once_in(2) {
                self.clock.forward(step)
            } else {
                self.clock.back(step)
            }
            self.seen.steps += 1;
            self.go_on();
        }
    }

    /// Steps the clock forward, and after a short random time back again, `times` times. The time between a step back
    /// and the next step is longer than a lease, so the lease ends without another step.
    fn swing(&mut self, times: usize) {
        let step = Duration::from_secs(60);
        for _ in 0..times {
            self.clock.forward(step);
            self.go_on();
            self.clock.back(step);
            (0..6).for_each(|_| self.go_on());
            self.seen.steps += 2;
        }
    }

    /// Checks the locks for a short random time.
    fn go_on(&mut self) {
        let next = Instant::now() + Duration::from_millis(self.random.within(20..220).unsigned_abs());
        eventually("the time for the next step", || {
            self.look();
            Instant::now() >= next
        });
    }

    /// Steps the clock forward and back at every check.
    fn shake(&mut self, times: usize) {
        let step = Duration::from_secs(3_600);
        let mut left = times;
        eventually("the last of many steps", || {
            self.clock.forward(step);
            self.look();
            self.clock.back(step);
            self.look();
            self.seen.steps += 2;
            left -= 1;
            left == 0
        });
    }

    fn look(&mut self) {
        let asked = Instant::now();
        assert_eq!(self.pulse.call("PING"), Reply::Simple("PONG".into()));
        let now = Instant::now();
        let gap = now - self.looked_at;
        self.seen.stood_still = self.seen.stood_still.max(gap);
        self.ran += gap.min(SEEN_TO_RUN);
        self.looked_at = now;
        let mut locks = std::mem::take(&mut self.locks);
        for lock in &mut locks {
            self.look_at(lock);
            lock.replies_read_until = asked;
        }
        self.locks = locks;
    }

    fn look_at(&mut self, lock: &mut ContendedLock) {
        let before = Instant::now();
        match lock.asks {
            Asks::Again(next) if next <= before => self.ask_again(lock),
            Asks::Again(_) if self.used == Used::Lock && self.random.once_in(200) => self.renew(lock),
            Asks::Again(_) => {}
            Asks::Waits { limit, lease } => {
                if lock.sides[1 - lock.holder].has_unread() {
                    self.read_reply(lock, limit, lease);
                } else {
                    let due = limit.map_or(lock.lease.latest, |limit| limit.latest.min(lock.lease.latest));
                    if due <= before {
                        lock.overdue_since.get_or_insert(self.ran);
                    }
                    if self.random.once_in(200) {
                        self.renew(lock);
                    } else if self.random.once_in(50) {
                        self.compare(lock, limit);
                    }
                }
            }
        }
    }

    /// Tries to acquire the lock without waiting.
    fn ask_again(&mut self, lock: &mut ContendedLock) {
        let asker = 1 - lock.holder;
        let lease = self.some_lease();
        let (key, owner, ms) = (&lock.key, ["A", "B"][asker], lease.as_millis());
        let command = match self.used {
            Used::Lock => format!("LOCK.ACQUIRE {key} {owner} PX {ms}"),
            Used::KeyWithTtl => format!("SET {key} {owner} NX PX {ms}"),
        };
        let asked = Instant::now();
        let reply = lock.sides[asker].call(command);
        let answered = Instant::now();
        if reply.is_null() {
            if asked >= lock.lease.latest + TOLERANCE {
                lock.overdue_since.get_or_insert(self.ran);
            }
            let soon = Duration::from_millis(self.random.within(0..100).unsigned_abs());
            lock.asks = Asks::Again(answered + soon);
            return;
        }
        self.seen.found += 1;
        if self.used == Used::Lock {
            self.note_token(lock, &reply);
        }
        self.granted(lock, Due::after(lease, asked, answered), answered);
    }

    fn note_token(&mut self, lock: &mut ContendedLock, reply: &Reply) {
        let grant = reply.grant();
        assert_eq!(grant.holds, 1, "{}", lock.key);
        assert!(grant.token > lock.token, "{}: {} after {}", lock.key, grant.token, lock.token);
        lock.token = grant.token;
    }

    /// Records that the other client holds the lock now, and chooses what the former holder does next.
    fn granted(&mut self, lock: &mut ContendedLock, lease: Due, now: Instant) {
        if now + TOLERANCE < lock.lease.earliest {
            let by = lock.lease.earliest - now;
            self.seen.early.push(format!("{}: granted {by:?} before the lease was over", lock.key));
        }
        self.note_lateness(lock, "granted");
        lock.holder = 1 - lock.holder;
        lock.lease = lease;
        self.choose(lock);
    }

    fn note_lateness(&mut self, lock: &mut ContendedLock, what: &str) {
        let Some(since) = lock.overdue_since.take() else { return };
        let late = self.ran - since;
        self.seen.latest = self.seen.latest.max(late);
        if late > self.lateness {
            self.seen.late.push(format!("{}: {what} {late:?} late", lock.key));
        }
    }

    /// Chooses what the client without the lock does next.
    fn choose(&mut self, lock: &mut ContendedLock) {
        if self.used == Used::KeyWithTtl || self.random.once_in(3) {
            let soon = Duration::from_millis(self.random.within(0..600).unsigned_abs());
            lock.asks = Asks::Again(Instant::now() + soon);
            return;
        }
        let asker = 1 - lock.holder;
        let lease = self.some_lease();
        let limit = self.random.within(1..700).unsigned_abs();
        let limit = if self.random.once_in(2) { limit } else { 0 };
        let asked = Instant::now();
        let ms = lease.as_millis();
        lock.sides[asker].ask(&format!("{} {} PX {ms} BLOCK {limit}", lock.key, ["A", "B"][asker]));
        // The server answers this call only after it has read the request above, so the wait has begun before the
        // reply.
        self.pulse.call("PING");
        let limit = (limit > 0).then(|| Due::after(Duration::from_millis(limit), asked, Instant::now()));
        lock.asks = Asks::Waits { limit, lease };
    }

    /// Handles the reply to a wait.
    fn read_reply(&mut self, lock: &mut ContendedLock, limit: Option<Due>, lease: Duration) {
        let reply = lock.sides[1 - lock.holder].reply();
        let now = Instant::now();
        if reply.is_null() {
            self.seen.limits += 1;
            let limit = limit.unwrap_or_else(|| panic!("{}: null without a limit", lock.key));
            if now + TOLERANCE < limit.earliest {
                let by = limit.earliest - now;
                self.seen.early.push(format!("{}: null {by:?} before the wait limit", lock.key));
            }
            self.note_lateness(lock, "end of the wait limit");
            self.choose(lock);
        } else {
            self.seen.served += 1;
            self.note_token(lock, &reply);
            self.granted(lock, Due::after(lease, lock.replies_read_until, now), now);
        }
    }

    fn renew(&mut self, lock: &mut ContendedLock) {
        let lease = self.some_lease();
        let owner = ["A", "B"][lock.holder];
        let asked = Instant::now();
        let reply =
            lock.sides[lock.holder].call(format!("LOCK.RENEW {} {owner} PX {}", lock.key, lease.as_millis()));
        let answered = Instant::now();
        if let Reply::Error(_) = &reply {
            assert_eq!(reply.error_word(), "NOTHELD");
            if answered + TOLERANCE < lock.lease.earliest {
                let by = lock.lease.earliest - answered;
                self.seen
                    .early
                    .push(format!("{}: not held any more {by:?} before the lease was over", lock.key));
            }
            return;
        }
        assert_eq!(reply, Reply::Int(lock.token));
        self.seen.renewals += 1;
        if asked > lock.lease.latest + TOLERANCE {
            let by = asked - lock.lease.latest;
            self.seen.late.push(format!("{}: renewed {by:?} after the lease was over", lock.key));
        }
        lock.lease = Due::after(lease, asked, answered);
        lock.overdue_since = None;
    }

    /// Compares the times that LOCK.INFO reports for the lease and the wait limit with the expected times.
    fn compare(&mut self, lock: &ContendedLock, limit: Option<Due>) {
        let asked = Instant::now();
        let reply = self.pulse.call(format!("LOCK.INFO {} WAITERS 1", lock.key));
        let answered = Instant::now();
        if reply.is_null() {
            return;
        }
        let info = reply.info();
        let fits = |left: i64, due: Due| {
            let left = Duration::from_millis(left.unsigned_abs());
            // An overdue lease has no time left. `note_lateness` checks whether the lease ends too late.
            let not_more = left.is_zero() || asked + left <= due.latest + TOLERANCE;
            due.earliest <= answered + left + TOLERANCE && not_more
        };
        let holder = &info.holders[0];
        // If the token is different, the server has just granted the lock to the waiter, and the test has not read the
        // reply yet.
        if holder.token == lock.token {
            assert!(fits(holder.lease_left, lock.lease), "{info:?} {:?} {asked:?} {answered:?}", lock.lease);
            if let (Some([waiter]), Some(limit)) = (info.queue.as_deref(), limit) {
                assert!(fits(waiter.wait_left, limit), "{info:?} {limit:?} {asked:?} {answered:?}");
            }
        }
    }

    /// Counts each reply as late that is overdue for longer than the limit, and returns the results.
    fn end(mut self) -> Seen {
        self.look();
        let mut locks = std::mem::take(&mut self.locks);
        for lock in &mut locks {
            self.note_lateness(lock, "not served yet, already");
        }
        self.seen
    }
}

impl Seen {
    fn report(&self) -> String {
        let Self { steps, served, found, limits, renewals, early, late, latest, stood_still } = self;
        let mut report = format!(
            "{steps} steps: {served} waiters granted, {found} locks found free, {limits} wait limits, {renewals} \
             renewals; {} early, {} late; the latest by {latest:?}; the longest look {stood_still:?}",
            early.len(),
            late.len()
        );
        for line in early.iter().chain(late).take(10) {
            let _ = write!(report, "\n  {line}");
        }
        report
    }
}

fn steps_on_locks(setup: Setup, lateness: Duration, steps: usize) {
    let mut trial = Trial::start(Used::Lock, lateness, setup);
    trial.step(steps);
    trial.shake(50);
    let seen = trial.end();
    println!("{}", seen.report());
    assert!(seen.early.is_empty() && seen.late.is_empty(), "{}", seen.report());
    assert!(seen.served > steps && seen.found > steps / 2 && seen.limits > steps / 4, "{}", seen.report());
}

#[test]
fn steps_of_the_wall_clock_end_no_lease_early_and_delay_nothing() {
    steps_on_locks(Setup::new(), LATENESS, rounds(60, 600));
}

#[test]
fn a_step_is_noticed_within_about_a_second_if_the_server_cron_runs_once_a_second() {
    let lateness = Duration::from_millis(1_200);
    steps_on_locks(Setup::new().config("hz 1").config("dynamic-hz no"), lateness, rounds(30, 300));
}

#[test]
fn a_step_is_noticed_if_the_server_cron_runs_500_times_a_second() {
    steps_on_locks(Setup::new().config("hz 500"), LATENESS, rounds(20, 200));
}

/// The control experiment: if the lease is the TTL of a key, the test finds leases that end early and late.
#[test]
fn without_the_module_steps_of_the_wall_clock_end_a_ttl_early_and_late() {
    let mut trial = Trial::start(Used::KeyWithTtl, LATENESS, Setup::new());
    trial.swing(5);
    let seen = trial.end();
    println!("{}", seen.report());
    assert!(!seen.early.is_empty(), "{}", seen.report());
    assert!(!seen.late.is_empty(), "{}", seen.report());
}
