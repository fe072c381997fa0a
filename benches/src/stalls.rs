//! The worst case: for how long nobody else is served, because of one thing that happens.
//!
//! A client sends PING, one after the other, while that goes on: its longest round trip is the stall. Beside it stands the like on a
//! server without any module, where keys have a TTL and clients wait with BLPOP. Each round starts a server of its own, and the two sides
//! take turns. What else runs on the machine only makes a round trip longer, so the smallest of the rounds counts.

mod cases;
mod scene;

use crate::limits::raise_open_files;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use scene::{MANY, Side};

/// The name of the stage, as its rows begin.
pub const STAGE: &str = "stalls";

/// A stall may take so many times what it takes a server without any module.
const ALLOWED: f64 = 2.0;
/// A stall of so many milliseconds is always allowed.
const ALWAYS_ALLOWED: f64 = 5.0;
/// Clients that do nothing but wait may take so many percent of the server's CPU.
const IDLE: f64 = 5.0;
/// Memory that may be left, in bytes.
const LEFT: f64 = 2e6;

/// One thing that happens, on a server of its own.
struct Case {
    name: &'static str,
    rounds: usize,
    figures: &'static [Figure],
    /// The figures of one round on one side.
    run: fn(Side) -> Vec<f64>,
}

/// One figure of a case.
struct Figure {
    kind: Kind,
    /// The last part of its row's name, where a case has several.
    part: &'static str,
    what: &'static str,
    against: &'static str,
}

/// What a figure counts, and so what is aimed at.
#[derive(Clone, Copy)]
enum Kind {
    /// The longest PING, in milliseconds.
    Stall,
    /// The server's CPU in percent.
    Share,
    /// The server's CPU for one operation, in nanoseconds, at most so many times theirs.
    Cost(f64),
    /// Memory that is left, in bytes.
    Memory,
}

const fn stall(what: &'static str, against: &'static str) -> Figure {
    Figure { kind: Kind::Stall, part: "", what, against }
}

const CASES: &[Case] = &[
    Case {
        name: "huge-key",
        rounds: 2,
        figures: &[
            stall("1 client waits for a lock whose key has 100 MB", "BLPOP of such a key"),
            share("the server's CPU meanwhile", "BLPOP of such a key"),
        ],
        run: cases::one_huge_key,
    },
    Case {
        name: "large-keys",
        rounds: 2,
        figures: &[
            stall("100 clients wait for locks whose keys have 1 MB each", "BLPOPs of such keys"),
            share("the server's CPU meanwhile", "BLPOPs of such keys"),
        ],
        run: cases::large_keys,
    },
    Case {
        name: "short-keys",
        rounds: 2,
        figures: &[
            stall("10,000 clients wait for 10,000 locks", "10,000 BLPOPs"),
            share("the server's CPU meanwhile", "10,000 BLPOPs"),
        ],
        run: cases::short_keys,
    },
    Case {
        name: "deletes",
        rounds: 3,
        figures: &[stall(
            "20,000 locks are deleted in a pipeline, with `maxmemory` and `allkeys-lru`",
            "20,000 strings",
        )],
        run: cases::deletes,
    },
    Case {
        name: "one-delete",
        rounds: 3,
        figures: &[stall(
            "20,000 locks are deleted by one DEL, with `maxmemory` and `allkeys-lru`",
            "20,000 strings",
        )],
        run: cases::one_delete,
    },
    Case {
        name: "deletes-cpu",
        rounds: 7,
        figures: &[cost(
            "the server's CPU for each of 20,000 deletions in a pipeline, with `maxmemory`",
            "without",
        )],
        run: cases::deletes_cpu,
    },
    Case {
        name: "one-delete-cpu",
        rounds: 7,
        figures: &[cost(
            "the server's CPU for each of 20,000 deletions by one DEL, with `maxmemory`",
            "without",
        )],
        run: cases::one_delete_cpu,
    },
    Case {
        name: "wait-limits",
        rounds: 3,
        figures: &[stall(
            "the wait limits of 10,000 waiters of one lock end together",
            "timeouts of 10,000 BLPOPs",
        )],
        run: cases::wait_limits,
    },
    Case {
        name: "vanished",
        rounds: 3,
        figures: &[stall("10,000 waiters of one lock close their connections", "10,000 BLPOPs of one list")],
        run: cases::vanished,
    },
    Case {
        name: "flushed",
        rounds: 3,
        figures: &[stall(
            "FLUSHALL ends 10,000 locks, and each has a waiter who is granted it",
            "a script of 10,000 LPUSH to lists with a BLPOP each",
        )],
        run: cases::flushed,
    },
    Case {
        name: "overwritten",
        rounds: 3,
        figures: &[stall(
            "SET overwrites a lock, and 10,000 waiters are sent away",
            "SET over a stream with 10,000 XREADGROUPs",
        )],
        run: cases::overwritten,
    },
    Case {
        name: "leases",
        rounds: 3,
        figures: &[stall("100,000 leases end together", "the TTLs of 100,000 strings")],
        run: cases::leases,
    },
    Case {
        name: "leases-waited-for",
        rounds: 3,
        figures: &[stall(
            "10,000 leases end together, and each lock has a waiter who is granted it",
            "a script of 10,000 LPUSH to lists with a BLPOP each",
        )],
        run: cases::leases_waited_for,
    },
    Case {
        name: "script-releases",
        rounds: 3,
        figures: &[stall(
            "a script releases 10,000 locks that have a waiter each",
            "a script of 10,000 LPUSH to lists with a BLPOP each",
        )],
        run: cases::script_of_releases,
    },
    Case {
        name: "script-renewals",
        rounds: 3,
        figures: &[stall(
            "a script releases 9,000 locks to a waiter each, and renews the new owners' leases",
            "a script of 9,000 LPUSH to lists with a BLPOP each, and 9,000 PEXPIRE",
        )],
        run: cases::script_of_renewals,
    },
    Case {
        name: "million",
        rounds: 2,
        figures: &[
            part("save", "BGSAVE with 1,000,000 locks", "with 1,000,000 strings that have a TTL"),
            part(
                "info",
                "INFO of all sections with 1,000,000 locks",
                "with 1,000,000 strings that have a TTL",
            ),
            part("top", "LOCK.TOP with 1,000,000 locks", "DBSIZE with 1,000,000 strings that have a TTL"),
            part("flush", "FLUSHALL ASYNC of 1,000,000 locks", "of 1,000,000 strings that have a TTL"),
        ],
        run: cases::million,
    },
    Case {
        name: "reentries",
        rounds: 3,
        figures: &[
            stall(
                "an owner that waits 10,000 times for one lock is granted it",
                "10,000 BLPOPs of one list, and one LPUSH of 10,000 elements",
            ),
            Figure {
                kind: Kind::Memory,
                part: "memory",
                what: "`used_memory` once all have gone, less that of before",
                against: "the same with BLPOPs",
            },
        ],
        run: cases::reentries,
    },
    Case {
        name: "replica",
        rounds: 3,
        figures: &[stall(
            "REPLICAOF on a server where 10,000 clients wait for one lock",
            "10,000 BLPOPs of one list",
        )],
        run: cases::replica,
    },
    Case {
        name: "slot",
        rounds: 2,
        figures: &[stall(
            "a slot with 1,000 locks moves to another node, and each has a waiter",
            "1,000 strings, and as many BLPOPs",
        )],
        run: cases::slot_moves,
    },
];

const fn share(what: &'static str, against: &'static str) -> Figure {
    Figure { kind: Kind::Share, part: "cpu", what, against }
}

const fn cost(what: &'static str, against: &'static str) -> Figure {
    Figure { kind: Kind::Cost(1.5), part: "", what, against }
}

const fn part(part: &'static str, what: &'static str, against: &'static str) -> Figure {
    Figure { kind: Kind::Stall, part, what, against }
}

/// The names of the cases, which can be asked for one by one.
pub fn cases() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// All cases, or those that were asked for.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let open_files = MANY as u64 + 200;
    assert!(
        raise_open_files(open_files) >= open_files,
        "10,000 waiters need {open_files} open files: raise `ulimit -n`"
    );
    let asked: Vec<&Case> = CASES.iter().filter(|case| report.is_asked(case.name)).collect();
    for (done, case) in asked.iter().enumerate() {
        report.progress(done, asked.len());
        let mut sides: Vec<[Series; 2]> = case.figures.iter().map(|_| <[Series; 2]>::default()).collect();
        for round in 0..case.rounds {
            let mut turns = [(0, Side::Lockward), (1, Side::Plain)];
            turns.rotate_left(round % 2);
            for (which, side) in turns {
                for (sides, number) in sides.iter_mut().zip((case.run)(side)) {
                    sides[which].push(number);
                }
            }
        }
        for (figure, [ours, theirs]) in case.figures.iter().zip(&sides) {
            report.row(figure.row(case.name, ours, theirs));
        }
    }
}

impl Figure {
    fn row(&self, case: &str, ours: &Series, theirs: &Series) -> Row {
        let Self { kind, part, what, against } = *self;
        let dash = if part.is_empty() { "" } else { "-" };
        let name = format!("{STAGE}/{case}{dash}{part}");
        let least = |unit| Row::least(&name, what, unit, ours, against, theirs);
        let (row, limit) = match kind {
            Kind::Stall => (least(Unit::Milliseconds), ALWAYS_ALLOWED.max(ALLOWED * theirs.least())),
            Kind::Share => (least(Unit::Percent), IDLE),
            Kind::Memory => (least(Unit::Bytes), LEFT),
            Kind::Cost(times) => (Row::ratio(&name, what, ours, against, theirs), times),
        };
        row.target(Target::AtMost(limit))
    }
}
