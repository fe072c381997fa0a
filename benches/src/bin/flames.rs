//! Draws flame graphs of the server's CPU time: `make flames`.
//!
//! `perf` takes samples of the server's stack.

#![allow(clippy::expect_used, reason = "a benchmark that fails panics with the reason")]

use lockward_bench::batch::Batch;
use lockward_bench::clients::Clients;
use lockward_bench::flame::{Frame, SCRIPT};
use lockward_bench::machine::circumstances;
use lockward_bench::pairs::{CONNECTIONS, DEPTH, Pair};
use lockward_bench::placement::{Place, be_client_of};
use lockward_bench::queues::{Kind, Queues};
use lockward_bench::request::{LEASE, exchange, owner, request};
use lockward_bench::server::start;
use lockward_tests::{Directory, ProcessGroup};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SAMPLED: Duration = Duration::from_secs(10);
const HOLDERS: usize = 1_000;
const WAITERS: usize = 50;
/// The program prints a function if at least this part of the samples, in per cent, was taken in the function or in its
/// callees.
const NAMED: &str = "5";

fn main() {
    be_client_of(Place::Together);
    for (name, title, job) in [
        (
            "flame-pair",
            "LOCK.ACQUIRE + LOCK.RELEASE, 50 connections, 16 commands in flight on each",
            pair as fn() -> Frame,
        ),
        ("flame-handoff", "Hand-offs among 50 clients that wait for one lock", handoff),
        ("flame-semaphore", "A permit acquired and released beside 1,000 holders", semaphore),
    ] {
        println!("{title}:");
        let file = Path::new("docs/performance").join(format!("{name}.svg"));
        fs::write(file, job().draw(title, &circumstances())).expect("docs/performance");
    }
}

/// Samples a server while this program repeats `work` on the server. Prints the functions that took most of the time.
fn sampled(pid: u32, mut work: impl FnMut()) -> Frame {
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
    let script = Command::new("perf").args(SCRIPT).arg("--input").arg(&file).output().expect("perf");
    Frame::of(&String::from_utf8_lossy(&script.stdout))
}

fn pair() -> Frame {
    let server = start(&[]);
    let mut clients = Clients::open(server.port(), CONNECTIONS);
    let batches = Pair::Lock.batches(&server, CONNECTIONS, DEPTH);
    sampled(server.pid(), || clients.run(&batches, 50))
}

fn handoff() -> Frame {
    let mut queues = Queues::waiting(Kind::Lock, Place::Together, WAITERS);
    sampled(queues.server.pid(), || _ = queues.hand_over(true))
}

fn semaphore() -> Frame {
    let server = start(&[]);
    let mut client = server.client();
    let acquire = |who: usize| {
        request(&["LOCK.ACQUIRE", "permits", &owner(who), "PX", LEASE, "HOLDS", "1", "SLOTS", "1000000"])
    };
    exchange(&mut client, &(0..HOLDERS).map(acquire).collect::<Vec<_>>());
    let mut clients = Clients::open(server.port(), CONNECTIONS);
    let batches: Vec<Batch> = (HOLDERS..HOLDERS + CONNECTIONS)
        .map(|who| {
            let release = request(&["LOCK.RELEASE", "permits", &owner(who), "HOLDS", "0"]);
            Batch::of(&vec![[acquire(who), release]; DEPTH / 2].concat(), DEPTH)
        })
        .collect();
    sampled(server.pid(), || clients.run(&batches, 50))
}
