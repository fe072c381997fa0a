//! Compares Lockward with other locks on this machine: see docs/peers.md.

use clap::Parser;
use lockward_bench::peers::job::{self, Job};
use lockward_bench::peers::list::{PEERS, Peer};
use lockward_bench::peers::meter::Spent;
use lockward_bench::peers::report::{Entry, Measured, Report};
use lockward_bench::peers::server::Server;
use lockward_bench::placement::go_first;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// The jobs, each with its number of clients.
const JOBS: [(Job, usize); 7] = [
    (Job::Uncontended, 1),
    (Job::Uncontended, 50),
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
}

fn main() -> io::Result<()> {
    let Arguments { peers, seconds, jobs } = Arguments::parse();
    if !go_first() {
        eprintln!("The clients and servers have no priority over other programs.");
    }
    let mut programs = BTreeMap::new();
    let mut report = Report::default();
    for peer in PEERS.iter().filter(|peer| peers.is_empty() || peers.iter().any(|name| name == peer.name)) {
        eprintln!("{}", peer.title);
        let program = programs.entry(peer.language).or_insert_with(|| job::build(peer.language));
        let mut server = None;
        let is_asked = |job: Job| peer.jobs.contains(&job) && (jobs.is_empty() || jobs.contains(&job));
        for (job, clients) in JOBS.into_iter().filter(|(job, _)| is_asked(*job)) {
            let result =
                program.clone().and_then(|program| do_job(peer, program, job, clients, seconds, &mut server));
            let shown = match &result {
                Ok(measured) => format!("{:.0} a second", measured.a_second),
                Err(reason) => {
                    server = None; // the failed peer program may have left the server in an unknown state
                    format!("did not run: {reason}")
                }
            };
            eprintln!("  {job} {clients}: {shown}");
            report.entries.push(Entry { peer, job, clients, result });
        }
    }
    let tables = report.tables(seconds);
    println!("{tables}");
    let folder = Path::new("target/peers");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("results.md"), tables)?;
    fs::write(folder.join("handoffs.svg"), report.plot())
}

fn do_job(
    peer: &Peer,
    program: Vec<String>,
    job: Job,
    clients: usize,
    seconds: u64,
    server: &mut Option<Server>,
) -> Result<Measured, String> {
    let server = match server {
        Some(server) => server,
        none => none.insert(Server::start(peer.server)?),
    };
    let (warm_up, counted) = (job::warm_up(clients), Duration::from_secs(seconds));
    let begin = SystemTime::now() + warm_up;
    let unix_ms = begin.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let address = format!("127.0.0.1:{}", server.port);
    let arguments = [job.to_string(), address, clients.to_string(), unix_ms.to_string(), seconds.to_string()];
    let words = [program, vec![peer.name.to_owned()], arguments.into()].concat();
    let run = || job::answer(&words, warm_up, counted);
    let (answer, spent) = Spent::beside(run, server, begin, counted);
    Measured::new(job, seconds, answer?, &server.version, spent)
}
