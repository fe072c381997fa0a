//! Readers, slots and weights: which owners may hold a lock at the same time.

use lockward_tests::{Client, Command, Reply, Server};

const NOTHING: [&str; 0] = [];

/// A server that has granted these requests, each in the form `"lock A SHARED"`.
#[track_caller]
fn start_held<const N: usize>(requests: [&str; N]) -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    for request in requests {
        client.acquire(&format!("{request} PX 600000"));
    }
    (server, client)
}

/// Asserts that a command is refused with this error, and changes nothing.
#[track_caller]
fn assert_refused(client: &mut Client, command: impl Command, error: &str) {
    let digest = client.call("DEBUG DIGEST");
    let reply = client.call(command);
    assert_eq!(reply.error(), error);
    assert_eq!(client.call("DEBUG DIGEST"), digest, "the refused command has changed something: {error}");
}

// Which requests are granted.

#[test]
fn readers_hold_a_lock_together_each_with_its_own_token() {
    let server = Server::start();
    let mut client = server.client();
    let tokens = ["A", "B", "C"].map(|owner| client.acquire(&format!("lock {owner} SHARED")).token);
    assert!(tokens.is_sorted() && tokens[0] < tokens[1] && tokens[1] < tokens[2], "{tokens:?}");
    assert_eq!(client.holders("lock"), ["A x1 SHARED", "B x1 SHARED", "C x1 SHARED"]);
    let info = client.info("lock").unwrap();
    assert_eq!((info.slots, info.weight, info.holding), (0, 3, 3));
    assert_eq!(info.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), tokens);
}

#[test]
fn a_request_is_granted_when_the_weights_fit_every_limit() {
    let cases: [(&[&str], &str, bool); 18] = [
        (&[], "SHARED", true),
        (&[], "SLOTS 3 WEIGHT 3", true),
        (&["SHARED"], "SHARED", true),
        (&["SHARED"], "", false),
        (&["SHARED"], "SLOTS 1", false),
        (&["SHARED"], "SLOTS 2", true),
        (&["SHARED"], "SLOTS 2 WEIGHT 2", false),
        (&[""], "SHARED", false),
        (&["SLOTS 1"], "SLOTS 5", false),
        (&["SLOTS 3", "SLOTS 2"], "SLOTS 3", false),
        (&["SLOTS 3", "SLOTS 3"], "SLOTS 3", true),
        (&["SLOTS 3", "SLOTS 3", "SLOTS 3"], "SLOTS 9", false),
        (&["SLOTS 5 WEIGHT 3"], "SLOTS 5 WEIGHT 2", true),
        (&["SLOTS 5 WEIGHT 3"], "SLOTS 5 WEIGHT 3", false),
        (&["SLOTS 5 WEIGHT 3"], "SLOTS 4 WEIGHT 2", false),
        (&["SLOTS 5 WEIGHT 3", "SHARED"], "SHARED", true),
        (&["SLOTS 5 WEIGHT 5"], "SHARED", false),
        (&["SLOTS 1000000 WEIGHT 999999"], "SLOTS 1000000", true),
    ];
    let server = Server::start();
    let mut client = server.client();
    for (number, (held, request, granted)) in cases.into_iter().enumerate() {
        for (owner, mode) in held.iter().enumerate() {
            client.acquire(&format!("lock-{number} holder-{owner} {mode}"));
        }
        let reply = client.call(format!("LOCK.ACQUIRE lock-{number} A {request}"));
        assert_eq!(!reply.is_null(), granted, "{request} beside {held:?}");
        if granted {
            assert_eq!(reply.grant().holds, 1, "{request} beside {held:?}");
        }
        let holding = client.info(&format!("lock-{number}")).unwrap().holding;
        assert_eq!(holding, held.len() as i64 + i64::from(granted), "{request} beside {held:?}");
    }
}

#[test]
fn a_release_makes_room_for_its_weight_and_lifts_its_limit() {
    let (_server, mut client) = start_held(["lock A SLOTS 5 WEIGHT 3", "lock B SHARED", "lock C SHARED"]);
    assert!(client.call("LOCK.ACQUIRE lock D SHARED").is_null());
    assert_eq!(client.call("LOCK.RELEASE lock A"), Reply::Int(0));
    for owner in ["D", "E", "F", "G"] {
        assert_eq!(client.acquire(&format!("lock {owner} SHARED")).holds, 1);
    }
    let info = client.info("lock").unwrap();
    assert_eq!((info.slots, info.weight, info.holding), (0, 6, 6));
}

#[test]
fn each_holder_has_its_own_holds_lease_limit_and_weight() {
    let (_server, mut client) = start_held(["lock A SLOTS 9 WEIGHT 4", "lock B SLOTS 8", "lock C SHARED"]);
    client.acquire("lock B SLOTS 8 PX 600000");
    client.call("LOCK.RENEW lock A PX 100000").int();
    let info = client.info("lock").unwrap();
    assert_eq!((info.slots, info.weight, info.holding), (8, 6, 3));
    let [a, b, c] = &info.holders[..] else { panic!("{info:?}") };
    assert_eq!(a.described(), "A x1 SLOTS 9 WEIGHT 4");
    assert_eq!(b.described(), "B x2 SLOTS 8 WEIGHT 1");
    assert_eq!(c.described(), "C x1 SHARED");
    assert!(a.lease_left <= 100_000 && b.lease_left > 400_000 && c.lease_left > 400_000, "{info:?}");
}

#[test]
fn the_ttl_of_a_lock_is_its_longest_lease() {
    let (_server, mut client) = start_held(["lock A SHARED"]);
    client.acquire("lock B SHARED PX 900000");
    assert!(client.call("PTTL lock").int() > 700_000);
    client.call("LOCK.RELEASE lock B");
    let left = client.call("PTTL lock").int();
    assert!(300_000 < left && left <= 600_000, "{left}");
    client.call("LOCK.RENEW lock A PX 100000").int();
    assert!(client.call("PTTL lock").int() <= 100_000);
}

#[test]
fn a_lease_that_is_over_ends_one_tenure_and_leaves_the_others() {
    let (_server, mut client) = start_held(["lock A SHARED", "lock B SHARED"]);
    let token = client.acquire("lock C SHARED PX 30").token;
    client.see_holders("lock", ["A x1 SHARED", "B x1 SHARED"]);
    let error = client.call(format!("LOCK.RENEW lock C TOKEN {token}"));
    let latest = client.info("lock").unwrap().holders[1].token;
    assert_eq!(error.error(), format!("NOTHELD the lock is held by another owner with token {latest}"));
    assert_eq!(client.info("lock").unwrap().weight, 2);
}

#[test]
fn the_error_for_a_release_by_another_owner_contains_the_largest_token() {
    let (_server, mut client) = start_held(["lock A SHARED"]);
    let [token, later] = ["B", "C"].map(|owner| client.acquire(&format!("lock {owner} SHARED")).token);
    let by_another = format!("NOTHELD the lock is held by another owner with token {later}");
    assert_refused(&mut client, "LOCK.RELEASE lock X", &by_another);
    assert_refused(&mut client, "LOCK.RENEW lock X", &by_another);
    let other_token = format!("NOTHELD the lock is held by this owner with token {token}");
    assert_refused(&mut client, format!("LOCK.RELEASE lock B TOKEN {later}"), &other_token);
}

// Re-entry.

#[test]
fn a_re_entry_with_the_same_or_a_larger_limit_keeps_what_the_owner_has() {
    let (_server, mut client) = start_held(["lock A SLOTS 4 WEIGHT 2"]);
    let token = client.holder("lock").token;
    for (holds, mode) in
        ["SLOTS 4", "SLOTS 4 WEIGHT 2", "SLOTS 9", "SLOTS 9 WEIGHT 2", "SHARED"].iter().enumerate()
    {
        let grant = client.acquire(&format!("lock A {mode}"));
        assert_eq!((grant.token, grant.holds), (token, holds as i64 + 2), "{mode}");
        assert_eq!(client.holders("lock"), [format!("A x{} SLOTS 4 WEIGHT 2", holds + 2)], "{mode}");
    }
}

#[test]
fn a_writer_re_enters_as_a_reader() {
    let (_server, mut client) = start_held(["lock A"]);
    assert_eq!(client.acquire("lock A SHARED").holds, 2);
    assert_eq!(client.holders("lock"), ["A x2 SLOTS 1 WEIGHT 1"]);
    assert!(client.call("LOCK.ACQUIRE lock B SHARED").is_null(), "the lock is not exclusive any more");
}

#[test]
fn a_smaller_limit_or_another_weight_on_re_entry_is_an_error_that_contains_the_present_mode() {
    let (_server, mut client) = start_held(["lock A SLOTS 5 WEIGHT 2", "lock B SHARED", "writer W"]);
    let error = "LIMIT the owner has SLOTS 5 WEIGHT 2: release first, or ask as another owner";
    for mode in
        ["", "SLOTS 1", "SLOTS 4 WEIGHT 2", "SLOTS 5 WEIGHT 1", "SLOTS 5 WEIGHT 3", "SLOTS 9 WEIGHT 9"]
    {
        for more in ["", "BLOCK 0", "HOLDS 2", "HOLDS 9 BLOCK 0", "HOLDS 2 BLOCK 0 KEEP 60000"] {
            assert_refused(&mut client, format!("LOCK.ACQUIRE lock A {mode} {more}"), error);
        }
    }
    let error = "LIMIT the owner has SHARED: release first, or ask as another owner";
    for mode in ["", "SLOTS 1000000", "SLOTS 2 WEIGHT 2"] {
        assert_refused(&mut client, format!("LOCK.ACQUIRE lock B {mode}"), error);
    }
    let error = "LIMIT the owner has SLOTS 1 WEIGHT 1: release first, or ask as another owner";
    assert_refused(&mut client, "LOCK.ACQUIRE writer W SLOTS 5 WEIGHT 2", error);
    assert_eq!(client.places_kept(), 0);
}

#[test]
fn a_reader_that_has_released_may_ask_again_as_a_writer() {
    let (_server, mut client) = start_held(["lock A SHARED"]);
    assert_eq!(client.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(client.acquire("lock A").holds, 1);
    assert_eq!(client.holders("lock"), ["A x1 SLOTS 1 WEIGHT 1"]);
}

// Options.

#[test]
fn a_weight_needs_a_limit_and_is_at_most_the_limit() {
    let (_server, mut client) = start_held(["lock A"]);
    let error = "ERR WEIGHT must be 1 to the number of slots";
    for command in
        ["ACQUIRE lock B", "ACQUIRE lock B BLOCK 0", "ACQUIRE free B", "RENEW lock A", "RENEW lock B"]
    {
        for mode in ["SLOTS 5 WEIGHT 6", "SLOTS 5 WEIGHT 0", "WEIGHT 2 SLOTS 1", "SLOTS 5 WEIGHT 1000001"] {
            assert_refused(&mut client, format!("LOCK.{command} {mode}"), error);
        }
        for mode in ["WEIGHT 1", "SHARED WEIGHT 1", "WEIGHT 1 SHARED"] {
            assert_refused(&mut client, format!("LOCK.{command} {mode}"), "ERR WEIGHT needs SLOTS");
        }
        assert_refused(&mut client, format!("LOCK.{command} SHARED SLOTS 5"), "ERR syntax error");
    }
}

#[test]
fn keep_needs_block_holds_and_an_owner_of_its_own() {
    let (_server, mut client) = start_held(["lock A"]);
    let error = "ERR KEEP needs BLOCK, HOLDS and an owner other than *";
    for request in [
        "lock B KEEP 100",
        "lock B KEEP 100 BLOCK 10",
        "lock B KEEP 100 HOLDS 1",
        "lock * KEEP 100 BLOCK 10 HOLDS 1",
        "free B KEEP 60000",
    ] {
        assert_refused(&mut client, format!("LOCK.ACQUIRE {request}"), error);
    }
    for keep in ["0", "60001", "-1", "4294967297"] {
        let request = format!("LOCK.ACQUIRE lock B BLOCK 10 HOLDS 1 KEEP {keep}");
        assert_refused(&mut client, request, "ERR KEEP must be 1 to 60000 ms");
    }
    assert!(client.call("LOCK.ACQUIRE lock B KEEP 1 HOLDS 1 BLOCK 1").is_null(), "1 is allowed");
    assert!(client.call("LOCK.ACQUIRE lock B BLOCK 1 KEEP 60000 HOLDS 1").is_null(), "60,000 is allowed");
}

#[test]
fn command_getkeys_finds_the_key_whatever_the_mode() {
    let server = Server::start();
    let mut client = server.client();
    for command in [
        "LOCK.ACQUIRE lock A SHARED",
        "LOCK.ACQUIRE lock A BLOCK 0 KEEP 100 HOLDS 1 SLOTS 5 WEIGHT 2",
        "LOCK.RENEW lock A SLOTS 5 WEIGHT 2",
        "LOCK.INFO lock HOLDERS 5 WAITERS 1",
    ] {
        let keys = client.call(format!("COMMAND GETKEYS {command}"));
        assert_eq!(keys, Reply::Array(vec![Reply::bulk("lock")]), "{command}");
    }
}

// The lease in the reply.

#[test]
fn a_grant_contains_its_lease() {
    let server = Server::start();
    let mut client = server.client();
    for (request, lease) in [
        ("named A PX 12345", 12_345),
        ("seconds A EX 7", 7_000),
        ("unnamed A", 30_000),
        ("longest A PX 315360000000", 315_360_000_000),
        ("shortest A PX 1", 1),
        ("shared A SHARED PX 100", 100),
    ] {
        assert_eq!(client.call(format!("LOCK.ACQUIRE {request}")).granted_lease(), lease, "{request}");
    }
    assert_eq!(client.call("CONFIG SET lock.default-lease 45678"), Reply::ok());
    assert_eq!(client.call("LOCK.ACQUIRE later A").granted_lease(), 45_678);
}

#[test]
fn the_reply_to_a_re_entry_contains_the_rest_of_the_lease() {
    let (_server, mut client) = start_held(["lock A"]);
    for request in ["LOCK.ACQUIRE lock A PX 1000", "LOCK.ACQUIRE lock A PX 1000 HOLDS 2"] {
        let lease = client.call(request).granted_lease();
        assert!(400_000 < lease && lease <= 600_000, "{request}: {lease}");
    }
    assert_eq!(client.call("LOCK.ACQUIRE lock A PX 700000").granted_lease(), 700_000);
    assert_eq!(client.call("LOCK.ACQUIRE lock A PX 800000 HOLDS 3").granted_lease(), 800_000);
}

#[test]
fn the_lease_in_a_waiters_reply_counts_from_the_grant() {
    let (server, mut client) = start_held(["lock A"]);
    let mut first = server.waiter("lock B BLOCK 0 PX 54321");
    let mut again = server.waiter("lock B BLOCK 0 PX 1000");
    let mut minted = server.waiter("lock * BLOCK 0 PX 65432");
    client.call("LOCK.RELEASE lock A");
    assert_eq!(first.reply().granted_lease(), 54_321);
    assert_eq!(again.reply().granted_lease(), 54_321);
    client.call("LOCK.RELEASE lock B ALL");
    assert_eq!(minted.reply().items()[1..3], [Reply::Int(1), Reply::Int(65_432)]);
}

// Downgrade.

#[test]
fn a_renewal_with_a_larger_limit_lets_others_in() {
    let (_server, mut client) = start_held(["lock A"]);
    let token = client.holder("lock").token;
    assert_eq!(client.call("LOCK.RENEW lock A SLOTS 3"), Reply::Int(token));
    assert_eq!(client.holders("lock"), ["A x1 SLOTS 3 WEIGHT 1"]);
    assert_eq!(client.acquire("lock B SHARED").holds, 1);
    assert_eq!(client.call("LOCK.RENEW lock A SHARED PX 600000"), Reply::Int(token));
    assert_eq!(client.holders("lock"), ["A x1 SHARED", "B x1 SHARED"]);
    for owner in ["C", "D"] {
        assert_eq!(client.acquire(&format!("lock {owner} SHARED")).holds, 1);
    }
}

#[test]
fn a_downgrade_serves_the_waiters_that_fit_in_the_same_step() {
    let (server, mut client) = start_held(["lock A"]);
    let mut readers = ["B", "C"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    let mut writer = server.waiter("lock D BLOCK 0");
    let mut last = server.waiter("lock E SHARED BLOCK 0");
    let [_, info] = client.transact(["LOCK.RENEW lock A SHARED", "LOCK.INFO lock WAITERS 9"]);
    let info = info.info();
    assert_eq!((info.holding, info.waiters), (3, 2));
    readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
    assert!(writer.has_no_reply() && last.has_no_reply(), "a reader has passed the writer");
    assert_eq!(client.queue("lock"), ["D", "E"]);
}

#[test]
fn a_downgrade_keeps_holds_weight_and_token() {
    let (_server, mut client) = start_held(["lock A SLOTS 4 WEIGHT 3", "lock A SLOTS 4"]);
    let token = client.holder("lock").token;
    for mode in ["SLOTS 6", "SLOTS 7 WEIGHT 3"] {
        assert_eq!(client.call(format!("LOCK.RENEW lock A {mode}")), Reply::Int(token), "{mode}");
    }
    assert_eq!(client.holders("lock"), ["A x2 SLOTS 7 WEIGHT 3"]);
}

#[test]
fn a_renewal_with_the_same_limit_changes_only_the_lease() {
    let (server, mut client) = start_held(["lock A"]);
    let mut waiter = server.waiter("lock B SHARED BLOCK 0");
    for mode in ["", "SLOTS 1", "SLOTS 1 WEIGHT 1"] {
        client.call(format!("LOCK.RENEW lock A PX 700000 {mode}")).int();
        assert_eq!(client.holders("lock"), ["A x1 SLOTS 1 WEIGHT 1"], "{mode}");
    }
    assert!(waiter.has_no_reply());
}

#[test]
fn a_renewal_with_a_smaller_limit_or_another_weight_is_an_error() {
    let (_server, mut client) = start_held(["lock A SLOTS 5 WEIGHT 2", "lock B SHARED"]);
    let error = "LIMIT the owner has SLOTS 5 WEIGHT 2: release first, or ask as another owner";
    for mode in ["SLOTS 4", "SLOTS 1", "SLOTS 5 WEIGHT 1", "SLOTS 9 WEIGHT 3"] {
        assert_refused(&mut client, format!("LOCK.RENEW lock A PX 1000 {mode}"), error);
    }
    let error = "LIMIT the owner has SHARED: release first, or ask as another owner";
    assert_refused(&mut client, "LOCK.RENEW lock B SLOTS 1000000", error);
}

// LOCK.INFO and LOCK.TOP.

#[test]
fn info_shows_the_first_hundred_holders_or_as_many_as_are_asked_for() {
    let server = Server::start();
    let mut client = server.client();
    client.call_all((0..150).map(|number| format!("LOCK.ACQUIRE lock owner-{number} SLOTS 200 PX 600000")));
    for (count, shown) in
        [("", 100), ("HOLDERS 0", 0), ("HOLDERS 1", 1), ("HOLDERS 149", 149), ("HOLDERS 9999", 150)]
    {
        let info = client.call(format!("LOCK.INFO lock {count}")).info();
        let owners: Vec<&str> = info.holders.iter().map(|holder| holder.owner.as_str()).collect();
        let first: Vec<String> = (0..shown).map(|number| format!("owner-{number}")).collect();
        assert_eq!(owners, first, "{count}");
        assert_eq!((info.slots, info.weight, info.holding, info.waiters), (200, 150, 150, 0), "{count}");
    }
    let both = client.call("LOCK.INFO lock WAITERS 1 HOLDERS 2").info();
    assert_eq!((both.holders.len(), both.queue), (2, Some(vec![])));
}

#[test]
fn info_shows_the_limit_and_the_weight_of_each_waiter() {
    let (server, mut client) = start_held(["lock A"]);
    let _waiters = ["B", "C SHARED", "D SLOTS 7 WEIGHT 3"]
        .map(|request| server.waiter(&format!("lock {request} BLOCK 0")));
    let queue = client.call("LOCK.INFO lock WAITERS 9").info().queue.unwrap();
    let modes: Vec<(i64, i64)> = queue.iter().map(|waiter| (waiter.slots, waiter.weight)).collect();
    assert_eq!(modes, [(1, 1), (0, 1), (7, 3)]);
}

#[test]
fn info_counts_only_leases_that_are_not_over() {
    let server = Server::start();
    let mut client = server.client();
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    client.acquire("lock A SLOTS 9 WEIGHT 2 PX 600000");
    client.acquire("lock B SLOTS 5 WEIGHT 3 PX 20");
    client.see_holders("lock", ["A x1 SLOTS 9 WEIGHT 2"]);
    let info = client.info("lock").unwrap();
    assert_eq!((info.slots, info.weight, info.holding), (9, 2, 1));
}

#[test]
fn top_shows_the_number_of_holders_and_the_first() {
    let (server, mut client) = start_held(["lock A SHARED", "lock B SHARED", "lock C SHARED"]);
    let _waiters = server.waiters("lock", ["D", "E"]);
    let top = client.call("LOCK.TOP");
    let row = &top.items()[0];
    assert_eq!((row.field("holders"), row.field("waiters")), (&Reply::Int(3), &Reply::Int(2)));
    assert_eq!(row.field("holder"), &Reply::bulk("A"));
}

// Scripts and transactions.

#[test]
fn a_transaction_grants_by_the_same_rule_and_does_not_wait() {
    let (_server, mut client) = start_held(["lock A SHARED"]);
    let [granted, refused] = client.transact([
        "LOCK.ACQUIRE lock B SHARED BLOCK 0 HOLDS 1 KEEP 60000",
        "LOCK.ACQUIRE lock C BLOCK 0 HOLDS 1 KEEP 60000",
    ]);
    assert_eq!(granted.grant().holds, 1);
    assert!(refused.is_null());
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'D', 'BLOCK', 0, 'HOLDS', 1, 'KEEP', 100)";
    assert!(client.call(["EVAL", script, "1", "lock"]).is_null());
    assert_eq!(client.places_kept(), 0);
    assert_eq!(client.queue("lock"), NOTHING);
}

#[test]
fn a_downgrade_invalidates_what_a_tracking_client_has_read() {
    let (server, mut client) = start_held(["lock A"]);
    let mut reader = server.client3();
    assert_eq!(reader.call("CLIENT TRACKING ON"), Reply::ok());
    for change in ["LOCK.RENEW lock A SHARED", "LOCK.ACQUIRE lock B SHARED", "LOCK.RELEASE lock B"] {
        reader.call("LOCK.INFO lock");
        client.call(change);
        assert_eq!(reader.push().items()[1], Reply::Array(vec![Reply::bulk("lock")]), "{change}");
    }
}
