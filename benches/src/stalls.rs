//! Stalls: the longest time for which the server serves no other client while it does one large piece of work.
//!
//! During the work, a client sends PING repeatedly. The longest round trip is the stall. The stall is compared with a
//! similar stall of a server without any module, where keys have a TTL and clients wait with BLPOP. Each round starts
//! a new server, and the two sides alternate. Other load of the machine can only make a round trip longer, so the
//! smallest value of all rounds counts.

pub(crate) mod cases;
pub(crate) mod scene;

use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use cases::Beside;
use lockward_tests::raise_open_files;
use scene::{MANY, Side};

/// The name of this stage of the benchmark. The names of its rows in the results begin with this name.
pub const STAGE: &str = "stalls";

/// The largest allowed ratio of a stall to the stall on a server without any module.
const ALLOWED: f64 = 2.0;
/// A stall of up to this number of milliseconds is always allowed.
const ALWAYS_ALLOWED: f64 = 5.0;
/// Clients that only wait may take this share of the server's CPU, in per cent.
const IDLE: f64 = 5.0;
/// 10,000 clients that only wait may take this share of the server's CPU, in per cent. 10,000 is the default of
/// `lock.max-waiters-total`.
const IDLE_WAITERS: f64 = 10.0;
/// The largest allowed ratio of the CPU time of a deletion with `maxmemory` to the CPU time without `maxmemory`.
const WITH_LIMIT: f64 = 1.5;

/// The allowed stall when the leases of many holders of one lock end, in milliseconds.
const LEASES_OF_ONE: f64 = 20.0;

/// The memory that may still be in use after the work, in bytes.
const LEFT: f64 = 2e6;

/// Runs one round on one side. Returns the figures in the order of the case's [`Figure`]s.
type Run = fn(Side) -> Vec<f64>;

/// One case, on its own server: its name, its rounds, the work, and its figures.
struct Case(&'static str, usize, Run, &'static [Figure]);

/// One figure of a case: its kind, what is measured, and what it is compared with.
struct Figure(Kind, &'static str, &'static str);

/// What a figure measures. The kind decides the target.
#[derive(Clone, Copy)]
enum Kind {
    /// The longest PING, in milliseconds.
    Stall,
    /// The longest PING during one of several actions on the same server. The text names the action, and is the suffix
    /// of the name of the row in the results.
    StallOf(&'static str),
    /// The longest PING, and a limit that does not depend on the plain server.
    StallUpTo(f64),
    /// The server's CPU in per cent, and its limit.
    Cpu(f64),
    /// The server's CPU for one operation, in nanoseconds.
    Cost,
    /// Memory that is still in use after the work, in bytes.
    Memory,
}

use Kind::{Cost, Cpu, Memory, Stall, StallOf, StallUpTo};

#[rustfmt::skip] // a figure in a line
const CASES: &[Case] = &[
    Case("huge-key", 2, |side| cases::standing(side, 1, 100_000_000), &[
        Figure(Stall, "1 client waits for a lock whose key is 100 MB long", "a client waits in BLPOP of such a key"),
        Figure(Cpu(IDLE), "the server's CPU while 1 client waits for a lock whose key is 100 MB long", "a client waits in BLPOP of such a key"),
    ]),
    Case("large-keys", 2, |side| cases::standing(side, 100, 1_000_000), &[
        Figure(Stall, "100 clients wait for locks whose keys are 1 MB long each", "100 clients wait in BLPOP of such keys"),
        Figure(Cpu(IDLE), "the server's CPU while 100 clients wait for locks whose keys are 1 MB long each", "100 clients wait in BLPOP of such keys"),
    ]),
    Case("short-keys", 2, |side| cases::standing(side, MANY, 0), &[
        Figure(Stall, "10,000 clients wait for 10,000 locks", "10,000 clients wait in BLPOP"),
        Figure(Cpu(IDLE_WAITERS), "the server's CPU while 10,000 clients wait for 10,000 locks", "10,000 clients wait in BLPOP"),
    ]),
    Case("deletes", 3, |side| cases::deletes(side, false), &[
        Figure(Stall, "20,000 held locks are deleted by a DEL each, with `maxmemory`", "20,000 strings are deleted in the same way"),
    ]),
    Case("one-delete", 3, |side| cases::deletes(side, true), &[
        Figure(Stall, "20,000 held locks are deleted by one DEL, with `maxmemory`", "20,000 strings are deleted in the same way"),
    ]),
    Case("deletes-cpu", 5, |side| cases::cost_of_deletes(side, false), &[
        Figure(Cost, "server CPU for each deleted lock, by a DEL each, with `maxmemory`", "without `maxmemory`"),
    ]),
    Case("one-delete-cpu", 5, |side| cases::cost_of_deletes(side, true), &[
        Figure(Cost, "server CPU for each deleted lock, by one DEL, with `maxmemory`", "without `maxmemory`"),
    ]),
    Case("wait-limits", 2, cases::wait_limits, &[
        Figure(Stall, "the wait limits of 10,000 waiters of one lock end together", "the timeouts of 10,000 clients in BLPOP end together"),
    ]),
    Case("vanished", 3, cases::vanished, &[
        Figure(Stall, "10,000 waiters of one lock close their connections", "10,000 clients in BLPOP of one list close their connections"),
    ]),
    Case("flushed", 3, cases::flushed, &[
        Figure(Stall, "FLUSHALL deletes 10,000 locks, and the waiter of each lock gets it", "a script serves 10,000 clients in BLPOP"),
    ]),
    Case("overwritten", 2, cases::overwritten, &[
        Figure(Stall, "SET overwrites a lock, and its 10,000 waiters get an error", "SET overwrites a stream, and 10,000 clients in XREADGROUP get an error"),
    ]),
    Case("leases", 2, cases::leases, &[
        Figure(Stall, "100,000 leases end together", "the TTLs of 100,000 strings end together"),
    ]),
    Case("leases-waited-for", 2, cases::leases_waited_for, &[
        Figure(Stall, "10,000 leases end together, and the waiter of each lock gets it", "a script serves 10,000 clients in BLPOP"),
    ]),
    Case("script-releases", 3, cases::script_of_releases, &[
        Figure(Stall, "a script releases 10,000 locks that have a waiter each", "a script serves 10,000 clients in BLPOP"),
    ]),
    Case("script-renewals", 3, cases::script_of_renewals, &[
        Figure(Stall, "a script releases 9,000 locks, each to a waiter, and renews the new leases", "a script serves 9,000 clients in BLPOP, and sends 9,000 PEXPIREs"),
    ]),
    Case("holders-second-waiter", 2, |side| cases::leases_of_one(side, true, Beside::Waiter), &[
        Figure(StallUpTo(LEASES_OF_ONE), "100,000 leases of one lock end within a second, and a client that waits gets the lock", "the TTLs of 100,000 strings end within a second"),
    ]),
    Case("holders-second-client", 2, |side| cases::leases_of_one(side, true, Beside::Client), &[
        Figure(StallUpTo(LEASES_OF_ONE), "100,000 leases of one lock end within a second, while a client acquires and releases a slot over and over", "the TTLs of 100,000 strings end within a second"),
    ]),
    Case("holders-at-once-waiter", 2, |side| cases::leases_of_one(side, false, Beside::Waiter), &[
        Figure(StallUpTo(LEASES_OF_ONE), "100,000 leases of one lock end together, and a client that waits gets the lock", "the TTLs of 100,000 strings end together"),
    ]),
    Case("holders-at-once", 2, |side| cases::leases_of_one(side, false, Beside::Nobody), &[
        Figure(StallUpTo(LEASES_OF_ONE), "100,000 leases of one lock end together, and nobody waits", "the TTLs of 100,000 strings end together"),
    ]),
    Case("million-holders", 2, cases::million_holders, &[
        Figure(StallOf("save"), "BGSAVE of a lock with 1,000,000 holders", "BGSAVE of a sorted set with 1,000,000 members"),
        Figure(StallOf("dump"), "DUMP of a lock with 1,000,000 holders", "DUMP of a sorted set with 1,000,000 members"),
        Figure(StallOf("restore"), "RESTORE of a lock with 1,000,000 holders", "RESTORE of a sorted set with 1,000,000 members"),
        Figure(StallOf("unlink"), "UNLINK of a lock with 1,000,000 holders", "UNLINK of a sorted set with 1,000,000 members"),
        Figure(StallOf("del"), "DEL of a lock with 1,000,000 holders, with `lazyfree-lazy-user-del`", "DEL of a sorted set with 1,000,000 members"),
        Figure(StallOf("flush"), "FLUSHALL ASYNC of a lock with 1,000,000 holders", "FLUSHALL ASYNC of a sorted set with 1,000,000 members"),
        Figure(StallOf("unlink-maxmemory"), "UNLINK of a lock with 1,000,000 holders, with `maxmemory`", "UNLINK of a sorted set with 1,000,000 members"),
    ]),
    Case("million-holders-expire", 2, cases::million_holders_expire, &[
        Figure(Stall, "1,000,000 leases of one lock end together, and nobody waits", "the TTL of a sorted set with 1,000,000 members ends"),
    ]),
    Case("million", 2, cases::million, &[
        Figure(StallOf("save"), "BGSAVE of 1,000,000 locks", "BGSAVE of 1,000,000 strings with a TTL"),
        Figure(StallOf("info"), "INFO, all sections, with 1,000,000 locks", "INFO, all sections, with 1,000,000 strings"),
        Figure(StallOf("top"), "LOCK.TOP with 1,000,000 locks", "DBSIZE with 1,000,000 strings"),
        Figure(StallOf("flush"), "FLUSHALL ASYNC of 1,000,000 locks", "FLUSHALL ASYNC of 1,000,000 strings with a TTL"),
    ]),
    Case("reentries", 2, cases::reentries, &[
        Figure(Stall, "an owner gets a lock for which it has 10,000 waiting requests", "one LPUSH of 10,000 elements serves 10,000 clients in BLPOP"),
        Figure(Memory, "memory still in use after these clients have left", "the clients in BLPOP have left"),
    ]),
    Case("replica", 2, cases::replica, &[
        Figure(Stall, "REPLICAOF on a server where 10,000 clients wait for one lock", "REPLICAOF on a server where 10,000 clients wait in BLPOP of one list"),
    ]),
    Case("slot", 2, cases::slot_moves, &[
        Figure(Stall, "a slot with 1,000 locks, each with a waiter, moves to another node", "a slot with 1,000 strings moves, while 1,000 clients wait in BLPOP"),
    ]),
];

/// The names of the cases. Each case can be run alone.
pub fn cases() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|Case(name, ..)| *name)
}

/// Measures all cases, or those that the command line names.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let wanted = MANY as u64 + 200;
    let open_files = raise_open_files(wanted);
    assert!(
        open_files >= wanted,
        "10,000 waiters need {wanted} open files: raise `ulimit -n` from {open_files}"
    );
    let asked: Vec<&Case> = CASES.iter().filter(|Case(name, ..)| report.is_asked(name)).collect();
    for (done, Case(name, rounds, run, figures)) in asked.iter().enumerate() {
        report.progress(done, asked.len());
        let mut sides: Vec<[Series; 2]> = figures.iter().map(|_| <[Series; 2]>::default()).collect();
        for round in 0..*rounds {
            let mut order = [(0, Side::Lockward), (1, Side::Plain)];
            order.rotate_left(round % 2);
            for (which, side) in order {
                for (sides, number) in sides.iter_mut().zip(run(side)) {
                    sides[which].push(number);
                }
            }
        }
        for (figure, [ours, theirs]) in figures.iter().zip(&sides) {
            report.row(figure.row(&format!("{STAGE}/{name}"), ours, theirs));
        }
    }
}

impl Figure {
    fn row(&self, case: &str, ours: &Series, theirs: &Series) -> Row {
        let Self(kind, what, against) = *self;
        let least =
            |part: &str, unit| Row::least(&format!("{case}{part}"), what, unit, ours, against, theirs);
        let stall = ALWAYS_ALLOWED.max(ALLOWED * theirs.least());
        let (row, limit) = match kind {
            Stall => (least("", Unit::Milliseconds), stall),
            StallUpTo(limit) => (least("", Unit::Milliseconds), limit),
            StallOf(part) => (least(&format!("-{part}"), Unit::Milliseconds), stall),
            Cpu(limit) => (least("-cpu", Unit::Percent), limit),
            Memory => (least("-memory", Unit::Bytes), LEFT),
            Cost => (Row::ratio(case, what, ours, against, theirs), WITH_LIMIT),
        };
        row.target(Target::AtMost(limit))
    }
}
