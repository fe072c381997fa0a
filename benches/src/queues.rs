//! Clients that wait on one server. Measures the server's CPU for a hand-off and for the start of a wait, and the
//! server's memory.

use crate::clients::Clients;
use crate::cpu::CpuClock;
use crate::placement::Place;
use crate::request::{LONG_LEASE, owner, request, used_memory};
use crate::server::{Loaded, cost, setup};
use lockward_tests::{Client, Server, own_files, raise_open_files};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const HANDOFFS: usize = 400;
/// After this number of connections or requests, this program waits until the server has read them.
const UNREAD: usize = 200;
/// The largest number of connections to one address of the server. Each connection to an address needs its own client
/// port.
const CONNECTIONS_OF_ADDRESS: usize = 20_000;
/// The memory is measured when it has not decreased for this time, because the server shrinks the buffers of a client
/// after five idle seconds.
const SETTLED: Duration = Duration::from_secs(6);
/// The number of files that a process may open besides the connections of the waiters.
pub const SPARE_FILES: usize = 300;

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
    fn wait(self, queue: usize, member: usize) -> Vec<u8> {
        let (key, owner) = (key(queue), owner(member));
        match self {
            Self::Lock => {
                request(&["LOCK.ACQUIRE", &key, &owner, "PX", LONG_LEASE, "BLOCK", "0", "HOLDS", "1"])
            }
            Self::List => request(&["BLPOP", &key, "0"]),
            Self::Nothing => request(&["EMPTY.WAIT", &key, &owner, "PX", LONG_LEASE, "BLOCK", "0"]),
        }
    }

    fn pass_on(self, queue: usize, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => request(&["LOCK.RELEASE", &key(queue), &owner(member), "HOLDS", "0"]),
            Self::List | Self::Nothing => request(&["LPUSH", &key(queue), "x"]),
        }
    }
}

fn key(queue: usize) -> String {
    format!("wait:{queue:05}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All clients wait for one lock.
    One,
    /// Each client waits for its own lock.
    Each,
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
        let server = setup(loaded, place, &config).start();
        let mut clients = Clients::none();
        clients.connect(Ipv4Addr::LOCALHOST, server.port());
        let control = server.client();
        let mut queues = Self { shape, kind, server, control, clients, waiting: 0, holder: 0, next: 0 };
        if shape == Shape::One {
            queues.hold(0);
        }
        queues
    }

    pub fn waiting(kind: Kind, place: Place, count: usize) -> Self {
        let mut queues = Self::start(Shape::One, kind, place, count);
        queues.connect(count);
        queues.wait(count);
        queues
    }

    /// The used memory after the server has shrunk the buffers of idle clients.
    pub fn settled_memory(&mut self) -> f64 {
        let mut least = (f64::MAX, Instant::now());
        while least.1.elapsed() < SETTLED {
            let used = used_memory(&mut self.control);
            if used < least.0 * 0.999 {
                least = (used, Instant::now());
            }
            thread::sleep(Duration::from_millis(100));
        }
        used_memory(&mut self.control)
    }

    /// Waits until the server has read all earlier requests.
    fn settle(&mut self) {
        self.control.call("PING");
    }

    /// Lets client 0 hold the lock of a queue. Only a lock needs a holder.
    fn hold(&mut self, queue: usize) {
        if self.kind == Kind::Lock {
            self.clients.send(0, &self.kind.wait(queue, 0));
            self.clients.reply_to(0).grant();
        }
    }

    const fn queue_of(&self, who: usize) -> usize {
        match self.shape {
            Shape::One => 0,
            Shape::Each => who - 1, // client 0 does not wait
        }
    }

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
        self.control.see_blocked(count as i64);
    }

    /// Measures hand-offs and waits. The number of waiting clients stays the same. Returns the server's CPU for a
    /// hand-off and for the start of a wait, in nanoseconds.
    pub fn round(&mut self) -> [f64; 2] {
        let cpu = CpuClock::of(self.server.pid());
        let at_once = HANDOFFS.min(self.waiting);
        let (mut handing, mut waiting) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..HANDOFFS.div_ceil(at_once) {
            let begin = cpu.settled();
            let idle: Vec<usize> = (0..at_once).map(|_| self.hand_over(false)).collect();
            handing += cpu.settled() - begin;
            if self.shape == Shape::Each && self.kind == Kind::Lock {
                for &who in &idle {
                    self.clients.send(who, &self.kind.pass_on(self.queue_of(who), who));
                    self.clients.reply_to(who);
                    self.hold(self.queue_of(who));
                }
            }
            let begin = cpu.settled();
            for who in idle {
                self.clients.send(who, &self.kind.wait(self.queue_of(who), who));
            }
            waiting += cpu.settled() - begin;
        }
        let handed = (HANDOFFS.div_ceil(at_once) * at_once) as f64;
        [handing, waiting].map(|spent| spent.as_nanos() as f64 / handed)
    }

    /// The server's CPU for a hand-off and the next wait of the former holder, in nanoseconds.
    pub fn round_of_holders(&mut self) -> f64 {
        cost(self.server.pid(), HANDOFFS, || (0..HANDOFFS).for_each(|_| _ = self.hand_over(true)))
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
        let replied = [self.clients.arrival().who, self.clients.arrival().who];
        let served = replied.into_iter().find(|who| *who != from).expect("a waiter that is served");
        match self.shape {
            Shape::One => std::mem::replace(&mut self.holder, served),
            Shape::Each => served,
        }
    }
}

/// Queues on their own thread. The thread has its own table of open files, so it may have as many open files as a
/// process.
#[derive(Debug)]
pub struct QueuesThread {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

type Task = Box<dyn FnOnce(&mut Queues) + Send>;

impl QueuesThread {
    pub fn start(queues: impl FnOnce() -> Queues + Send + 'static) -> Self {
        let (tasks, received) = channel::<Task>();
        let thread = thread::spawn(move || {
            own_files();
            let mut queues = queues();
            for task in received {
                task(&mut queues);
            }
        });
        Self { tasks, thread }
    }

    /// Runs a function on the thread of the queues, and returns the result of the function.
    pub fn run<T: Send + 'static>(&self, what: impl FnOnce(&mut Queues) -> T + Send + 'static) -> T {
        let (reply, answer) = channel();
        let task: Task = Box::new(move |queues| drop(reply.send(what(queues))));
        self.tasks.send(task).expect("a thread that runs");
        answer.recv().expect("a thread that runs")
    }

    pub fn end(self) {
        drop(self.tasks);
        self.thread.join().expect("a thread that runs");
    }
}

/// Checks that a process may have enough open files for this number of waiters.
pub fn allow_waiters(count: usize) {
    let wanted = (count + SPARE_FILES) as u64;
    let open_files = raise_open_files(wanted);
    assert!(
        open_files >= wanted,
        "{count} waiters need {wanted} open files: raise `ulimit -n` from {open_files}"
    );
}
