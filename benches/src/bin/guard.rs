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

use lockward_bench::guarded::CHECK;
use lockward_bench::instructions::{Count, CountedServer};
use lockward_bench::request::{LEASE, load, owner, request};
use lockward_bench::server::Loaded;
use lockward_tests::{Client, Server, eventually, repository};
use std::fs;
use std::ops::Range;
use std::process::ExitCode;

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

/// The ratio of two counts, and its limit.
struct Row {
    name: &'static str,
    limit: f64,
    against: &'static str,
    ours: Count,
    theirs: Count,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.each / self.theirs.each
    }
}

#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, name: &'static str, limit: f64, against: &'static str, [ours, theirs]: [Count; 2]) {
        self.0.push(Row { name, limit, against, ours, theirs });
    }
}

fn main() -> ExitCode {
    let mut rows = Rows::default();
    locks(&mut rows);
    guarded(&mut rows);
    many_holders(&mut rows);
    top(&mut rows);
    others(&mut rows);
    judge(&rows.0)
}

/// The cost of lock commands, each compared with a plain command, or with the bare server calls.
fn locks(rows: &mut Rows) {
    let owner = owner(0);
    let acquire = ["LOCK.ACQUIRE", "lock", &owner, "PX", LEASE, "HOLDS", "1"];
    let set = ["SET", "plain", &owner, "NX", "PX", LEASE];
    let lock_pair = Load::pair(&acquire, &["LOCK.RELEASE", "lock", &owner, "HOLDS", "0"]);
    let set_pair = Load::pair(&set, &["DEL", "plain"]);

    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    println!("{}, {DEPTH} commands on the way on one connection.\n", server.server.version());
    let pairs = [&lock_pair, &set_pair].map(|pair| pair.count(&mut server));
    rows.add("acquire + release", 1.416, "SET NX PX + DEL", pairs);

    let mut holder = server.server.client();
    holder.call_all([&acquire[..], &set]);
    let mut single =
        |ours: &[&str], theirs: &[&str]| [ours, theirs].map(|words| Load::single(words).count(&mut server));
    let counts = single(&["LOCK.RENEW", "lock", &owner, "PX", LEASE], &["PEXPIRE", "plain", LEASE]);
    rows.add("renew", 1.294, "PEXPIRE", counts);
    let counts = single(&["LOCK.ACQUIRE", "lock", "another", "PX", LEASE], &set);
    rows.add("acquire, refused", 1.126, "SET NX PX, refused", counts);
    rows.add("info", 3.509, "GET", single(&["LOCK.INFO", "lock"], &["GET", "plain"]));

    let handed = lock_passed_round(&mut server, &mut holder);
    let pop = |_| request(&["BLPOP", "list", "0"]);
    let popped = passed_round(&mut server, pop, |_| request(&["LPUSH", "list", "element"]));
    rows.add("hand-off, wait again", 1.232, "LPUSH to a BLPOP, BLPOP again", [handed, popped]);

    let empty = Loaded::Empty.line_of_config().expect("a module");
    let mut server = CountedServer::start(Loaded::Lockward, &[&empty]);
    let take = ["EMPTY.ACQUIRE", "bare", &owner, "PX", LEASE, "HOLDS", "1"];
    let bare = Load::pair(&take, &["EMPTY.RELEASE", "bare", &owner, "HOLDS", "0"]).count(&mut server);
    let pairs = [lock_pair.count(&mut server), bare];
    let against = "the same server calls, without a decision";
    rows.add("acquire + release, beside bare calls", 1.148, against, pairs);

    let mut server = CountedServer::start(Loaded::Lockward, &["appendonly yes", "appendfsync no"]);
    let pairs = [&lock_pair, &set_pair].map(|pair| pair.count(&mut server));
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
    let [guarded, plain, scripted] = commands.map(|command| Load::single(command).count(&mut server));
    rows.add("guarded SET", 2.603, "SET", [guarded.clone(), plain]);
    rows.add("guarded SET, not in Lua", 0.467, "a script that checks the token", [guarded, scripted]);
}

/// The cost of lock commands with many holders, compared with few holders. The cost of a grant to a reader, compared
/// with a hand-off.
fn many_holders(rows: &mut Rows) {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server.client();
    for (key, holders) in [("few", FEW), ("many", MANY)] {
        for who in 0..holders {
            holder.call(["LOCK.ACQUIRE", key, &owner(who), "PX", LEASE, "SLOTS", SLOTS]).grant();
        }
    }
    let (old, new) = (owner(FEW / 2), owner(MANY));
    let pair = |key: &str, owner: &str| {
        let acquire = ["LOCK.ACQUIRE", key, owner, "PX", LEASE, "SLOTS", SLOTS];
        Load::pair(&acquire, &["LOCK.RELEASE", key, owner])
    };
    // The clock stands still, so a renewal changes the deadline only if its lease differs from the lease of the previous
    // renewal.
    let renew = |key: &str| {
        let renew = |lease| ["LOCK.RENEW", key, &old, "PX", lease];
        Load::pair(&renew(LEASE), &renew("50000"))
    };
    let info = |key: &str| Load::single(&["LOCK.INFO", key, "HOLDERS", "1"]);
    let mut compare = |name, limit, load: &dyn Fn(&str) -> Load| {
        let counts = ["many", "few"].map(|key| load(key).count(&mut server));
        rows.add(name, limit, "the same, 10 holders", counts);
    };
    compare("acquire + release, 10,000 holders", 1.188, &|key| pair(key, &new));
    compare("re-entry + release, 10,000 holders", 1.120, &|key| pair(key, &old));
    compare("renew + renew, 10,000 holders", 1.199, &renew);
    compare("info, 10,000 holders", 1.025, &info);

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
    let top = Load::single(&["LOCK.TOP"]);
    let mut waiting = wait_for_keys(&server.server, 0..LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE");
    let few = top.count(&mut server);
    waiting.extend(wait_for_keys(&server.server, LOCKS..2 * LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE"));
    let many = top.count(&mut server);
    let mut holder = server.server.client();
    for i in 0..10 * LOCKS {
        holder.acquire(&format!("held:{i} holder PX {LEASE}"));
    }
    rows.add("top, twice as many waited for", 1.25, "top", [many.clone(), few]);
    rows.add("top, 1,000 more locks held", 1.005, "top", [top.count(&mut server), many]);
}

/// The cost of other commands, compared with a server whose module does nothing.
fn others(rows: &mut Rows) {
    let start = || [Loaded::Lockward, Loaded::Empty].map(|loaded| CountedServer::start(loaded, &[]));
    let pair = Load::pair(&["SET", "plain", "value"], &["DEL", "plain"]);
    let one_by_one = Load { depth: 1, ..pair.clone() };
    let on_both =
        |servers: &mut [CountedServer; 2], load: &Load| servers.each_mut().map(|server| load.count(server));
    let mut add = |name, limit, counts| rows.add(name, limit, "with an empty module", counts);

    let mut servers = start();
    add("SET + DEL", 1.01, on_both(&mut servers, &pair));
    add("SET + DEL, one by one", 1.035, on_both(&mut servers, &one_by_one));
    add("SET PX, GET when it is over", 1.01, servers.each_mut().map(expiring));
    add("SET + DEL, keys have expired", 1.01, on_both(&mut servers, &pair));
    evict_locks(&servers[0].server);
    add("SET + DEL, locks were evicted", 1.24, on_both(&mut servers, &pair));

    let mut servers = start();
    let _waiting = [
        wait_for_keys(&servers[0].server, 0..LOCKS, "LOCK.ACQUIRE", "LOCK.ACQUIRE"),
        wait_for_keys(&servers[1].server, 0..LOCKS, "SET", "EMPTY.WAIT"),
    ];
    add("SET + DEL, locks waited for", 1.01, on_both(&mut servers, &pair));
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
        let mut connection = server.server.client();
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

/// Acquires locks, and lets the server evict them.
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

/// Prints all rows, and writes the profiles of the rows that are above their limits.
fn judge(rows: &[Row]) -> ExitCode {
    let profiles = repository().join("target/guard");
    fs::create_dir_all(&profiles).expect("a directory for profiles");
    println!("| instructions | | against | | ratio | at most |\n| --- | --- | --- | --- | --- | --- |");
    for row in rows {
        let Row { name, limit, against, ours, theirs } = row;
        let (ours, theirs, ratio) = (ours.each, theirs.each, row.ratio());
        println!("| {name} | {ours:.0} | {against} | {theirs:.0} | {ratio:.3} | {limit:.3} |");
    }
    println!();
    let dearer: Vec<&Row> = rows.iter().filter(|row| row.ratio() > row.limit).collect();
    for Row { name, limit, ours, theirs, .. } in &dearer {
        let excess = ours.each - limit * theirs.each;
        println!("{name}: {excess:.0} instructions more than the limit allows. Where they go:");
        for (whose, count) in [("ours", ours), ("theirs", theirs)] {
            let file = profiles.join(name.replace(|c: char| !c.is_alphanumeric(), "-")).with_extension(whose);
            fs::write(&file, &count.profile).expect("a profile is written");
            println!("  callgrind_annotate {}", file.display());
        }
    }
    println!("{} passed, {} failed", rows.len() - dearer.len(), dearer.len());
    if dearer.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
