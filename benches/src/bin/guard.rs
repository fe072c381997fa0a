//! Counts the server's instructions for commands of Lockward, and for a similar plain command in the same run. The
//! program fails if the ratio of the two counts is above its limit. The program measures no time.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a check that cannot run panics with the reason"
)]

use clap::Parser;
use lockward_bench::instructions::{self, Count, CountedServer};
use lockward_bench::request::{LEASE, owner, request};
use lockward_bench::server::{Loaded, Server};
use lockward_tests::{Client, eventually, repository};
use std::fs;
use std::ops::Range;
use std::process::ExitCode;

/// The largest allowed ratio of each command to the command that it is compared with. `make guard GUARD=--record`
/// prints this table with new limits: each limit is the current ratio, increased by the row's tolerance.
const LIMITS: &[(&str, f64)] = &[
    ("acquire + release", 1.416),
    ("acquire + release, beside bare calls", 1.148),
    ("renew", 1.294),
    ("acquire, refused", 1.126),
    ("info", 3.509),
    ("hand-off, wait again", 1.232),
    ("acquire + release, AOF on", 1.465),
    ("guarded SET", 2.603),
    ("guarded SET, not in Lua", 0.467),
    ("acquire + release, 10,000 holders", 1.188),
    ("re-entry + release, 10,000 holders", 1.120),
    ("renew + renew, 10,000 holders", 1.199),
    ("info, 10,000 holders", 1.025),
    ("wait to read, release", 1.134),
    ("top, twice as many waited for", 1.250),
    ("top, 1,000 more locks held", 1.005),
    ("SET + DEL", 1.01),
    ("SET + DEL, one by one", 1.035),
    ("SET PX, GET when it is over", 1.01),
    ("SET + DEL, keys have expired", 1.01),
    ("SET + DEL, locks were evicted", 1.24),
    ("SET + DEL, locks waited for", 1.01),
];

/// The tolerance for lock commands, as a part of the ratio: less than 500 instructions for a pair of commands.
const ROOM: f64 = 0.025;
/// The tolerance for rows with the same command on both sides.
const ROOM_OF_EQUALS: f64 = 0.005;

/// Counts the instructions of the server for each kind of request. Fails if a ratio is above its limit in
/// benches/src/bin/guard.rs.
///
/// LOCKWARD_SERVER names the server (default: redis-server). LOCKWARD_MODULE and LOCKWARD_EMPTY_MODULE name the modules
/// (default: in target/release).
#[derive(Debug, Parser)]
struct Arguments {
    /// Print the limits for the current counts, and check nothing.
    #[arg(long)]
    record: bool,
}

/// The number of commands in flight on a connection.
const DEPTH: usize = 16;
/// The number of batches in a round.
const BATCHES: usize = 4;
/// The number of clients in a ring. Each client passes a lock or an element on to the next client.
const RING: usize = 4;
/// The smaller number of holders of one lock.
const FEW: usize = 10;
/// The larger number of holders of one lock.
const MANY: usize = 10_000;
/// The limit of the lock with [`FEW`] or [`MANY`] holders.
const SLOTS: &str = "1000000";
/// The number of readers that wait for one writer.
const READERS: usize = 50;
/// The number of locks with waiters, and of locks that the server evicts.
const LOCKS: usize = 100;

#[derive(Clone)]
struct Row {
    name: &'static str,
    against: &'static str,
    ours: Count,
    theirs: Count,
    room: f64,
}

fn main() -> ExitCode {
    let Arguments { record } = Arguments::parse();
    if !instructions::can_be_counted() {
        eprintln!("Instructions are counted by callgrind: install valgrind.");
        return ExitCode::FAILURE;
    }
    let rows = [locks(), guarded(), many_holders(), top(), others()].concat();
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

impl Row {
    /// A lock command, compared with another command.
    fn new(name: &'static str, ours: Count, against: &'static str, theirs: Count) -> Self {
        Self { name, against, ours, theirs, room: ROOM }
    }

    /// A command, compared with the same command under other conditions.
    fn equal(name: &'static str, ours: Count, against: &'static str, theirs: Count) -> Self {
        Self { name, against, ours, theirs, room: ROOM_OF_EQUALS }
    }

    fn ratio(&self) -> f64 {
        self.ours.each / self.theirs.each
    }
}

/// The cost of lock commands, each compared with a plain command, or with the bare server calls.
fn locks() -> Vec<Row> {
    let owner = owner(0);
    let acquire = ["LOCK.ACQUIRE", "lock", &owner, "PX", LEASE, "HOLDS", "1"];
    let set = ["SET", "plain", &owner, "NX", "PX", LEASE];
    let lock_pair = Load::pair(&acquire, &["LOCK.RELEASE", "lock", &owner, "HOLDS", "0"]);
    let set_pair = Load::pair(&set, &["DEL", "plain"]);

    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    println!("{}, {DEPTH} commands on the way on one connection.\n", server.server.version());
    let pair = lock_pair.count(&mut server);
    let pair = Row::new("acquire + release", pair, "SET NX PX + DEL", set_pair.count(&mut server));

    let mut holder = server.server.connect();
    holder.call_all([&acquire[..], &set]);
    let mut single = |command: &[&str]| Load::single(command).count(&mut server);
    let renewal = single(&["LOCK.RENEW", "lock", &owner, "PX", LEASE]);
    let renewal = Row::new("renew", renewal, "PEXPIRE", single(&["PEXPIRE", "plain", LEASE]));
    let refused = single(&["LOCK.ACQUIRE", "lock", "another", "PX", LEASE]);
    let refused = Row::new("acquire, refused", refused, "SET NX PX, refused", single(&set));
    let info = Row::new("info", single(&["LOCK.INFO", "lock"]), "GET", single(&["GET", "plain"]));

    let handed = lock_passed_round(&mut server, &mut holder);
    let pop = |_| request(&["BLPOP", "list", "0"]);
    let popped = passed_round(&mut server, pop, |_| request(&["LPUSH", "list", "element"]));
    let handed = Row::new("hand-off, wait again", handed, "LPUSH to a BLPOP, BLPOP again", popped);

    let mut server = CountedServer::start(Loaded::Lockward, &[&Loaded::Empty.line_of_config()]);
    let take = ["EMPTY.ACQUIRE", "bare", &owner, "PX", LEASE, "HOLDS", "1"];
    let bare = Load::pair(&take, &["EMPTY.RELEASE", "bare", &owner, "HOLDS", "0"]).count(&mut server);
    let (name, against) =
        ("acquire + release, beside bare calls", "the same server calls, without a decision");
    let beside_bare = Row::new(name, lock_pair.count(&mut server), against, bare);

    let mut server = CountedServer::start(Loaded::Lockward, &["appendonly yes", "appendfsync no"]);
    let appended = lock_pair.count(&mut server);
    let (name, against) = ("acquire + release, AOF on", "SET NX PX + DEL, AOF on");
    let appended = Row::new(name, appended, against, set_pair.count(&mut server));
    vec![pair, beside_bare, renewal, refused, info, handed, appended]
}

/// The cost of LOCK.GUARD with a SET, compared with the SET alone, and with a script that compares the token with a
/// string.
fn guarded() -> Vec<Row> {
    const CHECK: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end \
                         return redis.call('SET', KEYS[2], ARGV[2])";
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server.connect();
    let token = holder.call(["LOCK.ACQUIRE", "lock", "owner", "PX", LEASE]).grant().token.to_string();
    holder.call(["SET", "token", &token]);
    let script = holder.call(["SCRIPT", "LOAD", CHECK]).text();
    let mut single = |command: &[&str]| Load::single(command).count(&mut server);
    let guarded = single(&["LOCK.GUARD", "lock", &token, "SET", "data", "value"]);
    let plain = single(&["SET", "data", "value"]);
    let scripted = single(&["EVALSHA", &script, "2", "token", "data", &token, "value"]);
    vec![
        Row::new("guarded SET", guarded.clone(), "SET", plain),
        Row::new("guarded SET, not in Lua", guarded, "a script that checks the token", scripted),
    ]
}

/// The cost of lock commands with many holders, compared with few holders. The cost of a grant to a reader, compared
/// with a hand-off.
fn many_holders() -> Vec<Row> {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server.connect();
    for (key, holders) in [("few", FEW), ("many", MANY)] {
        for who in 0..holders {
            holder.call(["LOCK.ACQUIRE", key, &owner(who), "PX", LEASE, "SLOTS", SLOTS]).grant();
        }
    }
    let loads = [
        ("acquire + release, 10,000 holders", acquire_and_release as fn(&str) -> Load),
        ("re-entry + release, 10,000 holders", re_enter_and_release),
        ("renew + renew, 10,000 holders", renew_twice),
        ("info, 10,000 holders", |key| Load::single(&["LOCK.INFO", key, "HOLDERS", "1"])),
    ];
    let beside = loads.map(|(name, load)| {
        let [ours, theirs] = ["many", "few"].map(|key| load(key).count(&mut server));
        Row::new(name, ours, "the same, 10 holders", theirs)
    });
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server.connect();
    let handed = lock_passed_round(&mut server, &mut holder);
    let reader = Row::new("wait to read, release", readers(), "hand-off, wait again", handed);
    beside.into_iter().chain([reader]).collect()
}

/// A new owner acquires and releases a slot.
fn acquire_and_release(key: &str) -> Load {
    let new = owner(MANY);
    let acquire = ["LOCK.ACQUIRE", key, &new, "PX", LEASE, "SLOTS", SLOTS];
    Load::pair(&acquire, &["LOCK.RELEASE", key, &new])
}

/// A holder acquires its slot again, and releases the second hold.
fn re_enter_and_release(key: &str) -> Load {
    let holder = owner(FEW / 2);
    let acquire = ["LOCK.ACQUIRE", key, &holder, "PX", LEASE, "SLOTS", SLOTS];
    Load::pair(&acquire, &["LOCK.RELEASE", key, &holder])
}

/// A holder renews its lease twice. The clock stands still, so a renewal changes the deadline only if its lease differs
/// from the lease of the previous renewal.
fn renew_twice(key: &str) -> Load {
    let holder = owner(FEW / 2);
    let renew = |lease| ["LOCK.RENEW", key, holder.as_str(), "PX", lease];
    Load::pair(&renew(LEASE), &renew("50000"))
}

/// Readers wait for a writer, get the lock together, and release it.
fn readers() -> Count {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut writer = server.server.connect();
    let mut readers: Vec<Client> = (0..READERS).map(|_| server.server.connect()).collect();
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
fn top() -> Vec<Row> {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let top = Load::single(&["LOCK.TOP"]);
    let mut waiting = wait_for_keys(&server.server, 0..LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE");
    let few = top.count(&mut server);
    waiting.extend(wait_for_keys(&server.server, LOCKS..2 * LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE"));
    let many = top.count(&mut server);
    let mut holder = server.server.connect();
    for i in 0..10 * LOCKS {
        holder.acquire(&format!("held:{i} holder PX {LEASE}"));
    }
    let beside = top.count(&mut server);
    vec![
        Row::equal("top, twice as many waited for", many.clone(), "top", few),
        Row::equal("top, 1,000 more locks held", beside, "top", many),
    ]
}

/// The cost of other commands, compared with a server whose module does nothing.
fn others() -> Vec<Row> {
    let start = |loaded| CountedServer::start(loaded, &[]);
    let pair = Load::pair(&["SET", "plain", "value"], &["DEL", "plain"]);
    let one_by_one = Load { depth: 1, ..pair.clone() };

    let mut servers = [Loaded::Lockward, Loaded::Empty].map(start);
    let mut rows = Vec::new();
    let mut add = |name, [ours, theirs]: [Count; 2]| {
        rows.push(Row::equal(name, ours, "with an empty module", theirs));
    };
    let on_both =
        |servers: &mut [CountedServer; 2], load: &Load| servers.each_mut().map(|server| load.count(server));
    let both = on_both(&mut servers, &pair);
    let with_empty = both[1].each;
    add("SET + DEL", both);
    add("SET + DEL, one by one", on_both(&mut servers, &one_by_one));
    add("SET PX, GET when it is over", servers.each_mut().map(expiring));
    add("SET + DEL, keys have expired", on_both(&mut servers, &pair));
    evict_locks(&servers[0].server);
    add("SET + DEL, locks were evicted", on_both(&mut servers, &pair));

    let mut servers = [Loaded::Lockward, Loaded::Empty].map(start);
    let _waiting = [
        wait_for_keys(&servers[0].server, 0..LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE"),
        wait_for_keys(&servers[1].server, 0..LOCKS, "SET", "EMPTY.BLOCK"),
    ];
    add("SET + DEL, locks waited for", on_both(&mut servers, &pair));

    let bare = pair.count(&mut start(Loaded::Nothing)).each;
    println!(
        "SET + DEL without a module: {bare:.0}; with an empty module: {with_empty:.0}, {:.3} times as many.\n",
        with_empty / bare
    );
    rows
}

/// Requests that a client sends repeatedly.
#[derive(Clone)]
struct Load {
    requests: Vec<u8>,
    replies: usize,
    /// How many copies of the requests are in flight at once.
    depth: usize,
}

impl Load {
    fn single(command: &[&str]) -> Self {
        Self { requests: request(command), replies: 1, depth: DEPTH }
    }

    fn pair(first: &[&str], second: &[&str]) -> Self {
        Self { requests: [request(first), request(second)].concat(), replies: 2, depth: DEPTH / 2 }
    }

    fn count(&self, server: &mut CountedServer) -> Count {
        let mut connection = server.server.connect();
        let batch = self.requests.repeat(self.depth);
        server.count(BATCHES * self.depth, |server| {
            for _ in 0..BATCHES {
                server.exchange(&mut connection, &batch, self.replies * self.depth);
            }
        })
    }
}

/// Keys expire, and the server deletes each key when a client reads it.
fn expiring(server: &mut CountedServer) -> Count {
    let mut connection = server.server.connect();
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
    let mut holder = server.connect();
    let blocked = numbers.end as i64;
    let waiting = numbers.map(|i| {
        let key = format!("waited-for:{i}");
        holder.call([fill, &key, "holder", "PX", LEASE]);
        let mut waiter = server.connect();
        waiter.send([wait, &key, "waiter", "PX", LEASE, "BLOCK", "0"]);
        waiter
    });
    let waiting = waiting.collect();
    holder.see_blocked(blocked);
    waiting
}

/// Acquires locks, and lets the server evict them.
fn evict_locks(server: &Server) {
    let mut client = server.connect();
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
    let mut clients: Vec<Client> = (0..RING).map(|_| server.server.connect()).collect();
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

fn judge(rows: &[Row]) -> ExitCode {
    let profiles = repository().join("target/guard");
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
