//! Instructions that the server needs for what Lockward does, each beside those of a plain command of the same shape in
//! the same run. A count that has grown beyond its limit fails. Nothing here is timed.

#![allow(clippy::panic, clippy::indexing_slicing, reason = "a check that cannot go on ends, and says why")]

use lockward_bench::connection::Connection;
use lockward_bench::instructions::{self, Count, CountedServer};
use lockward_bench::request::{LEASE, owner, request};
use lockward_bench::server::{Loaded, Server, target_dir, wait_for};
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// The most that each may cost, as a multiple of what it is compared with. `make guard GUARD=--record` prints this
/// table anew, with the room of each kind above what it has counted.
const LIMITS: &[(&str, f64)] = &[
    ("acquire + release", 1.691),
    ("renew", 2.047),
    ("acquire, refused", 1.286),
    ("info", 2.845),
    ("hand-off, wait again", 1.640),
    ("acquire + release, AOF on", 1.434),
    ("SET + DEL, no locks", 1.01),
    ("SET + DEL, 100 locks waited for", 1.01),
    ("SET PX, GET when it is over", 1.01),
    ("SET + DEL, keys have expired", 1.01),
    ("SET + DEL, 100 locks evicted", 1.01),
];

/// Less than 500 instructions more in a pair of commands.
const ROOM: f64 = 0.03;
/// Commands that are not ours cost the same with the module as without.
const ROOM_OF_OTHERS: f64 = 0.005;

const USAGE: &str = "\
Counts the instructions of the server for each kind of request, and fails where they are more than the limits in
benches/src/bin/guard.rs. Build first: make bench-builds

  guard            count and judge
  guard --record   count, and print the limits anew

LOCKWARD_SERVER names the server (redis-server), LOCKWARD_MODULE and LOCKWARD_EMPTY_MODULE the modules (target/release).";

/// Commands on the way on a connection.
const DEPTH: usize = 16;
/// Batches in a round.
const BATCHES: usize = 4;
/// Clients that pass a lock or an element round among them.
const RING: usize = 4;
/// Locks that are waited for, and locks that the server has dropped early.
const LOCKS: usize = 100;

struct Row {
    name: &'static str,
    against: &'static str,
    ours: Count,
    theirs: Count,
    room: f64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let record = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--record"] => true,
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if !instructions::can_be_counted() {
        eprintln!("Instructions are counted by callgrind: install valgrind.");
        return ExitCode::FAILURE;
    }
    let rows = count();
    if record {
        println!("const LIMITS: &[(&str, f64)] = &[");
        for row in &rows {
            println!("    ({:?}, {:.3}),", row.name, row.ratio() * (1.0 + row.room));
        }
        println!("];");
        return ExitCode::SUCCESS;
    }
    judge(&rows)
}

fn count() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name, against, ours, theirs, room| {
        rows.push(Row { name, against, ours, theirs, room });
    };
    let owner = owner(0);
    let acquire = ["LOCK.ACQUIRE", "lock", &owner, "PX", LEASE];
    let (set, set_lease) = (["SET", "plain", &owner], ["SET", "plain", &owner, "NX", "PX", LEASE]);
    let lock_pair = [request(&acquire), request(&["LOCK.RELEASE", "lock", &owner])].concat();
    let set_pair = [request(&set_lease), request(&["DEL", "plain"])].concat();
    let plain_pair = [request(&set), request(&["DEL", "plain"])].concat();

    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    println!("{}, {DEPTH} commands on the way on one connection.\n", server.server().version());
    let without_locks = repeated(&mut server, &plain_pair, 2, 2);
    let ours = repeated(&mut server, &lock_pair, 4, 2);
    let theirs = repeated(&mut server, &set_pair, 2, 2);
    add("acquire + release", "SET NX PX + DEL", ours, theirs, ROOM);

    let mut holder = server.server().connect();
    holder.call(&acquire, 3);
    holder.call(&set_lease, 1);
    let ours = repeated(&mut server, &request(&["LOCK.RENEW", "lock", &owner, "PX", LEASE]), 1, 1);
    let theirs = repeated(&mut server, &request(&["PEXPIRE", "plain", LEASE]), 1, 1);
    add("renew", "PEXPIRE", ours, theirs, ROOM);
    let ours = repeated(&mut server, &request(&["LOCK.ACQUIRE", "lock", "another", "PX", LEASE]), 1, 1);
    let theirs = repeated(&mut server, &request(&set_lease), 1, 1);
    add("acquire, refused", "SET NX PX, refused", ours, theirs, ROOM);
    let ours = repeated(&mut server, &request(&["LOCK.INFO", "lock"]), 30, 1);
    let theirs = repeated(&mut server, &request(&["GET", "plain"]), 2, 1);
    add("info", "GET", ours, theirs, ROOM);

    let wait_for_lock =
        |member| request(&["LOCK.ACQUIRE", "ring", &format!("{owner}:{member}"), "PX", LEASE, "BLOCK", "0"]);
    let release = |member| request(&["LOCK.RELEASE", "ring", &format!("{owner}:{member}")]);
    holder.send(&wait_for_lock(0));
    holder.expect(3);
    let ours = passed_round(&mut server, 3, wait_for_lock, release);
    let wait_for_element = |_| request(&["BLPOP", "list", "0"]);
    let theirs = passed_round(&mut server, 5, wait_for_element, |_| request(&["LPUSH", "list", "element"]));
    add("hand-off, wait again", "LPUSH to a BLPOP, BLPOP again", ours, theirs, ROOM);

    let mut server = CountedServer::start(Loaded::Lockward, &["appendonly yes", "appendfsync no"]);
    let ours = repeated(&mut server, &lock_pair, 4, 2);
    let theirs = repeated(&mut server, &set_pair, 2, 2);
    add("acquire + release, AOF on", "SET NX PX + DEL, AOF on", ours, theirs, ROOM);

    // Commands that are not ours, beside a server with a module that does nothing.
    const OTHERS: &str = "with an empty module";
    let mut empty = CountedServer::start(Loaded::Empty, &[]);
    let others = repeated(&mut empty, &plain_pair, 2, 2);
    add("SET + DEL, no locks", OTHERS, without_locks, others.clone(), ROOM_OF_OTHERS);
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let _waiting = wait_for_locks(server.server());
    add(
        "SET + DEL, 100 locks waited for",
        OTHERS,
        repeated(&mut server, &plain_pair, 2, 2),
        others.clone(),
        ROOM_OF_OTHERS,
    );
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let ours = expiring(&mut server);
    add("SET PX, GET when it is over", OTHERS, ours, expiring(&mut empty), ROOM_OF_OTHERS);
    add(
        "SET + DEL, keys have expired",
        OTHERS,
        repeated(&mut server, &plain_pair, 2, 2),
        others.clone(),
        ROOM_OF_OTHERS,
    );
    drop_early(server.server());
    add(
        "SET + DEL, 100 locks evicted",
        OTHERS,
        repeated(&mut server, &plain_pair, 2, 2),
        others.clone(),
        ROOM_OF_OTHERS,
    );

    let bare = repeated(&mut CountedServer::start(Loaded::Nothing, &[]), &plain_pair, 2, 2);
    println!(
        "SET + DEL without a module: {:.0}; with an empty module: {:.0}, {:.3} times as many.\n",
        bare.each,
        others.each,
        others.each / bare.each
    );
    rows
}

/// Keys that expire, found so when they are read.
fn expiring(server: &mut CountedServer) -> Count {
    let mut connection = server.server().connect();
    connection.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"], 1);
    let requests =
        |name: &dyn Fn(&str) -> Vec<u8>| (0..DEPTH).flat_map(|i| name(&format!("brief:{i}"))).collect();
    let sets: Vec<u8> = requests(&|key| request(&["SET", key, "value", "PX", "1"]));
    let gets: Vec<u8> = requests(&|key| request(&["GET", key]));
    server.count(DEPTH, |server| {
        server.exchange(&mut connection, &sets, DEPTH);
        thread::sleep(Duration::from_millis(2));
        server.exchange(&mut connection, &gets, DEPTH);
    })
}

/// Holds locks, and waits for each.
fn wait_for_locks(server: &Server) -> Vec<Connection> {
    let mut holder = server.connect();
    let wait = |i: usize, who: &str| {
        let mut waiter = server.connect();
        waiter.send(&request(&["LOCK.ACQUIRE", &format!("waited-for:{i}"), who, "PX", LEASE, "BLOCK", "0"]));
        waiter
    };
    let waiting = (0..LOCKS).map(|i| {
        holder.call(&["LOCK.ACQUIRE", &format!("waited-for:{i}"), "holder", "PX", LEASE], 3);
        wait(i, "waiter")
    });
    let waiting = waiting.collect();
    let blocked = format!("blocked_clients:{LOCKS}\r");
    wait_for("the waiters", || holder.info("clients").contains(&blocked));
    waiting
}

/// Holds locks, and lets the server evict them.
fn drop_early(server: &Server) {
    let mut client = server.connect();
    for i in 0..LOCKS {
        client.call(&["LOCK.ACQUIRE", &format!("dropped:{i}"), "holder", "PX", LEASE], 3);
    }
    client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "1"], 1);
    wait_for("the eviction", || client.info("keyspace").trim_end() == "# Keyspace");
    client.call(&["CONFIG", "SET", "maxmemory", "0"], 1);
}

/// A command, or a pair, sent over and over. `lines` are those of the replies to it, and `commands` how many it has.
fn repeated(server: &mut CountedServer, requests: &[u8], lines: usize, commands: usize) -> Count {
    let mut connection = server.server().connect();
    let times = DEPTH / commands;
    let batch = requests.repeat(times);
    server.count(BATCHES * times, |server| {
        for _ in 0..BATCHES {
            server.exchange(&mut connection, &batch, lines * times);
        }
    })
}

/// Something passed round a ring of clients: one has it, the others wait; it passes it on and waits again.
/// `lines` are those of the reply to who gets it.
fn passed_round(
    server: &mut CountedServer,
    lines: usize,
    wait: impl Fn(usize) -> Vec<u8>,
    pass_on: impl Fn(usize) -> Vec<u8>,
) -> Count {
    let mut clients: Vec<Connection> = (0..RING).map(|_| server.server().connect()).collect();
    for (member, client) in clients.iter_mut().enumerate().skip(1) {
        server.exchange(client, &wait(member), 0);
    }
    server.count(RING, |server| {
        for from in 0..RING {
            server.exchange(&mut clients[from], &pass_on(from), 1);
            clients[(from + 1) % RING].expect(lines);
            server.settle();
            server.exchange(&mut clients[from], &wait(from), 0);
        }
    })
}

fn judge(rows: &[Row]) -> ExitCode {
    let profiles = target_dir().join("guard");
    fs::create_dir_all(&profiles).expect("a directory for profiles");
    println!("| instructions | | against | | ratio | at most |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut dearer = Vec::new();
    for row in rows {
        let limit = LIMITS.iter().find_map(|(name, limit)| (*name == row.name).then_some(*limit));
        let limit = limit.unwrap_or_else(|| panic!("no limit for {:?}", row.name));
        println!(
            "| {} | {:.0} | {} | {:.0} | {:.3} | {limit:.3} |",
            row.name,
            row.ours.each,
            row.against,
            row.theirs.each,
            row.ratio(),
        );
        if row.ratio() > limit {
            dearer.push((row, limit));
        }
    }
    println!();
    for (row, limit) in &dearer {
        let [ours, theirs] = [("ours", &row.ours), ("theirs", &row.theirs)].map(|(whose, count)| {
            let name = row.name.replace(|c: char| !c.is_alphanumeric(), "-");
            let file = profiles.join(format!("{name}.{whose}"));
            fs::write(&file, &count.profile).expect("a profile is written");
            file
        });
        println!(
            "{}: {:.0} instructions more than the limit allows. Where they go:\n  callgrind_annotate {}\n  \
             callgrind_annotate {} # {}",
            row.name,
            row.ours.each - limit * row.theirs.each,
            ours.display(),
            theirs.display(),
            row.against,
        );
    }
    println!("{} passed, {} failed", rows.len() - dearer.len(), dearer.len());
    if dearer.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.each / self.theirs.each
    }
}
