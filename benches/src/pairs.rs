//! The server's CPU time for a pair of commands that acquires and releases a lock, without contention.

use crate::batch::Batch;
use crate::clients::Clients;
use crate::placement::{Place, be_client_of};
use crate::report::{Report, alternate, compare};
use crate::request::{LEASE, exchange, load, owner, request};
use crate::results::{Row, Series};
use crate::server::{Loaded, cost, start, start_replica_of};
use lockward_tests::{Client, Server};

pub const CONNECTIONS: usize = 50;
/// The number of commands in flight on each connection.
pub const DEPTH: usize = 16;

const ROUNDS: usize = 23;
const TIMES: usize = 100;
const PAIRS: usize = CONNECTIONS * TIMES * DEPTH / 2;

/// The module whose cost is the lower bound for every lock module.
const BARE: &str = "a module that makes the same server calls and decides nothing";

/// The best lock without a module: a key with a TTL, and a release that checks the owner.
const CHECKED: &str = "SET NX PX + a release that checks the owner";

/// The script that checks the owner and releases, for servers that have no such command.
const CHECKED_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// The re-entrant hash lock: the owner is a field, and its value is the number of holds.
pub const HASH_ACQUIRE: &str = "\
local key, owner = KEYS[1], ARGV[1]
if redis.call('EXISTS', key) == 1 and redis.call('HEXISTS', key, owner) == 0 then return 0 end
redis.call('HINCRBY', key, owner, 1)
redis.call('PEXPIRE', key, ARGV[2])
return 1";
pub const HASH_RELEASE: &str = "\
local key, owner = KEYS[1], ARGV[1]
if redis.call('HEXISTS', key, owner) == 0 then return 0 end
if redis.call('HINCRBY', key, owner, -1) == 0 then redis.call('DEL', key) end
return 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// LOCK.ACQUIRE with PX and HOLDS, then LOCK.RELEASE with HOLDS. Both commands are safe to send twice.
    Lock,
    /// SET with NX and PX, then a release that checks the owner: DELIFEQ of Valkey 9, DELEX of Redis 8.4, or a script.
    Checked,
    Set,
    Hash,
    /// EMPTY.ACQUIRE, then EMPTY.RELEASE: the module API calls that a lock needs, without any logic. The server must
    /// have loaded the empty module.
    Bare,
}

impl Pair {
    pub fn requests(self, server: &Server, key: &str, owner: &str) -> [Vec<u8>; 2] {
        match self {
            Self::Lock => [
                request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE, "HOLDS", "1"]),
                request(&["LOCK.RELEASE", key, owner, "HOLDS", "0"]),
            ],
            Self::Checked => {
                [request(&["SET", key, owner, "NX", "PX", LEASE]), checked_release(server, key, owner)]
            }
            Self::Set => [request(&["SET", key, owner, "NX", "PX", LEASE]), request(&["DEL", key])],
            Self::Hash => {
                let [acquire, release] =
                    [HASH_ACQUIRE, HASH_RELEASE].map(|script| load(&mut server.client(), script));
                [
                    request(&["EVALSHA", &acquire, "1", key, owner, LEASE]),
                    request(&["EVALSHA", &release, "1", key, owner]),
                ]
            }
            Self::Bare => [
                request(&["EMPTY.ACQUIRE", key, owner, "PX", LEASE, "HOLDS", "1"]),
                request(&["EMPTY.RELEASE", key, owner, "HOLDS", "0"]),
            ],
        }
    }

    /// The batches of connections, each with its own key. `depth` is the number of commands in flight on a connection:
    /// 1, or an even number.
    pub fn batches(self, server: &Server, connections: usize, depth: usize) -> Vec<Batch> {
        let batch = |connection: usize| {
            let key = format!("hot:{connection:04}");
            let requests = self.requests(server, &key, &owner(connection));
            Batch::of(&vec![requests; (depth / 2).max(1)].concat(), depth)
        };
        (0..connections).map(batch).collect()
    }
}

/// The release that checks the owner: the server's command, or a script.
fn checked_release(server: &Server, key: &str, owner: &str) -> Vec<u8> {
    if server.has_command("DELIFEQ") {
        request(&["DELIFEQ", key, owner])
    } else if server.has_command("DELEX") {
        request(&["DELEX", key, "IFEQ", owner])
    } else {
        request(&["EVALSHA", &load(&mut server.client(), CHECKED_RELEASE), "1", key, owner])
    }
}

pub fn plain(report: &mut Report) {
    be_client_of(Place::Together);
    let empty = Loaded::Empty.line_of_config().expect("a module");
    let server = start(&[&empty]);
    let pairs = [Pair::Lock, Pair::Checked, Pair::Set, Pair::Hash, Pair::Bare];
    let [lock, checked, set, hash, bare] = costs_at(&server, pairs);
    let what = "acquire + release";
    let is_valkey = server.version().starts_with("Valkey");
    report.row(Row::ratio(what, &lock, CHECKED, &checked).at_most(if is_valkey { 1.1 } else { 1.2 }));
    report.row(Row::ratio(what, &lock, BARE, &bare).at_most(1.08));
    report.row(Row::ratio(BARE, &bare, CHECKED, &checked));
    report.row(Row::ratio(what, &lock, "a re-entrant hash lock in Lua", &hash).at_most(1.0 / 3.5));
    report.row(Row::ratio(what, &lock, "SET NX PX + DEL", &set));
}

/// Measures with an AOF that the server syncs every second.
pub fn aof(report: &mut Report) {
    be_client_of(Place::Together);
    let empty = Loaded::Empty.line_of_config().expect("a module");
    let server = start(&[&empty, "appendonly yes", "appendfsync everysec"]);
    let [lock, checked, bare] = costs_at(&server, [Pair::Lock, Pair::Checked, Pair::Bare]);
    let against = with(CHECKED, "an AOF");
    report.row(Row::ratio("acquire + release with an AOF", &lock, &against, &checked).at_most(1.2));
    report.row(Row::ratio(&with(BARE, "an AOF"), &bare, &against, &checked));
}

fn with(pair: &str, what: &str) -> String {
    format!("{pair}, with {what}")
}

pub fn replica(report: &mut Report) {
    be_client_of(Place::Together);
    let primary = start(&[]);
    let replica = start_replica_of(&primary);
    let mut load = load_of(&primary, [Pair::Lock, Pair::Checked]);
    let mut control = primary.client();
    let costs = alternate(ROUNDS, 2, |which| {
        let mut at_primary = 0.0;
        let applied = cost(replica.pid(), PAIRS, || {
            at_primary = cost(primary.pid(), PAIRS, || {
                load(which);
                wait_for_replica(&mut control);
            });
        });
        [at_primary, applied]
    });
    let against = with(CHECKED, "a replica");
    let [[lock, lock_applied], [checked, checked_applied]] = &costs[..] else { panic!("two pairs") };
    report.row(Row::ratio("acquire + release with a replica", lock, &against, checked).at_most(1.2));
    let what = "CPU of the replica for acquire + release";
    report.row(Row::ratio(what, lock_applied, &against, checked_applied));
}

/// Returns a function that lets all connections send pairs of one kind. The argument of the function is an index into
/// `pairs`.
fn load_of<const COUNT: usize>(server: &Server, pairs: [Pair; COUNT]) -> impl FnMut(usize) {
    let batches = pairs.map(|pair| pair.batches(server, CONNECTIONS, DEPTH));
    let mut clients = Clients::open(server.port(), CONNECTIONS);
    move |which| clients.run(&batches[which], TIMES)
}

/// Measures the server's CPU time for one pair of each kind, in nanoseconds.
fn costs_at<const COUNT: usize>(server: &Server, pairs: [Pair; COUNT]) -> [Series; COUNT] {
    let mut load = load_of(server, pairs);
    compare(ROUNDS, |which| cost(server.pid(), PAIRS, || load(which)))
}

/// Waits until the replica has received all writes.
fn wait_for_replica(control: &mut Client) {
    exchange(control, &[request(&["SET", "hot:last", "1"]), request(&["WAIT", "1", "60000"])]);
}
