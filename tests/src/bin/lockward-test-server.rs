//! Starts servers or a proxy for the tests of the clients in other languages.
//!
//! ```text
//! lockward-test-server server [--module ARGUMENTS] [CONFIG]...
//! lockward-test-server sentinel [CONFIG]...
//! lockward-test-server cluster
//! lockward-test-server proxy PORT
//! ```
//!
//! CONFIG is a line of redis.conf. The cluster has three primaries, each with a third of the slots. The proxy forwards
//! requests to the server on PORT.
//!
//! The first line of output is JSON: `{"port": 12345, "log": "/tmp/.../server.log"}`. A proxy has no log. A cluster
//! prints `{"ports": [12345, 12346, 12347]}`. After that each line of input is a command, and the program answers each
//! command with one line of JSON. The answer is `{}` for all commands but `losses`:
//!
//! - a server or a Sentinel takes `kill`, `start`, `restart`, `pause`, `resume`, and `module ARGUMENTS` for the next
//!   start;
//! - a cluster takes the same commands after the number of a node: `0 kill`;
//! - a proxy takes these commands:
//!   - `plan [STEP[, STEP]...]` sets the fate of later requests. Without a step the proxy forwards all
//!     requests. A step is `FATE PATTERN [COUNT | until PATTERN]`, where FATE is `request` (the request is
//!     lost), `reply` (the reply is lost) or `hold` (the request is held back until the next plan). A step
//!     applies to each request with an argument that matches PATTERN. The pattern `LOCK.*` matches each
//!     argument that begins with `LOCK.`. The next step begins after COUNT such requests, or at a request
//!     that matches the second PATTERN. After a loss the proxy closes the connection.
//!   - `random SEED REQUESTS REPLIES PATTERN...`: of 1,000 requests that match a PATTERN, the proxy loses about
//!     REQUESTS requests and REPLIES replies.
//!   - `delay MILLISECONDS` delays later replies.
//!   - `cut` closes all connections.
//!   - `losses` returns how many requests and replies were lost, and how many requests were held back: `{"requests":
//!     1, "replies": 2, "held": 3}`.
//!
//! The program ends at the end of its input, and ends all servers that it has started. The program fails if a
//! server has crashed.

use lockward_tests::{Cluster, Fate, Losses, Proxy, Random, Reply, Server, Setup};
use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;
use std::{env, process};

const USAGE: &str = "\
usage: lockward-test-server server [--module ARGUMENTS] [CONFIG]...
       lockward-test-server sentinel [CONFIG]...
       lockward-test-server cluster
       lockward-test-server proxy PORT";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", "--module", module, ref config @ ..] => serve(Setup::new().module(module), config),
        ["server", ref config @ ..] => serve(Setup::new(), config),
        ["sentinel", ref config @ ..] => serve(Setup::sentinel(), config),
        ["cluster"] => serve_cluster(),
        ["proxy", port] => forward(port.parse().unwrap_or_else(|_| usage())),
        _ => usage(),
    }
}

fn serve(setup: Setup, config: &[&str]) {
    let mut server = config.iter().fold(setup, |setup, line| setup.config(line)).start();
    let log = server.dir().join("server.log");
    answer(&format!(r#"{{"port": {}, "log": "{}"}}"#, server.port(), log.display()));
    for_each_command(|command| {
        obey(&mut server, command);
        "{}".to_owned()
    });
}

fn serve_cluster() {
    let mut cluster = Cluster::start_without_replicas(Setup::new());
    let ports: Vec<u16> = cluster.nodes().iter().map(Server::port).collect();
    answer(&format!(r#"{{"ports": {ports:?}}}"#));
    for_each_command(|command| {
        let (node, command) = command.split_once(' ').expect("a node and a command");
        obey(&mut cluster.nodes_mut()[number::<usize>(node)], command);
        "{}".to_owned()
    });
}

fn obey(server: &mut Server, command: &str) {
    match command.split_once(' ').unwrap_or((command, "")) {
        ("kill", "") => server.kill(),
        ("start", "") => server.start_again(),
        ("restart", "") => server.kill_and_start_again(),
        ("pause", "") => server.freeze(),
        ("resume", "") => server.thaw(),
        ("module", arguments) => server.change_setup(|setup| setup.module(arguments)),
        _ => panic!("a server takes no command {command:?}"),
    }
}

fn forward(port: u16) {
    let proxy = Proxy::start_two_way(port);
    answer(&format!(r#"{{"port": {}}}"#, proxy.port()));
    for_each_command(|command| {
        match command.split_once(' ').unwrap_or((command, "")) {
            ("plan", steps) => proxy.set_plan(plan(steps)),
            ("random", shares) => proxy.set_plan(random(shares)),
            ("delay", milliseconds) => proxy.delay(Duration::from_millis(number(milliseconds))),
            ("cut", "") => proxy.cut(),
            ("losses", "") => {
                let Losses { requests, replies, held, .. } = proxy.losses();
                let replies = replies.len();
                return format!(r#"{{"requests": {requests}, "replies": {replies}, "held": {held}}}"#);
            }
            _ => panic!("a proxy takes no command {command:?}"),
        }
        "{}".to_owned()
    });
}

/// A step of a plan.
struct Step {
    fate: Fate,
    pattern: String,
    hits_left: u64,
    until: Option<String>,
}

impl Step {
    fn parse(step: &str) -> Self {
        let words: Vec<&str> = step.split_whitespace().collect();
        let [fate, pattern, ref limit @ ..] = words[..] else { panic!("no step: {step:?}") };
        let fate = match fate {
            "request" => Fate::RequestLost,
            "reply" => Fate::ReplyLost,
            "hold" => Fate::Held,
            _ => panic!("no fate: {fate:?}"),
        };
        let (hits_left, until) = match *limit {
            [] => (u64::MAX, None),
            [count] => (number(count), None),
            ["until", pattern] => (u64::MAX, Some(pattern.to_owned())),
            _ => panic!("no step: {step:?}"),
        };
        Self { fate, pattern: pattern.to_owned(), hits_left, until }
    }
}

fn plan(steps: &str) -> impl FnMut(&[Reply]) -> Fate + Send + use<> {
    let mut steps: VecDeque<Step> =
        steps.split(',').filter(|step| !step.is_empty()).map(Step::parse).collect();
    move |request| {
        while let Some(step) = steps.front_mut() {
            let is_over = step.until.as_ref().is_some_and(|until| is_like(request, until));
            if step.hits_left > 0 && !is_over {
                let is_hit = is_like(request, &step.pattern);
                step.hits_left -= u64::from(is_hit);
                return if is_hit { step.fate } else { Fate::Carried };
            }
            steps.pop_front();
        }
        Fate::Carried
    }
}

fn random(shares: &str) -> impl FnMut(&[Reply]) -> Fate + Send + use<> {
    let words: Vec<&str> = shares.split_whitespace().collect();
    let [seed, requests, replies, ref patterns @ ..] = words[..] else { panic!("no shares: {shares:?}") };
    let (mut random, requests) = (Random::from_seed(number(seed)), number::<u64>(requests));
    let losses = requests + number::<u64>(replies);
    let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    move |request| {
        if !patterns.iter().any(|pattern| is_like(request, pattern)) {
            return Fate::Carried;
        }
        match random.number() % 1_000 {
            chance if chance < requests => Fate::RequestLost,
            chance if chance < losses => Fate::ReplyLost,
            _ => Fate::Carried,
        }
    }
}

/// Whether a request has an argument that matches `pattern`.
fn is_like(request: &[Reply], pattern: &str) -> bool {
    request.iter().map(Reply::bytes).any(|argument| match pattern.strip_suffix('*') {
        Some(beginning) => argument.starts_with(beginning.as_bytes()),
        None => argument == pattern.as_bytes(),
    })
}

/// Answers each line of input.
fn for_each_command(mut reply: impl FnMut(&str) -> String) {
    for command in io::stdin().lines().map_while(Result::ok) {
        answer(&reply(&command));
    }
}

fn answer(line: &str) {
    println!("{line}");
    io::stdout().flush().expect("a reader");
}

#[track_caller]
fn number<N: FromStr>(text: &str) -> N {
    text.parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    process::exit(2)
}
