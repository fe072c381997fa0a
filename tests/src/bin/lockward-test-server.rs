//! Starts a server, a Sentinel or a proxy for the tests of a client in another language.
//!
//! ```text
//! lockward-test-server server [--module ARGUMENTS] [CONFIG]...
//! lockward-test-server sentinel [CONFIG]...
//! lockward-test-server proxy PORT SEED REQUESTS REPLIES PREFIX...
//! ```
//!
//! CONFIG is a line of redis.conf. The proxy stands before the server on PORT. Of 1,000 commands that begin with a PREFIX, it loses
//! about REQUESTS requests and REPLIES replies, chosen by SEED, and closes the connection after each loss.
//!
//! The first line of output is JSON: `{"port": 12345, "log": "/tmp/.../server.log"}`, for a proxy without the log. After that each
//! line of input is a command, and each is answered by one line of JSON, `{}` where nothing else is named:
//!
//! - a server takes `kill`, `start`, `restart`, `pause`, `resume`, and `module ARGUMENTS` for the next start;
//! - a proxy takes `losses`, which returns `{"requests": 1, "replies": 2}`.
//!
//! The program ends with its input, and everything that it has started ends with it. It fails if the server has crashed.

use lockward_tests::{Fate, Proxy, Random, Reply, Server, Setup};
use std::io::{self, BufRead as _, Write as _};
use std::{env, process};

const USAGE: &str = "\
usage: lockward-test-server server [--module ARGUMENTS] [CONFIG]...
       lockward-test-server sentinel [CONFIG]...
       lockward-test-server proxy PORT SEED REQUESTS REPLIES PREFIX...";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", "--module", module, ref config @ ..] => serve(Setup::new().module(module), config),
        ["server", ref config @ ..] => serve(Setup::new(), config),
        ["sentinel", ref config @ ..] => serve(Setup::sentinel(), config),
        ["proxy", port, seed, requests, replies, ref prefixes @ ..] => {
            let share = Share { requests: number(requests), replies: number(replies) };
            lose(number(port), number(seed), share, prefixes);
        }
        _ => usage(),
    }
}

fn serve(setup: Setup, config: &[&str]) {
    let mut server = config.iter().fold(setup, |setup, line| setup.config(line)).start();
    answer(&format!(
        r#"{{"port": {}, "log": "{}"}}"#,
        server.port(),
        server.dir().join("server.log").display()
    ));
    for command in io::stdin().lines().map_while(Result::ok) {
        obey(&mut server, &command);
        answer("{}");
    }
}

fn obey(server: &mut Server, command: &str) {
    match command {
        "kill" => server.kill(),
        "start" => server.start_again(),
        "restart" => server.kill_and_start_again(),
        "pause" => server.freeze(),
        "resume" => server.thaw(),
        _ if command.starts_with("module ") => {
            let arguments = command.trim_start_matches("module ");
            server.change_setup(|setup| setup.module(arguments));
        }
        _ => panic!("a server takes no command {command:?}"),
    }
}

/// How many requests and replies are lost, of 1,000 commands.
struct Share {
    requests: u64,
    replies: u64,
}

fn lose(port: u16, seed: u64, share: Share, prefixes: &[&str]) {
    let prefixes: Vec<Vec<u8>> = prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
    let mut random = Random::from_seed(seed);
    let proxy = Proxy::start(port, move |request| {
        let name = request.first().map_or(&[][..], Reply::bytes);
        if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            return Fate::Carried;
        }
        match random.number() % 1_000 {
            chance if chance < share.requests => Fate::RequestLost,
            chance if chance < share.requests + share.replies => Fate::ReplyLost,
            _ => Fate::Carried,
        }
    });
    answer(&format!(r#"{{"port": {}}}"#, proxy.port()));
    for command in io::stdin().lock().lines().map_while(Result::ok) {
        assert_eq!(command, "losses", "a proxy takes no other command");
        let losses = proxy.losses();
        answer(&format!(r#"{{"requests": {}, "replies": {}}}"#, losses.requests, losses.replies.len()));
    }
}

fn answer(line: &str) {
    println!("{line}");
    io::stdout().flush().expect("a reader");
}

fn number<N: std::str::FromStr>(text: &str) -> N {
    text.parse().unwrap_or_else(|_| usage())
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    process::exit(2)
}
