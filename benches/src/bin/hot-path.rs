//! What the hot path costs: server CPU of acquire + release beside SET + DEL and beside the hash lock in Lua, and of a
//! hand-off beside BLPOP. Prints a Markdown table. Build the module first: `make build`.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot go on ends, and says why"
)]

use lockward_bench::handoff::{Costs, Kind, Lines};
use lockward_bench::limits::raise_open_files;
use lockward_bench::pairs::{CONNECTIONS, DEPTH, Pair, measure};
use lockward_bench::placement::keep_this_process;
use lockward_bench::rounds::Series;
use lockward_bench::server::Server;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "\
What the hot path of Lockward costs the server, beside plain commands. Build the module first: make build

  hot-path [pairs] [aof] [replica] [handoff]   CPU time; all of them when none is named

LOCKWARD_SERVER names the server (redis-server), LOCKWARD_MODULE the module (target/release/liblockward.so).";

const AOF: &[&str] = &["appendonly yes", "appendfsync everysec"];

fn main() -> ExitCode {
    keep_this_process();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let named = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--help" | "-h"] => println!("{USAGE}"),
        _ if words.iter().all(|word| ["pairs", "aof", "replica", "handoff"].contains(&word.as_str())) => {
            println!("Server CPU, {}; client and server share a CPU.\n", Server::start(&[]).version());
            if named("pairs") || named("aof") || named("replica") {
                print_pairs(named("pairs"), named("aof"), named("replica"));
            }
            if named("handoff") {
                print_handoffs();
            }
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn print_pairs(plain: bool, aof: bool, replica: bool) {
    println!("Acquire + release, {CONNECTIONS} connections, {DEPTH} commands on the way on each:\n");
    println!("| against | lock | other | ratio | middle half of the rounds | target |");
    println!("| --- | --- | --- | --- | --- | --- |");
    if plain {
        let costs = stage("pairs", || {
            measure(&Server::start(&[]), None, &[Pair::Lock, Pair::Set, Pair::Hash, Pair::Ping], 15)
        });
        let lock = &costs.server[0];
        print_pair("SET NX PX + DEL", lock, &costs.server[1], "at most 1.25");
        print_inverse("the hash lock in Lua", lock, &costs.server[2], "at least 3.5 times cheaper");
        print_pair("PING + PING", lock, &costs.server[3], "");
    }
    if aof {
        let costs = stage("AOF", || measure(&Server::start(AOF), None, &[Pair::Lock, Pair::Set], 15));
        print_pair("SET NX PX + DEL, AOF on", &costs.server[0], &costs.server[1], "at most 1.35");
    }
    if replica {
        let costs = stage("replica", || {
            let primary = Server::start(&[]);
            let replica = primary.start_replica();
            measure(&primary, Some(&replica), &[Pair::Lock, Pair::Set], 15)
        });
        print_pair("SET NX PX + DEL, with a replica", &costs.server[0], &costs.server[1], "at most 1.35");
        if let Some(applied) = &costs.replica {
            print_pair("the same, on that replica", &applied[0], &applied[1], "");
        }
    }
    println!();
}

fn print_pair(against: &str, lock: &Series, other: &Series, target: &str) {
    let ratios = lock.ratios(other);
    println!(
        "| {against} | {:.0} ns | {:.0} ns | {:.2} | {:.2} to {:.2} | {target} |",
        lock.median(),
        other.median(),
        lock.median() / other.median(),
        ratios.quantile(0.25),
        ratios.quantile(0.75),
    );
}

fn print_inverse(against: &str, lock: &Series, other: &Series, target: &str) {
    let ratios = other.ratios(lock);
    println!(
        "| {against} | {:.0} ns | {:.0} ns | 1 / {:.2} | 1 / {:.2} to 1 / {:.2} | {target} |",
        lock.median(),
        other.median(),
        other.median() / lock.median(),
        ratios.quantile(0.25),
        ratios.quantile(0.75),
    );
}

struct Measured {
    waiters: usize,
    lock: Costs,
    list: Costs,
}

fn print_handoffs() {
    let sizes: [(usize, usize); 3] = [(2, 33), (1_000, 22), (10_000, 11)];
    let wanted: usize = sizes.iter().map(|(waiters, _)| Lines::open_files(*waiters)).sum();
    let mut open_files = usize::try_from(raise_open_files(wanted as u64)).unwrap_or(usize::MAX);
    let mut measured = Vec::new();
    let mut skipped = Vec::new();
    stage("hand-off", || {
        let mut started = Vec::new();
        for (waiters, rounds) in sizes {
            let needed = Lines::open_files(waiters);
            if needed > open_files {
                skipped.push((waiters, needed));
                continue;
            }
            open_files -= needed;
            started.push((Lines::start(waiters), rounds));
            measured.push(Measured { waiters, lock: Costs::default(), list: Costs::default() });
        }
        for round in 0..sizes[0].1 {
            for ((lines, rounds), measured) in started.iter_mut().zip(&mut measured) {
                // Fewer rounds of the longer lines, spread over the same time.
                if (round * *rounds) % sizes[0].1 < *rounds {
                    for kind in
                        if round % 2 == 0 { [Kind::Lock, Kind::List] } else { [Kind::List, Kind::Lock] }
                    {
                        let costs = match kind {
                            Kind::Lock => &mut measured.lock,
                            Kind::List => &mut measured.list,
                        };
                        lines.round(kind, costs);
                    }
                }
            }
        }
    });
    println!("Hand-off, LOCK.RELEASE to the next grant, against LPUSH that wakes BLPOP:\n");
    println!("| waiters | lock | list | ratio (at most 1.1) | middle half of the rounds | until the reply |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for Measured { waiters, lock, list } in &measured {
        let ratios = lock.cpu.ratios(&list.cpu);
        println!(
            "| {waiters} | {:.1} µs | {:.1} µs | {:.2} | {:.2} to {:.2} | {:.1} µs against {:.1} µs |",
            lock.cpu.median() / 1e3,
            list.cpu.median() / 1e3,
            lock.cpu.median() / list.cpu.median(),
            ratios.quantile(0.25),
            ratios.quantile(0.75),
            lock.latency.median() / 1e3,
            list.latency.median() / 1e3,
        );
    }
    for Measured { waiters, lock, list } in &measured {
        println!(
            "| {waiters}, who wait again | {:.1} µs | {:.1} µs | {:.2} | | |",
            lock.cpu_with_wait.median() / 1e3,
            list.cpu_with_wait.median() / 1e3,
            lock.cpu_with_wait.median() / list.cpu_with_wait.median(),
        );
    }
    for (waiters, needed) in &skipped {
        println!("| {waiters} | skipped: needs {needed} open files (`ulimit -n`) | | | | |");
    }
    if let [first, .., last] = &measured[..] {
        println!(
            "\nFlatness, {} waiters against {}: lock {:.2} (at most 1.2), list {:.2}.",
            last.waiters,
            first.waiters,
            last.lock.cpu.median() / first.lock.cpu.median(),
            last.list.cpu.median() / first.list.cpu.median(),
        );
    }
}

/// Says on the side what is going on.
fn stage<R>(name: &str, measure: impl FnOnce() -> R) -> R {
    eprint!("{name} ... ");
    let begin = Instant::now();
    let measured = measure();
    eprintln!("{:.1} s", begin.elapsed().as_secs_f64());
    measured
}
