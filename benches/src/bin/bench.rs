//! Measures what Lockward costs on a real server, compared with what it replaces: `make bench`.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends, and says why")]

use lockward_bench::machine::{machine, today};
use lockward_bench::placement::{Place, be_client_of};
use lockward_bench::report::Report;
use lockward_bench::results::Results;
use lockward_bench::server::{Loaded, Server};
use lockward_bench::{
    docs, expiry, guarded, handoff, latency, load, memory, modes, others, pairs, pubsub, stalls,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

type Stage = (&'static str, &'static str, fn(&mut Report));

const STAGES: [Stage; 14] = [
    ("pairs", "acquire + release without AOF or replica", pairs::plain),
    ("aof", "acquire + release with an AOF", pairs::aof),
    ("replica", "acquire + release with a replica", pairs::replica),
    ("guarded", "a guarded SET, compared with a SET and with the check in Lua", guarded::measure),
    ("handoff", "hand-offs, compared with LPUSH waking BLPOP", handoff::measure),
    ("pubsub", "hand-offs, compared with pub/sub wake-up and Lua", pubsub::measure),
    ("expiry", "expired leases among many keys with a TTL", expiry::measure),
    ("others", "plain keys beside locks with waiters", others::measure),
    ("memory", "memory of locks and of waiting clients", memory::measure),
    ("load", "loading a million locks", load::measure),
    (modes::STAGE, "readers and slots: many holders compared with few", modes::measure),
    ("throughput", "pairs a second by pipeline depth", latency::throughput),
    ("latency", "how long clients wait for a reply", latency::distribution),
    (stalls::STAGE, "how long other clients wait at worst", stalls::measure),
];

fn usage() -> String {
    let stages: Vec<String> = STAGES.iter().map(|(name, about, _)| format!("  {name:<12}{about}")).collect();
    format!(
        "Measures what Lockward costs the server, compared with what it replaces. `make bench` builds what it needs.

  bench [--into DIR] [--target ROW=LIMIT]... [STAGE | stalls/CASE]...
  bench --docs DOCS RESULTS...

Stages (all, if none is named):
{}

Cases of stalls, which can run alone:
{}

Writes results.json, table.md and plots into DIR (target/bench). The exit code is 1 if a target is missed by more than noise.
--target gives a row, named as in the results, another limit. --docs writes the results of results.json files into
DOCS/performance.md, and the plots of the first file beside it.
LOCKWARD_SERVER names the server (redis-server), LOCKWARD_MODULE the module (target/release/liblockward.so).",
        stages.join("\n"),
        stalls::cases().map(|case| format!("  stalls/{case}")).collect::<Vec<_>>().join("\n"),
    )
}

/// The command line.
struct Asked {
    into: PathBuf,
    limits: BTreeMap<String, f64>,
    stages: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--help" | "-h"] => println!("{}", usage()),
        ["--docs", docs, first, ref others @ ..] => {
            let read = |file: &str| {
                let text = fs::read_to_string(file).unwrap_or_else(|error| panic_for(file, &error));
                serde_json::from_str(&text).unwrap_or_else(|error| panic_for(file, &error))
            };
            let others: Vec<Results> = others.iter().map(|file| read(file)).collect();
            docs::write(Path::new(docs), &read(first), &others);
        }
        _ => {
            let Some(asked) = asked(&words) else {
                eprintln!("{}", usage());
                return ExitCode::from(2);
            };
            for module in [Loaded::Lockward, Loaded::Empty] {
                if let Err(missing) = module.is_built() {
                    eprintln!("{missing}");
                    return ExitCode::from(2);
                }
            }
            return run(asked);
        }
    }
    ExitCode::SUCCESS
}

fn panic_for(file: &str, error: &dyn std::fmt::Display) -> ! {
    eprintln!("{file}: {error}");
    std::process::exit(2)
}

fn asked(words: &[String]) -> Option<Asked> {
    let mut asked =
        Asked { into: PathBuf::from("target/bench"), limits: BTreeMap::new(), stages: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--into" => asked.into = words.next()?.into(),
            "--target" => {
                let (row, limit) = words.next()?.split_once('=')?;
                asked.limits.insert(row.to_owned(), limit.parse().ok()?);
            }
            stage => {
                let is_case = |case| stalls::cases().any(|name| name == case);
                let known = STAGES.iter().any(|(name, ..)| *name == stage)
                    || stage
                        .split_once('/')
                        .is_some_and(|(name, case)| name == stalls::STAGE && is_case(case));
                known.then_some(())?;
                asked.stages.push(stage.to_owned());
            }
        }
    }
    Some(asked)
}

fn run(asked: Asked) -> ExitCode {
    be_client_of(Place::Apart);
    let machine = machine();
    let server = Server::start(&[]).version();
    eprintln!("{server}");
    let mut report = Report::new(asked.limits, asked.stages);
    for (name, about, measure) in STAGES {
        if report.is_stage_asked(name) {
            report.stage(name, about);
            measure(&mut report);
        }
    }
    let seconds = report.elapsed().as_secs_f64();
    let results = Results { server, machine, day: today(), seconds, rows: report.rows, plots: report.plots };
    write(&asked.into, &results).expect("a directory for the results");
    println!("{}\n\n{}", results.circumstances(), results.table());
    println!("Results and plots are in {}.", asked.into.display());
    if results.all_met() {
        println!("Every target is met, within noise.");
        ExitCode::SUCCESS
    } else {
        println!("Not every target is met: {}.", results.missed().join(", "));
        ExitCode::FAILURE
    }
}

fn write(into: &Path, results: &Results) -> std::io::Result<()> {
    fs::create_dir_all(into)?;
    fs::write(into.join("results.json"), serde_json::to_string_pretty(results)? + "\n")?;
    fs::write(into.join("table.md"), format!("{}\n\n{}", results.circumstances(), results.table()))?;
    for plot in &results.plots {
        fs::write(into.join(format!("{}.svg", plot.name)), plot.draw(&results.short_circumstances()))?;
    }
    Ok(())
}
