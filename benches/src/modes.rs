//! The cost of locks with many holders. Commands beside many other holders are compared with the same commands beside
//! few holders. A release that admits many readers is compared with hand-offs.

use crate::clients::Client;
use crate::open_files::QueuesThread;
use crate::pipeline::{Batch, Expected, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues, Shape};
use crate::report::Report;
use crate::request::{LONG_LEASE, numbers, owner, request};
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
const ROUNDS: usize = 15;

/// The numbers of readers that one release admits, each with its number of rounds.
const READERS: [(usize, usize); 2] = [(1_000, 12), (10_000, 6)];
/// The largest allowed ratio of the cost of a reader to the cost of a hand-off.
const ALLOWED_FOR_READER: f64 = 1.3;

/// A command and its reply.
type Command = (Vec<u8>, Expected);

/// The work that is measured while other owners hold the lock.
#[derive(Debug)]
pub struct Work {
    name: &'static str,
    /// The work in words.
    pub what: &'static str,
    /// Returns the commands. The arguments are the key, the index of a holder, and the index of an owner without a
    /// hold.
    commands: fn(&str, usize, usize) -> Vec<Command>,
}

pub const PAIR: Work = Work {
    name: "pair",
    what: "acquire + release by a new owner",
    commands: |key, _, other| vec![acquire(key, other, Expected::Grant), release(key, other, 0)],
};
pub const AGAIN: Work = Work {
    name: "again",
    what: "release + acquire by a random holder",
    commands: |key, holder, _| vec![release(key, holder, 0), acquire(key, holder, Expected::Grant)],
};
pub const RENEW: Work = Work {
    name: "renew",
    what: "LOCK.RENEW by a random holder",
    commands: |key, holder, _| {
        vec![(request(&["LOCK.RENEW", key, &owner(holder), "PX", LONG_LEASE]), Expected::Token)]
    },
};
const RE_ENTRY: Work = Work {
    name: "re-entry",
    what: "re-entry + release by a random holder",
    commands: |key, holder, _| vec![acquire(key, holder, Expected::ReEntry), release(key, holder, 1)],
};
const INFO: Work = Work {
    name: "info",
    what: "LOCK.INFO HOLDERS 1",
    commands: |key, _, _| vec![(request(&["LOCK.INFO", key, "HOLDERS", "1"]), Expected::Info)],
};
const WORKS: [Work; 5] = [PAIR, AGAIN, RENEW, RE_ENTRY, INFO];

fn acquire(key: &str, who: usize, reply: Expected) -> Command {
    (request(&["LOCK.ACQUIRE", key, &owner(who), "PX", LONG_LEASE, "SLOTS", SLOTS]), reply)
}

fn release(key: &str, who: usize, left: i64) -> Command {
    (request(&["LOCK.RELEASE", key, &owner(who)]), Expected::Number(left))
}

/// How connections send requests.
#[derive(Debug)]
pub struct Sending {
    words: &'static str,
    /// The suffix of the names of the rows.
    mark: &'static str,
    /// The number of connections that send at the same time. No two connections use the same holder.
    pub connections: usize,
    /// The number of commands in flight on each connection.
    depth: usize,
    /// The number of commands that each connection sends in a round.
    commands: usize,
}

const PIPELINED: Sending =
    Sending { words: "pipelined", mark: "", connections: 10, depth: 16, commands: 800 };
/// One connection, which waits for each reply before it sends the next command, as clients usually do.
pub const ONE_BY_ONE: Sending =
    Sending { words: "one by one", mark: "-single", connections: 1, depth: 1, commands: 1_000 };

impl Sending {
    /// The server's CPU for one `work` with `holders` holders, in nanoseconds.
    pub fn cost(
        &self,
        server: &Server,
        pipeline: &mut Pipeline,
        work: &Work,
        holders: usize,
        numbers: &mut Random,
    ) -> f64 {
        let key = key(holders);
        let mut units = 0;
        let batches = (0..self.connections).map(|connection| {
            let mut commands = Vec::new();
            while commands.len() < self.commands {
                units += 1;
                // Only this connection uses these holders.
                let drawn = numbers.number() as usize % (holders / self.connections);
                let holder = drawn * self.connections + connection;
                commands.extend((work.commands)(&key, holder, holders + connection));
            }
            Batch::of(&commands, self.depth)
        });
        let batches: Vec<Batch> = batches.collect();
        server.cost(units, || pipeline.run(&batches, 1))
    }
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
    for sending in [PIPELINED, ONE_BY_ONE] {
        let mut pipeline = Pipeline::open(&server, sending.connections);
        let costs = report.alternate(ROUNDS, WORKS.len() * HOLDERS.len(), |which| {
            let (work, holders) = (&WORKS[which / HOLDERS.len()], HOLDERS[which % HOLDERS.len()]);
            [sending.cost(&server, &mut pipeline, work, holders, &mut numbers)]
        });
        for (work, costs) in WORKS.iter().zip(costs.chunks(HOLDERS.len())) {
            let [few, many] = [&costs[0][0], &costs[1][0]];
            let name = format!("{STAGE}/{}{}", work.name, sending.mark);
            let what = format!("{}, {}, beside 100,000 holders", work.what, sending.words);
            let row = Row::ratio(&name, &what, many, "the same beside 10 holders", few);
            let judged = sending.connections == 1;
            report.row(if judged { row.target(Target::AtMost(ALLOWED)) } else { row });
        }
    }
}

/// Lets `holders` owners hold a lock.
pub fn hold(client: &mut Client, key: &str, holders: usize) {
    client.fill(0..holders, |who| acquire(key, who, Expected::Grant).0);
}

/// Measures a release that admits many readers, compared with hand-offs in a queue of the same length.
fn admit_readers(report: &mut Report) {
    for (waiters, rounds) in READERS {
        let readers = QueuesThread::start(move || {
            let mut queues = Queues::start(Shape::One, Kind::List, Place::Together, waiters);
            queues.connect(waiters);
            queues
        });
        let queue = QueuesThread::start(move || Queues::waiting(Kind::Lock, Place::Together, waiters));
        let [admitted, handed] = report.compare(rounds, |which| match which {
            0 => readers.run(move |queues| queues.admit_readers(waiters)),
            _ => queue.run(Queues::round).handoff,
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
        [readers, queue].into_iter().for_each(QueuesThread::end);
    }
}
