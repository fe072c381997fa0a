//! Curves by the number of waiting clients: CPU for a wait and for a hand-off, and memory. Either all clients wait for
//! one lock, or each client waits for its own lock. For comparison, the stage also measures BLPOPs that LPUSH serves.

use super::curves::{LONG_LEASE, Point, axes, has_memory, plot};
use crate::clients::{Client, Clients};
use crate::handoff::Kind;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::results::Unit;
use crate::rounds::Series;
use crate::server::Server;
use lockward_tests::{eventually, own_files, raise_open_files};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub const STAGE: &str = "waiters";

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 50_000];
/// With fewer clients than this, memory is not measured: the noise would be larger than the memory of the clients.
const WORTH_WEIGHING: usize = 1_000;
/// The number of hand-offs in a round.
const HANDOFFS: usize = 200;
const ROUNDS: usize = 15;
/// Files that a process has open besides the connections of the waiters.
const SPARE_FILES: usize = 300;
/// After this number of connections or requests, this program waits until the server has read them.
const UNREAD: usize = 200;
/// The largest number of connections to one address of the server, because each connection needs another client port.
const CONNECTIONS_OF_ADDRESS: usize = 20_000;
/// After this time the server has shrunk the buffers of idle clients.
const SETTLED: Duration = Duration::from_secs(6);
/// Memory of one waiter of each kind, in the servers and in this program, in bytes.
const BYTES: f64 = 300_000.0;
/// The kinds of wait. Each has its own server.
const KINDS: [Kind; 2] = [Kind::Lock, Kind::List];

/// What the clients wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All clients wait for one lock.
    One,
    /// Each client waits for its own lock.
    Each,
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Each => "each",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::One => "all clients wait for one lock",
            Self::Each => "each client waits for its own lock",
        }
    }
}

/// A server with a growing number of waiting clients. With [`Shape::One`], client 0 is the first holder of the lock.
/// With [`Shape::Each`], client 0 holds all locks and passes them on.
struct Crowd {
    shape: Shape,
    kind: Kind,
    server: Server,
    control: Client,
    clients: Clients,
    waiting: usize,
    /// The client that holds the lock of [`Shape::One`].
    holder: usize,
    /// The queue of [`Shape::Each`] that was served last.
    next: usize,
}

impl Crowd {
    fn start(shape: Shape, kind: Kind) -> Self {
        let most = COUNTS[COUNTS.len() - 1];
        let server = Server::start(&[
            "bind 127.0.0.1 127.0.0.2 127.0.0.3",
            &format!("maxclients {}", most + 100),
            "tcp-backlog 4096",
            &format!("lock.max-waiters {most}"),
            &format!("lock.max-waiters-total {most}"),
        ]);
        let mut clients = Clients::none();
        clients.connect(Ipv4Addr::LOCALHOST, server.port());
        let control = server.client();
        let mut crowd = Self { shape, kind, server, control, clients, waiting: 0, holder: 0, next: 0 };
        if shape == Shape::One {
            crowd.hold(0);
        }
        crowd
    }

    fn used(&mut self) -> f64 {
        self.control.info_number("memory", "used_memory")
    }

    fn settle(&mut self) {
        self.control.call(&["PING"]);
    }

    /// Lets client 0 hold the lock of a queue. Does nothing for lists, because BLPOP needs no holder.
    fn hold(&mut self, queue: usize) {
        if self.kind == Kind::Lock {
            self.clients.send(0, &self.kind.wait_with_lease(queue, 0, LONG_LEASE));
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
    fn connect(&mut self, count: usize) {
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
    fn wait(&mut self, count: usize) {
        for who in self.waiting + 1..=count {
            if self.shape == Shape::Each {
                self.hold(self.queue_of(who));
            }
            self.clients.send(who, &self.kind.wait_with_lease(self.queue_of(who), who, LONG_LEASE));
            if who % UNREAD == 0 {
                self.settle();
            }
        }
        self.waiting = count;
        let control = &mut self.control;
        eventually("clients that wait", || control.info_number("clients", "blocked_clients") == count as f64);
    }

    /// The server's CPU for a hand-off, and for a wait that begins, in nanoseconds.
    fn round(&mut self) -> [f64; 2] {
        let cpu = self.server.cpu();
        let at_once = HANDOFFS.min(self.waiting);
        let (mut handing, mut waiting) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..HANDOFFS.div_ceil(at_once) {
            let begin = cpu.settled();
            let idle: Vec<usize> = (0..at_once).map(|_| self.hand_over()).collect();
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
                self.clients.send(who, &self.kind.wait_with_lease(queue, who, LONG_LEASE));
            }
            waiting += cpu.settled() - begin;
        }
        let handed = (HANDOFFS.div_ceil(at_once) * at_once) as f64;
        [handing, waiting].map(|spent| spent.as_nanos() as f64 / handed)
    }

    /// Serves one waiter. Returns the client that no longer waits.
    fn hand_over(&mut self) -> usize {
        let (queue, from) = match self.shape {
            Shape::One => (0, self.holder),
            Shape::Each => {
                // The step is a prime that divides no number of waiters, so each round serves queues far apart.
                self.next = (self.next + 7_919) % self.waiting;
                (self.next, 0)
            }
        };
        self.clients.send(from, &self.kind.pass_on(queue, from));
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
}

/// A crowd on its own thread. The thread has its own table of open files, so it may have as many open files as a
/// process.
struct Worker {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

type Order = Box<dyn FnOnce(&mut Crowd) + Send>;

impl Worker {
    fn start(shape: Shape, kind: Kind) -> Self {
        let (orders, received) = channel::<Order>();
        let thread = thread::spawn(move || {
            own_files();
            let mut crowd = Crowd::start(shape, kind);
            for order in received {
                order(&mut crowd);
            }
        });
        Self { orders, thread }
    }

    /// Runs a function on the thread of the crowd, and returns its result.
    fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Crowd) -> T + Send + 'static) -> T {
        let (reply, answer) = channel();
        let order: Order = Box::new(move |crowd| drop(reply.send(what(crowd))));
        self.orders.send(order).expect("a crowd");
        answer.recv().expect("a crowd")
    }

    fn end(self) {
        drop(self.orders);
        self.thread.join().expect("a crowd");
    }
}

/// The numbers of waiters for which a process may have enough open files. If there are too few open files for the
/// largest of [`COUNTS`], the last number is the largest possible number.
fn counts(report: &Report) -> Vec<usize> {
    let most = COUNTS[COUNTS.len() - 1];
    let files = raise_open_files((most + SPARE_FILES) as u64);
    let possible = usize::try_from(files).unwrap_or(most).saturating_sub(SPARE_FILES) / 1_000 * 1_000;
    let mut counts: Vec<usize> = COUNTS.into_iter().filter(|count| *count <= possible).collect();
    if possible < most {
        report.say(&format!(
            "        a process may have only {files} open files: the curve ends before {most} waiters"
        ));
        if counts.last().is_some_and(|last| *last < possible) {
            counts.push(possible);
        }
    }
    counts
}

/// Measures both shapes, up to the number of waiters for which the machine has memory and files.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let counts = counts(report);
    for shape in [Shape::One, Shape::Each] {
        let workers = KINDS.map(|kind| Worker::start(shape, kind));
        let mut before = 0;
        for (done, &count) in counts.iter().enumerate() {
            report.progress(done, counts.len());
            if !has_memory(report, (count - before) as f64 * BYTES, &format!("{count} waiters")) {
                break;
            }
            let point = Point::new(STAGE, count, "waiter");
            let is_weighed = shape == Shape::Each && count >= WORTH_WEIGHING;
            let memory = grow(&workers, count, is_weighed);
            if let [none, connected, waiting] = memory[..] {
                let each = |used: f64| Series::once((used - none) / (count - before) as f64);
                let what = "memory of a connection that has been idle for 6 seconds";
                point.row(report, ("connection", what, Unit::Bytes), &each(connected));
                let what = "memory of a waiter that has been idle for 6 seconds, with its connection";
                point.row(report, ("memory", what, Unit::Bytes), &each(waiting));
            }
            let costs = report.alternate(ROUNDS, workers.len(), |which| workers[which].ask(Crowd::round));
            let [lock, list]: [_; 2] = costs.try_into().expect("two kinds of wait");
            let works =
                [("handoff", "a hand-off", "LPUSH to BLPOP"), ("wait", "the start of a wait", "BLPOP")];
            for (number, (curve, work, against)) in works.into_iter().enumerate() {
                let what = format!("server CPU for {work}, {}", shape.words());
                let curve = (&*format!("{}-{curve}", shape.name()), &*what, Unit::Nanoseconds);
                point.compared(report, curve, against, [&lock[number], &list[number]]);
            }
            before = count;
        }
        add_plot(report, shape);
        workers.into_iter().for_each(Worker::end);
    }
}

/// Connects clients to each server, up to `count`, and lets them wait. If `is_weighed` is set, returns three
/// measurements of the first server's memory, in bytes: before the new clients connect, when they have connected, and
/// while they wait.
fn grow(workers: &[Worker], count: usize, is_weighed: bool) -> Vec<f64> {
    let mut memory = Vec::new();
    let mut weigh = || {
        if is_weighed {
            thread::sleep(SETTLED);
            memory.push(workers[0].ask(Crowd::used));
        }
    };
    weigh();
    workers.iter().for_each(|worker| worker.ask(move |crowd| crowd.connect(count)));
    weigh();
    workers.iter().for_each(|worker| worker.ask(move |crowd| crowd.wait(count)));
    weigh();
    memory
}

fn add_plot(report: &mut Report, shape: Shape) {
    let name = shape.name();
    let title = format!("Server CPU for a hand-off, {}", shape.words());
    let axes = axes(&format!("{STAGE}-{name}"), &title, "clients that wait", "microseconds, one by one");
    let curves = ["handoff", "handoff-against"].map(|curve| format!("{name}-{curve}"));
    plot(report, axes, &[("hand-off", &curves[0]), ("LPUSH to BLPOP", &curves[1])], 1e3);
}
