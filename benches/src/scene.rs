//! A server on which clients wait, and the thread that times PING.

use crate::placement::{Place, go_before_own_threads, put_main_thread_first};
use crate::request::{LEASE, LONG_LEASE, exchange, owner, request};
use crate::server::{Loaded, setup};
use lockward_tests::{Client, Reply, Server, Setup};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of clients that wait, and of locks or lists, in most cases.
pub const MANY: usize = 10_000;

/// How long PING is timed before and after the work. The time after the work includes work that the server delays.
const MARGIN: Duration = Duration::from_millis(50);

/// After this number of requests, this program waits until the server has read them.
const UNREAD: usize = 100;

pub const HOLDER: &str = "holder";

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

    /// The request of an owner that waits for this key, for at most this time. Zero is no limit.
    pub fn wait(self, key: &str, owner: &str, limit: Duration) -> Vec<u8> {
        match self {
            Self::Lockward => {
                let limit = limit.as_millis().to_string();
                request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE, "BLOCK", &limit])
            }
            Self::Plain => request(&["BLPOP", key, &format!("{:.3}", limit.as_secs_f64())]),
        }
    }
}

pub fn key(number: usize) -> String {
    format!("stall:{number:07}")
}

/// The time until `then`. Panics if `then` has passed: the setup of a case took too long.
pub fn left_until(then: Instant) -> Duration {
    then.checked_duration_since(Instant::now()).expect("everything is set up in time")
}

pub struct Scene {
    pub side: Side,
    pub server: Server,
    pub control: Client,
}

impl Scene {
    pub fn start(side: Side) -> Self {
        let server = Self::setup(side, &[]).start();
        put_main_thread_first(server.pid());
        let control = server.client();
        Self { side, server, control }
    }

    /// The setup of a server. The child processes and background threads of the server run on another CPU than its main
    /// thread, so that their work is not a stall.
    pub fn setup(side: Side, config: &[&str]) -> Setup {
        let elsewhere = Place::Together.cpu();
        let own = [
            format!("maxclients {}", MANY + 100),
            "tcp-backlog 4096".to_owned(),
            "lua-time-limit 0".to_owned(),
            format!("bgsave_cpulist {elsewhere}"),
            format!("bio_cpulist {elsewhere}"),
        ];
        let loaded = if side == Side::Lockward { Loaded::Lockward } else { Loaded::Nothing };
        let lines: Vec<&str> = own.iter().map(String::as_str).chain(config.iter().copied()).collect();
        setup(loaded, Place::Apart, &lines)
    }

    pub fn call(&mut self, arguments: &[&str]) {
        exchange(&mut self.control, &[request(arguments)]);
    }

    /// Runs a script that executes this line for the first [`MANY`] keys.
    pub fn script(&mut self, line: &str) {
        let key = "local key = string.format('stall:%07d', i)";
        self.call(&["EVAL", &format!("for i = 0, {MANY} - 1 do {key} {line} end"), "0"]);
    }

    /// Sends the requests that `take` makes from the numbers from 0 to `count` - 1 and a lease in milliseconds. All
    /// leases end at this instant.
    pub fn take_until(&mut self, end: Instant, count: usize, take: impl Fn(usize, &str) -> Vec<u8>) {
        for first in (0..count).step_by(UNREAD) {
            let lease = left_until(end).as_millis().to_string();
            let requests = (first..count.min(first + UNREAD)).map(|number| take(number, &lease));
            exchange(&mut self.control, &requests.collect::<Vec<_>>());
        }
    }

    /// Connects this number of clients, sends the request of each client, and returns when all clients are blocked.
    pub fn waiting(&mut self, count: usize, request: impl Fn(usize) -> Vec<u8>) -> Vec<Client> {
        let mut clients: Vec<Client> = (0..count).map(|_| self.server.client()).collect();
        for (who, client) in clients.iter_mut().enumerate() {
            client.send_bytes(&request(who));
            if who % UNREAD == 0 {
                self.call(&["PING"]);
            }
        }
        self.control.see_blocked(count as i64);
        clients
    }

    /// `count` clients that wait without limit, spread over `keys` keys.
    pub fn waiters(&mut self, count: usize, keys: usize) -> Vec<Client> {
        let side = self.side;
        self.hold(keys);
        self.waiting(count, |who| side.wait(&key(who % keys), &owner(who), Duration::ZERO))
    }

    /// Acquires locks for which clients will wait. BLPOP needs no holder.
    pub fn hold(&mut self, locks: usize) {
        if self.side == Side::Lockward {
            (0..locks).for_each(|lock| self.call(&["LOCK.ACQUIRE", &key(lock), HOLDER, "PX", LONG_LEASE]));
        }
    }

    /// The longest PING, in milliseconds, while `provoke` runs.
    pub fn longest_ping(&mut self, provoke: impl FnOnce(&mut Self)) -> f64 {
        longest_ping(self.server.client(), || provoke(self))
    }

    /// The longest PING, in milliseconds, while `provoke` runs and until no client is blocked. Then each of `clients`
    /// must have an expected reply.
    pub fn longest_unblocking(
        &mut self,
        clients: Vec<Client>,
        expected: fn(&Reply) -> bool,
        provoke: impl FnOnce(&mut Self),
    ) -> f64 {
        let longest = self.longest_ping(|scene| {
            provoke(scene);
            scene.control.see_blocked(0);
        });
        for mut client in clients {
            let reply = client.reply();
            assert!(expected(&reply), "not the expected reply: {reply:?}");
        }
        longest
    }
}

/// The longest PING on a connection while `work` runs, in milliseconds. The thread that sends PING has priority over
/// all other threads of this process.
pub fn longest_ping(mut connection: Client, work: impl FnOnce()) -> f64 {
    let stop = AtomicBool::new(false);
    connection.call("PING");
    thread::scope(|scope| {
        let pinger = scope.spawn(|| {
            go_before_own_threads();
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let sent = Instant::now();
                connection.call("PING");
                longest = longest.max(sent.elapsed());
            }
            longest
        });
        thread::sleep(MARGIN);
        work();
        thread::sleep(MARGIN);
        stop.store(true, Ordering::Relaxed);
        pinger.join().expect("replies to PING").as_secs_f64() * 1e3
    })
}
