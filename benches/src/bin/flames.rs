//! Draws where the server's CPU time goes: `make flames`.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends, and says why")]

use lockward_bench::flame::{Recording, Samples};
use lockward_bench::handoff::{Kind, Queues};
use lockward_bench::machine::{machine, today};
use lockward_bench::pairs::{CONNECTIONS, DEPTH, Pair};
use lockward_bench::pipeline::{Batch, Expected, Part, Pipeline};
use lockward_bench::placement::{Place, be_client_of};
use lockward_bench::request::{LEASE, owner, request};
use lockward_bench::server::Server;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long each job is sampled.
const SAMPLED: Duration = Duration::from_secs(10);
/// Other holders of the semaphore.
const HOLDERS: usize = 1_000;
const WAITERS: usize = 50;
/// The smallest part of the samples that the table names.
const NAMED: f64 = 0.05;

fn main() {
    be_client_of(Place::Together);
    let into = Path::new("docs/performance");
    for (name, title, job) in [
        (
            "flame-pair",
            "LOCK.ACQUIRE + LOCK.RELEASE, 50 connections, 16 commands in flight on each",
            pair as fn() -> Samples,
        ),
        ("flame-handoff", "Hand-offs among 50 clients that wait for one lock", handoff),
        ("flame-semaphore", "A permit acquired and released beside 1,000 holders", semaphore),
    ] {
        let samples = job();
        let hint = format!(
            "Each frame is as wide as its part of the server's CPU time ({} samples, {}, {}).",
            samples.count(),
            machine().processor,
            today()
        );
        fs::write(into.join(format!("{name}.svg")), samples.draw(title, &hint)).expect("docs/performance");
        println!("{title}:");
        for (function, part) in samples.at_least(NAMED) {
            println!("  {:5.1} %  {function}", part * 100.0);
        }
    }
}

/// Samples a server while some work is done again and again.
fn sampled(server: &Server, mut work: impl FnMut()) -> Samples {
    let file = server.dir().join("samples");
    work();
    let recording = Recording::start(server.pid(), &file);
    let begin = Instant::now();
    while begin.elapsed() < SAMPLED {
        work();
    }
    recording.end(&file)
}

fn pair() -> Samples {
    let server = Server::start(&[]);
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let batches = Pair::Lock.batches(&server, CONNECTIONS, DEPTH);
    sampled(&server, || pipeline.run(&batches, 50))
}

fn handoff() -> Samples {
    let mut queues = Queues::start(WAITERS, Place::Together);
    let file = queues.server().dir().join("samples");
    let recording = Recording::start(queues.server().pid(), &file);
    let begin = Instant::now();
    queues.pass_on_while(Kind::Lock, || begin.elapsed() < SAMPLED);
    recording.end(&file)
}

fn semaphore() -> Samples {
    let server = Server::start(&[]);
    let mut client = server.client();
    let acquire = |who: usize| {
        request(&["LOCK.ACQUIRE", "permits", &owner(who), "PX", LEASE, "HOLDS", "1", "SLOTS", "1000000"])
    };
    client.pipeline(&(0..HOLDERS).map(acquire).collect::<Vec<_>>());
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let batches: Vec<Batch> = (HOLDERS..HOLDERS + CONNECTIONS)
        .map(|who| {
            let release = request(&["LOCK.RELEASE", "permits", &owner(who), "HOLDS", "0"]);
            let requests = [acquire(who), release].concat().repeat(DEPTH / 2);
            Batch(vec![Part { requests, expected: [Expected::Grant, Expected::Number(0)].repeat(DEPTH / 2) }])
        })
        .collect();
    sampled(&server, || pipeline.run(&batches, 50))
}
