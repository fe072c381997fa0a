//! Full resyncs whose connection is cut.

use lockward_tests::{Client, Link, Reply, Server, Setup, eventually};

/// The number of locks on the primary: enough for a transfer of many packets.
const LOCKS: u64 = 3_000;

/// The number of cut transfers in a test.
const CUTS: u64 = 100;

/// The number of cut transfers for a replica that writes the received data to disk on a background thread (Valkey 9).
/// The number is small because such a replica notices a failed transfer only in its cron, once a second.
const CUTS_BY_CRON: u64 = 8;

/// The largest number of bytes that the primary sends in the handshake, before the data.
const GREETINGS: u64 = 300;

fn primary_with_locks(setup: Setup) -> Server {
    // After a cut, the next transfer begins only when the cron has noticed the cut. So the cron runs often.
    let primary = setup.config("hz 100").start();
    let mut client = primary.client();
    client.call_all((0..LOCKS).map(|number| format!("LOCK.ACQUIRE lock-{number} A{number} PX 600000")));
    client.call_all((0..LOCKS).step_by(3).map(|number| format!("LOCK.ACQUIRE lock-{number} A{number}")));
    primary
}

/// The properties of a full resync.
struct Resync {
    /// The number of bytes that the primary sends, including the handshake.
    bytes: u64,
    /// Whether the primary sends the data over a second connection.
    has_a_channel: bool,
    /// Whether the replica writes the received data to disk on a background thread.
    saves_by_cron: bool,
}

/// Runs a full resync and returns its properties.
fn resync(primary: &Server, setup: Setup) -> Resync {
    let link = Link::to(primary);
    let replica = setup.start();
    replica.follow_through(&link, primary);
    Resync {
        bytes: link.carried(),
        has_a_channel: link.connections() == 2,
        saves_by_cron: replica.log().contains("creating Bio thread to save RDB to disk"),
    }
}

#[track_caller]
fn assert_same(primary: &Server, replica: &Server) {
    replica.see_in_sync_with(primary);
    let digest = |server: &Server| server.client().call("DEBUG DIGEST");
    assert_eq!(digest(primary), digest(replica));
    assert_eq!(replica.client().call("DBSIZE"), primary.client().call("DBSIZE"));
}

/// Cuts resyncs at many different offsets, and checks the replica with `meanwhile` after each cut. Then lets one
/// resync succeed.
#[track_caller]
fn cut_short(setup: Setup, prepare: impl Fn(&Server), mut meanwhile: impl FnMut(&mut Client)) {
    let primary = primary_with_locks(setup.clone());
    let Resync { bytes, has_a_channel, saves_by_cron } = resync(&primary, setup.clone());
    let cuts = if saves_by_cron { CUTS_BY_CRON } else { CUTS };
    let link = Link::to(&primary);
    let cut = |number: u64| GREETINGS + (bytes - GREETINGS) * number / cuts;
    // Each cut has a different offset. If there is a second connection for the data, only the second connection is cut.
    let before = if has_a_channel { &[u64::MAX][..] } else { &[] };
    link.cut_after((0..cuts).flat_map(|number| before.iter().copied().chain([cut(number * 37 % cuts)])));
    let replica = setup.start();
    prepare(&replica);
    replica.begin_to_follow(link.port());
    let mut observer = replica.client();
    while link.cuts_left() > 0 {
        let left = link.cuts_left();
        eventually("the next cut", || {
            meanwhile(&mut observer);
            link.cuts_left() < left
        });
    }
    assert_same(&primary, &replica);
    let resyncs = u64::try_from(primary.client().stat("stats", "sync_full")).unwrap();
    assert!(resyncs > cuts + 1, "some cuts were outside of a transfer: {resyncs} resyncs");
    assert_eq!(observer.info("old-lock"), None);
    let mut client = replica.promote();
    let before = client.holder("lock-7");
    assert_eq!(before.tenure(), ("A7", 1, primary.client().holder("lock-7").token));
    let mut waiter = replica.waiter("lock-7 B BLOCK 0");
    assert_eq!(client.call("LOCK.RELEASE lock-7 A7"), Reply::Int(0));
    assert!(waiter.reply().grant().token > before.token);
}

fn old_lock(replica: &Server) {
    replica.client().acquire("old-lock X PX 600000");
}

#[track_caller]
fn still_has_its_old_lock(client: &mut Client) {
    match client.call("LOCK.INFO old-lock") {
        Reply::Error(text) => assert!(text.starts_with("LOADING"), "{text}"),
        info => assert_eq!(info.info().holders[0].owner, "X"),
    }
}

/// Checks that the replica shows no data of an incomplete transfer: the replica replies with null or LOADING.
#[track_caller]
fn has_no_lock_yet(client: &mut Client) {
    // Every transfer except the last is cut. The link is up when the last transfer is complete. Then the replica has
    // the lock.
    if client.server_info("replication", "master_link_status") == "down" {
        let reply = client.call("LOCK.INFO lock-7");
        let loading = matches!(&reply, Reply::Error(text) if text.starts_with("LOADING"));
        let mut synced = || client.server_info("replication", "master_link_status") == "up";
        assert!(loading || reply.is_null() || synced(), "{reply:?}");
    }
}

#[test]
fn a_replica_that_loads_beside_its_old_data_survives_a_hundred_cuts() {
    cut_short(Setup::new().config("repl-diskless-load swapdb"), old_lock, still_has_its_old_lock);
}

#[test]
fn a_replica_that_loads_from_its_disk_survives_a_hundred_cuts() {
    cut_short(Setup::new().config("repl-diskless-load disabled"), old_lock, still_has_its_old_lock);
}

#[test]
fn a_replica_that_loads_into_an_empty_database_survives_a_hundred_cuts() {
    cut_short(Setup::new().config("repl-diskless-load on-empty-db"), |_| {}, has_no_lock_yet);
}

#[test]
fn a_replica_with_a_connection_for_the_data_survives_a_hundred_cuts() {
    const SETTING: &str = "dual-channel-replication-enabled";
    if Server::start().client().call(["CONFIG", "GET", SETTING]).items().is_empty() {
        return; // only Valkey, from 8.0 on, has this setting
    }
    let setup = Setup::new().config(&format!("{SETTING} yes")).config("repl-diskless-load swapdb");
    assert!(resync(&primary_with_locks(setup.clone()), setup.clone()).has_a_channel);
    cut_short(setup, old_lock, still_has_its_old_lock);
}

#[test]
fn waiters_get_an_error_when_their_server_becomes_a_replica_that_never_gets_in_sync() {
    let primary = primary_with_locks(Setup::new());
    let link = Link::to(&primary);
    link.swallow();
    let replica = Setup::new().config("repl-diskless-load swapdb").start();
    old_lock(&replica);
    let mut waiter = replica.waiter("old-lock Y BLOCK 0");
    replica.begin_to_follow(link.port());
    assert_eq!(waiter.reply().error_word(), "UNBLOCKED");
    assert_eq!(replica.client().owner("old-lock").as_deref(), Some("X"));
    let mut client = replica.promote();
    assert_eq!(client.call("LOCK.RELEASE old-lock X"), Reply::Int(0));
}

#[test]
fn a_replica_promoted_after_half_a_resync_goes_on_with_its_old_tenures() {
    let primary = primary_with_locks(Setup::new());
    let setup = Setup::new().config("repl-diskless-load swapdb");
    let Resync { bytes, .. } = resync(&primary, setup.clone());
    let replica = setup.start();
    old_lock(&replica);
    for part in 1..=20 {
        let link = Link::to(&primary);
        link.swallow_after(bytes * part / 21);
        let before = replica.client().holder("old-lock");
        replica.begin_to_follow(link.port());
        eventually("a part of the data has been forwarded", || link.carried() >= bytes * part / 21);
        // Some servers execute no command while they wait for the rest of the data. The cut ends this wait.
        drop(link);
        let mut client = replica.promote();
        assert_eq!(client.holder("old-lock").tenure(), before.tenure(), "{part}");
        assert_eq!(client.call("DBSIZE"), Reply::Int(1), "{part}");
        let mut waiter = replica.waiter("old-lock Y BLOCK 0");
        assert_eq!(client.call("LOCK.RELEASE old-lock X"), Reply::Int(0), "{part}");
        assert!(waiter.reply().grant().token > before.token, "{part}");
        assert_eq!(client.call("LOCK.RELEASE old-lock Y"), Reply::Int(0), "{part}");
        old_lock(&replica);
    }
}
