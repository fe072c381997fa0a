//! The server's CPU time for a pair of commands that acquires and releases a lock, without contention.

use crate::clients::Client;
use crate::pipeline::{Batch, Expected, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::Reply;
use std::time::Duration;

/// The number of connections.
pub const CONNECTIONS: usize = 50;
/// Commands in flight on each connection.
pub const DEPTH: usize = 16;

const ROUNDS: usize = 23;
/// Batches of a connection in a round: 40,000 pairs.
const TIMES: usize = 100;
/// Batches before anything is measured.
const WARM_UP: usize = 40;

/// The least that any module of this kind could cost.
const BARE: &str = "a module that makes the same server calls and decides nothing";

/// The best lock without a module: a key with a lease, and a release that checks the owner.
const CHECKED: &str = "SET NX PX + a release that checks the owner";

/// The release that checks the owner, for servers that have no command for it.
const CHECKED_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// The re-entrant hash lock: the owner is a field, and its value is the number of holds.
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
    /// LOCK.ACQUIRE with PX and HOLDS, LOCK.RELEASE with HOLDS: the form that is safe to repeat.
    Lock,
    /// The same without HOLDS.
    Unnamed,
    /// SET with NX and PX, and the release that checks the owner: DELIFEQ of Valkey 9, DELEX of Redis 8.4, or a script.
    Checked,
    /// SET with NX and PX, then DEL.
    Set,
    /// SET without options, then DEL.
    Plain,
    /// The hash lock: two EVALSHA.
    Hash,
    /// Two PINGs: what any two commands cost.
    Ping,
    /// EMPTY.TAKE, EMPTY.GIVE: the module API calls that a lock needs, without any logic. Only where the empty
    /// module is loaded.
    Bare,
}

impl Pair {
    /// What a connection sends repeatedly for its own key, with `depth` commands in flight: 1 or an even number.
    pub fn batch(self, server: &Server, connection: usize, depth: usize) -> Batch {
        let commands =
            self.commands(&mut server.client(), &format!("hot:{connection:04}"), &owner(connection));
        Batch::of(&vec![commands; (depth / 2).max(1)].concat(), depth)
    }

    /// The two commands of an owner, each with its reply.
    pub fn commands(self, client: &mut Client, key: &str, owner: &str) -> [(Vec<u8>, Expected); 2] {
        match self {
            Self::Lock => [
                (request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE, "HOLDS", "1"]), Expected::Grant),
                (request(&["LOCK.RELEASE", key, owner, "HOLDS", "0"]), Expected::Number(0)),
            ],
            Self::Unnamed => [
                (request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE]), Expected::Grant),
                (request(&["LOCK.RELEASE", key, owner]), Expected::Number(0)),
            ],
            Self::Checked => [
                (request(&["SET", key, owner, "NX", "PX", LEASE]), Expected::Status),
                (checked_release(client, key, owner), Expected::Number(1)),
            ],
            Self::Set => [
                (request(&["SET", key, owner, "NX", "PX", LEASE]), Expected::Status),
                (request(&["DEL", key]), Expected::Number(1)),
            ],
            Self::Plain => [
                (request(&["SET", key, owner]), Expected::Status),
                (request(&["DEL", key]), Expected::Number(1)),
            ],
            Self::Hash => {
                let (acquire, release) = (load(client, HASH_ACQUIRE), load(client, HASH_RELEASE));
                [
                    (request(&["EVALSHA", &acquire, "1", key, owner, LEASE]), Expected::Number(1)),
                    (request(&["EVALSHA", &release, "1", key, owner]), Expected::Number(1)),
                ]
            }
            Self::Bare => [
                (request(&["EMPTY.TAKE", key, owner, "PX", LEASE, "HOLDS", "1"]), Expected::Grant),
                (request(&["EMPTY.GIVE", key, owner, "HOLDS", "0"]), Expected::Number(0)),
            ],
            Self::Ping => {
                let ping = (request(&["PING"]), Expected::Status);
                [ping.clone(), ping]
            }
        }
    }

    /// The batches of `connections` connections.
    pub fn batches(self, server: &Server, connections: usize, depth: usize) -> Vec<Batch> {
        (0..connections).map(|connection| self.batch(server, connection, depth)).collect()
    }
}

/// The server's own release that checks the owner.
fn checked_release(client: &mut Client, key: &str, owner: &str) -> Vec<u8> {
    let mut knows = |command| matches!(client.call(&["COMMAND", "INFO", command]), Reply::Array(known) if matches!(known[..], [Reply::Array(_)]));
    if knows("DELIFEQ") {
        request(&["DELIFEQ", key, owner])
    } else if knows("DELEX") {
        request(&["DELEX", key, "IFEQ", owner])
    } else {
        request(&["EVALSHA", &load(client, CHECKED_RELEASE), "1", key, owner])
    }
}

/// Loads a script into the server and returns its hash.
pub(crate) fn load(client: &mut Client, script: &str) -> String {
    client.call(&["SCRIPT", "LOAD", script]).text()
}

/// The costs at a server, and at its replica if it has one: nanoseconds of CPU for each pair, one number for each round.
#[derive(Debug)]
struct Costs {
    /// The costs at the server, in the order of the pairs.
    server: Vec<Series>,
    /// The costs at the replica.
    replica: Option<Vec<Series>>,
}

/// Measures without a replica or an AOF.
pub fn plain(report: &mut Report) {
    let pairs = [Pair::Lock, Pair::Unnamed, Pair::Checked, Pair::Set, Pair::Hash, Pair::Ping, Pair::Bare];
    for (place, mark) in [(Place::Together, ""), (Place::Apart, "-apart")] {
        let (what, unnamed) = ("acquire + release", "acquire + release without HOLDS");
        be_client_of(place);
        let server = started(place, &[&Loaded::Empty.line_of_config()]);
        let costs = measure_on(report, &server, None, &pairs).server;
        let cost = |pair| &costs[pairs.iter().position(|other| *other == pair).expect("it is measured")];
        let (lock, set, bare) = (cost(Pair::Lock), cost(Pair::Set), cost(Pair::Bare));
        let mut rows = [
            Row::ratio(&format!("pairs/checked{mark}"), what, lock, CHECKED, cost(Pair::Checked)),
            Row::ratio(&format!("pairs/lock-bare{mark}"), what, lock, BARE, bare),
            Row::cheaper(&format!("pairs/hash{mark}"), what, lock, "the hash lock in Lua", cost(Pair::Hash)),
            Row::ratio(&format!("pairs/set{mark}"), what, lock, "SET NX PX + DEL", set),
            Row::ratio(&format!("pairs/unnamed{mark}"), unnamed, cost(Pair::Unnamed), "SET NX PX + DEL", set),
            Row::ratio(&format!("pairs/ping{mark}"), what, lock, "PING + PING", cost(Pair::Ping)),
            Row::ratio(&format!("pairs/bare{mark}"), BARE, bare, "SET NX PX + DEL", set),
        ];
        if place == Place::Together {
            let is_valkey = server.version().starts_with("Valkey");
            rows[0].target = Some(Target::AtMost(if is_valkey { 1.1 } else { 1.2 }));
            rows[0].stretch = (!is_valkey).then_some(1.1);
            rows[1].target = Some(Target::AtMost(1.08));
            rows[2].target = Some(Target::AtLeast(3.5));
        }
        for row in rows {
            report.row(row.at(&place.to_string()));
        }
    }
}

/// Measures with an AOF that is synced every second.
pub fn aof(report: &mut Report) {
    be_client_of(Place::Together);
    let server = started(Place::Together, &["appendonly yes", "appendfsync everysec"]);
    let costs = measure_on(report, &server, None, &[Pair::Lock, Pair::Checked]).server;
    let row =
        Row::ratio("aof/checked", "acquire + release with an AOF", &costs[0], &with("an AOF"), &costs[1]);
    report.row(row.target(Target::AtMost(1.2)));
}

fn with(what: &str) -> String {
    format!("{CHECKED}, with {what}")
}

/// Measures with a replica.
pub fn replica(report: &mut Report) {
    be_client_of(Place::Together);
    let primary = started(Place::Together, &[]);
    let replica = primary.start_replica();
    let costs = measure_on(report, &primary, Some(&replica), &[Pair::Lock, Pair::Checked]);
    let (what, against) = ("acquire + release with a replica", &with("a replica"));
    let row = Row::ratio("replica/checked", what, &costs.server[0], against, &costs.server[1]);
    report.row(row.target(Target::AtMost(1.2)));
    if let Some(applied) = &costs.replica {
        report.row(Row::ratio(
            "replica/applied",
            "acquire + release, applied by that replica",
            &applied[0],
            against,
            &applied[1],
        ));
    }
}

fn started(place: Place, config: &[&str]) -> Server {
    Server::start_with(Loaded::Lockward, place, config)
}

/// Measures `pairs` alternately.
fn measure_on(report: &mut Report, server: &Server, replica: Option<&Server>, pairs: &[Pair]) -> Costs {
    let mut pipeline = Pipeline::open(server, CONNECTIONS);
    let batches: Vec<_> = pairs.iter().map(|pair| pair.batches(server, CONNECTIONS, DEPTH)).collect();
    let mut control = server.client();
    for batches in &batches {
        pipeline.run(batches, WARM_UP);
    }
    let none = vec![Series::default(); pairs.len()];
    let mut costs = Costs { server: none.clone(), replica: replica.map(|_| none) };
    let clocks = (server.cpu(), replica.map(Server::cpu));
    let read_clocks = || (clocks.0.settled(), clocks.1.map(|clock| clock.settled()));
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        for turn in 0..pairs.len() {
            let which = (round + turn) % pairs.len(); // the order changes, so that none always comes after the same one
            let before = read_clocks();
            pipeline.run(&batches[which], TIMES);
            if replica.is_some() {
                wait_for_replica(&mut control);
            }
            let after = read_clocks();
            let count = (CONNECTIONS * TIMES * DEPTH / 2) as f64;
            let cost = |before: Duration, after: Duration| (after - before).as_nanos() as f64 / count;
            costs.server[which].push(cost(before.0, after.0));
            if let (Some(costs), Some(before), Some(after)) = (&mut costs.replica, before.1, after.1) {
                costs[which].push(cost(before, after));
            }
        }
    }
    costs
}

/// Waits until the replica has received everything, including one more write, which it confirms.
fn wait_for_replica(control: &mut Client) {
    control.pipeline(&[request(&["SET", "hot:last", "1"]), request(&["WAIT", "1", "60000"])]);
}
