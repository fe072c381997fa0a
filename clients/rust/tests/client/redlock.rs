//! One lock on five independent servers.

use crate::{LONG, soon};
use lockward_checker::violation::Violation;
use lockward_checker::bounds::Bounds;
use lockward_checker::checker::tenures_never_overlap;
use lockward_checker::history::{HoldsReleased, Call, Fault, History, Operation, Line, Outcome, Wait};
use lockward_checker::recorder::now;
use lockward_client::redlock::{Guard, Redlock};
use lockward_client::{Address, Error, Loss, Settings};
use lockward_tests::{Fate, Proxy, Random, Server, Setup, eventually, free_port, rounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Within a test's time, and enough for a few rounds.
const SHORTLY: Duration = Duration::from_secs(2);

/// A server that is in quarantine for longer than a test lasts, whenever it has started.
const FORGETFUL: &str = "quarantine 600000";

/// Five servers that vote.
struct Five {
    servers: Vec<Server>,
}

impl Five {
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(arguments: &str) -> Self {
        Self { servers: (0..5).map(|_| Setup::new().module(arguments).start()).collect() }
    }

    fn client(&self) -> Redlock {
        client(self.servers.iter().map(Server::port))
    }

    fn end_quarantine(&self) {
        for server in &self.servers {
            server.client().call("CONFIG SET lock.quarantine 0");
        }
    }

    /// A client that reaches only some of them.
    fn client_of(&self, reached: &[usize]) -> Redlock {
        let port = |at| if reached.contains(&at) { self.servers[at].port() } else { free_port() };
        client((0..5).map(port))
    }

    /// Holds `key` on some of them for another.
    fn occupy(&self, key: &str, some: &[usize]) {
        for at in some {
            self.servers[*at].client().call(format!("LOCK.ACQUIRE {key} other PX 600000")).grant();
        }
    }

    fn vacate(&self, key: &str, some: &[usize]) {
        for at in some {
            assert_eq!(self.servers[*at].client().call(format!("LOCK.RELEASE {key} other")).int(), 0);
        }
    }

    /// How many hold `key` for an owner that is not `other`.
    fn votes(&self, key: &str) -> usize {
        let holders = self.servers.iter().filter_map(|server| server.client().info(key));
        holders.filter(|info| info.holders.iter().any(|holder| holder.owner != "other")).count()
    }

    fn see_nothing_left(&self) {
        for server in self.servers.iter().filter(|server| server.is_running()) {
            let mut observer = server.client();
            eventually("nothing is left", || observer.call("DBSIZE").int() == 0);
        }
    }
}

fn client(ports: impl Iterator<Item = u16>) -> Redlock {
    patient(ports, Duration::from_millis(700))
}

/// A client that waits so long for a server.
fn patient(ports: impl Iterator<Item = u16>, limit: Duration) -> Redlock {
    let addresses = ports.map(|port| format!("redis://127.0.0.1:{port}").parse::<Address>());
    let addresses: Vec<_> = addresses.collect::<Result<_, _>>().expect("addresses");
    let settings = Settings::default().response_limit(limit).patience(SHORTLY);
    Redlock::new(addresses, settings).expect("a client")
}

/// How often a server was asked for something.
fn calls(server: &Server, command: &str) -> u32 {
    let stats = server.client().call("INFO commandstats").text();
    let begin = format!("cmdstat_{command}:");
    let line = stats.lines().find(|line| line.starts_with(&begin)).unwrap_or_default();
    line.split(['=', ',']).nth(1).and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

/// It is renewed on those servers, is busy for others, and leaves nothing behind.
async fn see_it_work(five: &Five, guard: Guard, on: &[usize]) {
    for at in on {
        let before = calls(&five.servers[*at], "lock.renew");
        eventually("it is renewed", || calls(&five.servers[*at], "lock.renew") >= before + 3);
    }
    assert!(guard.is_held() && guard.votes() >= 3);
    assert!(matches!(five.client().lock("k").try_acquire().await, Err(Error::Busy)));
    let lost = guard.lost();
    guard.release().await.expect("a release");
    assert_eq!(soon(lost).await, Loss::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_held_on_all_servers_until_it_is_released() {
    let five = Five::start();
    let urls: Vec<_> =
        five.servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
    let redlock = Redlock::connect(&urls).await.expect("a client");
    let guard = redlock.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5 && five.votes("k") == 5);
    assert!(guard.lease_left() > Duration::ZERO && guard.lease_left() < Duration::from_secs(2));
    assert_eq!((guard.key(), guard.holds()), (&b"k"[..], 1));
    see_it_work(&five, guard, &[0, 1, 2, 3, 4]).await;
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_works_with_two_of_five_killed() {
    let mut five = Five::start();
    five.servers[1].kill();
    five.servers[4].kill();
    let guard = five.client().lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    assert_eq!(guard.votes(), 3);
    see_it_work(&five, guard, &[0, 2, 3]).await;
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_works_with_two_of_five_stopped() {
    let five = Five::start();
    let redlock = five.client();
    // With connections that are there, and requests that reach the sockets of servers which do not read them.
    redlock.lock("k").try_acquire().await.expect("a guard").release().await.expect("a release");
    five.see_nothing_left();
    five.servers[0].freeze();
    five.servers[3].freeze();
    let guard = redlock.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    assert_eq!(guard.votes(), 3);
    see_it_work(&five, guard, &[1, 2, 4]).await;
    five.servers[0].thaw();
    five.servers[3].thaw();
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_fails_with_three_of_five_killed() {
    let mut five = Five::start();
    for at in [0, 2, 3] {
        five.servers[at].kill();
    }
    let redlock = five.client();
    let told = soon(redlock.lock("k").try_acquire()).await;
    assert!(matches!(told, Err(Error::NoMajority(_))), "{told:?}");
    let told = soon(redlock.lock("k").wait(Duration::from_millis(500)).acquire()).await;
    assert!(matches!(told, Err(Error::NoMajority(_))), "{told:?}");
    // Without a limit, patience is one.
    let told = soon(redlock.lock("k").acquire()).await;
    assert!(matches!(told, Err(Error::NoMajority(_))), "{told:?}");
    let urls: Vec<_> =
        five.servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
    let told = soon(Redlock::connect(&urls)).await;
    assert!(matches!(told, Err(Error::NoMajority(_))), "{told:?}");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_fails_with_three_of_five_stopped_and_leaves_nothing() {
    let five = Five::start();
    let redlock = five.client();
    redlock.lock("k").try_acquire().await.expect("a guard").release().await.expect("a release");
    for at in [0, 2, 3] {
        five.servers[at].freeze();
    }
    let lock = redlock.lock("k").lease(LONG);
    let told = soon(lock.clone().try_acquire()).await;
    assert!(matches!(told, Err(Error::NoMajority(_))), "{told:?}");
    let told = soon(lock.wait(Duration::from_millis(500)).acquire()).await;
    assert!(matches!(told, Err(Error::NoMajority(_))), "{told:?}");
    for at in [0, 2, 3] {
        five.servers[at].thaw();
    }
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_leaves_nothing() {
    let five = Five::start();
    let redlock = five.client();
    redlock.lock("k").try_acquire().await.expect("a guard").release().await.expect("a release");
    for at in [0, 2, 3] {
        five.servers[at].freeze();
    }
    let acquiring = tokio::spawn(redlock.lock("k").lease(LONG).acquire());
    eventually("the others have granted it", || {
        [1, 4].iter().all(|at| five.servers[*at].client().info("k").is_some())
    });
    acquiring.abort();
    for at in [0, 2, 3] {
        five.servers[at].thaw();
    }
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_without_a_majority_is_busy_and_leaves_nothing() {
    let five = Five::start();
    let redlock = five.client();
    five.occupy("k", &[0, 1, 2]);
    assert!(matches!(redlock.lock("k").lease(LONG).try_acquire().await, Err(Error::Busy)));
    eventually("what was granted is given back", || five.votes("k") == 0);
    let limit = Duration::from_millis(300);
    assert!(matches!(redlock.lock("k").lease(LONG).wait(limit).acquire().await, Err(Error::Busy)));
    eventually("what was granted is given back", || five.votes("k") == 0);
    let acquiring = tokio::spawn(redlock.lock("k").acquire());
    five.vacate("k", &[1]);
    let guard = soon(acquiring).await.expect("no panic").expect("a guard");
    eventually("the third has joined", || guard.votes() == 3);
    guard.release().await.expect("a release");
    five.vacate("k", &[0, 2]);
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_votes_are_kept_from_others_for_a_server_that_was_silent() {
    let five = Five::start();
    let redlock = patient(five.servers.iter().map(Server::port), Duration::from_secs(5));
    five.occupy("k", &[0, 1]);
    five.servers[4].freeze();
    // This waits for it, as long as a server may take.
    assert!(matches!(soon(redlock.lock("k").try_acquire()).await, Err(Error::Busy)));
    let acquiring = tokio::spawn(redlock.lock("k").acquire());
    let before = calls(&five.servers[2], "lock.acquire");
    eventually("try after try", || calls(&five.servers[2], "lock.acquire") >= before + 12);
    five.vacate("k", &[0, 1]);
    let guard = soon(acquiring).await.expect("no panic").expect("a guard");
    five.servers[4].thaw();
    eventually("all hold it", || guard.votes() == 5);
    guard.release().await.expect("a release");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_that_is_not_renewed_or_no_longer_is_lost() {
    let five = Five::start();
    let lock = five.client().lock("k").lease(Duration::from_secs(2));
    let guard = lock.clone().without_renewal().acquire().await.expect("a guard");
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    let limited = lock.hold_limit(Duration::from_secs(3));
    let guard = limited.acquire().await.expect("a guard");
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    assert!(five.servers.iter().any(|server| calls(server, "lock.renew") > 0), "it was renewed at first");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_entered_again_and_given_back_with_the_last_guard() {
    let five = Five::start();
    let first = five.client().lock("k").acquire().await.expect("a guard");
    let second = first.re_enter().expect("a second guard");
    assert_eq!((first.holds(), second.holds()), (2, 2));
    first.release().await.expect("a release");
    eventually("all hold it", || five.votes("k") == 5);
    assert!(five.servers.iter().all(|server| server.client().holder("k").holds == 1));
    assert!(second.is_held());
    second.renew().await.expect("a renewal");
    // Also where there is no runtime.
    std::thread::spawn(move || drop(second)).join().expect("no panic");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_its_tenure_is_asked_again() {
    let mut five = Five::start();
    let guard = five.client().lock("k").lease(Duration::from_secs(3)).acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5);
    five.servers[2].kill();
    eventually("it is missed", || guard.votes() == 4);
    five.servers[2].start_again();
    eventually("it has joined again", || guard.votes() == 5 && five.votes("k") == 5);
    five.servers[1].client().call("DEL k");
    eventually("it is missed", || guard.votes() == 4);
    eventually("it has joined again", || guard.votes() == 5 && five.votes("k") == 5);
    see_it_work(&five, guard, &[0, 1, 2, 3, 4]).await;
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_outlives_the_restart_of_every_server_one_after_the_other() {
    let mut five = Five::start_with(FORGETFUL);
    five.end_quarantine();
    let guard = five.client().lock("k").lease(Duration::from_secs(15)).acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5 && five.votes("k") == 5);
    for at in 0..5 {
        let before = five.servers[at].client().holder("k");
        five.servers[at].kill_and_start_again();
        // In quarantine nothing is granted: the tenure is taken back.
        eventually("it is held there", || five.servers[at].client().info("k").is_some());
        assert_eq!(five.servers[at].client().holder("k").tenure(), before.tenure());
    }
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    five.see_nothing_left();
}

/// Alice has a majority of five, one of these restarts without its data, and Bob reaches that one and the other
/// two: whether each of them holds the lock.
async fn with_a_forgetful_server(arguments: &str) -> [bool; 2] {
    let mut five = Five::start_with(arguments);
    five.end_quarantine();
    // Alice does not renew, so that she does not hear of it.
    let lock = five.client_of(&[0, 1, 2]).lock("k").lease(LONG).without_renewal();
    let alice = lock.try_acquire().await.expect("a guard");
    five.servers[2].kill_and_start_again();
    let bob = five.client_of(&[2, 3, 4]).lock("k").lease(LONG).try_acquire().await;
    assert!(matches!(bob, Ok(_) | Err(Error::Busy)), "{bob:?}");
    let held = [alice.is_held(), bob.as_ref().is_ok_and(Guard::is_held)];
    drop((alice, bob));
    five.see_nothing_left();
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_helps_nobody_to_a_second_majority_in_quarantine() {
    assert_eq!(with_a_forgetful_server(FORGETFUL).await, [true, false]);
    // This is what the quarantine is for.
    assert_eq!(with_a_forgetful_server("").await, [true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_lost_with_its_majority_and_stays_lost() {
    let mut five = Five::start();
    let redlock = five.client();
    let guard = redlock.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5 && five.votes("k") == 5);
    for at in [0, 2, 3] {
        five.servers[at].kill();
    }
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    for at in [0, 2, 3] {
        five.servers[at].start_again();
    }
    // Nobody has released it, and still it is nobody's.
    five.see_nothing_left();
    assert!(!guard.is_held() && guard.votes() == 0 && guard.lease_left() == Duration::ZERO);
    assert!(matches!(guard.renew().await, Err(Error::Lost(Loss::LeaseOver))));
    assert!(matches!(guard.re_enter(), Err(Error::Lost(Loss::LeaseOver))));
    let next = redlock.lock("k").try_acquire().await.expect("a guard");
    assert!(matches!(guard.release().await, Err(Error::Lost(Loss::LeaseOver))));
    assert!(next.is_held());
    next.release().await.expect("a release");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_that_is_broken_on_a_majority_is_lost() {
    let five = Five::start();
    let redlock = five.client();
    let lock = redlock.lock("k").lease(LONG);
    let guard = lock.clone().acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5 && five.votes("k") == 5);
    for at in [1, 2] {
        five.servers[at].client().call("DEL k");
    }
    guard.renew().await.expect("a renewal");
    five.servers[3].client().call("DEL k");
    let told = guard.renew().await;
    assert!(matches!(&told, Err(Error::Lost(Loss::NotHeld(said))) if said == "the lock is free"), "{told:?}");
    assert!(!guard.is_held());
    five.see_nothing_left();
    let guard = lock.acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5 && five.votes("k") == 5);
    for at in [1, 2, 3] {
        five.servers[at].client().call("DEL k");
    }
    assert!(guard.is_held(), "it cannot know");
    assert!(matches!(guard.release().await, Err(Error::Lost(Loss::NotHeld(_)))));
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_without_a_majority_tells_so_and_is_made_up_for() {
    let five = Five::start();
    let guard = five.client().lock("k").lease(LONG).acquire().await.expect("a guard");
    eventually("all hold it", || guard.votes() == 5 && five.votes("k") == 5);
    for at in [0, 2, 3] {
        five.servers[at].freeze();
    }
    assert!(matches!(guard.renew().await, Err(Error::NoMajority(_))));
    assert!(guard.is_held(), "its leases are not over");
    assert!(matches!(guard.release().await, Err(Error::NoMajority(_))));
    for at in [0, 2, 3] {
        five.servers[at].thaw();
    }
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_one_vote_however_often_it_is_named() {
    let server = Server::start();
    let told = client([server.port(); 3].into_iter()).lock("k").try_acquire().await;
    assert!(matches!(told, Err(Error::Busy)), "{told:?}");
    let mut observer = server.client();
    eventually("nothing is left", || observer.call("DBSIZE").int() == 0);
    let told = Redlock::new([], Settings::default());
    assert!(matches!(told, Err(Error::Invalid(_))), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_count_against_a_majority_and_are_told() {
    let five = Five::start();
    let redlock = five.client();
    for at in [0, 1] {
        five.servers[at].client().call("SET k text");
    }
    let guard = redlock.lock("k").try_acquire().await.expect("a guard");
    guard.release().await.expect("a release");
    five.servers[2].client().call("SET k text");
    let told = redlock.lock("k").acquire().await.expect_err("an error");
    assert_eq!(told.code(), Some("WRONGTYPE"), "{told}");
    let told = redlock.lock("other").lease(Duration::ZERO).acquire().await.expect_err("an error");
    assert!(matches!(told, Error::Invalid(_)), "{told}");
    for at in [0, 1, 2] {
        five.servers[at].client().call("DEL k");
    }
    five.see_nothing_left();
}

/// What those who compete for the lock have seen.
#[derive(Default)]
struct Seen {
    lines: Mutex<Vec<Line>>,
    tenures: AtomicU64,
    /// Written by whoever holds the lock, and by nobody at a time with another.
    counter: AtomicU64,
    losses: AtomicU64,
    doubts: AtomicU64,
    is_enough: AtomicBool,
}

impl Seen {
    /// Notes what is certain of `owner` at this instant.
    fn note(&self, owner: &str, operation: Operation, outcome: Outcome) {
        let (start, key) = (now(), "k".to_owned());
        let owner = owner.to_owned();
        let call =
            Call { client: 0, node: 0, key, owner, kind, start, joined: None, end: Some(start), outcome };
        self.lines.lock().unwrap().push(Line::Call(call));
    }
}

fn nanos(span: Duration) -> u64 {
    span.as_nanos().try_into().unwrap()
}

/// Counts under the lock until it is enough.
async fn compete(redlock: Redlock, seen: Arc<Seen>, lease: Duration) {
    while !seen.is_enough.load(Ordering::Relaxed) {
        let guard = redlock.lock("k").lease(lease).acquire().await;
        let Ok(guard) = guard else { continue };
        // A Redlock has no token.
        let token = seen.tenures.fetch_add(1, Ordering::Relaxed);
        let owner = token.to_string();
        // It says that it holds the lock from now on for so long.
        let kind = Operation::Acquire { lease: nanos(guard.lease_left()), wait: Wait::No, holds: None };
        seen.note(&owner, kind, Outcome::Granted { token, holds: 1 });
        let count = seen.counter.load(Ordering::Relaxed);
        for _ in 0..token % 50 {
            tokio::task::yield_now().await;
        }
        seen.counter.store(count + 1, Ordering::Relaxed);
        // It has held it up to now, and says that it still does.
        if guard.is_held() {
            let kind = Operation::Renew { lease: nanos(guard.lease_left()), token: Some(token), holds: None };
            seen.note(&owner, kind, Outcome::Renewed { token });
        }
        seen.note(&owner, Operation::Release { released: HoldsReleased::All, token: None }, Outcome::Unknown);
        match guard.release().await {
            Ok(()) => {}
            // Servers died or slept just then, and it may have been held.
            Err(Error::NoMajority(_)) => drop(seen.doubts.fetch_add(1, Ordering::Relaxed)),
            Err(_) => drop(seen.losses.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// As long as the quarantine of the servers that forget.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_compete_one_holds_it_at_a_time_whatever_happens_to_servers() {
    let mut five = Five::start_with("quarantine 3000");
    let seen = Arc::<Seen>::default();
    // Each reaches other servers than the next.
    let reached: [&[usize]; 4] = [&[0, 1, 2, 3, 4], &[1, 2, 3, 4], &[0, 2, 3, 4], &[0, 1, 2, 3]];
    let competitors: Vec<_> = reached.map(|reached| five.client_of(reached)).into();
    let competitors = competitors.iter().flat_map(|redlock| [0; 3].map(|_| redlock.clone()));
    let tasks: Vec<_> =
        competitors.map(|redlock| tokio::spawn(compete(redlock, Arc::clone(&seen), LEASE))).collect();
    let more = |count| {
        let enough = seen.tenures.load(Ordering::Relaxed) + count;
        eventually("they go on", || seen.tenures.load(Ordering::Relaxed) >= enough);
    };
    more(20);
    for round in 0..rounds(3, 60) {
        let start = now();
        let (dies, sleeps) = (round % 5, (round + 2) % 5);
        five.servers[dies].kill_and_start_again();
        five.servers[sleeps].freeze();
        more(10);
        five.servers[sleeps].thaw();
        seen.lines.lock().unwrap().push(Line::Fault(Fault {
            name: "both".to_owned(),
            client: None,
            start,
            end: now(),
        }));
        let mut observer = five.servers[dies].client();
        eventually("the end of its quarantine", || {
            !observer.call("LOCK.ACQUIRE probe me PX 1 HOLDS 1").is_null()
        });
        more(10);
    }
    seen.is_enough.store(true, Ordering::Relaxed);
    for task in tasks {
        soon(task).await.expect("no panic");
    }
    five.see_nothing_left();
    judge(&seen);
}

/// No two held it at a time, by what each of them believed, and each has counted once.
fn judge(seen: &Seen) {
    let history = History { lines: std::mem::take(&mut seen.lines.lock().unwrap()) };
    let violations = tenures_never_overlap(&history, &Bounds::default());
    let reports: Vec<_> = violations.iter().map(|violation: &Violation| violation.report(&history)).collect();
    assert!(reports.is_empty(), "{}", reports.join("\n"));
    let [tenures, losses, doubts, count] = [&seen.tenures, &seen.losses, &seen.doubts, &seen.counter]
        .map(|number| number.load(Ordering::Relaxed));
    println!("{tenures} tenures, {losses} lost, {doubts} perhaps, {count} counted");
    assert!(count <= tenures && count + losses + doubts >= tenures);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_lost_leave_nothing_held() {
    let five = Five::start();
    let seen = Arc::<Seen>::default();
    let mut random = Random::new();
    let proxies: Vec<_> = five
        .servers
        .iter()
        .map(|server| {
            let mut random = Random::from_seed(random.number());
            Proxy::start(server.port(), move |request| {
                let is_ours = request.first().is_some_and(|name| name.text().starts_with("LOCK."));
                match random.within(0..20) {
                    0 if is_ours => Fate::ReplyLost,
                    1 if is_ours => Fate::RequestLost,
                    2 if is_ours => Fate::ClientLost,
                    _ => Fate::Carried,
                }
            })
        })
        .collect();
    let competitors: Vec<_> = (0..2).map(|_| client(proxies.iter().map(Proxy::port))).collect();
    let competitors = competitors.iter().flat_map(|redlock| [0; 3].map(|_| redlock.clone()));
    let tasks: Vec<_> =
        competitors.map(|redlock| tokio::spawn(compete(redlock, Arc::clone(&seen), LONG))).collect();
    let lost = rounds(100, 2_000);
    for count in (20..=lost).step_by(20) {
        eventually("replies are lost", || proxies.iter().map(Proxy::replies_lost).sum::<usize>() >= count);
    }
    seen.is_enough.store(true, Ordering::Relaxed);
    for task in tasks {
        soon(task).await.expect("no panic");
    }
    five.see_nothing_left();
    judge(&seen);
}
