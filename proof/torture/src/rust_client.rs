//! Tasks that use `lockward-client`, and record their beliefs.
//!
//! A belief is the time from the first to the last check at which a guard says that its lock is held. The task records
//! a belief as an acquisition with a lease of the same length. The task itself asserts the client's other promises: a
//! guard reports the loss of its lock, and every call ends.

use crate::worker_process::WorkerArgs;
use lockward_checker::history::{Call, Line, Operation, Outcome, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_client::{Client, Error, Guard, Lock, Loss, Settings};
use lockward_tests::{Fate, Proxy, Random};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// The time limit of a call. The limit is longer than any outage in these worlds plus the quarantine after the outage.
const BOUND: Duration = Duration::from_secs(60);
/// How long a guard may take to report its loss.
const LOSS_REPORT_LIMIT: Duration = Duration::from_secs(2);
/// The longest lease in milliseconds. No quarantine is shorter than this lease.
const LEASE: u64 = 800;
/// The errors of a server that cannot serve the request now, but may later. The client repeats the request, and returns
/// such an error only when its time limit is over.
const UNAVAILABLE: [&str; 8] =
    ["CLUSTERDOWN", "TRYAGAIN", "LOADING", "NOREPLICAS", "READONLY", "UNBLOCKED", "MOVED", "ASK"];
/// How often a task checks whether it holds its lock.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Runs the clients until standard input ends.
pub(crate) fn run(args: &WorkerArgs, url: &str) {
    let recorder = Arc::new(Recorder::create(&args.file).expect("a file for the history"));
    // The first worker process uses a runtime with one thread.
    let mut builder =
        if args.first == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    std::thread::spawn(move || {
        for _ in io::stdin().lines() {}
        is_over.store(true, Ordering::Relaxed);
    });
    // If the world has one server, the second worker process connects through a proxy, which cuts connections before,
    // during and after requests.
    let port = url.strip_prefix("redis://127.0.0.1:").filter(|_| args.first == args.clients);
    let proxy = port.map(|port| {
        let mut random = Random::from_seed(args.seed);
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
                    random: Random::from_seed(args.seed ^ (u64::from(number) << 32)),
                    recorder: Arc::clone(&recorder),
                };
                tokio::spawn(task.run(Arc::clone(&over)))
            })
            .collect();
        for task in tasks {
            task.await.expect("a client that keeps its promises");
        }
        client.close().await;
    });
    drop(runtime);
    let recorder = Arc::into_inner(recorder).expect("no other task still writes");
    recorder.finish().expect("a whole history");
}

struct Task {
    number: u32,
    keys: Vec<String>,
    client: Client,
    random: Random,
    recorder: Arc<Recorder>,
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
        let key = self.random.one_of(&self.keys);
        let lease = self.ms(LEASE / 4, LEASE);
        let lock = self.client.lock(&key).lease(lease);
        let lock = if self.random.percent(20) { lock.owner(format!("task {}", self.number)) } else { lock };
        let lock = if self.random.percent(10) { lock.without_renewal() } else { lock };
        let lock = if self.random.percent(10) { lock.hold_limit(self.ms(50, 2 * LEASE)) } else { lock };
        let acquired = match self.random.between(0, 10) {
            0 => Self::bounded(lock.try_acquire()).await,
            1..4 => {
                let limit = self.ms(0, 60);
                timeout(limit, Lock::acquire(lock)).await.unwrap_or(Err(Error::Busy { key: String::new() }))
            }
            4..9 => Self::bounded(lock.wait(self.ms(1, 600)).acquire()).await,
            _ => Self::bounded(lock.acquire()).await,
        };
        match acquired {
            Ok(guard) => Some((key, guard)),
            Err(Error::Busy { .. } | Error::Unreachable { .. } | Error::Lost { .. }) => None,
            Err(Error::Refused { code, .. }) if UNAVAILABLE.contains(&&*code) => None,
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// Asserts that a call ends within [`BOUND`].
    async fn bounded<T>(call: impl Future<Output = T>) -> T {
        timeout(BOUND, call).await.expect("the call ends")
    }

    /// Checks the guard for a random time, and then releases or drops the guard.
    async fn hold(&mut self, key: &str, guard: Guard) {
        let lost = tokio::spawn(guard.lost());
        let until =
            Instant::now() + if self.random.percent(3) { self.ms(0, 3 * LEASE) } else { self.ms(0, 40) };
        // The first time after the guard has said that its lock is held, and the last time before.
        let (mut first, mut last) = (None, 0);
        let is_held = loop {
            let before = now();
            if !guard.is_held() {
                break false;
            }
            first.get_or_insert_with(now);
            last = before;
            if Instant::now() >= until {
                break true;
            }
            if self.random.percent(2) {
                drop(Self::bounded(guard.renew()).await);
            }
            sleep(CHECK_INTERVAL).await;
        };
        if let Some(from) = first {
            let owner = String::from_utf8_lossy(guard.owner());
            let operation = Operation::exclusive(last.saturating_sub(from) + 1, Wait::No);
            let sent = Call::sent(self.number, 0, key, &owner, operation, from.saturating_sub(1));
            let outcome = Outcome::Granted { token: guard.token(), holds: 1 };
            self.recorder.record(&Line::Call(Call { end: Some(from), outcome, ..sent }));
        }
        if !is_held {
            let loss = timeout(LOSS_REPORT_LIMIT, lost).await.expect("a loss is reported").expect("no panic");
            assert_ne!(loss, Loss::Released, "{key}: the guard reports a release instead of a loss");
            assert!(!guard.is_held() && guard.lease_left().is_zero(), "{key}: a lost guard is held again");
            let released = Self::bounded(guard.release()).await;
            assert!(
                matches!(released, Err(Error::Lost { .. })),
                "{key}: the release of a lost lock: {released:?}"
            );
            return;
        }
        match self.random.between(0, 10) {
            0..3 => drop(guard),
            3 => drop(timeout(self.ms(0, 3), guard.release()).await),
            _ => drop(Self::bounded(guard.release()).await),
        }
        timeout(BOUND, lost).await.expect("the end is reported").expect("no panic");
    }
}
