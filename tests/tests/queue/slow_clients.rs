//! Clients that send commands and never read, and clients that send half a command.

use lockward_tests::{Client, Reply, Server, Setup, eventually, rounds};

/// A server that buffers replies up to 1 MB.
fn limited() -> Setup {
    Setup::new()
        .config("client-output-buffer-limit normal 1mb 0 0")
        .config("client-output-buffer-limit pubsub 1mb 0 0")
}

/// Lets `silent` send a command without reading the replies, `times` times or until the server disconnects `silent`.
/// Checks that another client is served meanwhile. Returns the largest `used_memory` of the server.
#[track_caller]
fn send_and_never_read(server: &Server, silent: &mut Client, command: &str, times: usize) -> i64 {
    const BATCH: usize = 500;
    let (mut other, mut most) = (server.client(), 0);
    for number in 0..times / BATCH {
        if silent.try_send_all([command; BATCH]).is_err() {
            break;
        }
        let lock = format!("other-{number}");
        assert_eq!(other.acquire(&format!("{lock} C")).holds, 1);
        assert_eq!(other.call(format!("LOCK.RELEASE {lock} C")), Reply::Int(0));
        most = most.max(other.stat("memory", "used_memory"));
    }
    most
}

/// A server on which A holds `lock` and 51 clients wait for `lock`.
#[track_caller]
fn crowded(setup: Setup) -> (Server, Client, Vec<Client>) {
    let (server, mut a, b) = setup.start_contended();
    let mut waiters = vec![b];
    waiters.extend((0..50).map(|number| {
        let mut waiter = server.client();
        waiter.ask(&format!("lock {number} BLOCK 0"));
        waiter
    }));
    a.see_blocked(51);
    (server, a, waiters)
}

#[test]
fn a_client_that_never_reads_is_cut_off_at_the_servers_limit() {
    for command in ["LOCK.INFO lock WAITERS 100", "LOCK.ACQUIRE lock A", "LOCK.RELEASE lock X"] {
        let (server, mut a, _waiters) = crowded(limited());
        let before = a.stat("memory", "used_memory");
        let mut silent = server.client();
        let id = silent.call("CLIENT ID").int();
        // The client may send very many commands, because the kernel buffers some megabytes of replies before the
        // server must buffer replies itself.
        let most = send_and_never_read(&server, &mut silent, command, 2_000_000);
        println!("{command}: at most {} bytes more", most - before);
        eventually("the server has disconnected the client", || {
            a.call(format!("CLIENT LIST ID {id}")).text().is_empty()
        });
        assert!(most < before + 4_000_000, "{command}: {before} bytes grew to {most}");
        eventually("the replies to the client are freed", || {
            a.stat("memory", "used_memory") < before + 200_000
        });
        assert_eq!(a.info("lock").unwrap().waiters, 51);
    }
}

#[test]
fn replies_to_a_client_that_never_reads_are_counted_and_freed() {
    let (server, mut a, _waiters) = crowded(Setup::new());
    let mut silent = server.client();
    let before = a.stat("memory", "used_memory");
    let most =
        send_and_never_read(&server, &mut silent, "LOCK.INFO lock WAITERS 100", rounds(10_000, 1_000_000));
    println!("at most {} bytes more", most - before);
    assert!(most > before + 10_000_000, "unread replies take no memory: {before} bytes, then {most}");
    drop(silent);
    eventually("the replies to the client are freed", || a.stat("memory", "used_memory") < before + 200_000);
}

#[test]
fn a_waiter_that_never_reads_is_granted_its_locks_like_any_other() {
    let server = Server::start();
    let (mut silent, mut other, mut a) = (server.client(), server.client(), server.client());
    let cycles = rounds(5_000, 100_000);
    let cycle =
        |owner: &str| [format!("LOCK.ACQUIRE lock {owner} BLOCK 0"), format!("LOCK.RELEASE lock {owner}")];
    for _ in 0..cycles / 500 {
        silent.send_all((0..500).flat_map(|_| cycle("S")));
        other.send_all((0..500).flat_map(|_| cycle("O")));
        for _ in 0..500 {
            assert_eq!(other.reply().grant().holds, 1);
            assert_eq!(other.reply(), Reply::Int(0));
        }
    }
    eventually("all commands have run", || {
        a.call("EXISTS lock") == Reply::Int(0) && a.stat("clients", "blocked_clients") == 0
    });
    assert_eq!(a.acquire("lock A PX 600000").holds, 1);
}

#[test]
fn a_subscriber_or_monitor_that_never_reads_is_cut_off_at_the_servers_limit() {
    for listen in ["PSUBSCRIBE *", "MONITOR"] {
        let server = limited().config("notify-keyspace-events KEA").start();
        let mut a = server.client();
        let before = a.stat("memory", "used_memory");
        let mut silent = server.client();
        silent.call(listen);
        let mut most = 0;
        for _ in 0..rounds(60, 2_000) {
            a.call_all(
                (0..500).flat_map(|_| ["LOCK.ACQUIRE lock A", "LOCK.RENEW lock A", "LOCK.RELEASE lock A"]),
            );
            most = most.max(a.stat("memory", "used_memory"));
        }
        println!("{listen}: at most {} bytes more", most - before);
        assert!(most < before + 4_000_000, "{listen}: {before} bytes grew to {most}");
        eventually("the server has disconnected the client", || a.stat("clients", "connected_clients") == 1);
        eventually("the replies to the client are freed", || {
            a.stat("memory", "used_memory") < before + 200_000
        });
    }
}

#[test]
fn half_a_command_does_not_stall_the_server() {
    let (server, mut a, mut b) = Server::start_contended();
    let begun = b"*5\r\n$12\r\nLOCK.ACQUIRE\r\n$4\r\nlock\r\n$1\r\nC\r\n$5\r\nBLOCK\r\n$";
    let mut halves: Vec<Client> = (0..begun.len())
        .map(|length| {
            let mut half = server.client();
            half.send_bytes(&begun[..length]);
            half
        })
        .collect();
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    let mut last = halves.pop().unwrap();
    last.send_bytes(&begun[begun.len() - 1..]);
    last.send_bytes(b"1\r\n0\r\n");
    b.see_waiters("lock", 1);
    drop(halves);
    assert_eq!(b.call("LOCK.RELEASE lock B"), Reply::Int(0));
    assert_eq!(last.reply().grant().holds, 1);
}
