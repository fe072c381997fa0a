//! Counts the server's instructions for commands of Lockward, and for a similar plain command in the same run. The
//! program fails if the ratio of the two counts is above its limit. The program measures no time.
//!
//! A limit is the ratio when the limit was set, plus a tolerance: 2.5 % for lock commands, which is less than 500
//! instructions for a pair of commands, and 0.5 % if both sides execute the same command.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a check that cannot run panics with the reason"
)]

use lockward_bench::instructions::{Count, CountedServer};
use lockward_bench::request::{LEASE, load, owner, request};
use lockward_bench::server::{Loaded, start};
use lockward_tests::{Client, Server, eventually, repository};
use std::fs;
use std::ops::Range;
use std::process::ExitCode;

const DEPTH: usize = 16;
const BATCHES: usize = 4;
/// The number of clients in a ring. Each client passes a lock or an element on to the next client.
const RING: usize = 4;
const FEW: usize = 10;
const MANY: usize = 10_000;
const SLOTS: &str = "1000000";
const READERS: usize = 50;
/// The number of locks with waiters, and of locks that the server evicts.
const LOCKS: usize = 100;

/// The script that compares the token of a write with a string, instead of LOCK.GUARD.
const CHECK: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
return redis.call('SET', KEYS[2], ARGV[2])";

fn main() -> ExitCode {
    println!("{}, {DEPTH} commands in flight on one connection.\n", start(&[]).version());
    println!("| instructions | | against | | ratio | at most |\n| --- | --- | --- | --- | --- | --- |");
    let mut rows = Rows::default();
    locks(&mut rows);
    guarded(&mut rows);
    many_holders(&mut rows);
    top(&mut rows);
    others(&mut rows);
    println!("\n{}{} passed, {} failed", rows.failures.concat(), rows.passed, rows.failures.len());
    if rows.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Default)]
struct Rows {
    passed: usize,
    /// A text about each ratio that is above its limit.
    failures: Vec<String>,
}

impl Rows {
    /// Prints the ratio of two counts. If the ratio is above its limit, writes the profiles of both counts.
    fn add(&mut self, name: &str, limit: f64, against: &str, [ours, theirs]: [Count; 2]) {
        let ratio = ours.each / theirs.each;
        println!("| {name} | {:.0} | {against} | {:.0} | {ratio:.3} | {limit:.3} |", ours.each, theirs.each);
        if ratio <= limit {
            self.passed += 1;
            return;
        }
        let excess = ours.each - limit * theirs.each;
        let mut failure = format!("{name}: {excess:.0} instructions too many. Where they go:\n");
        let profiles = repository().join("target/guard");
        fs::create_dir_all(&profiles).expect("a directory for profiles");
        for (whose, count) in [("ours", ours), ("theirs", theirs)] {
            let file = profiles.join(name.replace(|c: char| !c.is_alphanumeric(), "-")).with_extension(whose);
            fs::write(&file, &count.profile).expect("a profile is written");
            failure += &format!("  callgrind_annotate {}\n", file.display());
        }
        self.failures.push(failure);
    }
}

type Commands<'a> = &'a [&'a [&'a str]];

/// Counts the instructions for these commands, with [`DEPTH`] commands in flight.
fn count(server: &mut CountedServer, commands: Commands) -> Count {
    repeat(server, commands, DEPTH / commands.len())
}

/// Counts the instructions for these commands, with this number of copies in flight.
fn repeat(server: &mut CountedServer, commands: Commands, copies: usize) -> Count {
    let mut connection = server.server.client();
    let requests: Vec<u8> = commands.iter().flat_map(|command| request(command)).collect();
    let batch = requests.repeat(copies);
    server.count(BATCHES * copies, |server| {
        for _ in 0..BATCHES {
            server.exchange(&mut connection, &batch, commands.len() * copies);
        }
    })
}

/// The cost of lock commands, each compared with a plain command, or with the bare server calls.
fn locks(rows: &mut Rows) {
    let owner = owner(0);
    let acquire: &[&str] = &["LOCK.ACQUIRE", "lock", &owner, "PX", LEASE, "HOLDS", "1"];
    let set: &[&str] = &["SET", "plain", &owner, "NX", "PX", LEASE];
    let lock_pair: Commands = &[acquire, &["LOCK.RELEASE", "lock", &owner, "HOLDS", "0"]];
    let set_pair: Commands = &[set, &["DEL", "plain"]];

    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let pairs = [lock_pair, set_pair].map(|pair| count(&mut server, pair));
    rows.add("acquire + release", 1.416, "SET NX PX + DEL", pairs);

    let mut holder = server.server.client();
    holder.call_all([acquire, set]);
    let mut single =
        |ours: &[&str], theirs: &[&str]| [ours, theirs].map(|command| count(&mut server, &[command]));
    let counts = single(&["LOCK.RENEW", "lock", &owner, "PX", LEASE], &["PEXPIRE", "plain", LEASE]);
    rows.add("renew", 1.294, "PEXPIRE", counts);
    let counts = single(&["LOCK.ACQUIRE", "lock", "another", "PX", LEASE], set);
    rows.add("acquire, refused", 1.126, "SET NX PX, refused", counts);
    rows.add("info", 3.509, "GET", single(&["LOCK.INFO", "lock"], &["GET", "plain"]));

    let handed = lock_passed_round(&mut server, &mut holder);
    let pop = |_| request(&["BLPOP", "list", "0"]);
    let popped = passed_round(&mut server, pop, |_| request(&["LPUSH", "list", "element"]));
    rows.add("hand-off, wait again", 1.232, "LPUSH to a BLPOP, BLPOP again", [handed, popped]);

    let empty = Loaded::Empty.line_of_config().expect("a module");
    let mut server = CountedServer::start(Loaded::Lockward, &[&empty]);
    let take = ["EMPTY.ACQUIRE", "bare", &owner, "PX", LEASE, "HOLDS", "1"];
    let bare_pair: Commands = &[&take, &["EMPTY.RELEASE", "bare", &owner, "HOLDS", "0"]];
    let pairs = [lock_pair, bare_pair].map(|pair| count(&mut server, pair));
    let against = "the same server calls, without a decision";
    rows.add("acquire + release, beside bare calls", 1.148, against, pairs);

    let mut server = CountedServer::start(Loaded::Lockward, &["appendonly yes", "appendfsync no"]);
    let pairs = [lock_pair, set_pair].map(|pair| count(&mut server, pair));
    rows.add("acquire + release, AOF on", 1.465, "SET NX PX + DEL, AOF on", pairs);
}

/// The cost of LOCK.GUARD with a SET, compared with the SET alone, and with a script that compares the token with a
/// string.
fn guarded(rows: &mut Rows) {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server.client();
    let token = holder.call(["LOCK.ACQUIRE", "lock", "owner", "PX", LEASE]).grant().token.to_string();
    holder.call(["SET", "token", &token]);
    let script = load(&mut holder, CHECK);
    let commands: [&[&str]; 3] = [
        &["LOCK.GUARD", "lock", &token, "SET", "data", "value"],
        &["SET", "data", "value"],
        &["EVALSHA", &script, "2", "token", "data", &token, "value"],
    ];
    let [guarded, plain, scripted] = commands.map(|command| count(&mut server, &[command]));
    rows.add("guarded SET", 2.603, "SET", [guarded.clone(), plain]);
    rows.add("guarded SET, not in Lua", 0.467, "a script that checks the token", [guarded, scripted]);
}

/// The cost of lock commands with many holders, compared with few holders. The cost of a grant to a reader, compared
/// with a hand-off.
fn many_holders(rows: &mut Rows) {
    let mut servers = [MANY, FEW].map(|holders| {
        let server = CountedServer::start(Loaded::Lockward, &[]);
        let mut holder = server.server.client();
        for who in 0..holders {
            holder.call(["LOCK.ACQUIRE", "lock", &owner(who), "PX", LEASE, "SLOTS", SLOTS]).grant();
        }
        server
    });
    let mut compare = |name, limit, commands: Commands| {
        let counts = servers.each_mut().map(|server| count(server, commands));
        rows.add(name, limit, "the same, 10 holders", counts);
    };
    let (old, new) = (owner(FEW / 2), owner(MANY));
    for (name, limit, owner) in [
        ("acquire + release, 10,000 holders", 1.188, &new),
        ("re-entry + release, 10,000 holders", 1.120, &old),
    ] {
        let acquire = ["LOCK.ACQUIRE", "lock", owner, "PX", LEASE, "SLOTS", SLOTS];
        compare(name, limit, &[&acquire, &["LOCK.RELEASE", "lock", owner]]);
    }
    // The clock stands still, so a renewal changes the deadline only if its lease differs from the lease of the previous
    // renewal.
    let renew = |lease| ["LOCK.RENEW", "lock", &old, "PX", lease];
    compare("renew + renew, 10,000 holders", 1.199, &[&renew(LEASE), &renew("50000")]);
    compare("info, 10,000 holders", 1.025, &[&["LOCK.INFO", "lock", "HOLDERS", "1"]]);

    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server.client();
    let handed = lock_passed_round(&mut server, &mut holder);
    rows.add("wait to read, release", 1.134, "hand-off, wait again", [readers(), handed]);
}

/// Readers wait for a writer, get the lock together, and release it.
fn readers() -> Count {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut writer = server.server.client();
    let mut readers: Vec<Client> = (0..READERS).map(|_| server.server.client()).collect();
    let release = |who: usize| request(&["LOCK.RELEASE", "readers", &owner(who)]);
    server.count(READERS, |server| {
        server.exchange(&mut writer, &request(&["LOCK.ACQUIRE", "readers", &owner(READERS), "PX", LEASE]), 1);
        for (who, reader) in readers.iter_mut().enumerate() {
            let ask = ["LOCK.ACQUIRE", "readers", &owner(who), "PX", LEASE, "BLOCK", "0", "SHARED"];
            server.exchange(reader, &request(&ask), 0);
        }
        server.exchange(&mut writer, &release(READERS), 1);
        for (who, reader) in readers.iter_mut().enumerate() {
            reader.reply().grant();
            server.exchange(reader, &release(who), 1);
        }
    })
}

/// The cost of LOCK.TOP with twice as many contended locks, and with more uncontended locks. Uncontended locks must add
/// no cost.
fn top(rows: &mut Rows) {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let top: Commands = &[&["LOCK.TOP"]];
    let mut waiting = wait_for_keys(&server.server, 0..LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE");
    let few = count(&mut server, top);
    waiting.extend(wait_for_keys(&server.server, LOCKS..2 * LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE"));
    let many = count(&mut server, top);
    let mut holder = server.server.client();
    for i in 0..10 * LOCKS {
        holder.acquire(&format!("held:{i} holder PX {LEASE}"));
    }
    rows.add("top, twice as many waited for", 1.25, "top", [many.clone(), few]);
    rows.add("top, 1,000 more locks held", 1.005, "top", [count(&mut server, top), many]);
}

/// The cost of other commands, compared with a server whose module does nothing.
fn others(rows: &mut Rows) {
    let start = || [Loaded::Lockward, Loaded::Empty].map(|loaded| CountedServer::start(loaded, &[]));
    let pair: Commands = &[&["SET", "plain", "value"], &["DEL", "plain"]];
    let on_both = |servers: &mut [CountedServer; 2]| servers.each_mut().map(|server| count(server, pair));
    let mut add = |name, limit, counts| rows.add(name, limit, "with an empty module", counts);

    let mut servers = start();
    add("SET + DEL", 1.01, on_both(&mut servers));
    add("SET + DEL, one by one", 1.035, servers.each_mut().map(|server| repeat(server, pair, 1)));
    add("SET PX, GET when it is over", 1.01, servers.each_mut().map(expiring));
    add("SET + DEL, keys have expired", 1.01, on_both(&mut servers));
    evict_locks(&servers[0].server);
    add("SET + DEL, locks were evicted", 1.24, on_both(&mut servers));

    let mut servers = start();
    let _waiting = [
        wait_for_keys(&servers[0].server, 0..LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE"),
        wait_for_keys(&servers[1].server, 0..LOCKS, "SET", "EMPTY.WAIT"),
    ];
    add("SET + DEL, locks waited for", 1.01, on_both(&mut servers));
}

fn expiring(server: &mut CountedServer) -> Count {
    let mut connection = server.server.client();
    connection.call("DEBUG SET-ACTIVE-EXPIRE 0");
    let requests =
        |name: &dyn Fn(&str) -> Vec<u8>| (0..DEPTH).flat_map(|i| name(&format!("brief:{i}"))).collect();
    let sets: Vec<u8> = requests(&|key| request(&["SET", key, "value", "PX", "1"]));
    let gets: Vec<u8> = requests(&|key| request(&["GET", key]));
    server.count(DEPTH, |server| {
        server.exchange(&mut connection, &sets, DEPTH);
        server.pass_time();
        server.exchange(&mut connection, &gets, DEPTH);
    })
}

/// For each number, creates a key with the command `fill`, and lets a client wait for the key with the command `wait`.
fn wait_for_keys(server: &Server, numbers: Range<usize>, fill: &str, wait: &str) -> Vec<Client> {
    let mut holder = server.client();
    let blocked = numbers.end as i64;
    let waiting = numbers.map(|i| {
        let key = format!("waited-for:{i}");
        holder.call([fill, &key, "holder", "PX", LEASE]);
        let mut waiter = server.client();
        waiter.send([wait, &key, "waiter", "PX", LEASE, "BLOCK", "0"]);
        waiter
    });
    let waiting = waiting.collect();
    holder.see_blocked(blocked);
    waiting
}

fn evict_locks(server: &Server) {
    let mut client = server.client();
    for i in 0..LOCKS {
        client.acquire(&format!("dropped:{i} holder PX {LEASE}"));
    }
    client.call("CONFIG SET maxmemory-policy allkeys-random maxmemory 1");
    eventually("the eviction", || client.call("DBSIZE").int() == 0);
    client.call("CONFIG SET maxmemory 0");
}

/// The cost of a hand-off and of the next wait of the former holder.
fn lock_passed_round(server: &mut CountedServer, holder: &mut Client) -> Count {
    let wait = |member: usize| request(&["LOCK.ACQUIRE", "ring", &owner(member), "PX", LEASE, "BLOCK", "0"]);
    server.exchange(holder, &wait(0), 1);
    passed_round(server, wait, |member| request(&["LOCK.RELEASE", "ring", &owner(member)]))
}

/// A ring of clients: one client holds the lock or the element, and the others wait. The holder passes the lock or the
/// element on to the next client, and waits again.
fn passed_round(
    server: &mut CountedServer,
    wait: impl Fn(usize) -> Vec<u8>,
    pass_on: impl Fn(usize) -> Vec<u8>,
) -> Count {
    let mut clients: Vec<Client> = (0..RING).map(|_| server.server.client()).collect();
    for (member, client) in clients.iter_mut().enumerate().skip(1) {
        server.exchange(client, &wait(member), 0);
    }
    server.count(RING, |server| {
        for from in 0..RING {
            server.exchange(&mut clients[from], &pass_on(from), 1);
            server.exchange(&mut clients[(from + 1) % RING], &[], 1);
            server.exchange(&mut clients[from], &wait(from), 0);
        }
    })
}
