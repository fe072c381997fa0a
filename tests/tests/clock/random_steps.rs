//! The wall clock is stepped again and again while locks are held and waited for; what comes of it is judged by the
//! clients' monotonic clock. The same trial finds what is wrong with keys that have a TTL.

use lockward_tests::{Client, Random, Reply, Server, Setup, WallClock, eventually, rounds};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Two processes read their clocks, and a TTL counts whole milliseconds.
const TOLERANCE: Duration = Duration::from_millis(2);

/// So late may somebody be told what was due, as long as the server is seen to run: where its cron runs ten times a second
/// or more often.
const LATENESS: Duration = Duration::from_millis(200);

/// Between two looks at the server it is taken to have run for no longer than this: on a busy machine it, or the test,
/// may have stood still.
const SEEN_TO_RUN: Duration = Duration::from_millis(20);

const LANES: usize = 24;

/// What is used as a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    /// A lock of Lockward.
    Lock,
    /// `SET key owner NX PX lease`: a key whose TTL is the lease.
    KeyWithTtl,
}

/// When something is due: what set it off was done between two instants.
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

/// What the side that does not hold the lock does.
#[derive(Clone, Copy, Debug)]
enum Asks {
    /// It waits, until its limit if it has one. With the lease that it asked for.
    Waits { limit: Option<Due>, lease: Duration },
    /// It asks from time to time, next at this instant.
    Again(Instant),
}

/// A lock that two clients have in turn.
#[derive(Debug)]
struct Lane {
    key: String,
    sides: [Client; 2],
    holder: usize,
    token: i64,
    lease: Due,
    asks: Asks,
    /// What it was granted by then has been told: when the call was sent that was answered before the last look.
    told_until: Instant,
    /// How long the server had been seen to run when something was first seen to be due and not done.
    overdue_since: Option<Duration>,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    steps: usize,
    /// Acquisitions granted, to whoever waited or asked again.
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
    lanes: Vec<Lane>,
    looked_at: Instant,
    /// How long the server has been seen to run.
    ran: Duration,
    seen: Seen,
    // Last, so that its clients have left before it ends.
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
            lanes: Vec::new(),
            looked_at: now,
            ran: Duration::ZERO,
            seen: Seen::default(),
            _server: server,
        };
        for number in 0..LANES {
            let mut lane = Lane {
                key: format!("lock-{number}"),
                sides: [trial._server.client(), trial._server.client()],
                holder: 1,
                token: 0,
                lease: Due::after(Duration::ZERO, now, now),
                asks: Asks::Again(now),
                told_until: now,
                overdue_since: None,
            };
            trial.ask_again(&mut lane);
            trial.lanes.push(lane);
        }
        trial
    }

    fn some_lease(&mut self) -> Duration {
        Duration::from_millis(self.random.within(50..501).unsigned_abs())
    }

    /// Steps the clock so often, each time by half a second to a day.
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

    /// Steps the clock forth and, soon after, back so often, and leaves it there for longer than a lease.
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

    /// Looks at the locks until it is time for the next step.
    fn go_on(&mut self) {
        let next = Instant::now() + Duration::from_millis(self.random.within(20..220).unsigned_abs());
        eventually("the time for the next step", || {
            self.look();
            Instant::now() >= next
        });
    }

    /// Steps the clock forth and back at every look.
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
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            self.look_at(lane);
            lane.told_until = asked;
        }
        self.lanes = lanes;
    }

    fn look_at(&mut self, lane: &mut Lane) {
        let before = Instant::now();
        match lane.asks {
            Asks::Again(next) if next <= before => self.ask_again(lane),
            Asks::Again(_) if self.used == Used::Lock && self.random.once_in(200) => self.renew(lane),
            Asks::Again(_) => {}
            Asks::Waits { limit, lease } => {
                if lane.sides[1 - lane.holder].has_unread() {
                    self.hear(lane, limit, lease);
                } else {
                    let due = limit.map_or(lane.lease.latest, |limit| limit.latest.min(lane.lease.latest));
                    if due <= before {
                        lane.overdue_since.get_or_insert(self.ran);
                    }
                    if self.random.once_in(200) {
                        self.renew(lane);
                    } else if self.random.once_in(50) {
                        self.compare(lane, limit);
                    }
                }
            }
        }
    }

    /// Asks for the lock without waiting for it.
    fn ask_again(&mut self, lane: &mut Lane) {
        let asker = 1 - lane.holder;
        let lease = self.some_lease();
        let (key, owner, ms) = (&lane.key, ["A", "B"][asker], lease.as_millis());
        let command = match self.used {
            Used::Lock => format!("LOCK.ACQUIRE {key} {owner} PX {ms}"),
            Used::KeyWithTtl => format!("SET {key} {owner} NX PX {ms}"),
        };
        let asked = Instant::now();
        let reply = lane.sides[asker].call(command);
        let answered = Instant::now();
        if reply.is_null() {
            if asked >= lane.lease.latest + TOLERANCE {
                lane.overdue_since.get_or_insert(self.ran);
            }
            let soon = Duration::from_millis(self.random.within(0..100).unsigned_abs());
            lane.asks = Asks::Again(answered + soon);
            return;
        }
        self.seen.found += 1;
        if self.used == Used::Lock {
            self.note_token(lane, &reply);
        }
        self.granted(lane, Due::after(lease, asked, answered), answered);
    }

    fn note_token(&mut self, lane: &mut Lane, reply: &Reply) {
        let grant = reply.grant();
        assert_eq!(grant.holds, 1, "{}", lane.key);
        assert!(grant.token > lane.token, "{}: {} after {}", lane.key, grant.token, lane.token);
        lane.token = grant.token;
    }

    /// The other side has the lock now, and this one may wait for it.
    fn granted(&mut self, lane: &mut Lane, lease: Due, told: Instant) {
        if told + TOLERANCE < lane.lease.earliest {
            let by = lane.lease.earliest - told;
            self.seen.early.push(format!("{}: granted {by:?} before the lease was over", lane.key));
        }
        self.note_lateness(lane, "granted");
        lane.holder = 1 - lane.holder;
        lane.lease = lease;
        self.choose(lane);
    }

    fn note_lateness(&mut self, lane: &mut Lane, what: &str) {
        let Some(since) = lane.overdue_since.take() else { return };
        let late = self.ran - since;
        self.seen.latest = self.seen.latest.max(late);
        if late > self.lateness {
            self.seen.late.push(format!("{}: {what} {late:?} late", lane.key));
        }
    }

    /// What the side that has not got the lock does next.
    fn choose(&mut self, lane: &mut Lane) {
        if self.used == Used::KeyWithTtl || self.random.once_in(3) {
            let soon = Duration::from_millis(self.random.within(0..600).unsigned_abs());
            lane.asks = Asks::Again(Instant::now() + soon);
            return;
        }
        let asker = 1 - lane.holder;
        let lease = self.some_lease();
        let limit = self.random.within(1..700).unsigned_abs();
        let limit = if self.random.once_in(2) { limit } else { 0 };
        let asked = Instant::now();
        let ms = lease.as_millis();
        lane.sides[asker].ask(&format!("{} {} PX {ms} BLOCK {limit}", lane.key, ["A", "B"][asker]));
        // It has been read when a later call has been answered.
        self.pulse.call("PING");
        let limit = (limit > 0).then(|| Due::after(Duration::from_millis(limit), asked, Instant::now()));
        lane.asks = Asks::Waits { limit, lease };
    }

    /// A wait was answered.
    fn hear(&mut self, lane: &mut Lane, limit: Option<Due>, lease: Duration) {
        let reply = lane.sides[1 - lane.holder].reply();
        let told = Instant::now();
        if reply.is_null() {
            self.seen.limits += 1;
            let limit = limit.unwrap_or_else(|| panic!("{}: null without a limit", lane.key));
            if told + TOLERANCE < limit.earliest {
                let by = limit.earliest - told;
                self.seen.early.push(format!("{}: null {by:?} before the wait limit", lane.key));
            }
            self.note_lateness(lane, "told of the wait limit");
            self.choose(lane);
        } else {
            self.seen.served += 1;
            self.note_token(lane, &reply);
            self.granted(lane, Due::after(lease, lane.told_until, told), told);
        }
    }

    fn renew(&mut self, lane: &mut Lane) {
        let lease = self.some_lease();
        let owner = ["A", "B"][lane.holder];
        let asked = Instant::now();
        let reply =
            lane.sides[lane.holder].call(format!("LOCK.RENEW {} {owner} PX {}", lane.key, lease.as_millis()));
        let answered = Instant::now();
        if let Reply::Error(_) = &reply {
            assert_eq!(reply.error_word(), "NOTHELD");
            if answered + TOLERANCE < lane.lease.earliest {
                let by = lane.lease.earliest - answered;
                self.seen
                    .early
                    .push(format!("{}: not held any more {by:?} before the lease was over", lane.key));
            }
            return;
        }
        assert_eq!(reply, Reply::Int(lane.token));
        self.seen.renewals += 1;
        if asked > lane.lease.latest + TOLERANCE {
            let by = asked - lane.lease.latest;
            self.seen.late.push(format!("{}: renewed {by:?} after the lease was over", lane.key));
        }
        lane.lease = Due::after(lease, asked, answered);
        lane.overdue_since = None;
    }

    /// Holds what LOCK.INFO tells against what is known.
    fn compare(&mut self, lane: &Lane, limit: Option<Due>) {
        let asked = Instant::now();
        let reply = self.pulse.call(format!("LOCK.INFO {} WAITERS 1", lane.key));
        let answered = Instant::now();
        if reply.is_null() {
            return;
        }
        let info = reply.info();
        let fits = |left: i64, due: Due| {
            let left = Duration::from_millis(left.unsigned_abs());
            // What is overdue has nothing left: how late it is, is judged where it is told.
            let not_more = left.is_zero() || asked + left <= due.latest + TOLERANCE;
            due.earliest <= answered + left + TOLERANCE && not_more
        };
        let holder = &info.holders[0];
        // Or the other side has it, and will hear of that.
        if holder.token == lane.token {
            assert!(fits(holder.lease_left, lane.lease), "{info:?} {:?} {asked:?} {answered:?}", lane.lease);
            if let (Some([waiter]), Some(limit)) = (info.queue.as_deref(), limit) {
                assert!(fits(waiter.wait_left, limit), "{info:?} {limit:?} {asked:?} {answered:?}");
            }
        }
    }

    /// What was seen, once what is still overdue has been judged.
    fn end(mut self) -> Seen {
        self.look();
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            self.note_lateness(lane, "not served, and");
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
fn a_step_is_noticed_within_a_second_where_the_server_cron_runs_once_a_second() {
    let lateness = Duration::from_millis(1_200);
    steps_on_locks(Setup::new().config("hz 1").config("dynamic-hz no"), lateness, rounds(30, 300));
}

#[test]
fn a_step_is_noticed_where_the_server_cron_runs_all_the_time() {
    steps_on_locks(Setup::new().config("hz 500"), LATENESS, rounds(20, 200));
}

/// The control: what this trial is there to find, it finds where the lease is the TTL of a key.
#[test]
fn without_the_module_steps_of_the_wall_clock_end_a_ttl_early_and_late() {
    let mut trial = Trial::start(Used::KeyWithTtl, LATENESS, Setup::new());
    trial.swing(5);
    let seen = trial.end();
    println!("{}", seen.report());
    assert!(!seen.early.is_empty(), "{}", seen.report());
    assert!(!seen.late.is_empty(), "{}", seen.report());
}
