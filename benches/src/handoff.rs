//! Hand-offs: a lock is released and granted to the next waiter. A hand-off is compared with an LPUSH that wakes the
//! next BLPOP: one client sends a command, and a waiting client gets a reply.
//!
//! The benchmark measures a chain of hand-offs: each receiver passes the lock on to the next client. In the first half
//! of a round, the former holder joins the wait queue again. In the second half, the former holder does not wait again:
//! the second half gives the cost of the hand-off alone.

use crate::clients::{Client, Clients};
use crate::pipeline::Expected;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target, whole};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::raise_open_files;
use std::collections::VecDeque;
use std::time::Duration;

/// The number of hand-offs in one measurement.
const HANDOFFS: usize = 400;

/// The numbers of waiters.
const SIZES: [usize; 3] = [2, 1_000, 10_000];
const ROUNDS: usize = 16;

/// What the clients wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock. LOCK.ACQUIRE BLOCK waits, and LOCK.RELEASE passes the lock on.
    Lock,
    /// An element of a list. BLPOP waits, and LPUSH passes the element on.
    List,
}

impl Kind {
    fn key(self, queue: usize) -> String {
        match self {
            Self::Lock => format!("hand:lock:{queue:04}"),
            Self::List => format!("hand:list:{queue:04}"),
        }
    }

    /// The request of a member that waits in a queue.
    pub fn wait(self, queue: usize, member: usize) -> Vec<u8> {
        self.wait_with_lease(queue, member, LEASE)
    }

    /// The request of a member that waits in a queue, with this lease in milliseconds.
    pub fn wait_with_lease(self, queue: usize, member: usize, lease: &str) -> Vec<u8> {
        match self {
            Self::Lock => {
                let owner = owner(member);
                request(&["LOCK.ACQUIRE", &self.key(queue), &owner, "PX", lease, "BLOCK", "0", "HOLDS", "1"])
            }
            Self::List => request(&["BLPOP", &self.key(queue), "0"]),
        }
    }

    /// The request of a member that passes the lock or the element on.
    pub fn pass_on(self, queue: usize, member: usize) -> Vec<u8> {
        match self {
            Self::Lock => request(&["LOCK.RELEASE", &self.key(queue), &owner(member), "HOLDS", "0"]),
            Self::List => request(&["LPUSH", &self.key(queue), "x"]),
        }
    }

    /// The reply to the member that receives the lock or the element.
    pub const fn received(self) -> Expected {
        match self {
            Self::Lock => Expected::Grant,
            Self::List => Expected::Element,
        }
    }

    /// The reply to the member that passes the lock or the element on.
    pub const fn passed(self) -> Expected {
        match self {
            Self::Lock => Expected::Number(0),
            Self::List => Expected::Number(1),
        }
    }
}

/// What a hand-off costs in one round.
#[derive(Debug)]
pub struct Costs {
    /// The server's CPU for a hand-off, in nanoseconds.
    pub alone: f64,
    /// The server's CPU for a hand-off and the next wait of the former holder, in nanoseconds.
    pub with_wait: f64,
}

/// A server with queues of waiters, all of the same length.
#[derive(Debug)]
pub struct Queues {
    pub server: Server,
    control: Client,
    members: Clients,
    waiters: usize,
    count: usize,
}

impl Queues {
    /// How many open files the client and the server need for queues of `waiters` waiters.
    const fn open_files(waiters: usize) -> usize {
        Self::count(waiters) * (waiters + 1) + 100
    }

    const fn count(waiters: usize) -> usize {
        // A short queue gives too few hand-offs for a measurement, so there are several short queues.
        HANDOFFS.div_ceil(waiters)
    }

    pub fn start(waiters: usize, place: Place) -> Self {
        let count = Self::count(waiters);
        let maxclients = format!("maxclients {}", Self::open_files(waiters));
        let server = Server::start_with(Loaded::Lockward, place, &[&maxclients]);
        let members = server.clients(count * (waiters + 1));
        Self { control: server.client(), server, members, waiters, count }
    }

    /// Lets all clients wait, measures hand-offs, and then serves the clients that still wait.
    pub fn round(&mut self, kind: Kind) -> Costs {
        let mut queues = self.gather(kind);
        let cpu = self.server.cpu();
        let begin = cpu.settled();
        for (queue, members) in queues.iter_mut().enumerate() {
            for _ in 0..HANDOFFS / self.count {
                let former = self.hand_over(kind, queue, members, true);
                members.push_back(former);
            }
        }
        self.settle_queue();
        let middle = cpu.settled();
        for (queue, members) in queues.iter_mut().enumerate() {
            for _ in 0..HANDOFFS / self.count {
                self.hand_over(kind, queue, members, false);
            }
        }
        let end = cpu.settled();
        self.dismiss(kind, queues);
        let each = |spent: Duration| spent.as_nanos() as f64 / (HANDOFFS / self.count * self.count) as f64;
        Costs { alone: each(end - middle), with_wait: each(middle - begin) }
    }

    /// Lets all clients wait. While `goes_on` returns true, each holder passes the lock on and waits again.
    pub fn pass_on_while(&mut self, kind: Kind, mut goes_on: impl FnMut() -> bool) {
        let mut queues = self.gather(kind);
        while goes_on() {
            for (queue, members) in queues.iter_mut().enumerate() {
                let former = self.hand_over(kind, queue, members, true);
                members.push_back(former);
            }
        }
        self.dismiss(kind, queues);
    }

    /// Lets the first member of each queue hold the lock, and the others wait in their order.
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
                self.settle_queue(); // so that the clients queue in their order
            }
        }
        queues
    }

    /// Waits until the server has read all earlier requests.
    fn settle_queue(&mut self) {
        self.control.call(&["PING"]);
    }

    /// Lets the first member pass the lock on to the second member. If `wait_again` is set, the first member then waits
    /// again. Returns the first member.
    fn hand_over(
        &mut self,
        kind: Kind,
        queue: usize,
        members: &mut VecDeque<usize>,
        wait_again: bool,
    ) -> usize {
        let from = members.pop_front().expect("a holder");
        let to = *members.front().expect("a waiter");
        let mut requests = kind.pass_on(queue, from);
        if wait_again {
            requests.extend(kind.wait(queue, from));
        }
        self.members.send(from, &requests);
        for _ in [from, to] {
            let arrival = self.members.arrival();
            if arrival.who == to {
                kind.received().check(&arrival.reply);
            } else {
                assert_eq!(arrival.who, from, "a reply to another client: {:?}", arrival.reply);
                kind.passed().check(&arrival.reply);
            }
        }
        from
    }

    /// Lets a writer release the lock while all other clients wait as readers: the release grants the lock to all of
    /// them. Returns the server's CPU for each reader, in nanoseconds. There must be one queue.
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
        let members = &mut self.members;
        let each = self.server.cost(self.waiters, || {
            members.send(0, &release(0));
            for _ in 0..=self.waiters {
                let arrival = members.arrival();
                let expected = if arrival.who == 0 { Expected::Number(0) } else { Expected::Grant };
                expected.check(&arrival.reply);
            }
        });
        for reader in readers {
            self.members.send(reader, &release(reader));
            Expected::Number(0).check(&self.members.reply_to(reader));
        }
        each
    }

    fn dismiss(&mut self, kind: Kind, mut queues: Vec<VecDeque<usize>>) {
        for (queue, members) in queues.iter_mut().enumerate() {
            while members.len() > 1 {
                self.hand_over(kind, queue, members, false);
            }
            if kind == Kind::Lock {
                self.members.send(members[0], &kind.pass_on(queue, members[0]));
                kind.passed().check(&self.members.reply_to(members[0]));
            }
        }
    }
}

/// Measures locks and lists, in queues of each size. In production, clients usually do not run on the server's machine,
/// so client and server have separate CPUs here.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let wanted = SIZES.map(Queues::open_files).iter().sum::<usize>() as u64;
    let open_files = raise_open_files(wanted);
    assert!(
        open_files >= wanted,
        "10,000 waiters need {wanted} open files: raise `ulimit -n` from {open_files}"
    );
    let mut queues = SIZES.map(|waiters| Queues::start(waiters, Place::Apart));
    let costs: [Series; 2 * SIZES.len()] =
        report.compare(ROUNDS, |which| queues[which / 2].round([Kind::Lock, Kind::List][which % 2]).alone);
    let at = SIZES.map(|waiters| format!("{} waiters", whole(waiters as f64)));
    let what = "hand-off, separate CPUs";
    for ((waiters, at), sides) in SIZES.iter().zip(&at).zip(costs.chunks(2)) {
        let name = format!("handoff/{waiters}");
        let row = Row::ratio(&name, what, &sides[0], "an LPUSH that wakes a client in BLPOP", &sides[1]);
        report.row(row.at(at).target(Target::AtMost(1.1)));
    }
    let [shortest, .., longest] = &at;
    let (what, [short, _, .., long, _]) = (format!("{what}, {longest}"), &costs);
    let row = Row::ratio("handoff/flat", &what, long, &format!("the same with {shortest}"), short);
    report.row(row.target(Target::AtMost(1.2)));
}
