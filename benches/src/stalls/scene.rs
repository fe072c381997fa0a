//! A server for one case, the clients that wait on it, and the thread that times PING.

use crate::clients::Client;
use crate::placement::{Place, go_before_own_threads, put_main_thread_first};
use crate::request::{LEASE, LONG_LEASE, request};
use crate::server::{Loaded, Server};
use lockward_tests::{self as tests, Reply, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The number of clients that wait, and of locks or lists, in most cases.
pub const MANY: usize = 10_000;

/// How long PING is timed before and after the work. The time after the work includes work that the server delays.
const MARGIN: Duration = Duration::from_millis(50);

/// The pause between two checks for a condition.
pub const POLLED: Duration = Duration::from_millis(2);

/// After this number of requests, this program waits until the server has read them.
const UNREAD: usize = 100;

/// The owner in requests where the name does not matter. This owner usually holds the locks.
pub const HOLDER: &str = "holder";

/// Returns the instant at which the lease with this number ends.
pub type Until<'a> = &'a dyn Fn(usize) -> Instant;

/// The server on which a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A server with Lockward: clients hold locks and wait for them.
    Lockward,
    /// A server without any module: strings have a TTL, and clients wait for lists with BLPOP.
    Plain,
}

impl Side {
    /// The request that takes a key for `lease` milliseconds: a held lock, or a string with a TTL.
    pub fn take(self, key: &str, lease: &str) -> Vec<u8> {
        match self {
            Self::Lockward => request(&["LOCK.ACQUIRE", key, HOLDER, "PX", lease]),
            Self::Plain => request(&["SET", key, HOLDER, "PX", lease]),
        }
    }

    /// The request of an owner that waits for this key, until an instant or without limit.
    pub fn wait(self, key: &str, owner: &str, until: Option<Instant>) -> Vec<u8> {
        let limit = until.map_or(Duration::ZERO, left_until);
        match self {
            Self::Lockward => {
                let limit = limit.as_millis().to_string();
                request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE, "BLOCK", &limit])
            }
            Self::Plain => request(&["BLPOP", key, &format!("{:.3}", limit.as_secs_f64())]),
        }
    }
}

/// The request of an owner that acquires a slot of the first lock, for `lease` milliseconds.
pub fn take_slot(owner: &str, lease: &str) -> Vec<u8> {
    request(&["LOCK.ACQUIRE", &key(0), owner, "PX", lease, "SLOTS", "1000000"])
}

pub fn release_slot(owner: &str) -> Vec<u8> {
    request(&["LOCK.RELEASE", &key(0), owner])
}

pub fn key(number: usize) -> String {
    format!("stall:{number:07}")
}

/// The owner of this number. The name has the usual length of `UUID:thread`.
pub fn owner(number: usize) -> String {
    format!("0b5e4c3a-9d57-4c3a-9d57-{number:012}:7")
}

/// The time until `then`. Panics if `then` has passed: the setup of a case took too long.
pub fn left_until(then: Instant) -> Duration {
    then.checked_duration_since(Instant::now()).expect("everything is set up in time")
}

/// The server of one case, and a connection to control it.
pub struct Scene {
    pub side: Side,
    pub server: Server,
    pub control: Client,
}

impl Scene {
    /// Starts a server, with these lines of redis.conf. The child processes and background threads of the server run on
    /// another CPU than its main thread, so that their work is not a stall.
    pub fn start(side: Side, config: &[&str]) -> Self {
        let elsewhere = Place::Together.cpu();
        let own = [
            format!("maxclients {}", MANY + 100),
            "tcp-backlog 4096".to_owned(),
            "lua-time-limit 0".to_owned(),
            format!("bgsave_cpulist {elsewhere}"),
            format!("bio_cpulist {elsewhere}"),
        ];
        let loaded = match side {
            Side::Lockward => Loaded::Lockward,
            Side::Plain => Loaded::Nothing,
        };
        let lines: Vec<&str> = own.iter().map(String::as_str).chain(config.iter().copied()).collect();
        let server = Server::start_with(loaded, Place::Apart, &lines);
        put_main_thread_first(server.pid());
        let control = server.client();
        Self { side, server, control }
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, arguments: &[&str]) {
        self.control.call(arguments);
    }

    /// Runs a script that executes each of these lines for the keys from 0 to `keys` - 1.
    pub fn script(&mut self, keys: usize, lines: &[&str]) {
        let pass = |line: &&str| {
            format!(
                "for i = 0, {keys} - 1 do
                    local key = string.format('stall:%07d', i)
                    local owner = string.format('0b5e4c3a-9d57-4c3a-9d57-%012d:7', i)
                    {line}
                end "
            )
        };
        self.call(&["EVAL", &lines.iter().map(pass).collect::<String>(), "0"]);
    }

    /// Takes `keys` keys, for a long time or until an instant.
    pub fn take(&mut self, keys: usize, until: Option<Instant>) {
        let then = until.unwrap_or_else(Instant::now);
        self.take_in_chunks(keys, until.is_some().then_some(&|_| then));
    }

    /// Takes `keys` keys, each until its own instant.
    pub fn take_until(&mut self, keys: usize, until: Until<'_>) {
        self.take_in_chunks(keys, Some(until));
    }

    fn take_in_chunks(&mut self, keys: usize, until: Option<Until<'_>>) {
        self.in_chunks(keys, until, |side, numbers, lease| {
            numbers.iter().map(|number| side.take(&key(*number), lease)).collect()
        });
    }

    /// Lets `holders` owners hold one lock together, for a long time or each until its own instant. On a plain server
    /// the owners are the members of a sorted set.
    pub fn hold_together(&mut self, holders: usize, until: Option<Until<'_>>) {
        self.in_chunks(holders, until, |side, numbers, lease| match side {
            Side::Lockward => numbers.iter().map(|number| take_slot(&owner(*number), lease)).collect(),
            Side::Plain => {
                let members = numbers.iter().flat_map(|number| [number.to_string(), owner(*number)]);
                let words: Vec<String> = ["ZADD".to_owned(), key(0)].into_iter().chain(members).collect();
                vec![request(&words.iter().map(String::as_str).collect::<Vec<_>>())]
            }
        });
    }

    /// Splits the numbers from 0 to `count` - 1 into chunks, and sends the requests that `requests` makes for each
    /// chunk and its lease. The lease of a chunk ends at the instant that `until` returns for the first number of the
    /// chunk. Without `until` the lease is long.
    fn in_chunks(
        &mut self,
        count: usize,
        until: Option<Until<'_>>,
        requests: impl Fn(Side, &[usize], &str) -> Vec<Vec<u8>>,
    ) {
        let numbers: Vec<usize> = (0..count).collect();
        // All requests of a chunk have the same lease. So chunks are small if the leases must end at their instants.
        for some in numbers.chunks(if until.is_some() { UNREAD } else { 10 * UNREAD }) {
            let until = until.map(|until| left_until(until(some[0])).as_millis().to_string());
            let lease = until.as_deref().unwrap_or(LONG_LEASE);
            self.control.pipeline(&requests(self.side, some, lease));
        }
    }

    /// Acquires `locks` locks for which clients will wait. BLPOP needs no holder.
    pub fn hold(&mut self, locks: usize, until: Option<Instant>) {
        if self.side == Side::Lockward {
            self.take(locks, until);
        }
    }

    pub fn connect(&self, count: usize) -> Vec<tests::Client> {
        (0..count).map(|_| self.server.connect()).collect()
    }

    /// Sends the request of each client, and returns when all clients are blocked.
    pub fn wait(&mut self, clients: &mut [tests::Client], request: impl Fn(usize) -> Vec<u8>) {
        for (who, client) in clients.iter_mut().enumerate() {
            client.send_bytes(&request(who));
            if who % UNREAD == 0 {
                self.control.call(&["PING"]);
            }
        }
        self.until_blocked(clients.len());
    }

    /// `count` clients that wait without limit, spread over `keys` keys.
    pub fn waiters(&mut self, count: usize, keys: usize) -> Vec<tests::Client> {
        self.hold(keys, None);
        let side = self.side;
        let mut clients = self.connect(count);
        self.wait(&mut clients, |who| side.wait(&key(who % keys), &owner(who), None));
        clients
    }

    pub fn until_blocked(&mut self, count: usize) {
        self.until("clients", "blocked_clients", count as f64);
    }

    /// Waits until a field of INFO has this value.
    pub fn until(&mut self, section: &str, field: &str, wanted: f64) {
        let control = &mut self.control;
        eventually(&format!("{field} {wanted}"), || control.info_number(section, field) == wanted);
    }

    /// Waits until all keys have expired.
    pub fn until_empty(&mut self) {
        eventually("no key is left", || self.control.call(&["DBSIZE"]) == Reply::Int(0));
    }

    /// Waits until all other clients have disconnected, deletes all keys, and returns the used memory.
    pub fn used_once_alone(&mut self) -> f64 {
        self.until("clients", "connected_clients", 1.0);
        self.call(&["FLUSHALL"]);
        self.control.info_number("memory", "used_memory")
    }

    /// The longest PING, in milliseconds, while `provoke` runs.
    pub fn longest_ping(&mut self, provoke: impl FnOnce(&mut Self)) -> f64 {
        let pinger = Pinger::start(self.server.connect());
        thread::sleep(MARGIN);
        provoke(self);
        thread::sleep(MARGIN);
        pinger.stop().as_secs_f64() * 1e3
    }

    /// The longest PING, in milliseconds, while `provoke` runs and until no client is blocked. Then each of `clients`
    /// must have an expected reply.
    pub fn longest_unblocking(
        &mut self,
        clients: &mut [tests::Client],
        expected: fn(&Reply) -> bool,
        provoke: impl FnOnce(&mut Self),
    ) -> f64 {
        let longest = self.longest_ping(|scene| {
            provoke(scene);
            scene.until_blocked(0);
        });
        expect(clients, expected);
        longest
    }

    /// The server's CPU in per cent, measured for this time.
    pub fn cpu_percent(&self, time: Duration) -> f64 {
        let (cpu, begin) = (self.server.cpu(), Instant::now());
        let before = cpu.read();
        thread::sleep(time);
        (cpu.read() - before).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0
    }
}

/// Reads a reply to each client. Panics if `expected` returns false for a reply.
pub fn expect(clients: &mut [tests::Client], expected: fn(&Reply) -> bool) {
    for client in clients {
        let reply = client.reply();
        assert!(expected(&reply), "not the expected reply: {reply:?}");
    }
}

/// Sends PING repeatedly, on a thread with priority over all other threads of this process.
struct Pinger {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Pinger {
    fn start(mut connection: tests::Client) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        connection.call("PING");
        let thread = thread::spawn(move || {
            go_before_own_threads();
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let sent = Instant::now();
                connection.call("PING");
                longest = longest.max(sent.elapsed());
            }
            longest
        });
        Self { stop, thread }
    }

    fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("replies to PING")
    }
}
