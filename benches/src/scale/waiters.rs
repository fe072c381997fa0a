//! Curves by the number of waiting clients: CPU for a wait and for a hand-off, and memory. Either all clients wait for
//! one lock, or each client waits for its own lock. For comparison, the stage also measures BLPOPs that LPUSH serves,
//! and a module that only blocks and unblocks clients.

use super::curves::{LONG_LEASE, Point, axes, has_memory, plot};
use crate::clients::{Client, Clients};
use crate::handoff::Kind;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::results::Unit;
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::{eventually, own_files, raise_open_files};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The name of the stage.
pub const STAGE: &str = "waiters";

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 50_000];
/// Memory is measured with this number of clients or more: it is the memory of all clients, divided by their number.
const WORTH_WEIGHING: usize = 1_000;
/// Hand-offs in a round.
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
const KINDS: [Kind; 3] = [Kind::Lock, Kind::List, Kind::Bare];
const BARE: &str = "a module that only blocks and unblocks clients";

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

/// What is measured on one server at one point of the curve, that is, with a certain number of waiters. Memory is in bytes for each client.
#[derive(Debug, Default)]
struct Measured {
    handoff: Series,
    wait: Series,
    connection: Series,
    connection_later: Series,
    waiter: Series,
    waiter_later: Series,
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
            &Loaded::Empty.line_of_config(),
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

    /// Lets client 0 hold the lock of a queue. The other kinds need no holder.
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

    /// Ends the server.
    fn end(self) {
        drop(self.orders);
        self.thread.join().expect("a crowd");
    }
}

/// The numbers of waiters for which a process may have enough open files. If there are too few open files for the
/// largest of [`COUNTS`], the last number is the largest one that is possible.
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
            let mut measured = <[Measured; KINDS.len()]>::default();
            grow(&workers, shape, &mut measured, before, count);
            let costs = report.alternate(ROUNDS, workers.len(), |which| workers[which].ask(Crowd::round));
            for (measured, [handoff, wait]) in measured.iter_mut().zip(costs) {
                (measured.handoff, measured.wait) = (handoff, wait);
            }
            add_rows(report, shape, count, &measured);
            before = count;
        }
        add_plot(report, shape);
        workers.into_iter().for_each(Worker::end);
    }
}

/// Connects clients to each server, up to `count`, and lets them wait. Measures the memory of the new clients.
fn grow(workers: &[Worker], shape: Shape, measured: &mut [Measured], before: usize, count: usize) {
    let is_weighed = count >= WORTH_WEIGHING;
    let settle = || {
        if is_weighed {
            thread::sleep(SETTLED);
        }
    };
    let used = || -> Vec<f64> { workers.iter().map(|worker| worker.ask(Crowd::used)).collect() };
    settle();
    let begin = used();
    let mut weigh = |series: fn(&mut Measured) -> &mut Series| {
        if is_weighed {
            for ((measured, used), begin) in measured.iter_mut().zip(used()).zip(&begin) {
                series(measured).push((used - begin) / (count - before) as f64);
            }
        }
    };
    workers.iter().for_each(|worker| worker.ask(move |crowd| crowd.connect(count)));
    // With one lock, the clients wait as soon as they have connected, so the connections are not measured by themselves.
    // The first figure of a waiter is then an upper bound: the buffers of new connections are still large.
    if shape == Shape::Each {
        weigh(|measured| &mut measured.connection);
        settle();
        weigh(|measured| &mut measured.connection_later);
    }
    workers.iter().for_each(|worker| worker.ask(move |crowd| crowd.wait(count)));
    weigh(|measured| &mut measured.waiter);
    settle();
    weigh(|measured| &mut measured.waiter_later);
}

fn add_rows(report: &mut Report, shape: Shape, count: usize, [lock, list, bare]: &[Measured; KINDS.len()]) {
    let point = Point::new(STAGE, count, "waiter");
    let (name, words) = (shape.name(), shape.words());
    let mut add = |curve: &str, what: &str, unit, against: &str, of: fn(&Measured) -> &Series| {
        if of(lock).rounds() > 0 {
            let curve = format!("{name}-{curve}");
            let what = format!("{what}, {words}");
            point.compared(report, (&curve, &what, unit), against, [of(lock), of(list)]);
            point.ratio(report, (&format!("{curve}-bare"), &what, unit), BARE, [of(lock), of(bare)]);
        }
    };
    let nanoseconds = Unit::Nanoseconds;
    add("handoff", "server CPU for a hand-off", nanoseconds, "LPUSH to BLPOP", |measured| &measured.handoff);
    add("wait", "server CPU for the start of a wait", nanoseconds, "BLPOP", |measured| &measured.wait);
    let later = "memory of a waiter that has been idle for 6 seconds, with its connection";
    add("memory-later", later, Unit::Bytes, "BLPOP", |measured| &measured.waiter_later);
    if shape == Shape::One {
        let new = "memory of a waiter that has just connected";
        add("memory", new, Unit::Bytes, "BLPOP", |measured| &measured.waiter);
    } else {
        let mut add = |name, what, series: &Series| {
            if series.rounds() > 0 {
                point.row(report, (name, what, Unit::Bytes), series);
            }
        };
        add("connection", "memory of a connection after its first command", &lock.connection);
        add(
            "connection-later",
            "memory of a connection that has been idle for 6 seconds",
            &lock.connection_later,
        );
    }
}

fn add_plot(report: &mut Report, shape: Shape) {
    let name = shape.name();
    let title = format!("Server CPU for a hand-off, {}", shape.words());
    let axes = axes(&format!("{STAGE}-{name}"), &title, "clients that wait", "microseconds, one by one");
    let curves = ["handoff", "handoff-against"].map(|curve| format!("{name}-{curve}"));
    plot(report, axes, &[("hand-off", &curves[0]), ("LPUSH to BLPOP", &curves[1])], 1e3);
}
