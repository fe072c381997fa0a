//! The server's instructions for commands of Lockward, each compared with a plain command of the same shape in
//! the same run. A count above its limit fails. Nothing is timed.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a check that cannot go on ends, and says why"
)]

use lockward_bench::connection::Connection;
use lockward_bench::instructions::{self, Count, CountedServer};
use lockward_bench::request::{LEASE, owner, request};
use lockward_bench::server::{Loaded, Server, target_dir, wait_for};
use std::fs;
use std::ops::Range;
use std::process::ExitCode;

/// The largest allowed ratio of each command to the one that it is compared with. `make guard GUARD=--record` prints this
/// table again: the current ratios, plus the tolerance of each kind.
const LIMITS: &[(&str, f64)] = &[
    ("acquire + release", 1.442),
    ("acquire + release, beside bare calls", 1.179),
    ("renew", 1.296),
    ("acquire, refused", 1.128),
    ("info", 3.509),
    ("hand-off, wait again", 1.274),
    ("acquire + release, AOF on", 1.479),
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

/// This is less than 500 instructions in a pair of commands.
const ROOM: f64 = 0.025;
/// Other commands cost the same with the module as without.
const ROOM_OF_OTHERS: f64 = 0.005;

const USAGE: &str = "\
Counts the instructions of the server for each kind of request, and fails where they are more than the limits in
benches/src/bin/guard.rs. Build first: make bench-builds

  guard            count and judge
  guard --record   count, and print the limits anew

LOCKWARD_SERVER names the server (redis-server), LOCKWARD_MODULE and LOCKWARD_EMPTY_MODULE the modules (target/release).";

/// Commands in flight on a connection.
const DEPTH: usize = 16;
/// Batches in a round.
const BATCHES: usize = 4;
/// Clients that pass a lock or an element around in a ring.
const RING: usize = 4;
/// Few and many holders of one lock, and the limit that they name.
const FEW: usize = 10;
const MANY: usize = 10_000;
const SLOTS: &str = "1000000";
/// Readers that wait for one writer.
const READERS: usize = 50;
/// Locks with waiters, and locks that the server has dropped early.
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
    count_locks(&mut rows);
    count_guarded(&mut rows);
    count_modes(&mut rows);
    count_top(&mut rows);
    count_others(&mut rows);
    rows
}

/// The cost of lock commands, each compared with a plain command.
fn count_locks(rows: &mut Vec<Row>) {
    let mut add = |name, against, ours, theirs| rows.push(Row { name, against, ours, theirs, room: ROOM });
    let owner = owner(0);
    let acquire = ["LOCK.ACQUIRE", "lock", &owner, "PX", LEASE, "HOLDS", "1"];
    let set = ["SET", "plain", &owner, "NX", "PX", LEASE];
    let lock_pair = Load::pair(&acquire, 4, &["LOCK.RELEASE", "lock", &owner, "HOLDS", "0"]);
    let set_pair = Load::pair(&set, 1, &["DEL", "plain"]);

    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    println!("{}, {DEPTH} commands on the way on one connection.\n", server.server().version());
    add("acquire + release", "SET NX PX + DEL", lock_pair.count(&mut server), set_pair.count(&mut server));

    let mut holder = server.server().connect();
    holder.call(&acquire, 4);
    holder.call(&set, 1);
    let mut add_single = |name, ours: &[&str], lines, against, theirs: &[&str], their_lines| {
        let ours = Load::single(ours, lines).count(&mut server);
        add(name, against, ours, Load::single(theirs, their_lines).count(&mut server));
    };
    add_single(
        "renew",
        &["LOCK.RENEW", "lock", &owner, "PX", LEASE],
        1,
        "PEXPIRE",
        &["PEXPIRE", "plain", LEASE],
        1,
    );
    let refused = ["LOCK.ACQUIRE", "lock", "another", "PX", LEASE];
    add_single("acquire, refused", &refused, 1, "SET NX PX, refused", &set, 1);
    add_single("info", &["LOCK.INFO", "lock"], 39, "GET", &["GET", "plain"], 2);

    let wait = |member: usize| {
        request(&["LOCK.ACQUIRE", "ring", &format!("{owner}:{member}"), "PX", LEASE, "BLOCK", "0"])
    };
    let release = |member: usize| request(&["LOCK.RELEASE", "ring", &format!("{owner}:{member}")]);
    holder.send(&wait(0));
    holder.expect(4);
    let ours = passed_round(&mut server, 4, wait, release);
    let pop = |_| request(&["BLPOP", "list", "0"]);
    let theirs = passed_round(&mut server, 5, pop, |_| request(&["LPUSH", "list", "element"]));
    add("hand-off, wait again", "LPUSH to a BLPOP, BLPOP again", ours, theirs);

    let mut server = CountedServer::start(Loaded::Lockward, &[&Loaded::Empty.line_of_config()]);
    let take = ["EMPTY.TAKE", "bare", &owner, "PX", LEASE, "HOLDS", "1"];
    let bare = Load::pair(&take, 4, &["EMPTY.GIVE", "bare", &owner, "HOLDS", "0"]).count(&mut server);
    let ours = lock_pair.count(&mut server);
    add("acquire + release, beside bare calls", "the same server calls, without a decision", ours, bare);

    let mut server = CountedServer::start(Loaded::Lockward, &["appendonly yes", "appendfsync no"]);
    let (ours, theirs) = (lock_pair.count(&mut server), set_pair.count(&mut server));
    add("acquire + release, AOF on", "SET NX PX + DEL, AOF on", ours, theirs);
}

/// The cost of LOCK.GUARD with a SET, compared with that SET, and with a script that compares the token with a string.
fn count_guarded(rows: &mut Vec<Row>) {
    /// Takes the lock. It is a script, because its reply must be a text.
    const TAKE: &str =
        "return string.format('%.0f', redis.call('LOCK.ACQUIRE', KEYS[1], 'owner', 'PX', ARGV[1])[1])";
    const CHECK: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end \
                         return redis.call('SET', KEYS[2], ARGV[2])";
    let mut add = |name, against, ours, theirs| rows.push(Row { name, against, ours, theirs, room: ROOM });
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server().connect();
    let token = holder.bulk(&["EVAL", TAKE, "1", "lock", LEASE]);
    holder.call(&["SET", "token", &token], 1);
    let script = holder.bulk(&["SCRIPT", "LOAD", CHECK]);
    let guarded = Load::single(&["LOCK.GUARD", "lock", &token, "SET", "data", "value"], 1);
    let (guarded, plain, scripted) = (
        guarded.count(&mut server),
        Load::single(&["SET", "data", "value"], 1).count(&mut server),
        Load::single(&["EVALSHA", &script, "2", "token", "data", &token, "value"], 1).count(&mut server),
    );
    add("guarded SET", "SET", guarded.clone(), plain);
    add("guarded SET, not in Lua", "a script that checks the token", guarded, scripted);
}

/// The cost of lock commands beside many holders, compared with few, and of a grant to a reader, compared with a hand-off.
fn count_modes(rows: &mut Vec<Row>) {
    let mut add = |name, against, ours, theirs| rows.push(Row { name, against, ours, theirs, room: ROOM });
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut holder = server.server().connect();
    for (key, holders) in [("few", FEW), ("many", MANY)] {
        for who in 0..holders {
            holder.call(&["LOCK.ACQUIRE", key, &owner(who), "PX", LEASE, "SLOTS", SLOTS], 4);
        }
    }
    let mut beside = |key: &str, load: fn(&str) -> Load| load(key).count(&mut server);
    for (name, load) in [
        ("acquire + release, 10,000 holders", acquire_and_release as fn(&str) -> Load),
        ("re-entry + release, 10,000 holders", re_enter_and_release),
        ("renew + renew, 10,000 holders", renew_twice),
        ("info, 10,000 holders", first_holder),
    ] {
        let ours = beside("many", load);
        add(name, "the same, 10 holders", ours, beside("few", load));
    }
    add("wait to read, release", "hand-off, wait again", readers(), {
        let mut server = CountedServer::start(Loaded::Lockward, &[]);
        let ask =
            |member: usize| request(&["LOCK.ACQUIRE", "ring", &owner(member), "PX", LEASE, "BLOCK", "0"]);
        let mut holder = server.server().connect();
        holder.send(&ask(0));
        holder.expect(4);
        passed_round(&mut server, 4, ask, |member| request(&["LOCK.RELEASE", "ring", &owner(member)]))
    });
}

/// A new owner acquires and releases a slot.
fn acquire_and_release(key: &str) -> Load {
    let new = owner(MANY);
    let acquire = ["LOCK.ACQUIRE", key, &new, "PX", LEASE, "SLOTS", SLOTS];
    Load::pair(&acquire, 4, &["LOCK.RELEASE", key, &new])
}

/// A holder acquires its slot again, and releases that hold.
fn re_enter_and_release(key: &str) -> Load {
    let holder = owner(FEW / 2);
    let acquire = ["LOCK.ACQUIRE", key, &holder, "PX", LEASE, "SLOTS", SLOTS];
    Load::pair(&acquire, 4, &["LOCK.RELEASE", key, &holder])
}

/// A holder renews its lease twice. The clock stands still, so the two leases have different lengths.
fn renew_twice(key: &str) -> Load {
    let holder = owner(FEW / 2);
    let renew = |lease| ["LOCK.RENEW", key, holder.as_str(), "PX", lease];
    Load::pair(&renew(LEASE), 1, &renew("50000"))
}

fn first_holder(key: &str) -> Load {
    Load::single(&["LOCK.INFO", key, "HOLDERS", "1"], 39)
}

/// Readers wait for a writer, are granted the lock together, and release it.
fn readers() -> Count {
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let mut writer = server.server().connect();
    let mut readers: Vec<Connection> = (0..READERS).map(|_| server.server().connect()).collect();
    let release = |who: usize| request(&["LOCK.RELEASE", "readers", &owner(who)]);
    server.count(READERS, |server| {
        server.exchange(&mut writer, &request(&["LOCK.ACQUIRE", "readers", &owner(READERS), "PX", LEASE]), 4);
        for (who, reader) in readers.iter_mut().enumerate() {
            let ask = ["LOCK.ACQUIRE", "readers", &owner(who), "PX", LEASE, "BLOCK", "0", "SHARED"];
            server.exchange(reader, &request(&ask), 0);
        }
        server.exchange(&mut writer, &release(READERS), 1);
        for (who, reader) in readers.iter_mut().enumerate() {
            reader.expect(4);
            server.exchange(reader, &release(who), 1);
        }
    })
}

/// The cost of LOCK.TOP: it grows with the number of contended locks, and not with the number of other locks.
fn count_top(rows: &mut Vec<Row>) {
    const LINES: usize = 1 + 10 * 18;
    let mut add = |name, against, ours, theirs| {
        rows.push(Row { name, against, ours, theirs, room: ROOM_OF_OTHERS });
    };
    let mut server = CountedServer::start(Loaded::Lockward, &[]);
    let acquire = ["LOCK.ACQUIRE", "", "holder", "PX", LEASE];
    let top = Load::single(&["LOCK.TOP"], LINES);
    let mut waiting = wait_for_keys(server.server(), 0..LOCKS, &acquire, 4, "LOCK.ACQUIRE");
    let few = top.count(&mut server);
    waiting.extend(wait_for_keys(server.server(), LOCKS..2 * LOCKS, &acquire, 4, "LOCK.ACQUIRE"));
    let many = top.count(&mut server);
    add("top, twice as many waited for", "top", many.clone(), few);
    let mut holder = server.server().connect();
    for i in 0..10 * LOCKS {
        holder.call(&["LOCK.ACQUIRE", &format!("held:{i}"), "holder", "PX", LEASE], 4);
    }
    let beside = top.count(&mut server);
    add("top, 1,000 more locks held", "top", beside, many);
}

/// The cost of other commands, compared with a server with a module that does nothing.
fn count_others(rows: &mut Vec<Row>) {
    let mut add = |name, ours, theirs| {
        rows.push(Row { name, against: "with an empty module", ours, theirs, room: ROOM_OF_OTHERS });
    };
    let start = |loaded| CountedServer::start(loaded, &[]);
    let pair = Load::pair(&["SET", "plain", "value"], 1, &["DEL", "plain"]);
    let one_by_one = Load { depth: 1, ..pair.clone() };

    let (mut ours, mut theirs) = (start(Loaded::Lockward), start(Loaded::Empty));
    let with_empty = pair.count(&mut theirs);
    add("SET + DEL", pair.count(&mut ours), with_empty.clone());
    add("SET + DEL, one by one", one_by_one.count(&mut ours), one_by_one.count(&mut theirs));
    add("SET PX, GET when it is over", expiring(&mut ours), expiring(&mut theirs));
    add("SET + DEL, keys have expired", pair.count(&mut ours), pair.count(&mut theirs));
    drop_early(ours.server());
    add("SET + DEL, locks were evicted", pair.count(&mut ours), pair.count(&mut theirs));

    let (mut ours, mut theirs) = (start(Loaded::Lockward), start(Loaded::Empty));
    let _waiting = [
        wait_for_keys(
            ours.server(),
            0..LOCKS,
            &["LOCK.ACQUIRE", "", "holder", "PX", LEASE],
            4,
            "LOCK.ACQUIRE",
        ),
        wait_for_keys(theirs.server(), 0..LOCKS, &["SET", "", "holder", "PX", LEASE], 1, "EMPTY.BLOCK"),
    ];
    add("SET + DEL, locks waited for", pair.count(&mut ours), pair.count(&mut theirs));

    let bare = pair.count(&mut start(Loaded::Nothing)).each;
    println!(
        "SET + DEL without a module: {bare:.0}; with an empty module: {:.0}, {:.3} times as many.\n",
        with_empty.each,
        with_empty.each / bare
    );
}

/// Requests that are sent over and over.
#[derive(Clone)]
struct Load {
    requests: Vec<u8>,
    /// The lines of the replies to them.
    lines: usize,
    /// How many times they are in flight at once.
    depth: usize,
}

impl Load {
    fn single(command: &[&str], lines: usize) -> Self {
        Self { requests: request(command), lines, depth: DEPTH }
    }

    /// Two commands, the second with a reply of one line.
    fn pair(first: &[&str], lines: usize, second: &[&str]) -> Self {
        Self { requests: [request(first), request(second)].concat(), lines: lines + 1, depth: DEPTH / 2 }
    }

    fn count(&self, server: &mut CountedServer) -> Count {
        let mut connection = server.server().connect();
        let batch = self.requests.repeat(self.depth);
        server.count(BATCHES * self.depth, |server| {
            for _ in 0..BATCHES {
                server.exchange(&mut connection, &batch, self.lines * self.depth);
            }
        })
    }
}

/// Keys that expire and are deleted when they are read.
fn expiring(server: &mut CountedServer) -> Count {
    let mut connection = server.server().connect();
    connection.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"], 1);
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

/// Creates keys, then waits for each. Both commands have an empty argument, which is replaced by the key.
fn wait_for_keys(
    server: &Server,
    numbers: Range<usize>,
    fill: &[&str],
    lines: usize,
    wait: &str,
) -> Vec<Connection> {
    let mut holder = server.connect();
    let blocked = format!("blocked_clients:{}\r", numbers.end);
    let waiting = numbers.map(|i| {
        let key = format!("waited-for:{i}");
        let fill: Vec<&str> = fill.iter().map(|word| if word.is_empty() { &key } else { *word }).collect();
        holder.call(&fill, lines);
        let mut waiter = server.connect();
        waiter.send(&request(&[wait, &key, "waiter", "PX", LEASE, "BLOCK", "0"]));
        waiter
    });
    let waiting = waiting.collect();
    wait_for("the waiters", || holder.info("clients").contains(&blocked));
    waiting
}

/// Holds locks, and lets the server evict them.
fn drop_early(server: &Server) {
    let mut client = server.connect();
    for i in 0..LOCKS {
        client.call(&["LOCK.ACQUIRE", &format!("dropped:{i}"), "holder", "PX", LEASE], 4);
    }
    client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "1"], 1);
    wait_for("the eviction", || client.info("keyspace").trim_end() == "# Keyspace");
    client.call(&["CONFIG", "SET", "maxmemory", "0"], 1);
}

/// A ring of clients: one client holds, the others wait. The holder passes the lock on to the next client and waits again.
/// `lines` is the number of lines of the reply to the new holder.
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
