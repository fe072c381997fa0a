//! The module is loaded, upgraded, downgraded and removed, both as docs/operating.md describes and in wrong
//! ways.
//!
//! The next version exists only for these tests: see tests/next-version.patch. The present version cannot read a lock
//! that the next version has written for an owner whose name begins with `next`.

use lockward_tests::{Client, Reply, Server, Setup, eventually};
use std::fs;

/// Shuts a server down and starts it again with a changed setup.
#[track_caller]
fn restart(server: &mut Server, change: impl FnOnce(Setup) -> Setup) -> Client {
    server.terminate();
    server.change_setup(change);
    server.start_again();
    server.client()
}

/// Shuts a server down. Checks that the server then refuses to start with a changed setup, and logs `why`.
#[track_caller]
fn refuses(server: &mut Server, change: impl FnOnce(Setup) -> Setup, why: &str) {
    server.terminate();
    server.change_setup(change);
    let refusal = server.try_to_start_again().expect_err("a server that does not start");
    assert!(refusal.is_clean() && refusal.log.contains(why), "{refusal:?}");
}

/// Starts a server that has refused to start before.
#[track_caller]
fn start_after_all(server: &mut Server, change: impl FnOnce(Setup) -> Setup) -> Client {
    server.change_setup(change);
    server.start_again();
    server.client()
}

/// What the module logs when it cannot read a lock of the next version.
const WHY: &str = "a lock of encoding 2, by another version of Lockward: this one reads 1";

/// Writes a snapshot. SAVE is repeated, because it fails while a child process of the server writes a snapshot.
#[track_caller]
fn save(client: &mut Client) {
    eventually("a snapshot", || client.call("SAVE") == Reply::ok());
}

fn locks(client: &mut Client) -> usize {
    client.call("SCAN 0 COUNT 1000 TYPE lockward-").items()[1].items().len()
}

fn see_same_data(one: &Server, other: &Server) {
    let digest = |server: &Server| server.client().call("DEBUG DIGEST");
    eventually("the same data", || digest(one) == digest(other));
}

#[test]
fn module_list_shows_the_version() {
    let modules = Server::start().client().call("MODULE LIST");
    let module = modules.items().iter().find(|module| module.field("name").text() == "lock");
    let parts = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse::<i64>().unwrap());
    assert_eq!(module.unwrap().field("ver").int(), parts.fold(0, |version, part| version * 100 + part));
}

#[test]
fn the_module_cannot_be_unloaded() {
    let server = Setup::new().config("enable-module-command yes").start();
    let mut a = server.client();
    assert!(a.call("MODULE UNLOAD lock").error().contains("data type"));
    assert_eq!(a.acquire("lock A").holds, 1);
}

#[test]
fn a_snapshot_with_a_lock_needs_the_module() {
    let mut server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.call("SET key value");
    save(&mut a);
    refuses(&mut server, Setup::no_module, "no matching module type 'lockward-'");
    let mut a = start_after_all(&mut server, Setup::this_version);
    assert_eq!(locks(&mut a), 1);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(locks(&mut a), 0);
    save(&mut a);
    let mut a = restart(&mut server, Setup::no_module);
    assert_eq!(a.call("GET key"), Reply::bulk("value"));
}

#[test]
fn an_aof_needs_the_module_until_it_is_rewritten_without_a_lock() {
    for preamble in ["yes", "no"] {
        let config = format!("aof-use-rdb-preamble {preamble}");
        let mut server = Setup::new().config("appendonly yes").config(&config).start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        a.call("SET key value");
        assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
        refuses(&mut server, Setup::no_module, "nknown command 'LOCK._APPLY'");
        let mut a = start_after_all(&mut server, Setup::this_version);
        assert_eq!(locks(&mut a), 0);
        a.call("BGREWRITEAOF");
        eventually("the rewrite is done", || {
            a.stat("persistence", "aof_rewrite_in_progress") + a.stat("persistence", "aof_rewrite_scheduled")
                == 0
        });
        let mut a = restart(&mut server, Setup::no_module);
        assert_eq!(a.call("GET key"), Reply::bulk("value"));
    }
}

#[test]
fn a_replica_without_the_module_logs_errors_and_has_no_locks() {
    let primary = Server::start();
    let mut a = primary.client();
    let setup = Setup::without_module().config("enable-module-command yes");
    let replica = setup.config("propagation-error-behavior ignore").start_replica_of(&primary);
    a.acquire("lock A PX 600000");
    a.call("SET key value");
    replica.see_in_sync_with(&primary);
    let mut r = replica.client();
    assert_eq!(r.call("GET key"), Reply::bulk("value"));
    assert_eq!(r.call("EXISTS lock"), Reply::Int(0));
    replica.see_log("unknown command 'LOCK._APPLY'");
    // After the load of the module, the replica still lacks the locks that it has missed. The replica gets
    // each missed lock with the next change of that lock.
    let path = Setup::new().module_path();
    assert_eq!(r.call(["MODULE", "LOAD", &path]), Reply::ok());
    assert!(r.info("lock").is_none());
    a.call("LOCK.RENEW lock A PX 600000").int();
    replica.see_in_sync_with(&primary);
    assert_eq!(r.holder("lock").tenure(), a.holder("lock").tenure());
}

#[test]
fn a_replica_without_the_module_ends_at_a_resync_with_a_lock() {
    let primary = Server::start();
    primary.client().acquire("lock A PX 600000");
    let mut replica = Setup::without_module().start();
    replica.begin_to_follow(primary.port());
    replica.see_end();
    assert!(replica.log().contains("no matching module type 'lockward-'"), "{}", replica.log());
}

#[test]
fn the_module_is_loaded_into_running_servers_replica_first() {
    let setup = || Setup::without_module().config("enable-module-command yes");
    let primary = setup().start();
    let replica = setup().start_replica_of(&primary);
    let path = Setup::new().module_path();
    for server in [&replica, &primary] {
        let load = ["MODULE", "LOAD", &path, "default-lease", "600000"];
        assert_eq!(server.client().call(load), Reply::ok());
        assert_eq!(server.client().call("CONFIG REWRITE"), Reply::ok());
        let written = fs::read_to_string(server.dir().join("server.conf")).unwrap();
        assert!(written.contains(&format!("loadmodule {path} default-lease 600000")), "{written}");
    }
    let mut a = primary.client();
    a.acquire("lock A");
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().holder("lock").tenure(), a.holder("lock").tenure());
}

#[test]
fn a_module_file_in_use_is_replaced_by_a_rename() {
    let files = Server::start();
    let (used, new) = (files.dir().join("liblockward.so"), files.dir().join("liblockward.so.new"));
    fs::copy(Setup::new().module_path(), &used).unwrap();
    let mut server = Setup::new().module_at(&used).start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    fs::copy(Setup::new().next_version().module_path(), &new).unwrap();
    fs::rename(&new, &used).unwrap();
    let mut b = server.waiter("lock B BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    let token = b.reply().grant().token;
    save(&mut a);
    let mut a = restart(&mut server, |setup| setup);
    assert_eq!(a.holder("lock").tenure(), ("B", 1, token));
}

#[test]
fn a_server_with_files_goes_to_the_next_version_and_back() {
    for aof in ["no", "yes"] {
        let mut server = Setup::new().config(&format!("appendonly {aof}")).start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        a.acquire("lock A PX 600000");
        let before = a.holder("lock");
        for (change, lease) in
            [(Setup::next_version as fn(Setup) -> Setup, 700_000), (Setup::this_version, 800_000)]
        {
            save(&mut a);
            a = restart(&mut server, change);
            assert_eq!(a.holder("lock").tenure(), before.tenure());
            a.call(format!("LOCK.RENEW lock A PX {lease}")).int();
        }
        assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
        assert!(a.acquire("lock B").token > before.token);
    }
}

#[test]
fn servers_go_to_the_next_version_replica_first_and_back() {
    let (mut first, mut second) = (Server::start(), Server::start());
    second.follow(&first);
    first.client().acquire("lock A PX 600000");
    for change in [Setup::next_version as fn(Setup) -> Setup, Setup::this_version] {
        // The replica changes to the other version first, and becomes the primary. The former primary becomes the
        // replica of the new primary, and changes to the other version last. Until then, the two servers have different
        // versions.
        restart(&mut second, change);
        second.follow(&first);
        let token = first.client().holder("lock").token;
        let mut a = second.promote();
        first.follow(&second);
        assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
        let mut b = second.waiter("lock B BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
        assert!(b.reply().grant().token > token);
        a.call("LOCK.RELEASE lock B");
        a.acquire("lock A PX 600000");
        first.see_in_sync_with(&second);
        see_same_data(&first, &second);
        restart(&mut first, change);
        first.follow(&second);
        see_same_data(&first, &second);
        (first, second) = (second, first);
    }
}

#[test]
fn locks_that_only_the_next_version_can_read_are_refused_by_this_one() {
    let mut primary = Setup::new().next_version().start();
    let setup = Setup::new().config("propagation-error-behavior ignore");
    let mut replica = setup.start_replica_of(&primary);
    let mut a = primary.client();
    a.acquire("new next PX 600000");
    a.acquire("lock A PX 600000");
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().owner("lock").as_deref(), Some("A"));
    assert_eq!(replica.client().call("EXISTS new"), Reply::Int(0));
    replica.see_log("a later version of the module");

    let mut r = restart(&mut replica, Setup::next_version);
    replica.follow(&primary);
    assert_eq!(r.holder("new").tenure(), a.holder("new").tenure());

    let mut newcomer = Server::start();
    let dumped = a.call("DUMP new").bytes().to_vec();
    let refused = newcomer.client().call([b"RESTORE", &b"new"[..], b"0", &dumped]);
    assert_eq!(refused.error(), "ERR Bad data format");
    newcomer.begin_to_follow(primary.port());
    newcomer.see_end();
    assert!(newcomer.log().contains(WHY), "{}", newcomer.log());

    save(&mut a);
    refuses(&mut primary, Setup::this_version, WHY);
    let mut a = start_after_all(&mut primary, Setup::next_version);
    assert_eq!(a.call("LOCK.RELEASE new next"), Reply::Int(0));
    save(&mut a);
    let mut a = restart(&mut primary, Setup::this_version);
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
}
