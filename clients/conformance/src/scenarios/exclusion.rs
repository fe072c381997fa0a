//! Mutual exclusion, even if messages and connections are lost.

use super::named::{Named, named};
use super::turns::Turns;
use crate::stage::Stage;
use lockward_tests::{Fate, Random, Server, Setup, eventually};
use std::time::{Duration, Instant};

pub(super) const ALL: &[Named] = named![
    a_lock_excludes_while_connections_are_cut_at_random,
    a_lock_excludes_over_crashes_of_a_server_with_an_aof,
    a_lock_excludes_while_the_server_stops_and_goes_on,
    several_keys_in_any_order_cause_no_deadlock,
    the_weights_of_a_semaphore_stay_within_its_limit,
];

const ONE: Turns<'static> =
    Turns { keys: &["k"], options: "wait=15000 lease=10000", limit: 1, actors: 3, rounds: 40 };

fn a_lock_excludes_while_connections_are_cut_at_random(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut workers = [stage.worker(gate.port()), stage.worker(gate.port())];
    let mut random = Random::from_seed(u64::from(server.pid()));
    gate.plan("random losses", move |words| match random.number() % 100 {
        _ if !words[0].starts_with("LOCK.") => Fate::Carried,
        0..4 => Fate::RequestLost,
        4..8 => Fate::ReplyLost,
        8..10 => Fate::ReplyTorn,
        10..12 => Fate::ClientLost,
        12..14 => Fate::CutAfter(Duration::from_millis(5)),
        _ => Fate::Carried,
    });
    Turns { rounds: 60, ..ONE }.play(stage, &mut workers, |_| {});
    gate.plan("forward all", |_| Fate::Carried);
    let mut client = server.client();
    eventually("the lock is free", || client.info("k").is_none());
}

fn a_lock_excludes_over_crashes_of_a_server_with_an_aof(stage: &Stage) {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let mut workers = [stage.worker(server.port()), stage.worker(server.port())];
    Turns { rounds: 20, ..ONE }.play(stage, &mut workers, |number| {
        if number % 7 == 3 {
            stage.note("the server is killed and started again");
            server.kill_and_start_again();
        }
    });
    let mut client = server.client();
    eventually("the lock is free", || client.info("k").is_none());
}

fn a_lock_excludes_while_the_server_stops_and_goes_on(stage: &Stage) {
    let server = Server::start();
    let settings = ["response-limit=100"];
    let mut workers =
        [stage.worker_with(server.port(), &settings), stage.worker_with(server.port(), &settings)];
    Turns { rounds: 12, ..ONE }.play(stage, &mut workers, |number| {
        if number % 4 == 1 {
            stage.note("the server is stopped for 300 ms");
            server.freeze();
            let end = Instant::now() + Duration::from_millis(300);
            eventually("300 ms have passed", || Instant::now() >= end);
            server.thaw();
        }
    });
    let mut client = server.client();
    eventually("the lock is free", || client.info("k").is_none());
}

fn several_keys_in_any_order_cause_no_deadlock(stage: &Stage) {
    let server = Server::start();
    let mut workers = [stage.worker(server.port()), stage.worker(server.port())];
    let turns = Turns {
        keys: &["a,b", "b,c,a", "c,a", "a,c,b"],
        options: "wait=15000 lease=10000",
        limit: 1,
        actors: 2,
        rounds: 24,
    };
    // Any two of these lists have a key in common, so only one actor at a time can hold its keys.
    turns.play(stage, &mut workers, |_| {});
    let mut client = server.client();
    eventually("all keys are free", || ["a", "b", "c"].iter().all(|key| client.info(key).is_none()));
}

fn the_weights_of_a_semaphore_stay_within_its_limit(stage: &Stage) {
    let server = Server::start();
    let mut workers = [stage.worker(server.port()), stage.worker(server.port())];
    let turns =
        Turns { keys: &["k"], options: "wait=15000 lease=10000 slots=5", limit: 5, actors: 4, rounds: 40 };
    let mut client = server.client();
    turns.play(stage, &mut workers, |_| {
        let weight = client.info("k").map_or(0, |info| info.weight);
        assert!((1..=5).contains(&weight), "the server counts a weight of {weight}");
    });
    eventually("the semaphore is free", || client.info("k").is_none());
}
