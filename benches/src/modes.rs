//! The cost of locks with many holders: commands beside many other holders, compared with the same commands beside few
//! holders, and a release that admits many readers.

use crate::clients::Client;
use crate::handoff::{Kind, Queues};
use crate::pipeline::{Batch, Expected, Part, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{numbers, owner, request};
use crate::results::{Row, Target, whole};
use crate::server::Server;
use lockward_tests::Random;

/// The name of this stage of the benchmark. The names of its rows in the results begin with this name.
pub const STAGE: &str = "modes";

/// The numbers of owners that hold the lock while a command is measured.
const HOLDERS: [usize; 2] = [10, 100_000];
/// The largest allowed ratio of a command's cost with many holders to its cost with few holders. The target is for
/// commands that a connection sends one by one, as clients usually do.
const ALLOWED: f64 = 1.2;

/// The limit of the lock.
const SLOTS: &str = "1000000";
/// A lease that outlives every measurement, in milliseconds.
const LONG_LEASE: &str = "3600000";

/// The number of connections that send at the same time. No two connections use the same holder.
const CONNECTIONS: usize = 10;
/// The number of commands in flight on each connection.
const DEPTH: usize = 16;
/// The number of parts in a connection's batch. In a round all connections together send 8,000 commands.
const PARTS: usize = 50;
/// The number of commands or pairs in a round, when one connection sends them one by one.
const ALONE: usize = 500;
const ROUNDS: usize = 15;

/// The numbers of readers that one release admits, each with its number of rounds.
const READERS: [(usize, usize); 2] = [(1_000, 12), (10_000, 6)];
/// The largest allowed ratio of the cost of a reader to the cost of a hand-off.
const ALLOWED_FOR_READER: f64 = 1.3;

/// The work that is measured while other owners hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// An owner that does not hold the lock acquires and releases it.
    Pair,
    /// A holder releases the lock, and acquires it again.
    Again,
    /// A holder renews its lease.
    Renew,
    /// A holder acquires the lock again, and releases the second hold.
    ReEntry,
    /// A client asks who holds the lock.
    Info,
}

impl Work {
    const ALL: [Self; 5] = [Self::Pair, Self::Again, Self::Renew, Self::ReEntry, Self::Info];

    const fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Again => "again",
            Self::Renew => "renew",
            Self::ReEntry => "re-entry",
            Self::Info => "info",
        }
    }

    /// The work in words.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Pair => "acquire + release by a new owner",
            Self::Again => "release + acquire by a random holder",
            Self::Renew => "LOCK.RENEW by a random holder",
            Self::ReEntry => "re-entry + release by a random holder",
            Self::Info => "LOCK.INFO HOLDERS 1",
        }
    }

    /// The commands, each with its reply. `holder` is the number of a holder. `other` is the number of an owner without
    /// a hold.
    fn commands(self, key: &str, holder: usize, other: usize) -> Vec<(Vec<u8>, Expected)> {
        let acquire = |who| request(&["LOCK.ACQUIRE", key, &owner(who), "PX", LONG_LEASE, "SLOTS", SLOTS]);
        let release = |who| request(&["LOCK.RELEASE", key, &owner(who)]);
        match self {
            Self::Pair => vec![(acquire(other), Expected::Grant), (release(other), Expected::Number(0))],
            Self::Again => vec![(release(holder), Expected::Number(0)), (acquire(holder), Expected::Grant)],
            Self::Renew => {
                vec![(request(&["LOCK.RENEW", key, &owner(holder), "PX", LONG_LEASE]), Expected::Token)]
            }
            Self::ReEntry => {
                vec![(acquire(holder), Expected::ReEntry), (release(holder), Expected::Number(1))]
            }
            Self::Info => vec![(request(&["LOCK.INFO", key, "HOLDERS", "1"]), Expected::Info)],
        }
    }
}

/// How connections send requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// `DEPTH` commands in flight on each of `CONNECTIONS` connections.
    Pipelined,
    /// One connection, which waits for each reply before it sends the next command, as clients usually do.
    OneByOne,
}

impl Sending {
    const ALL: [Self; 2] = [Self::Pipelined, Self::OneByOne];

    pub const fn connections(self) -> usize {
        match self {
            Self::Pipelined => CONNECTIONS,
            Self::OneByOne => 1,
        }
    }

    const fn mark(self) -> &'static str {
        match self {
            Self::Pipelined => "",
            Self::OneByOne => "-single",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Pipelined => "pipelined",
            Self::OneByOne => "one by one",
        }
    }

    /// The server's CPU for one `work` with `holders` holders, in nanoseconds.
    pub fn cost(
        self,
        server: &Server,
        pipeline: &mut Pipeline,
        work: Work,
        holders: usize,
        numbers: &mut Random,
    ) -> f64 {
        let (batches, units) = self.batches(work, holders, numbers);
        server.cost(units, || pipeline.run(&batches, 1))
    }

    /// What each connection sends, and the number of commands or pairs of all connections.
    fn batches(self, work: Work, holders: usize, numbers: &mut Random) -> (Vec<Batch>, usize) {
        let connections = self.connections();
        let key = key(holders);
        let mut units = 0;
        let batches = (0..connections).map(|connection| {
            let mut commands = || {
                units += 1;
                // Only this connection uses these holders.
                let drawn = numbers.number() as usize % (holders / connections);
                work.commands(&key, drawn * connections + connection, holders + connection)
            };
            Batch(match self {
                Self::Pipelined => (0..PARTS).map(|_| part_of(&mut commands)).collect(),
                Self::OneByOne => (0..ALONE)
                    .flat_map(|_| commands())
                    .map(|(requests, expected)| Part { requests, expected: vec![expected] })
                    .collect(),
            })
        });
        let batches = batches.collect();
        (batches, units)
    }
}

fn part_of(commands: &mut impl FnMut() -> Vec<(Vec<u8>, Expected)>) -> Part {
    let mut part = Part { requests: Vec::new(), expected: Vec::new() };
    while part.expected.len() < DEPTH {
        for (request, expected) in commands() {
            part.requests.extend(request);
            part.expected.push(expected);
        }
    }
    part
}

/// The key of the lock with this number of holders.
pub fn key(holders: usize) -> String {
    format!("modes:{holders:07}")
}

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    beside_holders(report);
    admit_readers(report);
}

/// Measures each kind of work with each number of holders, alternately on one server.
fn beside_holders(report: &mut Report) {
    let server = Server::start(&[]);
    let mut client = server.client();
    for holders in HOLDERS {
        hold(&mut client, &key(holders), holders);
    }
    let mut numbers = numbers();
    for sending in Sending::ALL {
        let mut pipeline = Pipeline::open(&server, sending.connections());
        let costs = report.alternate(ROUNDS, Work::ALL.len() * HOLDERS.len(), |which| {
            let (work, holders) = (Work::ALL[which / HOLDERS.len()], HOLDERS[which % HOLDERS.len()]);
            [sending.cost(&server, &mut pipeline, work, holders, &mut numbers)]
        });
        for (work, costs) in Work::ALL.into_iter().zip(costs.chunks(HOLDERS.len())) {
            let [few, many] = [&costs[0][0], &costs[1][0]];
            let name = format!("{STAGE}/{}{}", work.name(), sending.mark());
            let what = format!("{}, {}, beside 100,000 holders", work.what(), sending.words());
            let row = Row::ratio(&name, &what, many, "the same beside 10 holders", few);
            let judged = sending == Sending::OneByOne;
            report.row(if judged { row.target(Target::AtMost(ALLOWED)) } else { row });
        }
    }
}

/// Lets `holders` owners hold a lock.
pub fn hold(client: &mut Client, key: &str, holders: usize) {
    let all: Vec<usize> = (0..holders).collect();
    for some in all.chunks(1_000) {
        let acquire =
            |who: &usize| request(&["LOCK.ACQUIRE", key, &owner(*who), "PX", LONG_LEASE, "SLOTS", SLOTS]);
        client.pipeline(&some.iter().map(acquire).collect::<Vec<_>>());
    }
}

/// Measures a release that admits many readers, compared with hand-offs in a queue of the same length.
fn admit_readers(report: &mut Report) {
    for (waiters, rounds) in READERS {
        let mut queues = Queues::start(waiters, Place::Together);
        let [admitted, handed] = report.compare(rounds, |which| match which {
            0 => queues.admit_readers(),
            _ => queues.round(Kind::Lock).alone,
        });
        let row = Row::ratio(
            &format!("{STAGE}/readers-{waiters}"),
            "a reader that waits, when a release admits all readers",
            &admitted,
            "a hand-off",
            &handed,
        );
        let row = row.at(&format!("{} waiters", whole(waiters as f64)));
        report.row(row.target(Target::AtMost(ALLOWED_FOR_READER)));
    }
}
