//! Lockward as a contestant of `make bench-peers`: see benches/peers/README.md for what a contestant is.
//!
//! It does what README.md advises: a connection and an owner of its own for each client, a wait limit, HOLDS and TOKEN.

#![allow(clippy::expect_used, clippy::panic, reason = "a contestant that cannot go on ends, and says why")]

use clap::Parser;
use lockward_bench::peers::contest::{Job, Outcome, PERMITS, Quantiles, WRITERS};
use lockward_bench::request::{owner, request};
use lockward_tests::{Grant, Reply, decode};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WARM_UP: Duration = Duration::from_millis(1_500);
/// How long a client holds what others may hold too.
const HOLD: Duration = Duration::from_millis(1);
/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(70);

#[derive(Debug, Parser)]
struct Arguments {
    peer: String,
    job: Job,
    /// Where the server listens, as 127.0.0.1:PORT.
    #[arg(value_parser = port)]
    address: u16,
    #[arg(long)]
    clients: usize,
    #[arg(long)]
    seconds: u64,
}

fn port(address: &str) -> Result<u16, String> {
    let port = address.strip_prefix("127.0.0.1:").and_then(|port| port.parse().ok());
    port.ok_or_else(|| "not an address of this machine".to_owned())
}

/// A connection that waits for each reply.
struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Connection {
    fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a read deadline");
        Self { stream, input: Vec::new() }
    }

    fn call(&mut self, request: &[u8]) -> Reply {
        self.stream.write_all(request).expect("the server takes what is sent");
        loop {
            if let Some((reply, length)) = decode(&self.input).expect("a reply") {
                self.input.drain(..length);
                return reply;
            }
            let mut chunk = [0; 1024];
            let length = self.stream.read(&mut chunk).expect("a reply");
            assert!(length > 0, "the server has closed a connection");
            self.input.extend(chunk.iter().take(length));
        }
    }
}

/// What a client asks for in a job: the options of LOCK.ACQUIRE, and which part of the limit it takes.
fn mode(job: Job, client: usize) -> (Vec<String>, u64) {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let slots = |weight: u64| words(&["SLOTS", &PERMITS.to_string(), "WEIGHT", &weight.to_string()]);
    match job {
        Job::Uncontended | Job::Contended => (Vec::new(), 1),
        Job::Readers if client.is_multiple_of(WRITERS) => (Vec::new(), limit(job)),
        Job::Readers => (words(&["SHARED"]), 1),
        Job::Permits => (slots(1), 1),
        Job::Weights => {
            let weight = client as u64 % 3 + 1;
            (slots(weight), weight)
        }
    }
}

/// How much may be held at once.
const fn limit(job: Job) -> u64 {
    match job {
        Job::Uncontended | Job::Contended => 1,
        Job::Readers => u32::MAX as u64,
        Job::Permits | Job::Weights => PERMITS,
    }
}

/// What the clients of a contended job share.
struct Counting {
    job: Job,
    begin: Instant,
    end: Instant,
    /// Written under the lock alone, in two steps. What is counted while warming up is another number.
    counter: AtomicU64,
    warm_up: AtomicU64,
    last: AtomicUsize,
    handoffs: AtomicU64,
    /// How much is held now.
    held: AtomicU64,
}

impl Counting {
    fn covers(&self, instant: Instant) -> bool {
        (self.begin..self.end).contains(&instant)
    }

    /// What a client does while it holds what others may hold too.
    fn hold(&self, weight: u64, counted: bool) {
        let held = self.held.fetch_add(weight, Ordering::Relaxed) + weight;
        if counted && held <= limit(self.job) {
            self.counter.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(HOLD);
        self.held.fetch_sub(weight, Ordering::Relaxed);
    }

    /// What a client does while it holds the lock.
    fn count(&self, client: usize, counted: bool) {
        let counter = if counted { &self.counter } else { &self.warm_up };
        let read = counter.load(Ordering::Relaxed);
        thread::yield_now();
        counter.store(read + 1, Ordering::Relaxed);
        if self.last.swap(client, Ordering::Relaxed) != client && counted {
            self.handoffs.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn main() {
    let arguments = Arguments::parse();
    let job = arguments.job;
    let connections: Vec<Connection> =
        (0..arguments.clients).map(|_| Connection::open(arguments.address)).collect();
    let begin = Instant::now() + WARM_UP;
    let began = SystemTime::now() + WARM_UP;
    let counting = Counting {
        job,
        begin,
        end: begin + Duration::from_secs(arguments.seconds),
        counter: AtomicU64::new(0),
        warm_up: AtomicU64::new(0),
        last: AtomicUsize::new(usize::MAX),
        handoffs: AtomicU64::new(0),
        held: AtomicU64::new(0),
    };
    let times: Vec<Vec<u32>> = thread::scope(|scope| {
        let counting = &counting;
        let clients: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(client, connection)| {
                let work = move || run(connection, client, counting);
                thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, work).expect("a thread")
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client that comes to its end")).collect()
    });
    let grants: Vec<u64> = times.iter().map(|times| times.len() as u64).collect();
    let operations = grants.iter().sum();
    let is_writer = |client: usize| job == Job::Readers && client.is_multiple_of(WRITERS);
    let times_of = |writers: bool| {
        let times = times.iter().enumerate().filter(|(client, _)| is_writer(*client) == writers);
        times.flat_map(|(_, times)| times).copied().collect::<Vec<u32>>()
    };
    let outcome = Outcome {
        peer: arguments.peer,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job,
        clients: arguments.clients,
        began_unix_ms: began.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3),
        elapsed_ms: (counting.end - counting.begin).as_millis() as f64,
        operations,
        counter: if job == Job::Uncontended { operations } else { counting.counter.into_inner() },
        grants,
        acquire_us: Quantiles::of(times_of(false)),
        writers_us: (job == Job::Readers).then(|| Quantiles::of(times_of(true))),
        notes:
            "lease 30 s, not renewed; a connection for each client; plain commands, without a client library"
                .to_owned(),
        handoffs: (job == Job::Contended).then(|| counting.handoffs.into_inner()),
        gave_up: 0,
    };
    println!("{}", serde_json::to_string(&outcome).expect("plain numbers"));
}

/// A client; how long each of its acquisitions took that count, in microseconds.
fn run(mut connection: Connection, client: usize, counting: &Counting) -> Vec<u32> {
    let job = counting.job;
    // Servers go on from job to job, with what clients that still waited at the end have left behind.
    let key = if job == Job::Uncontended { format!("own:{client}") } else { format!("all:{job}") };
    let owner = owner(client);
    let (options, weight) = mode(job, client);
    let acquire = ["LOCK.ACQUIRE", &key, &owner, "PX", "30000", "BLOCK", "60000", "HOLDS", "1"];
    let acquire: Vec<&str> = acquire.into_iter().chain(options.iter().map(String::as_str)).collect();
    let acquire = request(&acquire);
    let mut times = Vec::new();
    loop {
        let asked = Instant::now();
        if asked >= counting.end {
            return times;
        }
        let grant = connection.call(&acquire);
        let granted = Instant::now();
        let counted = counting.covers(granted);
        let Grant { token, .. } = grant.grant();
        // Whoever still waits at the end gets the lock after it, and does nothing with it.
        if granted < counting.end {
            match job {
                Job::Uncontended => {}
                Job::Contended => counting.count(client, counted),
                Job::Readers | Job::Permits | Job::Weights => counting.hold(weight, counted),
            }
        }
        let release = ["LOCK.RELEASE", &key, &owner, "HOLDS", "0", "TOKEN", &token.to_string()];
        let left = connection.call(&request(&release));
        assert_eq!(left, Reply::Int(0), "holds left");
        if counted {
            times.push(u32::try_from((granted - asked).as_micros()).unwrap_or(u32::MAX));
        }
    }
}
