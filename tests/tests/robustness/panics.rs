//! A panic in the module is caught in the callback that the server has called. The server continues to work,
//! and the log names the panic.

use lockward_tests::{Client, Reply, Server, Setup, eventually};

/// A server whose module panics on request. A holds `lock`, and B waits for `lock`.
#[track_caller]
fn probed(setup: Setup) -> (Server, Client, Client) {
    setup.start_contended()
}

fn setup() -> Setup {
    Setup::with_panic_probe()
}

#[track_caller]
fn arm(client: &mut Client, kind: &str) {
    let reply = client.call(["LOCK._PANIC", kind]);
    assert_eq!(reply, Reply::ok(), "{kind}");
}

/// Checks that the panic is in the log, and that the server and the module still work.
#[track_caller]
fn assert_contained(server: &Server) {
    eventually("a panic in the log", || server.log().contains("panic caught"));
    let mut client = server.client();
    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    assert_eq!(client.acquire("after A").holds, 1);
    assert_eq!(client.call("LOCK.RELEASE after A"), Reply::Int(0));
}

#[test]
fn a_panic_in_a_command_is_an_error_reply() {
    for command in
        ["LOCK.ACQUIRE other X", "LOCK.RELEASE lock A", "LOCK.RENEW lock A", "LOCK.INFO lock", "LOCK.TOP"]
    {
        let (server, mut a, _b) = probed(setup());
        arm(&mut a, "Command");
        let reply = a.call(command);
        assert!(reply.error().starts_with("ERR internal error"), "{command}: {reply:?}");
        assert_contained(&server);
    }
}

#[test]
fn a_panic_in_the_reply_to_a_waiter_is_caught() {
    let (server, mut a, mut b) = probed(setup());
    arm(&mut a, "Reply");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert!(b.reply().error().starts_with("ERR internal error"));
    eventually("a grant without a reply is taken back", || a.call("LOCK.INFO lock").is_null());
    assert_contained(&server);
}

#[test]
fn a_panic_in_the_disconnect_callback_of_a_waiter_is_caught() {
    let (server, mut a, b) = probed(setup());
    arm(&mut a, "Disconnect");
    drop(b);
    assert_contained(&server);
}

#[test]
fn a_panic_in_the_timer_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Timer");
    a.call("LOCK.RENEW lock A PX 20");
    assert_contained(&server);
}

/// When a timer fires, the server frees the timer after the timer's callback. So the module must not stop this timer
/// during the callback, even if the timer is overdue.
#[test]
fn a_panic_in_a_late_timer_is_caught() {
    let (server, mut a, _b) = probed(setup());
    for _ in 0..3 {
        assert_eq!(a.call_all(["LOCK._PANIC Timer", "DEBUG SLEEP 0.15"]), [Reply::ok(), Reply::ok()]);
        assert_contained(&server);
    }
    a.call("LOCK.RENEW lock A PX 20");
    let passed_on = |a: &mut Client| a.info("lock").is_some_and(|info| info.holders[0].owner == "B");
    eventually("the timer is set again", || passed_on(&mut a));
}

#[test]
fn a_callback_of_the_server_while_the_state_is_in_use_is_ignored() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "nested");
    eventually("a line in the log", || server.log().contains("Notify ignored"));
    assert!(!server.log().contains("panic caught"), "{}", server.log());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
}

#[test]
fn a_panic_in_the_cron_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Cron");
    assert_contained(&server);
}

#[test]
fn a_panic_in_the_unlink_callback_of_a_key_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Unlink");
    a.call("DEL lock");
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_notification_is_caught() {
    let (server, mut a, _b) = probed(setup());
    a.acquire("other A PX 60000");
    arm(&mut a, "Notify");
    // The module subscribes to evictions when the first held lock leaves the keyspace. The server publishes the event
    // of an eviction later than this, so the module gets the event of this first lock too.
    a.evict("other");
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_flush_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Flush");
    assert_eq!(a.call("FLUSHALL"), Reply::ok());
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_swap_of_databases_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "SwapDb");
    assert_eq!(a.call("SWAPDB 0 1"), Reply::ok());
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_reload_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Loading");
    assert_eq!(a.call("DEBUG RELOAD"), Reply::ok());
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_change_of_role_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Role");
    a.call("REPLICAOF 127.0.0.1 1");
    a.call("REPLICAOF NO ONE");
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_save_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "RdbSave");
    a.call("DUMP lock");
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_load_is_caught() {
    let (server, mut a, _b) = probed(setup());
    let payload = a.call("DUMP lock");
    arm(&mut a, "RdbLoad");
    let reply = a.call([b"RESTORE".as_slice(), b"copy", b"0", payload.bytes()]);
    assert_eq!(reply.error_word(), "ERR");
    assert_eq!(a.call("EXISTS copy"), Reply::Int(0));
    assert_contained(&server);
}

#[test]
fn a_panic_in_the_rewrite_of_the_aof_is_caught() {
    let (server, mut a, _b) = probed(setup().config("appendonly yes").config("aof-use-rdb-preamble no"));
    arm(&mut a, "AofRewrite");
    a.call("BGREWRITEAOF");
    assert_contained(&server);
}

#[test]
fn a_panic_in_the_measurement_of_memory_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "MemUsage");
    a.call("MEMORY USAGE lock");
    assert_contained(&server);
}

#[test]
fn a_panic_in_a_digest_is_caught() {
    let (server, mut a, _b) = probed(setup());
    arm(&mut a, "Digest");
    a.call("DEBUG DIGEST-VALUE lock");
    assert_contained(&server);
}

#[test]
fn the_delivered_module_has_no_panic_probe() {
    let server = Server::start();
    let reply = server.client().call("LOCK._PANIC Command");
    assert!(reply.error().starts_with("ERR unknown command"), "{reply:?}");
}
