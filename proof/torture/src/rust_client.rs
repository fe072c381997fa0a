//! The worlds as programs see them that use `lockward-client`: its tasks write down what it lets them believe.
//!
//! A guard is believed in from the first look at which it says that it is held to the last one. That is recorded as an
//! acquisition with a lease so long, and report as the server's own grants are: no two beliefs overlap, and tokens rise. What a
//! client owes its callers beyond that is asserted by the worker itself: a guard that is lost says so, and every call
//! ends. When the workers are gone, nothing may be left at the servers.

use crate::run::Plan;
use crate::worker::{WorkerArgs, Worker};
use crate::world::{Nemesis, World};
use lockward_checker::bounds::Bounds;
use lockward_checker::checker;
use lockward_checker::history::{History, Operation, Nanos, Outcome, Wait};
use lockward_checker::random::Random;
use lockward_checker::recorder::{Recorder, now};
use lockward_client::{Client, Error, Guard, Lock, Loss, Settings};
use lockward_tests::{Fate, Proxy, Setup, eventually};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// Longer than any outage of these worlds, with the quarantine after it.
const BOUND: Duration = Duration::from_secs(60);
/// Within so long a task hears of what it could know.
const TOLD: Duration = Duration::from_secs(2);
/// The longest lease; no quarantine is shorter.
const LEASE: u64 = 800;
/// So often a task looks whether it holds its lock.
const LOOK: Duration = Duration::from_millis(1);

/// Plays the clients until the end of standard input.
///
/// # Panics
/// When the client breaks a promise, or the history cannot be written.
pub fn run(args: &WorkerArgs, url: &str) {
    let recorder = Arc::new(Recorder::create(&args.file).expect("a file for the history"));
    // One of the processes has one thread for all.
    let mut builder =
        if args.first == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    std::thread::spawn(move || {
        for _ in io::stdin().lines() {}
        is_over.store(true, Ordering::Relaxed);
    });
    // Between another one and a server of its own the connections break, before, after and amid requests.
    let port = url.strip_prefix("redis://127.0.0.1:").filter(|_| args.first == args.clients);
    let proxy = port.map(|port| {
        let mut random = Random::new(args.seed);
        Proxy::start(port.parse().expect("a port"), move |request| {
            let is_ours = request.first().is_some_and(|name| name.text().starts_with("LOCK."));
            match random.between(0, 100) {
                _ if !is_ours => Fate::Carried,
                0..3 => Fate::ReplyLost,
                3 => Fate::ClientLost,
                4 => Fate::RequestLost,
                5 => Fate::CutAfter(Duration::from_millis(random.between(0, 300))),
                _ => Fate::Carried,
            }
        })
    });
    let proxied = proxy.as_ref().map(|proxy| format!("redis://127.0.0.1:{}", proxy.port()));
    let url = proxied.as_deref().unwrap_or(url);
    runtime.block_on(async {
        let settings = Settings::default()
            .response_limit(Duration::from_millis(500))
            .patience(Duration::from_secs(5))
            .waiting_connections(6);
        let client = Client::new(url.parse().expect("an address"), settings).expect("a client");
        let tasks: Vec<_> = (args.first..args.first + args.clients)
            .map(|number| {
                let task = Task {
                    number,
                    keys: args.world.workload().keys,
                    client: client.clone(),
                    random: Random::new(args.seed ^ (u64::from(number) << 32)),
                    recorder: Arc::clone(&recorder),
                };
                tokio::spawn(task.run(Arc::clone(&over)))
            })
            .collect();
        for task in tasks {
            task.await.expect("the client keeps its promises");
        }
        timeout(BOUND, client.settled()).await.expect("what was left behind is given back");
    });
    drop(runtime);
    let recorder = Arc::into_inner(recorder).expect("nobody else writes");
    recorder.finish().expect("a whole history");
}

struct Task {
    number: u32,
    keys: Vec<String>,
    client: Client,
    random: Random,
    recorder: Arc<Recorder>,
}

/// When it was believed that a lock is held.
#[derive(Clone, Copy)]
struct Belief {
    from: Nanos,
    to: Nanos,
}

impl Task {
    async fn run(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            if let Some((key, guard)) = self.acquire().await {
                self.hold(&key, guard).await;
            }
        }
    }

    fn ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.random.between(least, most))
    }

    async fn acquire(&mut self) -> Option<(String, Guard)> {
        let key = self.random.one_of(&self.keys).expect("a key").clone();
        let lease = self.ms(LEASE / 4, LEASE);
        let lock = self.client.lock(&key).lease(lease);
        let lock = if self.random.percent(20) { lock.owner(format!("task {}", self.number)) } else { lock };
        let lock = if self.random.percent(10) { lock.without_renewal() } else { lock };
        let lock = if self.random.percent(10) { lock.hold_limit(self.ms(50, 2 * LEASE)) } else { lock };
        let acquired = match self.random.between(0, 10) {
            0 => Self::bounded(lock.try_acquire()).await,
            1..4 => {
                let limit = self.ms(0, 60);
                timeout(limit, Lock::acquire(lock)).await.unwrap_or(Err(Error::Busy))
            }
            4..9 => Self::bounded(lock.wait(self.ms(1, 600)).acquire()).await,
            _ => Self::bounded(lock.acquire()).await,
        };
        match acquired {
            Ok(guard) => Some((key, guard)),
            Err(Error::Busy | Error::Unreachable(_) | Error::Lost(_)) => None,
            // What a server says while it cannot serve, once patience is over.
            Err(Error::Server { code, .. })
                if [
                    "CLUSTERDOWN",
                    "TRYAGAIN",
                    "LOADING",
                    "NOREPLICAS",
                    "READONLY",
                    "UNBLOCKED",
                    "MOVED",
                    "ASK",
                ]
                .contains(&&*code) =>
            {
                None
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// Every call ends.
    async fn bounded<T>(call: impl Future<Output = T>) -> T {
        timeout(BOUND, call).await.expect("the call ends")
    }

    /// Looks at the guard for some time, and gives it up in one way or another.
    async fn hold(&mut self, key: &str, guard: Guard) {
        let lost = tokio::spawn(guard.lost());
        let until =
            Instant::now() + if self.random.percent(3) { self.ms(0, 3 * LEASE) } else { self.ms(0, 40) };
        let mut belief = None;
        let mut holds = Vec::new();
        while Instant::now() < until && look(&guard, &mut belief) {
            if self.random.percent(2) {
                match Self::bounded(guard.re_enter()).await {
                    Ok(again) => {
                        assert_eq!(again.token(), guard.token(), "{key}: a guard of the same tenure");
                        holds.push(again);
                    }
                    Err(error) => drop(error),
                }
            }
            if self.random.percent(2) {
                drop(holds.pop());
            }
            sleep(LOOK).await;
        }
        let is_held = look(&guard, &mut belief);
        if let Some(Belief { from, to }) = belief {
            let (owner, lease) =
                (String::from_utf8_lossy(guard.owner()).into_owned(), to.saturating_sub(from) + 1);
            let kind = Operation::Acquire { lease, wait: Wait::No, holds: None };
            let mut call = self.recorder.start(self.number, 0, key, &owner, kind);
            call.at(from, Outcome::Granted { token: guard.token(), holds: 1 });
        }
        if !is_held {
            let loss = timeout(TOLD, lost).await.expect("a loss is told").expect("no panic");
            assert_ne!(loss, Loss::Released, "{key}: nobody has released it");
            assert!(!guard.is_held() && guard.lease_left().is_zero(), "{key}: what is lost stays lost");
            let released = Self::bounded(guard.release()).await;
            assert!(
                !holds.is_empty() || matches!(released, Err(Error::Lost(_))),
                "{key}: it was lost, and given released: {released:?}"
            );
            return;
        }
        match self.random.between(0, 10) {
            0..3 => drop(guard),
            3 => drop(timeout(self.ms(0, 3), guard.release()).await),
            _ => drop(Self::bounded(guard.release()).await),
        }
        drop(holds);
        // One more may have been entered by the owner's name, but not by this task.
        timeout(BOUND, lost).await.expect("the end is told").expect("no panic");
    }
}

/// Whether the guard is held; if so, it was at some instant between the two that are noted.
fn look(guard: &Guard, belief: &mut Option<Belief>) -> bool {
    let before = now();
    let is_held = guard.is_held();
    if is_held {
        let from = belief.map_or_else(now, |belief| belief.from);
        *belief = Some(Belief { from, to: before.max(from) });
    }
    is_held
}

impl Plan {
    /// Runs it with clients that go through `lockward-client`; what was seen, or what went wrong.
    ///
    /// # Errors
    /// The violations.
    ///
    /// # Panics
    /// When a server does not do as it is told, or the client breaks a promise.
    pub fn run_through_client(self) -> Result<String, String> {
        fs::create_dir_all(&self.dir).expect("a folder");
        let mut random = Random::new(self.seed);
        let store = Setup::without_module().start();
        let mut world = self.world.start();
        let faults = self.dir.join("faults.json");
        let recorder = Recorder::create(&faults).expect("a file");
        let workers = self.start_workers(world.port(), &store, Some(world.url()));
        let mut nemesis = Nemesis::new(Random::new(random.number()), &recorder, workers);
        let begun = Instant::now();
        let mut most = 0;
        loop {
            nemesis.sleep(self.pace / 6..self.pace);
            most = most.max(connections(&*world));
            if begun.elapsed() >= self.length {
                break;
            }
            if nemesis.random.percent(20) {
                nemesis.stop_clients();
            } else {
                world.fault(&mut nemesis);
            }
        }
        let mut files: Vec<PathBuf> = nemesis.into_workers().into_iter().map(Worker::finish).collect();
        recorder.finish().expect("a whole history");
        files.push(faults);
        for port in world.ports() {
            let mut observer = lockward_tests::Client::connect(port).expect("a connection");
            eventually("nothing is left at the server", || {
                observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
            });
        }
        let parts = files.iter().map(|file| History::read(file).expect("a history"));
        let history = History { lines: parts.flat_map(|part| part.lines).collect() };
        self.judge_beliefs(&history, most)
    }

    fn judge_beliefs(&self, history: &History, most: i64) -> Result<String, String> {
        let bounds = Bounds { tolerance: 0, ..Bounds::default() };
        let mut violations = checker::each_token_has_one_owner(history, &bounds);
        if !self.world.wakes_primaries() {
            violations.extend(checker::tenures_never_overlap(history, &bounds));
            violations.extend(checker::tokens_rise_and_have_one_owner(history, &bounds));
        }
        let mut told = String::new();
        let (beliefs, faults) = (history.calls().count(), history.faults().count());
        let _ = write!(
            told,
            "client in {}: {beliefs} beliefs, {faults} faults, {most} connections at most, seed {}",
            self.world.name(),
            self.seed
        );
        if beliefs < 20 {
            let _ = write!(told, "\nTOO FEW BELIEFS");
            return Err(told);
        }
        if violations.is_empty() {
            return Ok(told);
        }
        let _ = write!(told, "\n{} VIOLATIONS", violations.len());
        for violation in violations.iter().take(3) {
            let _ = write!(told, "\n{}", violation.report(history));
        }
        Err(told)
    }
}

/// How many connections a server has that answers at once.
fn connections(world: &dyn World) -> i64 {
    let Ok(mut observer) = lockward_tests::Client::connect(world.port()) else { return 0 };
    let Ok(info) = observer.try_call("INFO clients") else { return 0 };
    let info = info.text();
    let count = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}
