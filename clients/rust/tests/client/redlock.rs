//! One lock on five independent servers.

use crate::{LONG, soon, url};
use lockward_checker::bounds::Bounds;
use lockward_checker::checker::tenures_never_overlap;
use lockward_checker::history::{Call, Fault, History, HoldsReleased, Line, Operation, Outcome, Wait};
use lockward_checker::recorder::now;
use lockward_checker::violation::Violation;
use lockward_client::redlock::{Guard, Redlock};
use lockward_client::{Address, Error, Loss, Settings};
use lockward_tests::{Fate, Proxy, Random, Server, Setup, eventually, free_port, rounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A time limit that is long enough for a few rounds.
const SHORTLY: Duration = Duration::from_secs(2);

/// The module argument for a quarantine that is longer than a test. A server begins its quarantine at each start.
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

    /// A client that reaches only some of the servers.
    fn client_of(&self, reached: &[usize]) -> Redlock {
        let port = |at| if reached.contains(&at) { self.servers[at].port() } else { free_port() };
        client((0..5).map(port))
    }

    /// Acquires `key` on some of the servers for another owner.
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

    fn freeze(&self, some: &[usize]) {
        some.iter().for_each(|at| self.servers[*at].freeze());
    }

    fn thaw(&self, some: &[usize]) {
        some.iter().for_each(|at| self.servers[*at].thaw());
    }

    fn kill(&mut self, some: &[usize]) {
        some.iter().for_each(|at| self.servers[*at].kill());
    }

    fn call(&self, command: &str, some: &[usize]) {
        for at in some {
            self.servers[*at].client().call(command);
        }
    }

    /// How many servers have a holder of `key` whose name is not `other`.
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

/// A client that waits for a server's reply up to `limit`.
fn patient(ports: impl Iterator<Item = u16>, limit: Duration) -> Redlock {
    let addresses = ports.map(|port| url(port).parse::<Address>());
    let addresses: Vec<_> = addresses.collect::<Result<_, _>>().expect("addresses");
    let settings = Settings::default().response_limit(limit).patience(SHORTLY);
    Redlock::new(addresses, settings).expect("a client")
}

/// How often a server has run a command.
fn calls(server: &Server, command: &str) -> u64 {
    crate::calls(&mut server.client(), command)
}

/// Checks that the lock is renewed on the servers `on`, is busy for other clients, and can be released.
async fn see_it_work(five: &Five, guard: Guard, on: &[usize]) {
    for at in on {
        let before = calls(&five.servers[*at], "lock.renew");
        eventually("it is renewed", || calls(&five.servers[*at], "lock.renew") >= before + 3);
    }
    assert!(guard.is_held() && guard.votes() >= 3);
    assert!(matches!(five.client().lock("k").try_acquire().await, Err(Error::Busy { .. })));
    let lost = guard.lost();
    guard.release().await.expect("a release");
    assert_eq!(soon(lost).await, Loss::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_held_on_all_servers_until_it_is_released() {
    let five = Five::start();
    let urls: Vec<_> = five.servers.iter().map(|server| url(server.port())).collect();
    let redlock = Redlock::connect(&urls).await.expect("a client");
    let guard = redlock.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5 && five.votes("k") == 5);
    assert!(guard.lease_left() > Duration::ZERO && guard.lease_left() < Duration::from_secs(2));
    assert_eq!(guard.key(), b"k");
    see_it_work(&five, guard, &[0, 1, 2, 3, 4]).await;
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_works_with_two_of_five_killed() {
    let mut five = Five::start();
    five.kill(&[1, 4]);
    let guard = five.client().lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    assert_eq!(guard.votes(), 3);
    see_it_work(&five, guard, &[0, 2, 3]).await;
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_works_with_two_of_five_stopped() {
    let five = Five::start();
    let redlock = five.client();
    // The client connects before the servers stop. So the client can write requests to the sockets of servers that do
    // not read.
    redlock.lock("k").try_acquire().await.expect("a guard").release().await.expect("a release");
    five.see_nothing_left();
    five.freeze(&[0, 3]);
    let guard = redlock.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    assert_eq!(guard.votes(), 3);
    see_it_work(&five, guard, &[1, 2, 4]).await;
    five.thaw(&[0, 3]);
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_fails_with_three_of_five_killed() {
    let mut five = Five::start();
    five.kill(&[0, 2, 3]);
    let redlock = five.client();
    let result = soon(redlock.lock("k").try_acquire()).await;
    assert!(matches!(result, Err(Error::NoMajority(_))), "{result:?}");
    let result = soon(redlock.lock("k").wait(Duration::from_millis(500)).acquire()).await;
    assert!(matches!(result, Err(Error::NoMajority(_))), "{result:?}");
    // Without a wait limit, the acquisition ends when the patience is over.
    let result = soon(redlock.lock("k").acquire()).await;
    assert!(matches!(result, Err(Error::NoMajority(_))), "{result:?}");
    let urls: Vec<_> = five.servers.iter().map(|server| url(server.port())).collect();
    let result = soon(Redlock::connect(&urls)).await;
    assert!(matches!(result, Err(Error::NoMajority(_))), "{result:?}");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_fails_with_three_of_five_stopped_and_leaves_nothing() {
    let five = Five::start();
    let redlock = five.client();
    let guard = redlock.lock("k").try_acquire().await.expect("a guard");
    // Wait for all votes: the client would release a late vote in the background, when servers may be stopped already.
    eventually("all servers grant the lock", || guard.votes() == 5);
    guard.release().await.expect("a release");
    five.freeze(&[0, 2, 3]);
    let lock = redlock.lock("k").lease(LONG);
    let result = soon(lock.clone().try_acquire()).await;
    assert!(matches!(result, Err(Error::NoMajority(_))), "{result:?}");
    let result = soon(lock.wait(Duration::from_millis(500)).acquire()).await;
    assert!(matches!(result, Err(Error::NoMajority(_))), "{result:?}");
    five.thaw(&[0, 2, 3]);
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_acquisition_leaves_nothing() {
    let five = Five::start();
    let redlock = five.client();
    let guard = redlock.lock("k").try_acquire().await.expect("a guard");
    // Wait for all votes: the client would release a late vote in the background, when servers may be stopped already.
    eventually("all servers grant the lock", || guard.votes() == 5);
    guard.release().await.expect("a release");
    five.freeze(&[0, 2, 3]);
    let acquiring = tokio::spawn(redlock.lock("k").lease(LONG).acquire());
    eventually("the others have granted it", || {
        [1, 4].iter().all(|at| five.servers[*at].client().info("k").is_some())
    });
    acquiring.abort();
    // Await the task before the other servers can answer. If these servers answered, the acquisition could complete,
    // and the handle of the task would keep the guard.
    assert!(soon(acquiring).await.is_err_and(|error| error.is_cancelled()));
    five.thaw(&[0, 2, 3]);
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_without_a_majority_is_busy_and_leaves_nothing() {
    let five = Five::start();
    let redlock = five.client();
    five.occupy("k", &[0, 1, 2]);
    assert!(matches!(redlock.lock("k").lease(LONG).try_acquire().await, Err(Error::Busy { .. })));
    eventually("the granted votes are released", || five.votes("k") == 0);
    let limit = Duration::from_secs(1);
    assert!(matches!(redlock.lock("k").lease(LONG).wait(limit).acquire().await, Err(Error::Busy { .. })));
    eventually("the granted votes are released", || five.votes("k") == 0);
    let acquiring = tokio::spawn(redlock.lock("k").acquire());
    five.vacate("k", &[1]);
    let guard = soon(acquiring).await.expect("no panic").expect("a guard");
    eventually("the third has joined", || guard.votes() == 3);
    guard.release().await.expect("a release");
    five.vacate("k", &[0, 2]);
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_does_not_wait_for_a_server_that_did_not_answer_before() {
    let five = Five::start();
    let redlock = patient(five.servers.iter().map(Server::port), Duration::from_secs(5));
    five.occupy("k", &[0, 1]);
    five.servers[4].freeze();
    // The first round waits for this server until the response limit.
    assert!(matches!(soon(redlock.lock("k").try_acquire()).await, Err(Error::Busy { .. })));
    let acquiring = tokio::spawn(redlock.lock("k").acquire());
    let before = calls(&five.servers[2], "lock.acquire");
    eventually("the client repeats its request", || calls(&five.servers[2], "lock.acquire") >= before + 12);
    five.vacate("k", &[0, 1]);
    let guard = soon(acquiring).await.expect("no panic").expect("a guard");
    five.servers[4].thaw();
    eventually("all servers grant the lock", || guard.votes() == 5);
    guard.release().await.expect("a release");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_without_renewal_or_past_its_hold_limit_is_lost() {
    let five = Five::start();
    let lock = five.client().lock("k").lease(Duration::from_secs(2));
    let guard = lock.clone().without_renewal().acquire().await.expect("a guard");
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    let limited = lock.hold_limit(Duration::from_secs(3));
    let guard = limited.acquire().await.expect("a guard");
    assert_eq!(soon(guard.lost()).await.to_string(), "its hold limit is over");
    assert!(five.servers.iter().any(|server| calls(server, "lock.renew") > 0), "it was renewed at first");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_lease_of_a_redlock_is_at_most_the_quarantine() {
    let server = Server::start();
    server.client().call("CONFIG SET lock.quarantine 10000");
    let guard = client([server.port()].into_iter()).lock("k").acquire().await.expect("a guard");
    assert!(guard.lease_left() <= Duration::from_secs(10), "{:?}", guard.lease_left());
    assert!(guard.lease_left() > Duration::from_secs(5), "{:?}", guard.lease_left());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_released_when_a_thread_without_a_runtime_drops_its_guard() {
    let five = Five::start();
    let guard = five.client().lock("k").acquire().await.expect("a guard");
    eventually("all servers grant the lock", || five.votes("k") == 5);
    guard.renew().await.expect("a renewal");
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_its_tenure_is_asked_again() {
    let mut five = Five::start();
    let guard = five.client().lock("k").lease(Duration::from_secs(3)).acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5);
    five.servers[2].kill();
    eventually("its vote is lost", || guard.votes() == 4);
    five.servers[2].start_again();
    eventually("it has joined again", || guard.votes() == 5 && five.votes("k") == 5);
    five.servers[1].client().call("DEL k");
    eventually("its vote is lost", || guard.votes() == 4);
    eventually("it has joined again", || guard.votes() == 5 && five.votes("k") == 5);
    see_it_work(&five, guard, &[0, 1, 2, 3, 4]).await;
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_survives_restarts_of_all_servers_one_after_the_other() {
    let mut five = Five::start_with(FORGETFUL);
    five.end_quarantine();
    let guard = five.client().lock("k").lease(Duration::from_secs(15)).acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5 && five.votes("k") == 5);
    for at in 0..5 {
        let before = five.servers[at].client().holder("k");
        five.servers[at].kill_and_start_again();
        // A server in quarantine grants no new tenure, but it restores a tenure that its owner renews.
        eventually("it is held there", || five.servers[at].client().info("k").is_some());
        assert_eq!(five.servers[at].client().holder("k").tenure(), before.tenure());
    }
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    five.see_nothing_left();
}

/// Alice has the votes of three servers. One of these three servers restarts without its data. Then Bob asks this
/// server and the two servers that Alice has not asked. Returns whether Alice holds the lock, and whether Bob does.
async fn with_a_forgetful_server(arguments: &str) -> [bool; 2] {
    let mut five = Five::start_with(arguments);
    five.end_quarantine();
    // Alice does not renew, so she does not notice that a server has lost its vote.
    let lock = five.client_of(&[0, 1, 2]).lock("k").lease(LONG).without_renewal();
    let alice = lock.try_acquire().await.expect("a guard");
    five.servers[2].kill_and_start_again();
    let bob = five.client_of(&[2, 3, 4]).lock("k").lease(LONG).try_acquire().await;
    assert!(matches!(bob, Ok(_) | Err(Error::Busy { .. })), "{bob:?}");
    let held = [alice.is_held(), bob.as_ref().is_ok_and(Guard::is_held)];
    drop((alice, bob));
    five.see_nothing_left();
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_quarantine_does_not_help_a_second_majority() {
    assert_eq!(with_a_forgetful_server(FORGETFUL).await, [true, false]);
    // Without a quarantine both Alice and Bob hold the lock.
    assert_eq!(with_a_forgetful_server("").await, [true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_lost_with_its_majority_and_stays_lost() {
    let mut five = Five::start();
    let redlock = five.client();
    let guard = redlock.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5 && five.votes("k") == 5);
    five.kill(&[0, 2, 3]);
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    for at in [0, 2, 3] {
        five.servers[at].start_again();
    }
    // The guard has not been released, but the client has released the remaining votes.
    five.see_nothing_left();
    assert!(!guard.is_held() && guard.votes() == 0 && guard.lease_left() == Duration::ZERO);
    assert!(matches!(guard.renew().await, Err(Error::Lost { loss: Loss::LeaseOver, .. })));
    let next = redlock.lock("k").try_acquire().await.expect("a guard");
    assert!(matches!(guard.release().await, Err(Error::Lost { loss: Loss::LeaseOver, .. })));
    assert!(next.is_held());
    next.release().await.expect("a release");
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_that_is_deleted_on_a_majority_is_lost() {
    let five = Five::start();
    let redlock = five.client();
    let lock = redlock.lock("k").lease(LONG);
    let guard = lock.clone().acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5 && five.votes("k") == 5);
    five.call("DEL k", &[1, 2]);
    guard.renew().await.expect("a renewal");
    five.servers[3].client().call("DEL k");
    let result = guard.renew().await;
    assert!(
        matches!(&result, Err(Error::Lost { loss: Loss::NotHeld(said), .. }) if said == "the lock is free"),
        "{result:?}"
    );
    assert!(!guard.is_held());
    five.see_nothing_left();
    let guard = lock.acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5 && five.votes("k") == 5);
    five.call("DEL k", &[1, 2, 3]);
    assert!(guard.is_held(), "the client does not know of the loss yet");
    assert!(matches!(guard.release().await, Err(Error::Lost { loss: Loss::NotHeld(_), .. })));
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_without_a_majority_fails_and_is_repeated_in_the_background() {
    let five = Five::start();
    let guard = five.client().lock("k").lease(LONG).acquire().await.expect("a guard");
    eventually("all servers grant the lock", || guard.votes() == 5 && five.votes("k") == 5);
    five.freeze(&[0, 2, 3]);
    assert!(matches!(guard.renew().await, Err(Error::NoMajority(_))));
    assert!(guard.is_held(), "the leases are not over");
    assert!(matches!(guard.release().await, Err(Error::NoMajority(_))));
    five.thaw(&[0, 2, 3]);
    five.see_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_named_several_times_has_one_vote() {
    let server = Server::start();
    let result = client([server.port(); 3].into_iter()).lock("k").try_acquire().await;
    assert!(matches!(result, Err(Error::Busy { .. })), "{result:?}");
    let mut observer = server.client();
    eventually("nothing is left", || observer.call("DBSIZE").int() == 0);
    let result = Redlock::new([], Settings::default());
    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_errors_count_against_a_majority() {
    let five = Five::start();
    let redlock = five.client();
    five.call("SET k text", &[0, 1]);
    let guard = redlock.lock("k").try_acquire().await.expect("a guard");
    guard.release().await.expect("a release");
    five.servers[2].client().call("SET k text");
    let result = redlock.lock("k").acquire().await.expect_err("an error");
    assert_eq!(result.code(), Some("WRONGTYPE"), "{result}");
    let result = redlock.lock("other").lease(Duration::ZERO).acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Invalid(_)), "{result}");
    five.call("DEL k", &[0, 1, 2]);
    five.see_nothing_left();
}

/// The observations of competing clients.
#[derive(Default)]
struct Observations {
    lines: Mutex<Vec<Line>>,
    tenures: AtomicU64,
    /// Written only by the holder of the lock.
    counter: AtomicU64,
    losses: AtomicU64,
    doubts: AtomicU64,
    is_enough: AtomicBool,
}

impl Observations {
    /// Records a call of `owner` that begins and ends now.
    fn note(&self, owner: &str, operation: Operation, outcome: Outcome) {
        let (start, key) = (now(), "k".to_owned());
        let owner = owner.to_owned();
        let call = Call {
            client: 0,
            node: 0,
            key,
            owner,
            operation,
            start,
            enqueued: None,
            still_waiting: None,
            end: Some(start),
            outcome,
        };
        self.lines.lock().unwrap().push(Line::Call(call));
    }
}

fn nanos(span: Duration) -> u64 {
    span.as_nanos().try_into().unwrap()
}

/// Increments the counter under the lock until `is_enough` is set.
async fn compete(redlock: Redlock, observed: Arc<Observations>, lease: Duration) {
    while !observed.is_enough.load(Ordering::Relaxed) {
        let guard = redlock.lock("k").lease(lease).acquire().await;
        let Ok(guard) = guard else { continue };
        // A Redlock has no token, so the test numbers the tenures.
        let token = observed.tenures.fetch_add(1, Ordering::Relaxed);
        let owner = token.to_string();
        // The client claims to hold the lock from now on until the end of this lease.
        let operation = Operation::exclusive(nanos(guard.lease_left()), Wait::No);
        observed.note(&owner, operation, Outcome::Granted { token, holds: 1 });
        let count = observed.counter.load(Ordering::Relaxed);
        for _ in 0..token % 50 {
            tokio::task::yield_now().await;
        }
        observed.counter.store(count + 1, Ordering::Relaxed);
        // The client claims that it still holds the lock.
        if guard.is_held() {
            let lease = nanos(guard.lease_left());
            let operation = Operation::Renew { lease, token: Some(token), holds: None, mode: None };
            observed.note(&owner, operation, Outcome::Renewed { token });
        }
        observed.note(
            &owner,
            Operation::Release { released: HoldsReleased::All, token: None },
            Outcome::Unknown,
        );
        match guard.release().await {
            Ok(()) => {}
            // Too few servers answered the release, so the owner may have held the lock until now.
            Err(Error::NoMajority(_)) => drop(observed.doubts.fetch_add(1, Ordering::Relaxed)),
            Err(_) => drop(observed.losses.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// The lease of the competing clients. The quarantine of the servers is equally long.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn competing_clients_hold_the_lock_one_at_a_time_while_servers_fail() {
    let mut five = Five::start_with("quarantine 3000");
    let observed = Arc::<Observations>::default();
    // Each client reaches a different set of servers.
    let reached: [&[usize]; 4] = [&[0, 1, 2, 3, 4], &[1, 2, 3, 4], &[0, 2, 3, 4], &[0, 1, 2, 3]];
    let competitors: Vec<_> = reached.map(|reached| five.client_of(reached)).into();
    let competitors = competitors.iter().flat_map(|redlock| [0; 3].map(|_| redlock.clone()));
    let tasks: Vec<_> =
        competitors.map(|redlock| tokio::spawn(compete(redlock, Arc::clone(&observed), LEASE))).collect();
    let more = |count| {
        let enough = observed.tenures.load(Ordering::Relaxed) + count;
        eventually("the clients go on", || observed.tenures.load(Ordering::Relaxed) >= enough);
    };
    more(20);
    for round in 0..rounds(3, 60) {
        let start = now();
        let (dies, sleeps) = (round % 5, (round + 2) % 5);
        five.servers[dies].kill_and_start_again();
        five.servers[sleeps].freeze();
        more(10);
        five.servers[sleeps].thaw();
        observed.lines.lock().unwrap().push(Line::Fault(Fault {
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
    observed.is_enough.store(true, Ordering::Relaxed);
    for task in tasks {
        soon(task).await.expect("no panic");
    }
    five.see_nothing_left();
    judge(&observed);
}

/// Checks that no two claims to hold the lock overlap, and that no increment is lost.
fn judge(observed: &Observations) {
    let history = History { lines: std::mem::take(&mut observed.lines.lock().unwrap()) };
    let violations = tenures_never_overlap(&history, &Bounds::default());
    let reports: Vec<_> = violations.iter().map(|violation: &Violation| violation.report(&history)).collect();
    assert!(reports.is_empty(), "{}", reports.join("\n"));
    let [tenures, losses, doubts, count] =
        [&observed.tenures, &observed.losses, &observed.doubts, &observed.counter]
            .map(|number| number.load(Ordering::Relaxed));
    println!("{tenures} tenures, {losses} lost, {doubts} perhaps, {count} counted");
    assert!(count <= tenures && count + losses + doubts >= tenures);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_leave_nothing_held() {
    let five = Five::start();
    let observed = Arc::<Observations>::default();
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
    // If no server confirms the release of a tenure, the tenure ends with this lease.
    let lease = Duration::from_secs(10);
    let tasks: Vec<_> =
        competitors.map(|redlock| tokio::spawn(compete(redlock, Arc::clone(&observed), lease))).collect();
    let lost = rounds(100, 2_000);
    for count in (20..=lost).step_by(20) {
        eventually("replies are lost", || proxies.iter().map(Proxy::replies_lost).sum::<usize>() >= count);
    }
    observed.is_enough.store(true, Ordering::Relaxed);
    for task in tasks {
        soon(task).await.expect("no panic");
    }
    five.see_nothing_left();
    judge(&observed);
}
