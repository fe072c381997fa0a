//! Draws flame graphs of the server's CPU time: `make flames`.
//!
//! `perf` takes samples of the server's stack, and inferno draws them.

#![allow(clippy::expect_used, reason = "a benchmark that fails panics with the reason")]

use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;
use inferno::flamegraph::{self, Options, TextTruncateDirection};
use lockward_bench::machine::circumstances;
use lockward_bench::pairs::{CONNECTIONS, DEPTH, Pair};
use lockward_bench::pipeline::{Batch, Expected, Pipeline};
use lockward_bench::placement::{Place, be_client_of};
use lockward_bench::queues::{Kind, Queues};
use lockward_bench::request::{LEASE, exchange, owner, request};
use lockward_bench::server::start;
use lockward_tests::{Directory, ProcessGroup};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long `perf` samples each job.
const SAMPLED: Duration = Duration::from_secs(10);
/// The number of other holders of the semaphore.
const HOLDERS: usize = 1_000;
const WAITERS: usize = 50;
/// The program prints a function if at least this part of the samples, in per cent, was taken in the function or in its
/// callees.
const NAMED: &str = "5";

/// The stacks of a server. Each line has the functions of one stack, separated by semicolons, and the number of
/// samples. The outermost function comes first.
type Stacks = String;

fn main() {
    be_client_of(Place::Together);
    for (name, title, job) in [
        (
            "flame-pair",
            "LOCK.ACQUIRE + LOCK.RELEASE, 50 connections, 16 commands in flight on each",
            pair as fn() -> Stacks,
        ),
        ("flame-handoff", "Hand-offs among 50 clients that wait for one lock", handoff),
        ("flame-semaphore", "A permit acquired and released beside 1,000 holders", semaphore),
    ] {
        println!("{title}:");
        draw(&Path::new("docs/performance").join(format!("{name}.svg")), title, &job());
    }
}

fn draw(file: &Path, title: &str, stacks: &str) {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    let circumstances = circumstances();
    options.subtitle =
        Some(format!("Each frame is as wide as its part of the server's CPU time ({circumstances})."));
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.no_javascript = true;
    let file = File::create(file).expect("docs/performance");
    flamegraph::from_lines(&mut options, stacks.lines(), file).expect("a flame graph");
}

/// Samples a server while this program repeats `work` on the server. Prints the functions that took most of the time.
fn sampled(pid: u32, mut work: impl FnMut()) -> Stacks {
    work();
    let dir = Directory::new();
    let file = dir.path().join("samples");
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--event", "cpu-clock", "--freq", "997", "--call-graph", "dwarf,16384"]);
    perf.arg("--output").arg(&file).args(["--pid", &pid.to_string()]).stderr(Stdio::null());
    let mut perf = ProcessGroup::start(&mut perf).expect("perf: install linux-perf");
    let begin = Instant::now();
    while begin.elapsed() < SAMPLED {
        work();
    }
    perf.signal(libc::SIGINT).and_then(|()| perf.wait()).expect("perf ends");
    let report =
        ["report", "--stdio", "--children", "--no-inline", "--call-graph", "none", "--percent-limit", NAMED];
    let _ = Command::new("perf").args(report).arg("--input").arg(&file).stderr(Stdio::null()).status();
    let script = Command::new("perf").args(["script", "--no-inline", "--input"]).arg(&file).output();
    let mut stacks = Vec::new();
    let script = script.expect("perf").stdout;
    Folder::default().collapse(&script[..], &mut stacks).expect("the output of perf script");
    String::from_utf8(stacks).expect("names of functions")
}

fn pair() -> Stacks {
    let server = start(&[]);
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let batches = Pair::Lock.batches(&server, CONNECTIONS, DEPTH);
    sampled(server.pid(), || pipeline.run(&batches, 50))
}

fn handoff() -> Stacks {
    let mut queues = Queues::waiting(Kind::Lock, Place::Together, WAITERS);
    sampled(queues.server.pid(), || _ = queues.hand_over(true))
}

fn semaphore() -> Stacks {
    let server = start(&[]);
    let mut client = server.client();
    let acquire = |who: usize| {
        request(&["LOCK.ACQUIRE", "permits", &owner(who), "PX", LEASE, "HOLDS", "1", "SLOTS", "1000000"])
    };
    exchange(&mut client, &(0..HOLDERS).map(acquire).collect::<Vec<_>>());
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let batches: Vec<Batch> = (HOLDERS..HOLDERS + CONNECTIONS)
        .map(|who| {
            let release = request(&["LOCK.RELEASE", "permits", &owner(who), "HOLDS", "0"]);
            let pair = [(acquire(who), Expected::Grant), (release, Expected::Number(0))];
            Batch::of(&vec![pair; DEPTH / 2].concat(), DEPTH)
        })
        .collect();
    sampled(server.pid(), || pipeline.run(&batches, 50))
}
