//! Measures how the cost of Lockward grows with the number of locks, waiters, holders and nodes: `make bench-scale`.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends, and says why")]

use lockward_bench::docs::write_plots;
use lockward_bench::machine::{machine, today};
use lockward_bench::placement::{Place, be_client_of};
use lockward_bench::report::Report;
use lockward_bench::results::Results;
use lockward_bench::scale::{STAGES, page};
use lockward_bench::server::{Loaded, Server};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

fn usage() -> String {
    let curves: Vec<String> = STAGES.iter().map(|(name, about, _)| format!("  {name:<10}{about}")).collect();
    format!(
        "Measures how the cost of Lockward grows.

  scale [--into DIR] [CURVE]...
  scale --docs DOCS [RESULTS]

Curves (all, if none is named):
{}

Writes results.json and plots into DIR (target/scale). --docs writes the results of RESULTS (target/scale/results.json) into
DOCS/scale.md, and the plots beside it.
LOCKWARD_SERVER names the server (redis-server), LOCKWARD_MODULE the module (target/release/liblockward.so).",
        curves.join("\n")
    )
}

fn main() -> ExitCode {
    let mut words: Vec<String> = env::args().skip(1).collect();
    let results = PathBuf::from("target/scale");
    if let [first, docs, rest @ ..] = &words[..]
        && first == "--docs"
    {
        let file = rest.first().map_or_else(|| results.join("results.json"), PathBuf::from);
        let text = fs::read_to_string(&file).expect("results: run `make bench-scale`");
        page::write(Path::new(docs), &serde_json::from_str(&text).expect("results of this program"));
        return ExitCode::SUCCESS;
    }
    let mut into = results;
    if words.first().is_some_and(|word| word == "--into") && words.len() > 1 {
        into = PathBuf::from(words.remove(1));
        words.remove(0);
    }
    if words.iter().any(|word| STAGES.iter().all(|(name, ..)| name != word)) {
        eprintln!("{}", usage());
        return ExitCode::from(2);
    }
    for module in [Loaded::Lockward, Loaded::Empty] {
        if let Err(missing) = module.is_built() {
            eprintln!("{missing}");
            return ExitCode::from(2);
        }
    }
    run(&into, words);
    ExitCode::SUCCESS
}

fn run(into: &Path, asked: Vec<String>) {
    be_client_of(Place::Apart);
    let machine = machine();
    let server = Server::start(&[]).version();
    eprintln!("{server}");
    let mut report = Report::new(BTreeMap::new(), asked);
    for (name, about, measure) in STAGES {
        if report.is_stage_asked(name) {
            report.stage(name, about);
            measure(&mut report);
        }
    }
    let seconds = report.elapsed().as_secs_f64();
    let results = Results { server, machine, day: today(), seconds, rows: report.rows, plots: report.plots };
    fs::create_dir_all(into).expect("a directory for the results");
    let text = serde_json::to_string_pretty(&results).expect("results") + "\n";
    fs::write(into.join("results.json"), text).expect("results");
    write_plots(into, &results);
    println!("{}\nResults and plots are in {}.", results.circumstances(), into.display());
}
