//! Hand-offs: a lock given back and granted to the next waiter, beside a push that wakes the next blocked pop.
//!
//! The two have the same shape: somebody sends one command, and somebody else, who has waited, gets a reply. Measured
//! is a chain of them, one after the other, each sent by whom the one before has reached: once with the line growing
//! shorter, which is the hand-off alone, and once with everybody joining the line again.

use crate::connection::Connection;
use crate::request::{LEASE, owner, request};
use crate::rounds::Series;
use crate::server::Server;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Hand-offs in one measurement.
const HANDOFFS: usize = 400;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock, with LOCK.ACQUIRE BLOCK; passed on by LOCK.RELEASE.
    Lock,
    /// An element, with BLPOP; passed on by LPUSH.
    List,
}

impl Kind {
    fn key(self, line: usize) -> String {
        match self {
            Self::Lock => format!("hand:lock:{line:04}"),
            Self::List => format!("hand:list:{line:04}"),
        }
    }

    fn wait(self, line: usize, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => {
                let owner = owner(member);
                request(&["LOCK.ACQUIRE", &self.key(line), &owner, "PX", LEASE, "BLOCK", "0"])
            }
            Self::List => request(&["BLPOP", &self.key(line), "0"]),
        }
    }

    fn pass_on(self, line: usize, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => request(&["LOCK.RELEASE", &self.key(line), &owner(member)]),
            Self::List => request(&["LPUSH", &self.key(line), "x"]),
        }
    }

    /// The lines of the reply to whom it is passed on.
    const fn lines_received(self) -> usize {
        match self {
            Self::Lock => 3,
            Self::List => 5,
        }
    }

    /// The lines of the reply to who passes it on.
    const LINES_PASSED: usize = 1;
}

/// What a hand-off costs, a number for each round.
#[derive(Debug, Default)]
pub struct Costs {
    /// The server's CPU for a hand-off, in nanoseconds.
    pub cpu: Series,
    /// From sending the command to the next one's reply, in nanoseconds: the median of a round.
    pub latency: Series,
    /// The server's CPU for a hand-off after which the former holder waits again, in nanoseconds.
    pub cpu_with_wait: Series,
}

/// A server with lines of waiters, all of the same length.
#[derive(Debug)]
pub struct Lines {
    server: Server,
    control: Connection,
    members: Vec<Connection>,
    waiters: usize,
    count: usize,
}

impl Lines {
    /// How many files a process must be able to open for lines of so many `waiters`, at either end.
    pub const fn open_files(waiters: usize) -> usize {
        Self::count(waiters) * (waiters + 1) + 100
    }

    const fn count(waiters: usize) -> usize {
        // Lines too short for a whole measurement stand side by side.
        HANDOFFS.div_ceil(waiters)
    }

    /// Starts a server and connects everybody.
    pub fn start(waiters: usize) -> Self {
        let count = Self::count(waiters);
        let server = Server::start(&[&format!("maxclients {}", Self::open_files(waiters))]);
        let members = (0..count * (waiters + 1)).map(|_| server.connect()).collect();
        Self { control: server.connect(), server, members, waiters, count }
    }

    /// How many wait in each line.
    pub const fn waiters(&self) -> usize {
        self.waiters
    }

    /// Lets everybody wait, measures, and sends everybody home.
    pub fn round(&mut self, kind: Kind, costs: &mut Costs) {
        let mut lines = self.gather(kind);
        let cpu = self.server.cpu();
        let begin = cpu.settled();
        for (line, members) in lines.iter_mut().enumerate() {
            for _ in 0..HANDOFFS / self.count {
                self.hand_over_and_wait(kind, line, members);
            }
        }
        self.settle_queue();
        let middle = cpu.settled();
        let mut latencies = Series::default();
        for (line, members) in lines.iter_mut().enumerate() {
            for _ in 0..HANDOFFS / self.count {
                latencies.push(self.hand_over(kind, line, members).as_nanos() as f64);
            }
        }
        let end = cpu.settled();
        let handoffs = (HANDOFFS / self.count * self.count) as f64;
        costs.cpu_with_wait.push((middle - begin).as_nanos() as f64 / handoffs);
        costs.cpu.push((end - middle).as_nanos() as f64 / handoffs);
        costs.latency.push(latencies.median());
        self.dismiss(kind, lines);
    }

    /// In each line the first member holds, and all others wait in this order.
    fn gather(&mut self, kind: Kind) -> Vec<VecDeque<usize>> {
        let length = self.waiters + 1;
        let lines = (0..self.count).map(|line| (line * length..(line + 1) * length).collect());
        let lines: Vec<VecDeque<usize>> = lines.collect();
        for (line, members) in lines.iter().enumerate() {
            let (holder, waiters) = (members[0], members.iter().skip(1));
            if kind == Kind::Lock {
                self.members[holder].send(&kind.wait(line, holder));
                self.members[holder].expect(kind.lines_received());
            }
            for &waiter in waiters {
                self.members[waiter].send(&kind.wait(line, waiter));
                self.settle_queue(); // so that they wait in this order
            }
        }
        lines
    }

    /// The server has read all that was sent before.
    fn settle_queue(&mut self) {
        self.control.call(&["PING"], 1);
    }

    fn hand_over(&mut self, kind: Kind, line: usize, members: &mut VecDeque<usize>) -> Duration {
        let from = members.pop_front().expect("a holder");
        let to = *members.front().expect("a waiter");
        let command = kind.pass_on(line, from);
        let sent = Instant::now();
        self.members[from].send(&command);
        self.members[to].expect(kind.lines_received());
        let took = sent.elapsed();
        self.members[from].expect(Kind::LINES_PASSED);
        took
    }

    fn hand_over_and_wait(&mut self, kind: Kind, line: usize, members: &mut VecDeque<usize>) {
        let from = members.pop_front().expect("a holder");
        let to = *members.front().expect("a waiter");
        let commands = [kind.pass_on(line, from), kind.wait(line, from)].concat();
        self.members[from].send(&commands);
        self.members[to].expect(kind.lines_received());
        self.members[from].expect(Kind::LINES_PASSED);
        members.push_back(from);
    }

    fn dismiss(&mut self, kind: Kind, mut lines: Vec<VecDeque<usize>>) {
        for (line, members) in lines.iter_mut().enumerate() {
            while members.len() > 1 {
                self.hand_over(kind, line, members);
            }
            if kind == Kind::Lock {
                let last = members[0];
                self.members[last].send(&kind.pass_on(line, last));
                self.members[last].expect(Kind::LINES_PASSED);
            }
        }
    }
}
