//! Pairs of commands that take a lock and give it back, uncontended, and what a pair costs the server.

use crate::connection::Connection;
use crate::pipeline::{Batch, Pipeline};
use crate::request::{LEASE, owner, request};
use crate::rounds::Series;
use crate::server::Server;
use std::time::Duration;

/// Connections at work.
pub const CONNECTIONS: usize = 50;
/// Commands on the way on each connection.
pub const DEPTH: usize = 16;

/// Waves in a round: 40,000 pairs.
const WAVES: usize = 100;
/// Waves before anything is measured.
const WARM_UP: usize = 40;

/// The reentrant hash lock: the owner is a field, its number the holds.
const HASH_ACQUIRE: &str = "\
local key, owner = KEYS[1], ARGV[1]
if redis.call('EXISTS', key) == 1 and redis.call('HEXISTS', key, owner) == 0 then return 0 end
redis.call('HINCRBY', key, owner, 1)
redis.call('PEXPIRE', key, ARGV[2])
return 1";
const HASH_RELEASE: &str = "\
local key, owner = KEYS[1], ARGV[1]
if redis.call('HEXISTS', key, owner) == 0 then return 0 end
if redis.call('HINCRBY', key, owner, -1) == 0 then redis.call('DEL', key) end
return 1";

/// A pair of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// LOCK.ACQUIRE with PX, LOCK.RELEASE.
    Lock,
    /// SET with NX and PX, DEL.
    Set,
    /// The hash lock: EVALSHA, EVALSHA.
    Hash,
    /// PING, PING: what any two commands cost.
    Ping,
}

impl Pair {
    /// What a connection sends over and over, on a key of its own, with `depth` commands on the way.
    pub fn batch(self, server: &Server, connection: usize, depth: usize) -> Batch {
        let owner = owner(connection);
        let (first, second, lines) = match self {
            Self::Lock => {
                let key = format!("hot:lock:{connection:04}");
                let acquire = request(&["LOCK.ACQUIRE", &key, &owner, "PX", LEASE]);
                (acquire, request(&["LOCK.RELEASE", &key, &owner]), 4)
            }
            Self::Set => {
                let key = format!("hot:sets:{connection:04}");
                let set = request(&["SET", &key, &owner, "NX", "PX", LEASE]);
                (set, request(&["DEL", &key]), 2)
            }
            Self::Hash => {
                let key = format!("hot:hash:{connection:04}");
                let mut client = server.connect();
                let acquire = load(&mut client, HASH_ACQUIRE);
                let release = load(&mut client, HASH_RELEASE);
                let acquire = request(&["EVALSHA", &acquire, "1", &key, &owner, LEASE]);
                (acquire, request(&["EVALSHA", &release, "1", &key, &owner]), 2)
            }
            Self::Ping => (request(&["PING"]), request(&["PING"]), 2),
        };
        let pairs = depth / 2;
        Batch { requests: [first, second].concat().repeat(pairs), lines: lines * pairs }
    }
}

fn load(client: &mut Connection, script: &str) -> String {
    client.bulk(&["SCRIPT", "LOAD", script])
}

/// What the pairs cost a server, and its replica if it has one: nanoseconds of CPU a pair, a number for each round.
#[derive(Debug)]
pub struct Costs {
    /// The server's, in the order of the pairs asked for.
    pub server: Vec<Series>,
    /// The replica's.
    pub replica: Option<Vec<Series>>,
}

/// Measures `pairs` in turn, `rounds` times.
pub fn measure(server: &Server, replica: Option<&Server>, pairs: &[Pair], rounds: usize) -> Costs {
    let mut pipeline = Pipeline::open(server, CONNECTIONS);
    let batches: Vec<Vec<Batch>> =
        pairs.iter().map(|pair| (0..CONNECTIONS).map(|i| pair.batch(server, i, DEPTH)).collect()).collect();
    let mut control = server.connect();
    for batches in &batches {
        pipeline.run(batches, WARM_UP);
    }
    let none = vec![Series::default(); pairs.len()];
    let mut costs = Costs { server: none.clone(), replica: replica.map(|_| none) };
    let clocks = (server.cpu(), replica.map(Server::cpu));
    let read_clocks = || (clocks.0.settled(), clocks.1.map(|clock| clock.settled()));
    for round in 0..rounds {
        for turn in 0..pairs.len() {
            let which = (round + turn) % pairs.len(); // nobody always comes after the same one
            let before = read_clocks();
            pipeline.run(&batches[which], WAVES);
            if replica.is_some() {
                wait_for_replica(&mut control);
            }
            let after = read_clocks();
            let count = (CONNECTIONS * WAVES * DEPTH / 2) as f64;
            let cost = |before: Duration, after: Duration| (after - before).as_nanos() as f64 / count;
            costs.server[which].push(cost(before.0, after.0));
            if let (Some(costs), Some(before), Some(after)) = (&mut costs.replica, before.1, after.1) {
                costs[which].push(cost(before, after));
            }
        }
    }
    costs
}

/// Waits until the replica has heard all: until it confirms one write more.
fn wait_for_replica(control: &mut Connection) {
    control.send(&[request(&["SET", "hot:last", "1"]), request(&["WAIT", "1", "60000"])].concat());
    control.expect(2);
}
