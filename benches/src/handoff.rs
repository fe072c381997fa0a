//! Hand-offs: a lock is released and granted to the next waiter. It is compared with a push that wakes the next blocked pop.
//!
//! The two have the same shape: one client sends a command, and another client, which has waited, gets a reply. A chain of
//! hand-offs is measured: each receiver passes on to the next. In one half of a round the former holder joins the wait queue
//! again. In the other half it does not: that is the cost of the hand-off alone.

use crate::clients::{Client, Clients};
use crate::latencies::Latencies;
use crate::pipeline::Expected;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target, whole};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::raise_open_files;
use std::collections::VecDeque;
use std::time::Instant;

/// Hand-offs in one measurement.
const HANDOFFS: usize = 400;

/// The number of waiters, and of rounds. Long queues have fewer rounds, spread over the same time.
const SIZES: [(usize, usize); 5] = [(2, 32), (10, 16), (100, 16), (1_000, 16), (10_000, 8)];

/// The least that any module of this kind could cost.
const BARE: &str = "a module that only unblocks a client";

/// What the clients wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock, with LOCK.ACQUIRE BLOCK; passed on by LOCK.RELEASE.
    Lock,
    /// An element, with BLPOP; passed on by LPUSH.
    List,
    /// Nothing, with EMPTY.WAIT; passed on by EMPTY.PASS. The module only blocks and unblocks clients.
    Bare,
}

impl Kind {
    fn key(self, queue: usize) -> String {
        match self {
            Self::Lock => format!("hand:lock:{queue:04}"),
            Self::List => format!("hand:list:{queue:04}"),
            Self::Bare => format!("hand:bare:{queue:04}"),
        }
    }

    /// The request of a member that waits in a queue.
    pub fn wait(self, queue: usize, member: usize) -> Vec<u8> {
        self.wait_with_lease(queue, member, LEASE)
    }

    /// The same with this lease, in milliseconds.
    pub fn wait_with_lease(self, queue: usize, member: usize, lease: &str) -> Vec<u8> {
        match self {
            Self::Lock => {
                let owner = owner(member);
                request(&["LOCK.ACQUIRE", &self.key(queue), &owner, "PX", lease, "BLOCK", "0", "HOLDS", "1"])
            }
            Self::List => request(&["BLPOP", &self.key(queue), "0"]),
            Self::Bare => request(&["EMPTY.WAIT", &self.key(queue), "0"]),
        }
    }

    /// The request of a member that passes the lock or element on.
    pub fn pass_on(self, queue: usize, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => request(&["LOCK.RELEASE", &self.key(queue), &owner(member), "HOLDS", "0"]),
            Self::List => request(&["LPUSH", &self.key(queue), "x"]),
            Self::Bare => request(&["EMPTY.PASS", &self.key(queue), "x"]),
        }
    }

    /// The reply to the member that receives it.
    pub const fn received(self) -> Expected {
        match self {
            Self::Lock => Expected::Grant,
            Self::List => Expected::Element,
            Self::Bare => Expected::Number(0),
        }
    }

    /// The reply to the member that passes it on.
    pub const fn passed(self) -> Expected {
        match self {
            Self::Lock | Self::Bare => Expected::Number(0),
            Self::List => Expected::Number(1),
        }
    }
}

/// What a hand-off costs, a number for each round.
#[derive(Debug, Default)]
pub struct Costs {
    /// The server's CPU for a hand-off, in nanoseconds.
    pub cpu: Series,
    /// The server's CPU for a hand-off and the next wait of the former holder, in nanoseconds.
    pub cpu_with_wait: Series,
    /// The time from sending the command until the next client has its reply.
    pub latencies: Latencies,
}

/// A server with queues of waiters, all of the same length.
#[derive(Debug)]
pub struct Queues {
    server: Server,
    control: Client,
    members: Clients,
    waiters: usize,
    count: usize,
}

impl Queues {
    /// How many files client and server must be able to open for queues of `waiters` waiters.
    const fn open_files(waiters: usize) -> usize {
        Self::count(waiters) * (waiters + 1) + 100
    }

    const fn count(waiters: usize) -> usize {
        // If a queue is too short for a whole measurement, there are several queues.
        HANDOFFS.div_ceil(waiters)
    }

    /// Starts a server and connects all clients.
    pub fn start(waiters: usize, place: Place) -> Self {
        let count = Self::count(waiters);
        let maxclients = format!("maxclients {}", Self::open_files(waiters));
        let bare = Loaded::Empty.line_of_config();
        let server = Server::start_with(Loaded::Lockward, place, &[&maxclients, &bare]);
        let members = server.clients(count * (waiters + 1));
        Self { control: server.client(), server, members, waiters, count }
    }

    /// Lets all clients wait, measures, and then serves them all.
    pub fn round(&mut self, kind: Kind, costs: &mut Costs) {
        let mut queues = self.gather(kind);
        let cpu = self.server.cpu();
        let begin = cpu.settled();
        for (queue, members) in queues.iter_mut().enumerate() {
            for _ in 0..HANDOFFS / self.count {
                let former = self.hand_over(kind, queue, members, true, &mut Latencies::default());
                members.push_back(former);
            }
        }
        self.settle_queue();
        let middle = cpu.settled();
        for (queue, members) in queues.iter_mut().enumerate() {
            for _ in 0..HANDOFFS / self.count {
                self.hand_over(kind, queue, members, false, &mut costs.latencies);
            }
        }
        let end = cpu.settled();
        let handoffs = (HANDOFFS / self.count * self.count) as f64;
        costs.cpu_with_wait.push((middle - begin).as_nanos() as f64 / handoffs);
        costs.cpu.push((end - middle).as_nanos() as f64 / handoffs);
        self.dismiss(kind, queues);
    }

    /// The server.
    pub const fn server(&self) -> &Server {
        &self.server
    }

    /// Lets all clients wait. Then each passes on to the next and waits again, while `goes_on` returns true.
    pub fn pass_on_while(&mut self, kind: Kind, mut goes_on: impl FnMut() -> bool) {
        let mut queues = self.gather(kind);
        while goes_on() {
            for (queue, members) in queues.iter_mut().enumerate() {
                let former = self.hand_over(kind, queue, members, true, &mut Latencies::default());
                members.push_back(former);
            }
        }
        self.dismiss(kind, queues);
    }

    /// In each queue the first member holds the lock, and all others wait in this order.
    fn gather(&mut self, kind: Kind) -> Vec<VecDeque<usize>> {
        let length = self.waiters + 1;
        let queues = (0..self.count).map(|queue| (queue * length..(queue + 1) * length).collect());
        let queues: Vec<VecDeque<usize>> = queues.collect();
        for (queue, members) in queues.iter().enumerate() {
            if kind == Kind::Lock {
                self.members.send(members[0], &kind.wait(queue, members[0]));
                kind.received().check(&self.members.reply_to(members[0]));
            }
            for &waiter in members.iter().skip(1) {
                self.members.send(waiter, &kind.wait(queue, waiter));
                self.settle_queue(); // so that they wait in this order
            }
        }
        queues
    }

    /// Waits until the server has read all that was sent before.
    fn settle_queue(&mut self) {
        self.control.call(&["PING"]);
    }

    /// Lets the first member pass on to the second. Returns the first, which waits again if `wait_again` is set.
    fn hand_over(
        &mut self,
        kind: Kind,
        queue: usize,
        members: &mut VecDeque<usize>,
        wait_again: bool,
        latencies: &mut Latencies,
    ) -> usize {
        let from = members.pop_front().expect("a holder");
        let to = *members.front().expect("a waiter");
        let mut requests = kind.pass_on(queue, from);
        if wait_again {
            requests.extend(kind.wait(queue, from));
        }
        let sent = Instant::now();
        self.members.send(from, &requests);
        for _ in [from, to] {
            let arrival = self.members.arrival();
            if arrival.who == to {
                kind.received().check(&arrival.reply);
                latencies.record(arrival.at - sent);
            } else {
                assert_eq!(arrival.who, from, "nobody else is served: {:?}", arrival.reply);
                kind.passed().check(&arrival.reply);
            }
        }
        from
    }

    /// A writer releases the lock, and all others, which wait as readers, are granted it together. Returns the server's CPU for each
    /// reader, in nanoseconds. There must be one queue.
    pub fn admit_readers(&mut self) -> f64 {
        assert_eq!(self.count, 1, "one queue");
        let key = "hand:readers";
        let ask = |members: &mut Clients, who: usize, mode: &[&str]| {
            let acquire = ["LOCK.ACQUIRE", key, &owner(who), "PX", LEASE, "BLOCK", "0"];
            members.send(who, &request(&[&acquire, mode].concat()));
        };
        let release = |who: usize| request(&["LOCK.RELEASE", key, &owner(who)]);
        let readers = 1..=self.waiters;
        ask(&mut self.members, 0, &[]);
        Expected::Grant.check(&self.members.reply_to(0));
        for reader in readers.clone() {
            ask(&mut self.members, reader, &["SHARED"]);
            self.settle_queue();
        }
        let cpu = self.server.cpu();
        let begin = cpu.settled();
        self.members.send(0, &release(0));
        for _ in 0..=self.waiters {
            let arrival = self.members.arrival();
            let expected = if arrival.who == 0 { Expected::Number(0) } else { Expected::Grant };
            expected.check(&arrival.reply);
        }
        let spent = cpu.settled() - begin;
        for reader in readers {
            self.members.send(reader, &release(reader));
            Expected::Number(0).check(&self.members.reply_to(reader));
        }
        spent.as_nanos() as f64 / self.waiters as f64
    }

    fn dismiss(&mut self, kind: Kind, mut queues: Vec<VecDeque<usize>>) {
        for (queue, members) in queues.iter_mut().enumerate() {
            while members.len() > 1 {
                self.hand_over(kind, queue, members, false, &mut Latencies::default());
            }
            if kind == Kind::Lock {
                self.members.send(members[0], &kind.pass_on(queue, members[0]));
                kind.passed().check(&self.members.reply_to(members[0]));
            }
        }
    }
}

struct Measured {
    queues: Queues,
    rounds: usize,
    lock: Costs,
    list: Costs,
    bare: Costs,
}

/// Measures lock, list and bare clients, in queues from 2 waiters to 10,000.
pub fn measure(report: &mut Report) {
    for place in [Place::Together, Place::Apart] {
        let all = measure_in(report, place);
        add_rows(report, &all, place);
    }
}

fn measure_in(report: &mut Report, place: Place) -> Vec<Measured> {
    be_client_of(place);
    let wanted: usize = SIZES.iter().map(|(waiters, _)| Queues::open_files(*waiters)).sum();
    let open_files = raise_open_files(wanted as u64);
    assert!(
        open_files >= wanted as u64,
        "10,000 waiters need {wanted} open files: raise `ulimit -n` from {open_files}"
    );
    let mut all: Vec<Measured> = SIZES
        .iter()
        .map(|&(waiters, rounds)| Measured {
            queues: Queues::start(waiters, place),
            rounds,
            lock: Costs::default(),
            list: Costs::default(),
            bare: Costs::default(),
        })
        .collect();
    let most = SIZES[0].1;
    for round in 0..most {
        report.progress(round, most);
        for measured in all.iter_mut().filter(|measured| (round * measured.rounds) % most < measured.rounds) {
            let Measured { queues, lock, list, bare, .. } = measured;
            // The order changes, so that no kind always comes after the same one.
            let mut order = [(Kind::Lock, lock), (Kind::List, list), (Kind::Bare, bare)];
            order.rotate_left(round % 3);
            for (kind, costs) in order {
                queues.round(kind, costs);
            }
        }
    }
    all
}

fn add_rows(report: &mut Report, all: &[Measured], place: Place) {
    let mark = if place == Place::Apart { "-apart" } else { "" };
    // Holder and waiter are usually on other machines than the server. So targets are for separate CPUs.
    let judged =
        |row: Row, limit: f64| if place == Place::Apart { row.target(Target::AtMost(limit)) } else { row };
    let at = |measured: &Measured| format!("{} waiters", whole(measured.queues.waiters as f64));
    for measured @ Measured { queues: Queues { waiters, .. }, lock, list, .. } in all {
        let (name, what) = (format!("handoff/{waiters}{mark}"), format!("hand-off, {place}"));
        let row = Row::ratio(&name, &what, &lock.cpu, "LPUSH waking BLPOP", &list.cpu).at(&at(measured));
        report.row(if [2, 1_000, 10_000].contains(waiters) { judged(row, 1.1) } else { row });
    }
    for measured @ Measured { queues: Queues { waiters, .. }, list, bare, .. } in all {
        let (name, what) = (format!("handoff/{waiters}-bare{mark}"), format!("{BARE}, {place}"));
        let row = Row::ratio(&name, &what, &bare.cpu, "LPUSH waking BLPOP", &list.cpu);
        report.row(row.at(&at(measured)));
    }
    for measured @ Measured { queues: Queues { waiters, .. }, lock, list, .. } in all {
        let name = format!("handoff/{waiters}-again{mark}");
        let what = format!("hand-off and waiting again, {place}");
        let row = Row::ratio(&name, &what, &lock.cpu_with_wait, "LPUSH + BLPOP", &list.cpu_with_wait);
        report.row(row.at(&at(measured)));
    }
    let (first, last) = (&all[0], &all[all.len() - 1]);
    let short = first.lock.cpu.thinned(last.rounds);
    let what = format!("hand-off, {place}, {}", at(last));
    let row = Row::ratio(&format!("handoff/flat{mark}"), &what, &last.lock.cpu, &at(first), &short);
    report.row(judged(row, 1.2));
}
