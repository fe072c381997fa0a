//! Worker processes: each plays some of the clients, and can be stopped as a whole.

use crate::player::Player;
use crate::queue;
use crate::store::Store;
use crate::through;
use crate::world::Kind;
use lockward_checker::random::Random;
use lockward_checker::recorder::Recorder;
use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// So long after the end of a run its clients may still wait for their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(45);

/// What a worker is told when it starts.
#[derive(Clone, Debug, clap::Args)]
pub struct Orders {
    /// The world whose manners the clients have.
    #[arg(long)]
    pub world: Kind,
    /// The seed of its clients' luck.
    #[arg(long)]
    pub seed: u64,
    /// The number of its first client.
    #[arg(long)]
    pub first: u32,
    /// How many clients it plays.
    #[arg(long)]
    pub clients: u32,
    /// The port of the store.
    #[arg(long)]
    pub store: u16,
    /// The port of the locks, when it starts.
    #[arg(long)]
    pub port: u16,
    /// Where the locks are, for clients that go through `lockward-client`.
    #[arg(long)]
    pub url: Option<String>,
    /// The file for its history.
    #[arg(long)]
    pub file: PathBuf,
}

/// Plays the clients until the end of standard input, which tells it, line by line, on which port the locks are.
///
/// The worker whose clients begin with 0 also tries the order of the queue.
///
/// # Panics
/// When a reply is none that the contract knows, or the history cannot be written.
pub fn play(orders: &Orders) {
    if let Some(url) = &orders.url {
        return through::play(orders, url);
    }
    let recorder = Recorder::create(&orders.file).expect("a file for the history");
    let manners = orders.world.manners();
    let (primary, over) = (AtomicU16::new(orders.port), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in orders.first..orders.first + orders.clients {
            let random = Random::new(orders.seed ^ (u64::from(number) << 32));
            let (recorder, manners, primary, over) = (&recorder, &manners, &primary, &over);
            scope.spawn(move || {
                let store = Store::connect(recorder, orders.store);
                let mut player = Player::new(number, manners, random, recorder, primary, store);
                while !over.load(Ordering::Relaxed) {
                    player.step();
                }
                player.leave();
            });
        }
        if orders.first == 0 {
            let (recorder, primary, over) = (&recorder, &primary, &over);
            scope.spawn(move || {
                for round in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    queue::round(recorder, u32::MAX, round, primary.load(Ordering::Relaxed));
                }
            });
        }
        for line in io::stdin().lock().lines() {
            let port = line.ok().and_then(|line| line.parse().ok()).expect("a port");
            primary.store(port, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    recorder.finish().expect("a whole history");
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    /// Its clients.
    pub clients: std::ops::Range<u32>,
    /// The file of its history.
    pub file: PathBuf,
}

impl Worker {
    /// Starts a worker: this program once more.
    ///
    /// # Panics
    /// When that is not possible.
    #[must_use]
    pub fn start(orders: &Orders) -> Self {
        let program = env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .arg("worker")
            .args(["--world", orders.world.name(), "--seed", &orders.seed.to_string()])
            .args(["--first", &orders.first.to_string(), "--clients", &orders.clients.to_string()])
            .args(["--store", &orders.store.to_string(), "--port", &orders.port.to_string()])
            .args(orders.url.iter().flat_map(|url| ["--url", url]))
            .arg("--file")
            .arg(&orders.file)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a worker");
        let clients = orders.first..orders.first + orders.clients;
        Self { orders: child.stdin.take(), child, clients, file: orders.file.clone() }
    }

    /// Tells it on which port the locks are now.
    pub fn tell(&mut self, port: u16) {
        if let Some(orders) = &mut self.orders {
            // A worker that died is found at the end.
            let _ = writeln!(orders, "{port}");
        }
    }

    /// Stops it (SIGSTOP).
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("a process that runs");
    }

    /// Lets its clients hear their last answers; the file of its history.
    ///
    /// # Panics
    /// When it has failed, or its clients are not done in time.
    pub fn finish(mut self) -> PathBuf {
        drop(self.orders.take());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a worker") {
                break status;
            }
            assert!(begun.elapsed() < LAST_ANSWERS, "clients {:?} still wait for an answer", self.clients);
            thread::park_timeout(Duration::from_millis(5));
        };
        assert!(status.success(), "a worker failed: {status}");
        self.file.clone()
    }

    /// The file of its history.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
