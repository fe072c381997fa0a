//! Measures one semaphore with different numbers of holders: the CPU time of an acquisition and a release by another
//! owner, the CPU time of the commands of a holder, and the memory for each holder.

use crate::batch::Batch;
use crate::clients::Clients;
use crate::placement::{Place, be_client_of};
use crate::report::{Report, alternate};
use crate::request::{LONG_LEASE, fill, numbers, owner, request, used_memory};
use crate::results::{Row, Series, Unit};
use crate::server::{cost, start};
use lockward_tests::{Client, Random};

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
const SLOTS: &str = "1000000";
const ROUNDS: usize = 15;
/// The number of units of work that each connection sends in a round.
const UNITS: usize = 500;

/// The work that is measured beside other holders: its name, and its requests. The arguments are the key, the index of
/// a holder, and the index of an owner without a hold.
type Work = (&'static str, fn(&str, usize, usize) -> Vec<Vec<u8>>);

const WORKS: [Work; 3] = [
    ("acquire + release by a new owner", |key, _, other| vec![acquire(key, other), release(key, other)]),
    ("LOCK.RENEW by a random holder", |key, holder, _| {
        vec![request(&["LOCK.RENEW", key, &owner(holder), "PX", LONG_LEASE])]
    }),
    ("release + acquire by a random holder", |key, holder, _| {
        vec![release(key, holder), acquire(key, holder)]
    }),
];

/// How connections send requests: a description, the number of connections, and the number of commands in flight on each
/// connection.
const SENDING: [(&str, usize, usize); 2] = [("", 1, 1), (", pipelined", 10, 16)];

fn acquire(key: &str, who: usize) -> Vec<u8> {
    request(&["LOCK.ACQUIRE", key, &owner(who), "PX", LONG_LEASE, "SLOTS", SLOTS])
}

fn release(key: &str, who: usize) -> Vec<u8> {
    request(&["LOCK.RELEASE", key, &owner(who)])
}

/// The key of the lock with this number of holders.
fn key(holders: usize) -> String {
    format!("holders:{holders:07}")
}

fn hold(client: &mut Client, key: &str, holders: usize) {
    fill(client, 0..holders, |who| acquire(key, who));
}

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let server = start(&[]);
    COUNTS.into_iter().for_each(|holders| hold(&mut server.client(), &key(holders), holders));
    let mut numbers = numbers();
    for (how, connections, depth) in SENDING {
        let mut clients = Clients::open(server.port(), connections);
        // No two connections use the same holder.
        let counts: Vec<usize> = COUNTS.into_iter().filter(|holders| *holders >= connections).collect();
        let costs = alternate(ROUNDS, counts.len(), |which| {
            WORKS.map(|(_, requests)| {
                let batches = batches(requests, counts[which], connections, depth, &mut numbers);
                cost(server.pid(), connections * UNITS, || clients.run(&batches, 1))
            })
        });
        for (holders, costs) in counts.into_iter().zip(costs) {
            for ((work, _), cost) in WORKS.iter().zip(costs) {
                report.row(
                    Row::figure(&format!("server CPU for {work}{how}"), Unit::Nanoseconds, &cost)
                        .at(holders, "holder"),
                );
            }
        }
    }
    for holders in COUNTS {
        let memory = Series::once(memory_of_holder(holders));
        report.row(Row::figure("memory for each holder", Unit::Bytes, &memory).at(holders, "holder"));
    }
}

/// The work of each connection in a round, with random holders that only this connection uses.
fn batches(
    requests: fn(&str, usize, usize) -> Vec<Vec<u8>>,
    holders: usize,
    connections: usize,
    depth: usize,
    numbers: &mut Random,
) -> Vec<Batch> {
    let mut batch = |connection| {
        let all = (0..UNITS).flat_map(|_| {
            let drawn = numbers.number() as usize % (holders / connections);
            requests(&key(holders), drawn * connections + connection, holders + connection)
        });
        Batch::of(&all.collect::<Vec<_>>(), depth)
    };
    (0..connections).map(&mut batch).collect()
}

fn memory_of_holder(holders: usize) -> f64 {
    let server = start(&[]);
    let before = used_memory(&mut server.client());
    let locks = COUNTS[COUNTS.len() - 1] / holders;
    let mut client = server.client();
    (0..locks).for_each(|lock| hold(&mut client, &key(lock), holders));
    // The server frees the large buffer of the old connection.
    drop(client);
    (used_memory(&mut server.client()) - before) / (locks * holders) as f64
}
