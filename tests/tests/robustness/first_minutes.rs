//! The first ten minutes of a new user: `make run`, `make install`, `make help` and `make demo`.

use lockward_tests::{Client, ProcessGroup, Reply, Server, Setup, free_port, repository, soon};
use std::process::{Command, Output, Stdio};

/// The script that `make run` calls after the build.
fn run(port: u16) -> Command {
    let mut run = Command::new("scripts/run");
    run.current_dir(repository()).arg(port.to_string()).arg(Setup::new().module_path());
    run
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_server_of_make_run_has_the_lock_commands() {
    let port = free_port();
    let mut server = ProcessGroup::start(run(port).stdout(Stdio::piped())).unwrap();
    let mut client = soon("the server serves", || Client::connect(port).ok());
    assert_eq!(client.acquire("order:42 alice PX 30000").holds, 1);
    assert_eq!(client.call("LOCK.RELEASE order:42 alice"), Reply::Int(0));
    client.send("SHUTDOWN NOSAVE");
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_busy_port_is_a_clear_error() {
    let server = Server::start();
    let port = server.port();
    let output = run(port).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains(&format!("Port {port} is in use")), "{}", text(&output));
}

#[test]
fn an_invalid_port_is_a_clear_error() {
    for port in ["0", "65536", "six", ""] {
        let output =
            Command::new("scripts/run").current_dir(repository()).args([port, "module"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{port:?}");
        assert!(text(&output).contains("PORT must be"), "{port:?}: {}", text(&output));
    }
}

#[test]
fn the_server_loads_the_installed_module() {
    let server = Server::start();
    let there = server.dir().join("installed");
    let destination = format!("DESTDIR={}", there.display());
    let output =
        Command::new("make").current_dir(repository()).args(["install", &destination]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let module = there.join("usr/lib/redis/modules/liblockward.so");
    let other = Setup::without_module().config(&format!("loadmodule {}", module.display())).start();
    assert_eq!(other.client().acquire("order:42 alice").holds, 1);
}

#[test]
fn make_help_lists_every_target_that_the_docs_name() {
    let help = Command::new("make").current_dir(repository()).arg("help").output().unwrap();
    for target in ["run", "test", "demo", "lint", "install", "help", "build"] {
        assert!(text(&help).contains(&format!("make {target} ")), "{target}: {}", text(&help));
    }
}

#[test]
fn the_demo_ends_at_5000_and_leaves_nothing_behind() {
    let server = Server::start();
    let tool = repository().join("target/release/lockward");
    assert!(tool.exists(), "{} is missing: run `make build`", tool.display());
    let output = Command::new(tool).args(["demo", "--url", &server.url()]).output().unwrap();
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    let number_in = |row: &str| {
        let row = shown.lines().find_map(|line| line.strip_prefix(row));
        row.and_then(|row| row.split_whitespace().next()).map(str::to_owned).expect(&shown)
    };
    assert_eq!(number_in("LOCK.ACQUIRE BLOCK"), "5000", "{shown}");
    assert_ne!(number_in("no lock"), "5000", "the demo without a lock has lost no update: {shown}");
    assert_eq!(server.client().call("DBSIZE"), Reply::Int(0));
}
