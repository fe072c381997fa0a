//! Compares Lockward with other locks on this machine: see docs/peers.md.

#![allow(clippy::expect_used, reason = "a benchmark that fails panics with the reason")]

use clap::Parser;
use lockward_bench::peers::job::{self, Job, Request};
use lockward_bench::peers::list::{PEERS, Peer};
use lockward_bench::peers::meter::Meter;
use lockward_bench::peers::monitor::Monitor;
use lockward_bench::peers::programs::Program;
use lockward_bench::peers::report::{Entry, Measured, Report};
use lockward_bench::peers::server::Server;
use lockward_bench::placement::go_first;
use lockward_tests::repository;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const RESULTS: &str = "peers.json";

const JOBS: [(Job, usize); 8] = [
    (Job::Uncontended, 1),
    (Job::Uncontended, 50),
    (Job::Contended, 2),
    (Job::Contended, 50),
    (Job::Contended, 500),
    (Job::Readers, 50),
    (Job::Permits, 50),
    (Job::Weights, 50),
];

/// Runs the same jobs with Lockward and with other locks, each on its own server, and measures them.
///
/// LOCKWARD_SERVER names the server for Lockward and for the locks that use Redis (default: redis-server).
/// LOCKWARD_MODULE names the module.
#[derive(Debug, Parser)]
struct Arguments {
    /// The peers to run. The default is all peers.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(PEERS.map(|peer| peer.name)))]
    peers: Vec<String>,
    /// How long each job is measured, in seconds.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The jobs to run. The default is all jobs.
    #[arg(long, value_enum, value_delimiter = ',')]
    jobs: Vec<Job>,
    /// Measures nothing. Writes the results of the last run into peers.md of this directory.
    #[arg(long)]
    docs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(docs) = &arguments.docs {
        return write_docs(docs);
    }
    let named =
        |peer: &&Peer| arguments.peers.is_empty() || arguments.peers.iter().any(|name| name == peer.name);
    let jobs: Vec<(Job, usize)> = JOBS
        .into_iter()
        .filter(|(job, _)| arguments.jobs.is_empty() || arguments.jobs.contains(job))
        .collect();
    let mut report = Report::new(arguments.seconds, go_first());
    let mut programs = BTreeMap::new();
    let peers: Vec<&Peer> = PEERS.iter().filter(named).collect();
    for (number, peer) in peers.iter().enumerate() {
        eprintln!("{} ({} of {})", peer.title, number + 1, peers.len());
        let jobs: Vec<(Job, usize)> =
            jobs.iter().filter(|(job, _)| peer.jobs.contains(job)).copied().collect();
        if !jobs.is_empty() {
            run_peer(peer, &jobs, &mut programs, &mut report);
        }
    }
    println!("{}\n{}", report.tables(), report.settings());
    write(RESULTS, &serde_json::to_string_pretty(&report).expect("numbers and text"));
    if let Some(plot) = report.plot() {
        write("handoffs.svg", &plot);
    }
    if report.results.iter().any(|entry| entry.result.as_ref().is_ok_and(|measured| measured.lost != 0)) {
        eprintln!("A lock had two holders at once: see the list below the tables.");
    }
    ExitCode::SUCCESS
}

fn run_peer(
    peer: &Peer,
    jobs: &[(Job, usize)],
    programs: &mut BTreeMap<Program, Result<Vec<String>, String>>,
    report: &mut Report,
) {
    let begun = Instant::now();
    let program = programs.entry(peer.program).or_insert_with(|| peer.program.build());
    eprintln!("  {:<16} {:>3.0} s", "program", begun.elapsed().as_secs_f64());
    let mut server = None;
    for &(job, clients) in jobs {
        let begun = Instant::now();
        let result = program
            .clone()
            .and_then(|program| do_job(peer, &program, job, clients, report.seconds, &mut server));
        if result.is_err() {
            server = None; // the failed peer program may have left the server in an unknown state
        }
        let entry = Entry { peer: peer.name.to_owned(), job, clients, result };
        eprintln!("  {:<16} {:>3.0} s: {entry}", format!("{job} {clients}"), begun.elapsed().as_secs_f64());
        report.results.push(entry);
    }
}

fn do_job(
    peer: &Peer,
    program: &[String],
    job: Job,
    clients: usize,
    seconds: u64,
    server: &mut Option<Server>,
) -> Result<Measured, String> {
    let server = match server {
        Some(server) => server,
        none => none.insert(Server::start(peer.server)?),
    };
    let address = format!("127.0.0.1:{}", server.port);
    let meter = Meter::start(server);
    let monitor = server.kind.has_monitor().then(|| Monitor::start(server.port));
    let answer = job::run(&Request { program, peer: peer.name, job, address: &address, clients, seconds });
    let parts = monitor.map(Monitor::end);
    let looks = meter.end();
    let answer = answer?;
    let spent = looks.between(answer.began_unix_ms, answer.began_unix_ms + 1e3 * seconds as f64);
    Ok(Measured::new(job, seconds, answer, &server.version, spent, parts.as_ref()))
}

fn write_docs(docs: &Path) -> ExitCode {
    let file = folder().join(RESULTS);
    let report = fs::read_to_string(&file).and_then(|text| Ok(serde_json::from_str::<Report>(&text)?));
    match report.and_then(|report| report.write_docs(docs)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} cannot be written into {}: {error}", file.display(), docs.display());
            ExitCode::FAILURE
        }
    }
}

fn folder() -> PathBuf {
    repository().join("target/peers")
}

fn write(name: &str, text: &str) {
    let file = folder().join(name);
    match fs::create_dir_all(folder()).and_then(|()| fs::write(&file, text)) {
        Ok(()) => eprintln!("{} is written.", file.display()),
        Err(error) => eprintln!("{} cannot be written: {error}", file.display()),
    }
}
