//! Tests of `lockward run`.

use crate::{Process, closed_pipe, lockward, output, run, url};
use lockward_tests::{Certificates, Cluster, Reply, Sentinels, Server, eventually, free_port, slot_of};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A running `lockward run` whose standard input and output are pipes. Dropping this value kills the process, and then
/// the kernel kills its command.
struct Run {
    process: Process,
    lines: BufReader<ChildStdout>,
}

impl Run {
    fn start(url: &str, arguments: &[&str]) -> Self {
        Self::spawn(lockward(url, &[&["run"], arguments].concat()))
    }

    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { process: Process(child), lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn input(&mut self) -> ChildStdin {
        self.process.0.stdin.take().unwrap()
    }
}

/// Whether a process runs.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let server = Server::start();
    assert_eq!(run(&url(&server), &["run", "k", "sh", "-c", "exit 7"]).0, 7);
    assert_eq!(run(&url(&server), &["run", "k", "-c", "exit 8"]).0, 8);
    assert_eq!(run(&url(&server), &["run", "k", "--", "true"]), (0, String::new(), String::new()));
    assert_eq!(server.client().info("k"), None);
}

#[test]
fn a_command_ended_by_a_signal_exits_with_128_and_its_number() {
    let server = Server::start();
    assert_eq!(run(&url(&server), &["run", "k", "-c", "kill -USR1 $$"]).0, 128 + 10);
    assert_eq!(server.client().info("k"), None);
}

#[test]
fn a_busy_lock_exits_with_120_or_the_busy_exit_code() {
    let server = Server::start();
    server.client().acquire("k A PX 600000");
    let url = url(&server);
    for (arguments, code) in [
        (["-n", "k", "true"].as_slice(), 120),
        (&["--nonblock", "-E", "9", "k", "true"], 9),
        (&["-n", "-E", "1", "k", "true"], 1),
        (&["-n", "-E", "0", "k", "true"], 0),
        (&["--wait", "50ms", "k", "true"], 120),
        (&["-w", "0s", "k", "true"], 120),
    ] {
        let (actual, out, error) = run(&url, &[&["run"], arguments].concat());
        let said = if code == 0 {
            ""
        } else {
            "lockward: the lock k is busy, or the server is in quarantine: wait longer, or try again later\n"
        };
        assert_eq!((actual, out.as_str(), error.as_str()), (code, "", said), "{arguments:?}");
    }
    assert_eq!(server.client().queue("k"), [""; 0]);
}

#[test]
fn the_exit_code_is_the_same_if_nobody_reads_the_errors() {
    let server = Server::start();
    server.client().acquire("k A PX 600000");
    assert_eq!(output(lockward(&url(&server), &["run", "-n", "k", "true"]).stderr(closed_pipe())).0, 120);
}

#[test]
fn readers_run_together_and_a_writer_waits() {
    let server = Server::start();
    let url = url(&server);
    let mut reader = Run::start(&url, &["--shared", "k", "-c", "echo on; read answer"]);
    assert_eq!(reader.line(), "on");
    assert_eq!(run(&url, &["run", "-s", "-n", "k", "-c", "exit 7"]).0, 7);
    assert_eq!(run(&url, &["run", "-n", "k", "true"]).0, 120);
}

#[test]
fn a_semaphore_has_room_for_the_sum_of_the_weights() {
    let server = Server::start();
    let url = url(&server);
    let arguments = ["--slots", "5", "--weight", "3", "k", "-c", "echo on; read answer"];
    let mut heavy = Run::start(&url, &arguments);
    assert_eq!(heavy.line(), "on");
    for (weight, code) in [("2", 0), ("3", 120)] {
        assert_eq!(run(&url, &["run", "-n", "--slots", "5", "--weight", weight, "k", "true"]).0, code);
    }
    assert_eq!(run(&url, &["run", "-n", "--slots", "4", "k", "true"]).0, 0);
    assert_eq!(run(&url, &["run", "-n", "--slots", "3", "k", "true"]).0, 120);
}

#[test]
fn an_unreachable_server_exits_with_122() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let (code, _, error) = run(&url, &["run", "--patience", "50ms", "k", "true"]);
    assert_eq!(code, 122);
    assert!(error.starts_with("lockward: no server answers for the lock k: "), "{error}");
}

#[test]
fn a_server_that_stays_a_replica_exits_with_122() {
    let replica = Server::start_replica_of(&Server::start());
    let (code, _, error) = run(&url(&replica), &["run", "--patience", "1600ms", "--wait", "5s", "k", "true"]);
    assert_eq!(code, 122, "{error}");
    assert!(error.contains("read only replica"), "{error}");
}

#[test]
fn wrong_arguments_and_error_replies_exit_with_125() {
    let server = Server::start();
    let url = url(&server);
    assert_eq!(server.client().call("SET other value"), Reply::ok());
    for arguments in [
        ["run", "k"].as_slice(),
        &["run", "--wait", "5", "k", "true"],
        &["run", "--lease", "0s", "k", "true"],
        &["run", "--patience", "0s", "k", "true"],
        &["run", "--url", "nowhere", "k", "true"],
        &["--url", &url, "run", "--wait", "5", "k", "true"],
        &["run", "--shared", "--slots", "5", "k", "true"],
        &["run", "--weight", "2", "k", "true"],
        &["run", "--slots", "0", "k", "true"],
        &["run", "--slots", "2", "--weight", "3", "k", "true"],
        &["run", "other", "true"],
    ] {
        let (code, out, error) = run(&url, arguments);
        assert_eq!((code, out.as_str()), (125, ""), "{arguments:?}: {error}");
        assert_ne!(error, "");
    }
}

#[test]
fn a_usage_error_shows_both_forms() {
    let (_, _, error) = run("redis://127.0.0.1:1", &["run", "k"]);
    for form in [
        "lockward run [OPTIONS] <KEY> [--] <COMMAND> [ARGUMENT]...\n",
        "lockward run [OPTIONS] <KEY> -c <LINE>\n",
    ] {
        assert!(error.contains(form), "{error}");
    }
}

#[test]
fn a_password_is_not_shown() {
    let (_, _, error) = run("redis://u:hidden@[", &["run", "k", "true"]);
    assert!(!error.contains("hidden"), "{error}");
    assert!(error.starts_with("lockward: the URL is not valid"), "{error}");
}

#[test]
fn a_missing_command_exits_with_127_and_a_file_that_is_no_program_with_126() {
    let server = Server::start();
    let url = url(&server);
    assert_eq!(run(&url, &["run", "k", "/nonexistent"]).0, 127);
    assert_eq!(run(&url, &["run", "k", "/etc/passwd"]).0, 126);
    assert_eq!(server.client().info("k"), None);
}

#[test]
fn the_command_has_the_lock_in_its_environment_and_inherits_the_input() {
    let server = Server::start();
    let command = "echo $LOCKWARD_KEY $LOCKWARD_OWNER $LOCKWARD_TOKEN; read answer; echo $answer";
    let mut run = Run::start(&url(&server), &["order:42", "-c", command]);
    let line = run.line();
    let holder = server.client().holder("order:42");
    assert_eq!(line, format!("order:42 {} {}", holder.owner, holder.token));
    run.input().write_all(b"done\n").unwrap();
    assert_eq!(run.line(), "done");
    assert_eq!(run.process.code(), Some(0));
    assert_eq!(server.client().info("order:42"), None);
}

#[test]
fn the_command_starts_when_the_lock_is_granted() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("k A PX 600000");
    let mut run = Run::start(&url(&server), &["k", "echo", "now"]);
    client.see_waiters("k", 1);
    assert_eq!(client.call("LOCK.RELEASE k A"), Reply::Int(0));
    assert_eq!(run.line(), "now");
    assert_eq!(run.process.code(), Some(0));
}

#[test]
fn the_lease_is_renewed_while_the_command_runs() {
    let server = Server::start();
    let mut run = Run::start(&url(&server), &["--lease", "3s", "k", "-c", "echo on; read answer"]);
    run.line();
    let mut client = server.client();
    let token = client.holder("k").token;
    eventually("the lock is held for longer than a lease", || client.holder("k").held_for > 4_000);
    assert_eq!(client.holder("k").token, token);
}

#[test]
fn a_lost_lock_ends_the_command() {
    let server = Server::start();
    let mut run = Run::start(&url(&server), &["--lease", "1500ms", "k", "-c", "echo $$; exec sleep 600"]);
    let pid = run.line();
    assert_eq!(server.client().call("DEL k"), Reply::Int(1));
    assert_eq!(run.process.code(), Some(121));
    assert!(!runs(&pid));
}

#[test]
fn the_command_is_ended_when_no_server_answers_for_a_whole_lease() {
    let mut server = Server::start();
    let mut run = Run::start(&url(&server), &["--lease", "600ms", "k", "-c", "echo $$; exec sleep 600"]);
    let pid = run.line();
    server.kill();
    assert_eq!(run.process.code(), Some(121));
    assert!(!runs(&pid));
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_with_its_children() {
    let server = Server::start();
    let arguments =
        ["--lease", "1500ms", "--grace", "100ms", "k", "-c", "trap '' TERM; sleep 600 & echo $$ $!; wait"];
    let mut run = Run::start(&url(&server), &arguments);
    let pids = run.line();
    assert_eq!(server.client().call("DEL k"), Reply::Int(1));
    assert_eq!(run.process.code(), Some(121));
    eventually("command and child have ended", || !pids.split(' ').any(runs));
}

#[test]
fn a_command_that_handles_sigterm_has_time_to_end() {
    let server = Server::start();
    let command = "trap 'echo ending; exit 3' TERM; echo on; while :; do sleep 0.05; done";
    let mut run = Run::start(&url(&server), &["--lease", "1500ms", "--grace", "1h", "k", "-c", command]);
    run.line();
    assert_eq!(server.client().call("DEL k"), Reply::Int(1));
    assert_eq!(run.line(), "ending");
    assert_eq!(run.process.code(), Some(121));
}

#[test]
fn a_loss_is_detected_at_the_release() {
    let server = Server::start();
    let mut run = Run::start(&url(&server), &["k", "-c", "echo on; read answer"]);
    run.line();
    assert_eq!(server.client().call("DEL k"), Reply::Int(1));
    drop(run.input());
    assert_eq!(run.process.code(), Some(121));
}

#[test]
fn signals_are_passed_on() {
    let server = Server::start();
    let command = "for s in HUP INT QUIT TERM USR1 USR2 ALRM; do trap \"echo $s\" $s; done
                   echo on; while :; do sleep 0.05; done";
    let mut run = Run::start(&url(&server), &["k", "-c", command]);
    run.line();
    for signal in ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "TERM", "TERM"] {
        run.process.send(signal);
        assert_eq!(run.line(), signal);
    }
}

#[test]
fn signals_reach_the_children_of_the_command() {
    let server = Server::start();
    let mut run = Run::start(&url(&server), &["k", "-c", "sleep 600 & echo $!; wait"]);
    let pid = run.line();
    run.process.send("TERM");
    assert_eq!(run.process.code(), Some(128 + 15));
    eventually("the child has ended", || !runs(&pid));
    assert_eq!(server.client().info("k"), None);
}

#[test]
fn ignored_signals_stay_ignored() {
    let server = Server::start();
    let arguments = ["run", "k", "-c", "echo on; read answer; echo $answer"];
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_lockward")).args(arguments).env("LOCKWARD_URL", url(&server));
    let mut run = Run::spawn(command);
    assert_eq!(run.line(), "on");
    run.process.send("HUP");
    run.input().write_all(b"still\n").unwrap();
    assert_eq!(run.line(), "still");
    assert_eq!(run.process.code(), Some(0));
}

#[test]
fn a_parent_that_ignores_sigchld_changes_no_exit_code() {
    let server = Server::start();
    for (arguments, code) in
        [(["run", "k", "-c", "exit 7"].as_slice(), 7), (&["run", "k", "/nonexistent"], 127)]
    {
        let mut ignoring = Command::new("env");
        ignoring.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_lockward")]).args(arguments);
        assert_eq!(output(ignoring.env("LOCKWARD_URL", url(&server))).0, code);
        assert_eq!(server.client().info("k"), None);
    }
}

#[test]
fn a_signal_ends_a_release_without_a_reply() {
    let server = Server::start();
    let arguments = ["--patience", "10m", "--lease", "10m", "k", "-c", "echo $$; read answer; exit 7"];
    let mut run = Run::start(&url(&server), &arguments);
    let pid = run.line();
    server.freeze();
    drop(run.input());
    eventually("the command has ended", || !runs(&pid));
    run.process.send("TERM");
    assert_eq!(run.process.code(), Some(7));
}

#[test]
fn a_signal_during_the_wait_leaves_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("k A PX 600000");
    let mut run = Run::start(&url(&server), &["k", "true"]);
    client.see_waiters("k", 1);
    run.process.send("INT");
    assert_eq!(run.process.code(), Some(128 + 2));
    client.see_waiters("k", 0);
    assert_eq!(client.call("LOCK.RELEASE k A"), Reply::Int(0));
    assert_eq!(client.info("k"), None);
}

#[test]
fn the_command_dies_with_lockward_and_the_lease_frees_the_lock() {
    let server = Server::start();
    let mut run = Run::start(&url(&server), &["--lease", "2s", "k", "-c", "echo $$; exec sleep 600"]);
    let pid = run.line();
    run.process.send("KILL");
    eventually("the command is gone", || !runs(&pid));
    let mut client = server.client();
    eventually("the lock is free", || client.info("k").is_none());
}

#[test]
fn the_option_sets_the_owner() {
    let server = Server::start();
    let mut run = Run::start(&url(&server), &["--owner", "nightly", "k", "-c", "echo on; read answer"]);
    run.line();
    assert_eq!(server.client().owner("k"), Some("nightly".to_owned()));
}

#[test]
fn sentinels_give_the_address_of_the_primary() {
    let primary = Server::start();
    let sentinels = Sentinels::watch(&primary, 0);
    assert_eq!(run(&sentinels.url(), &["run", "k", "-c", "exit 7"]).0, 7);
    primary.client().acquire("k A PX 600000");
    assert_eq!(run(&sentinels.url(), &["info", "k"]).0, 0);
    let (code, _, said) = run(&format!("{}x", sentinels.url()), &["ls"]);
    assert!(code == 2 && said.contains("knows no primary by that name"), "{said}");
}

#[test]
fn a_command_outlives_a_failover() {
    let first = Server::start();
    let second = Server::start_replica_of(&first);
    let sentinels = Sentinels::watch(&first, 1);
    // If the lock were lost, lockward would end the command, and the exit code would not be 7.
    let mut run =
        Run::start(&sentinels.url(), &["--lease", "20s", "k", "-c", "echo on; read answer; exit 7"]);
    run.line();
    let token = first.client().holder("k").token;
    first.client().call("WAIT 1 20000");
    sentinels.fail_over();
    assert_eq!(sentinels.see_failover_from(first.port()), second.port());
    let mut observer = second.client();
    eventually("the lock is renewed at the new primary", || {
        observer.call("INFO commandstats").text().contains("cmdstat_lock.renew:")
    });
    assert_eq!(observer.holder("k").token, token);
    drop(run.input());
    assert_eq!(run.process.code(), Some(7));
    assert_eq!(observer.info("k"), None);
}

#[test]
fn commands_work_on_a_cluster() {
    let cluster = Cluster::start_without_replicas(lockward_tests::Setup::new());
    let seeds: Vec<String> =
        cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis+cluster://{}", seeds[0]);
    let keys = ["a", "b", "c", "d", "e"];
    for key in keys {
        assert_eq!(run(&url, &["run", key, "-c", "exit 7"]).0, 7);
        cluster.client().call(key, &format!("LOCK.ACQUIRE {key} A PX 600000"));
        assert_eq!(run(&url, &["info", key]).0, 0);
    }
    let (code, shown, _) = run(&url, &["ls"]);
    let shown: Vec<&str> = shown.lines().skip(1).map(|line| &line[..1]).collect();
    assert_eq!((code, shown.as_slice()), (0, keys.as_slice()));
    for key in keys {
        assert_eq!(run(&url, &["break", "--yes", key]).0, 0);
    }
    assert_eq!(run(&url, &["ls"]).1, "no locks\n");
}

#[test]
fn ls_shows_a_lock_whose_slot_is_being_moved() {
    let cluster = Cluster::start_without_replicas(lockward_tests::Setup::new());
    let (owner, other) = cluster.owner_and_other("k");
    owner.client().acquire("k A PX 600000");
    let moving = cluster.begin_to_move(slot_of("k"), other);
    moving.carry_all();
    let (code, shown, said) = run(&format!("redis+cluster://127.0.0.1:{}", owner.port()), &["ls"]);
    assert!(code == 0 && shown.contains("\nk     A "), "{shown}{said}");
}

#[test]
fn several_locks_are_held_together() {
    let server = Server::start();
    let url = url(&server);
    let mut observer = server.client();
    let script = "echo $LOCKWARD_KEY $LOCKWARD_TOKEN; read line";
    let mut holder = Run::start(&url, &["--also", "a", "--also", "c", "b", "-c", script]);
    let line = holder.line();
    assert_eq!(line, format!("b {}", observer.holder("b").token));
    for key in ["a", "c"] {
        assert_eq!(run(&url, &["run", "--no-wait", key, "true"]).0, 120, "{key}");
    }
    holder.process.send("TERM");
    assert!(holder.process.code().is_some());
    assert_eq!(observer.call("DBSIZE").int(), 0);
}

#[test]
fn a_message_names_the_lock_that_is_busy_refused_or_lost() {
    let server = Server::start();
    let (url, port) = (url(&server), server.port().to_string());
    let mut observer = server.client();
    for (set_up, lease, command, wanted) in [
        ("LOCK.ACQUIRE a A PX 600000", "30s", "true", "the lock a is busy, "),
        ("SET a value", "30s", "true", "the server refused the request for the lock a: WRONGTYPE "),
        ("DEL a", "30s", "redis-cli -p $0 DEL a", "the lock a is lost: "),
        ("DEL a", "1500ms", "redis-cli -p $0 DEL a; exec sleep 600", "the lock a is lost: "),
    ] {
        observer.call(set_up);
        let arguments = ["run", "-n", "--lease", lease, "--also", "a", "b", "sh", "-c", command, &port];
        let (_, _, error) = run(&url, &arguments);
        assert!(error.starts_with(&format!("lockward: {wanted}")), "{error}");
    }
}

#[test]
fn an_error_of_the_arguments_says_what_is_accepted() {
    let server = Server::start();
    let certificates = Certificates::new();
    let key = certificates.files()[2].display().to_string();
    let forms = "use redis://host:port/db, unix:///path, redis+sentinel://host:port,host:port/name or \
                 redis+cluster://host:port,host:port";
    let invalid = format!("the URL is not valid (Redis URL did not parse): {forms}");
    for (arguments, wanted) in [
        (["--lease", "0s"].as_slice(), "a lease must be at least 2 milliseconds"),
        (&["--url", "http://localhost"], invalid.as_str()),
        (&["--cacert", &key], "certificates need a URL that begins with rediss"),
        (
            &["--url", "rediss://localhost", "--cacert", &key],
            "the certificates are not valid: no certificate of the CA in PEM format",
        ),
    ] {
        let (code, _, error) = run(&url(&server), &[&["run"], arguments, &["k", "true"]].concat());
        assert_eq!((code, error), (125, format!("lockward: {wanted}\n")), "{arguments:?}");
    }
}

#[test]
fn the_error_names_a_missing_certificate_file() {
    let arguments = ["run", "--url", "rediss://127.0.0.1:1", "--cacert", "/no/ca.crt", "k", "true"];
    let (code, _, errors) = run("redis://127.0.0.1:1", &arguments);
    assert_eq!(code, 125);
    assert!(errors.contains("/no/ca.crt"), "{errors}");
}
