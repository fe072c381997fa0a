//! Tests of `lockward top` and of prompts, in a real terminal.

use crate::failures::Primaries;
use crate::terminal::Terminal;
use crate::url;
use lockward_tests::{Client, Cluster, Reply, Server, Setup, eventually, slot_of};

const TOOL: &str = env!("CARGO_BIN_EXE_lockward");

fn top(server: &Server) -> String {
    format!("{TOOL} top --interval 200ms --url {}", url(server))
}

#[test]
fn top_shows_locks_with_waiters_and_their_queues() {
    let (server, _a, _b) = Server::start_contended();
    let Some(terminal) = Terminal::start(80, 24, &top(&server)) else { return };
    terminal.see("> lock ");
    terminal.see("held 1   waiting 1 ");
    terminal.see("connected");
    terminal.press("Enter");
    terminal.see("1 waiting, next first");
    terminal.see("    1 B ");
    terminal.press("Escape");
    terminal.see("locks with waiters");
}

#[test]
fn top_shows_modes_and_many_holders() {
    let server = Server::start();
    let mut client = server.client();
    for number in 0..40 {
        client.acquire(&format!("pool worker-{number} SLOTS 100 WEIGHT 2 PX 600000"));
    }
    let mut heavy = server.client();
    heavy.ask("pool heavy SLOTS 100 WEIGHT 30 BLOCK 0");
    client.see_waiters("pool", 1);
    let Some(terminal) = Terminal::start(80, 24, &top(&server)) else { return };
    terminal.see("40 owners");
    terminal.see("80 of 100");
    terminal.press("Enter");
    terminal.see("pool (80 of 100, 40 holders)");
    terminal.see("2 of 100");
    terminal.see("1 waiting, next first");
    terminal.see("30 of 100");
}

#[test]
fn keys_select_a_lock() {
    let (server, mut a, _b) = Server::start_contended();
    a.acquire("other A PX 600000");
    let _waiters = server.waiters("other", ["C", "D"]);
    let Some(terminal) = Terminal::start(80, 24, &top(&server)) else { return };
    terminal.see("> other ");
    terminal.press("j");
    terminal.see("> lock ");
    terminal.press("Enter");
    terminal.see("1 waiting, next first");
    terminal.press("q");
    terminal.see("ended with 0");
}

#[test]
fn top_follows_a_new_size_and_shows_the_locks_on_a_narrow_terminal() {
    let (server, _a, _b) = Server::start_contended();
    let Some(terminal) = Terminal::start(40, 12, &top(&server)) else { return };
    terminal.see("> lock ");
    // top leaves out a column that has too little room, because a number without its first digits would be wrong.
    terminal.see("LEASE LEFT");
    terminal.see(" 9m ");
    terminal.press("Enter");
    terminal.see("1 waiting, next first");
    terminal.see("LEASE LEFT");
    terminal.see("WAIT LEFT");
    terminal.see("no limit");
    terminal.press("Escape");
    terminal.resize(100, 30);
    terminal.see("enter queue");
}

#[test]
fn top_shows_a_lost_server_and_reconnects() {
    let mut server = Setup::new().start();
    let Some(terminal) = Terminal::start(80, 24, &top(&server)) else { return };
    terminal.see("No lock is held.");
    server.kill();
    terminal.see("ERROR for");
    server.start_again();
    terminal.see("connected");
}

#[test]
fn top_follows_a_failover_of_a_cluster() {
    let cluster = Cluster::start();
    let key = "k";
    let primary = cluster.owner(slot_of(key));
    let replica = cluster.replica_of(primary);
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", primary.port(), replica.port());
    let Some(terminal) = Terminal::start(120, 24, &format!("{TOOL} top --url {url}")) else { return };
    terminal.see("No lock is held.");
    cluster.hand_over_to(replica);
    cluster.client().call(key, &format!("LOCK.ACQUIRE {key} A PX 600000"));
    let mut b = replica.client();
    b.ask(&format!("{key} B PX 600000 BLOCK 0"));
    terminal.see(&format!("> {key} "));
}

#[test]
fn top_shows_the_primaries_that_answer_and_names_the_others() {
    let primaries = Primaries::start();
    let waiters: Vec<Client> = primaries.waiters();
    let url = primaries.url();
    let Some(terminal) = Terminal::start(80, 24, &format!("{TOOL} top --patience 500ms --url {url}")) else {
        return;
    };
    terminal.see("held 3   waiting 3 ");
    primaries.cluster.nodes()[1].freeze();
    terminal.see(" 2 of 3 answer");
    terminal.see(&format!("cannot reach a Redis server at {}: no answer within 500ms", primaries.address(1)));
    terminal.see("held 2   waiting 2 ");
    // The terminal may show a part of the new frame.
    eventually("top shows only the locks of the primaries that answer", || {
        let text = terminal.text();
        let shows = |key: &String| text.lines().any(|line| line.split_whitespace().any(|word| word == key));
        primaries.keys.iter().map(shows).eq([true, false, true])
    });
    primaries.cluster.nodes()[1].thaw();
    terminal.see("held 3   waiting 3 ");
    terminal.see(" connected");
    drop(waiters);
}

#[test]
fn top_starts_while_a_primary_does_not_answer_and_follows_its_failover() {
    let cluster = Cluster::start();
    let primary = cluster.owner(slot_of("k"));
    let replica = cluster.replica_of(primary);
    let seed = cluster.owner_and_other("k").1;
    primary.freeze();
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", primary.port(), seed.port());
    let Some(terminal) = Terminal::start(80, 24, &format!("{TOOL} top --patience 1s --url {url}")) else {
        return;
    };
    terminal.see(" 2 of 3 answer");
    // The cluster promotes the replica, and then top shows it in place of the former primary.
    terminal.see(" connected");
    let mut a = replica.client();
    a.acquire("k A PX 600000");
    let _b = replica.waiter("k B BLOCK 0");
    terminal.see("> k ");
}

#[test]
fn top_follows_a_failover_if_the_only_node_in_the_url_hangs() {
    let cluster = Cluster::start();
    let primary = cluster.owner(slot_of("k"));
    let replica = cluster.replica_of(primary);
    let url = format!("redis+cluster://127.0.0.1:{}", primary.port());
    let Some(terminal) = Terminal::start(80, 24, &format!("{TOOL} top --patience 1s --url {url}")) else {
        return;
    };
    terminal.see("No lock is held.");
    primary.freeze();
    terminal.see(" 2 of 3 answer");
    terminal.see(" connected");
    replica.client().acquire("k A PX 600000");
    let _b = replica.waiter("k B BLOCK 0");
    terminal.see("> k ");
}

#[test]
fn top_on_a_narrow_terminal_names_the_server_that_does_not_answer() {
    let server = Server::start();
    server.freeze();
    let command = format!("{TOOL} top --patience 200ms --url {}", url(&server));
    let Some(terminal) = Terminal::start(40, 12, &command) else { return };
    terminal.see(&format!("127.0.0.1:{}:", server.port()));
    terminal.see("no answer within 200ms");
    server.thaw();
    terminal.see("No lock is held.");
}

#[test]
fn top_on_a_replica_reports_that_it_does_not_know_the_waiters() {
    let (primary, _a, _b) = Server::start_contended();
    let replica = Server::start_replica_of(&primary);
    let Some(terminal) = Terminal::start(120, 24, &top(&replica)) else { return };
    terminal.see(&format!("127.0.0.1:{} is a replica, so it does not know the waiters.", replica.port()));
}

#[test]
fn a_signal_restores_the_terminal() {
    let (server, _a, _b) = Server::start_contended();
    let Some(terminal) = Terminal::start(80, 24, &format!("echo before; {}", top(&server))) else { return };
    terminal.see("> lock ");
    terminal.send("TERM");
    terminal.see("ended with 143");
    terminal.see("before");
}

#[test]
fn top_ends_when_its_terminal_closes() {
    let (server, _a, _b) = Server::start_contended();
    let Some(terminal) = Terminal::start(80, 24, &top(&server)) else { return };
    terminal.see("> lock ");
    let program = std::path::PathBuf::from(format!("/proc/{}", terminal.program()));
    assert!(program.exists());
    drop(terminal);
    eventually("top ends", || !program.exists());
}

#[test]
fn break_asks_on_a_terminal() {
    let (server, _a, mut b) = Server::start_contended();
    let Some(terminal) = Terminal::start(80, 24, &format!("{TOOL} break --url {} lock", url(&server))) else {
        return;
    };
    terminal.see("Break the lock? [y/N]");
    terminal.press("n");
    terminal.press("Enter");
    terminal.see("ended with 1");
    assert_eq!(server.client().owner("lock"), Some("A".to_owned()));
    let again = Terminal::start(80, 24, &format!("{TOOL} break --url {} lock", url(&server))).expect("tmux");
    again.see("Break the lock? [y/N]");
    again.press("y");
    again.press("Enter");
    again.see("now held by B");
    b.reply().grant();
}

#[test]
fn break_goes_on_if_the_server_closes_idle_connections_before_the_answer() {
    let (server, _a, mut b) = Server::start_contended();
    let Some(terminal) = Terminal::start(80, 24, &format!("{TOOL} break --url {} lock", url(&server))) else {
        return;
    };
    terminal.see("Break the lock? [y/N]");
    let mut client = server.client();
    let idle = client.call("CLIENT LIST").text();
    for line in idle.lines().filter(|line| line.contains(" cmd=lock.info ")) {
        let id = line.split(' ').next().unwrap().trim_start_matches("id=").to_owned();
        client.call(format!("CLIENT KILL ID {id}"));
    }
    terminal.press("y");
    terminal.press("Enter");
    terminal.see("now held by B");
    b.reply().grant();
}

#[test]
fn break_does_not_end_a_later_tenure() {
    let (server, mut a, mut b) = Server::start_contended();
    let Some(terminal) = Terminal::start(80, 24, &format!("{TOOL} break --url {} lock", url(&server))) else {
        return;
    };
    terminal.see("Break the lock? [y/N]");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    let grant = b.reply().grant();
    terminal.press("y");
    terminal.press("Enter");
    terminal.see("A does not hold lock any more");
    terminal.see("ended with 1");
    assert_eq!(server.client().holder("lock").token, grant.token);
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let server = Server::start();
    let command = r#"trap "echo got-it" INT; echo on; read a; while :; do sleep 0.05; done"#;
    let Some(terminal) =
        Terminal::start(80, 24, &format!("{TOOL} run --url {} k -c '{command}'", url(&server)))
    else {
        return;
    };
    terminal.see("on");
    terminal.press("C-c");
    terminal.see("got-it");
    terminal.press("C-c");
    terminal.see("got-it\n^Cgot-it");
    assert_eq!(terminal.text().matches("got-it").count(), 2, "{}", terminal.text());
    assert_ne!(server.client().call("LOCK.INFO k"), Reply::Null);
}

#[test]
fn an_alarm_of_the_parent_reaches_the_command_in_a_terminal() {
    let server = Server::start();
    let run = format!("perl -e 'alarm 1; exec @ARGV' {TOOL} run --url {} k sleep 600", url(&server));
    let Some(terminal) = Terminal::start(80, 24, &run) else { return };
    terminal.see("ended with 142");
}

#[test]
fn the_command_ends_when_its_terminal_closes() {
    let server = Server::start();
    // Without a shell, lockward leads the session. Then the kernel sends SIGHUP only to lockward.
    let run = format!("exec {TOOL} run --url {} k -c 'echo on; exec sleep 600'", url(&server));
    let Some(terminal) = Terminal::start(80, 24, &run) else { return };
    terminal.see("on");
    drop(terminal);
    eventually("the lock is free", || server.client().info("k").is_none());
}

#[test]
fn ctrl_c_ends_a_script_that_runs_lockward() {
    let server = Server::start();
    for (held, seen) in [(false, "on"), (true, "script")] {
        if held {
            server.client().acquire("k A PX 600000");
        }
        let run = format!("{TOOL} run --url {} k -c \"echo on; exec sleep 600\"", url(&server));
        let script = format!("trap : INT; bash -c 'echo script; {run}; echo went on'");
        let Some(terminal) = Terminal::start(80, 24, &script) else { return };
        terminal.see(seen);
        if held {
            server.client().see_waiters("k", 1);
        }
        terminal.press("C-c");
        terminal.see("ended with 130");
        assert!(!terminal.text().contains("went on"), "{}", terminal.text());
    }
}
