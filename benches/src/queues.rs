//! Clients that wait on one server. Measures the server's CPU for a hand-off and for the start of a wait, and the
//! server's memory.
//!
//! A hand-off is compared with an LPUSH that wakes the next BLPOP: one client sends a command, and a waiting client
//! gets a reply.

use crate::clients::{Client, Clients};
use crate::pipeline::Expected;
use crate::placement::Place;
use crate::request::{LONG_LEASE, owner, request};
use crate::server::{Loaded, Server};
use lockward_tests::eventually;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

/// The number of hand-offs in a round.
pub const HANDOFFS: usize = 400;
/// After this number of connections or requests, this program waits until the server has read them.
const UNREAD: usize = 200;
/// The largest number of connections to one address of the server. Each connection to an address needs its own client
/// port.
const CONNECTIONS_OF_ADDRESS: usize = 20_000;
/// The memory is measured when it has not decreased for this time, because the server shrinks the buffers of a client
/// after five idle seconds.
const SETTLED: Duration = Duration::from_secs(6);

/// What the clients wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock. LOCK.ACQUIRE BLOCK waits, and LOCK.RELEASE passes the lock on.
    Lock,
    /// An element of a list. BLPOP waits, and LPUSH passes the element on.
    List,
    /// Nothing: a command of the empty module blocks the client.
    Nothing,
}

impl Kind {
    /// The request of a member that waits in a queue.
    fn wait(self, queue: usize, member: usize) -> Vec<u8> {
        let (key, owner) = (key(queue), owner(member));
        match self {
            Self::Lock => {
                request(&["LOCK.ACQUIRE", &key, &owner, "PX", LONG_LEASE, "BLOCK", "0", "HOLDS", "1"])
            }
            Self::List => request(&["BLPOP", &key, "0"]),
            Self::Nothing => request(&["EMPTY.BLOCK", &key, &owner, "PX", LONG_LEASE, "BLOCK", "0"]),
        }
    }

    /// The request of a member that passes the lock or the element on.
    fn pass_on(self, queue: usize, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => request(&["LOCK.RELEASE", &key(queue), &owner(member), "HOLDS", "0"]),
            Self::List | Self::Nothing => request(&["LPUSH", &key(queue), "x"]),
        }
    }

    /// The reply to the member that receives the lock or the element.
    const fn received(self) -> Expected {
        match self {
            Self::Lock => Expected::Grant,
            Self::List | Self::Nothing => Expected::Element,
        }
    }

    /// The reply to the member that passes the lock or the element on.
    const fn passed(self) -> Expected {
        match self {
            Self::Lock => Expected::Number(0),
            Self::List | Self::Nothing => Expected::Number(1),
        }
    }
}

fn key(queue: usize) -> String {
    format!("wait:{queue:05}")
}

/// How the clients wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All clients wait for one lock.
    One,
    /// Each client waits for its own lock.
    Each,
}

/// The server's CPU, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// For a hand-off.
    pub handoff: f64,
    /// For the start of a wait.
    pub wait: f64,
}

/// A server with a growing number of waiting clients. With [`Shape::One`], client 0 is the first holder of the lock.
/// With [`Shape::Each`], client 0 holds all locks and passes them on.
#[derive(Debug)]
pub struct Queues {
    shape: Shape,
    kind: Kind,
    pub server: Server,
    control: Client,
    clients: Clients,
    waiting: usize,
    /// The client that holds the lock of [`Shape::One`].
    holder: usize,
    /// The queue of [`Shape::Each`] that was served last.
    next: usize,
}

impl Queues {
    /// Starts a server for at most `most` waiting clients. No client waits yet.
    pub fn start(shape: Shape, kind: Kind, place: Place, most: usize) -> Self {
        let maxclients = format!("maxclients {}", most + 100);
        let limits = [format!("lock.max-waiters {most}"), format!("lock.max-waiters-total {most}")];
        let mut config = vec!["bind 127.0.0.1 127.0.0.2 127.0.0.3", "tcp-backlog 4096", &maxclients];
        let loaded = if kind == Kind::Nothing { Loaded::Empty } else { Loaded::Lockward };
        if loaded == Loaded::Lockward {
            config.extend(limits.iter().map(String::as_str));
        }
        let server = Server::start_with(loaded, place, &config);
        let mut clients = Clients::none();
        clients.connect(Ipv4Addr::LOCALHOST, server.port());
        let control = server.client();
        let mut queues = Self { shape, kind, server, control, clients, waiting: 0, holder: 0, next: 0 };
        if shape == Shape::One {
            queues.hold(0);
        }
        queues
    }

    /// Starts a server on which this number of clients wait for one lock.
    pub fn waiting(kind: Kind, place: Place, count: usize) -> Self {
        let mut queues = Self::start(Shape::One, kind, place, count);
        queues.connect(count);
        queues.wait(count);
        queues
    }

    pub fn used_memory(&mut self) -> f64 {
        self.control.info_number("memory", "used_memory")
    }

    /// The used memory after the server has shrunk the buffers of idle clients.
    pub fn settled_memory(&mut self) -> f64 {
        let mut least = (f64::MAX, Instant::now());
        while least.1.elapsed() < SETTLED {
            let used = self.used_memory();
            if used < least.0 * 0.999 {
                least = (used, Instant::now());
            }
            thread::sleep(Duration::from_millis(100));
        }
        self.used_memory()
    }

    /// Waits until the server has read all earlier requests.
    fn settle(&mut self) {
        self.control.call(&["PING"]);
    }

    /// Lets client 0 hold the lock of a queue. Only a lock needs a holder.
    fn hold(&mut self, queue: usize) {
        if self.kind == Kind::Lock {
            self.clients.send(0, &self.kind.wait(queue, 0));
            self.kind.received().check(&self.clients.reply_to(0));
        }
    }

    const fn queue_of(&self, who: usize) -> usize {
        match self.shape {
            Shape::One => 0,
            Shape::Each => who - 1,
        }
    }

    /// Connects more clients, up to `count`.
    pub fn connect(&mut self, count: usize) {
        for who in self.waiting + 1..=count {
            let address = Ipv4Addr::new(127, 0, 0, 1 + (who / CONNECTIONS_OF_ADDRESS) as u8);
            self.clients.connect(address, self.server.port());
            if who % UNREAD == 0 {
                self.settle();
            }
        }
        for who in self.waiting + 1..=count {
            self.clients.call(who, &["PING"]);
        }
    }

    /// Lets the new clients wait.
    pub fn wait(&mut self, count: usize) {
        for who in self.waiting + 1..=count {
            if self.shape == Shape::Each {
                self.hold(self.queue_of(who));
            }
            self.clients.send(who, &self.kind.wait(self.queue_of(who), who));
            if who % UNREAD == 0 {
                self.settle();
            }
        }
        self.waiting = count;
        let control = &mut self.control;
        eventually("clients that wait", || control.info_number("clients", "blocked_clients") == count as f64);
    }

    /// Measures hand-offs and waits. The number of waiting clients stays the same.
    pub fn round(&mut self) -> Costs {
        let cpu = self.server.cpu();
        let at_once = HANDOFFS.min(self.waiting);
        let (mut handing, mut waiting) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..HANDOFFS.div_ceil(at_once) {
            let begin = cpu.settled();
            let idle: Vec<usize> = (0..at_once).map(|_| self.hand_over(false)).collect();
            handing += cpu.settled() - begin;
            if self.shape == Shape::Each && self.kind == Kind::Lock {
                for &who in &idle {
                    self.clients.send(who, &self.kind.pass_on(self.queue_of(who), who));
                    self.kind.passed().check(&self.clients.reply_to(who));
                    self.hold(self.queue_of(who));
                }
            }
            let begin = cpu.settled();
            for who in idle {
                let queue = if self.shape == Shape::One { 0 } else { self.queue_of(who) };
                self.clients.send(who, &self.kind.wait(queue, who));
            }
            waiting += cpu.settled() - begin;
        }
        let handed = (HANDOFFS.div_ceil(at_once) * at_once) as f64;
        let each = |spent: Duration| spent.as_nanos() as f64 / handed;
        Costs { handoff: each(handing), wait: each(waiting) }
    }

    /// The server's CPU for a hand-off and the next wait of the former holder, in nanoseconds.
    pub fn round_of_holders(&mut self) -> f64 {
        let cpu = self.server.cpu();
        let begin = cpu.settled();
        (0..HANDOFFS).for_each(|_| _ = self.hand_over(true));
        (cpu.settled() - begin).as_nanos() as f64 / HANDOFFS as f64
    }

    /// Serves one waiter. If `waits_again` is set, the former holder sends its next wait together with its release.
    /// With [`Shape::One`], returns the former holder. With [`Shape::Each`], returns the client that was served.
    pub fn hand_over(&mut self, waits_again: bool) -> usize {
        let (queue, from) = match self.shape {
            Shape::One => (0, self.holder),
            Shape::Each => {
                // The step is a large prime that divides no number of waiters. So successive hand-offs serve queues
                // with distant numbers, and all queues get their turn.
                self.next = (self.next + 7_919) % self.waiting;
                (self.next, 0)
            }
        };
        let mut requests = self.kind.pass_on(queue, from);
        if waits_again {
            requests.extend(self.kind.wait(queue, from));
        }
        self.clients.send(from, &requests);
        let mut served = from;
        for _ in 0..2 {
            let arrival = self.clients.arrival();
            if arrival.who == from {
                self.kind.passed().check(&arrival.reply);
            } else {
                self.kind.received().check(&arrival.reply);
                served = arrival.who;
            }
        }
        assert_ne!(served, from, "no waiter was served");
        match self.shape {
            Shape::One => std::mem::replace(&mut self.holder, served),
            Shape::Each => served,
        }
    }

    /// Lets a writer release a lock for which `readers` connected clients wait: the release grants the lock to all of
    /// them. Returns the server's CPU for each reader, in nanoseconds. No client may wait for anything else.
    pub fn admit_readers(&mut self, readers: usize) -> f64 {
        let ask = |clients: &mut Clients, who: usize, mode: &[&str]| {
            let acquire = ["LOCK.ACQUIRE", "readers", &owner(who), "PX", LONG_LEASE, "BLOCK", "0"];
            clients.send(who, &request(&[&acquire, mode].concat()));
        };
        let release = |who: usize| request(&["LOCK.RELEASE", "readers", &owner(who)]);
        ask(&mut self.clients, 0, &[]);
        Expected::Grant.check(&self.clients.reply_to(0));
        for reader in 1..=readers {
            ask(&mut self.clients, reader, &["SHARED"]);
            self.settle();
        }
        let clients = &mut self.clients;
        let each = self.server.cost(readers, || {
            clients.send(0, &release(0));
            for _ in 0..=readers {
                let arrival = clients.arrival();
                let expected = if arrival.who == 0 { Expected::Number(0) } else { Expected::Grant };
                expected.check(&arrival.reply);
            }
        });
        for reader in 1..=readers {
            self.clients.send(reader, &release(reader));
            Expected::Number(0).check(&self.clients.reply_to(reader));
        }
        each
    }
}
