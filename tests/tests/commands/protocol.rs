//! Every reply in RESP2 and RESP3, and client-side caching.

use lockward_tests::{Reply, Server};

const INFO: [&str; 5] = ["slots", "weight", "holding", "holders", "waiters"];
const HOLDER: [&str; 7] = ["owner", "holds", "token", "slots", "weight", "lease-left", "held-for"];
const WAITER: [&str; 6] = ["owner", "slots", "weight", "client-id", "waited", "wait-left"];
const ROW: [&str; 5] = ["key", "waiters", "longest-wait", "holders", "holder"];

#[test]
fn grants_and_releases_are_the_same_in_both_protocols() {
    let server = Server::start();
    for mut client in [server.client(), server.client3()] {
        let reply = client.call("LOCK.ACQUIRE lock A");
        assert!(
            matches!(&reply, Reply::Array(items) if matches!(items[..], [Reply::Int(_), Reply::Int(1), Reply::Int(_)]))
        );
        let token = reply.items()[0].int();
        assert_eq!(client.call("LOCK.RENEW lock A"), Reply::Int(token));
        assert_eq!(client.call("LOCK.RELEASE lock A"), Reply::Int(0));
        let minted = client.call("LOCK.ACQUIRE other *");
        assert!(
            matches!(&minted, Reply::Array(items)
                if matches!(items[..], [Reply::Int(_), Reply::Int(1), Reply::Int(_), Reply::Bulk(_)])),
            "{minted:?}"
        );
        assert_eq!(client.call("LOCK.RELEASE lock A").error_word(), "NOTHELD");
        client.call("DEL other");
    }
}

#[test]
fn not_acquired_is_a_null_array_in_resp2_and_null_in_resp3() {
    let server = Server::start();
    server.client().acquire("lock A");
    for request in ["LOCK.ACQUIRE lock B", "LOCK.ACQUIRE lock B BLOCK 20", "LOCK.ACQUIRE lock *"] {
        assert_eq!(server.client().call(request), Reply::NullArray, "{request}");
        assert_eq!(server.client3().call(request), Reply::Null, "{request}");
    }
}

#[test]
fn a_waiters_grant_is_the_same_in_both_protocols() {
    let server = Server::start();
    for mut waiter in [server.client(), server.client3()] {
        let mut a = server.client();
        a.acquire("lock A");
        waiter.ask("lock B BLOCK 0");
        a.see_waiters("lock", 1);
        a.call("LOCK.RELEASE lock A");
        let reply = waiter.reply();
        assert!(
            matches!(&reply, Reply::Array(items) if matches!(items[..], [Reply::Int(_), Reply::Int(1), Reply::Int(_)])),
            "{reply:?}"
        );
        a.call("LOCK.RELEASE lock B");
    }
}

#[test]
fn info_is_a_flat_array_in_resp2() {
    let (_server, mut a, _b) = Server::start_contended();
    let info = a.call("LOCK.INFO lock");
    assert!(matches!(&info, Reply::Array(items) if items.len() == 2 * INFO.len()), "{info:?}");
    assert_eq!(info.field_names(), INFO);
    let holder = &info.field("holders").items()[0];
    assert!(matches!(holder, Reply::Array(items) if items.len() == 2 * HOLDER.len()), "{holder:?}");
    assert_eq!(holder.field_names(), HOLDER);
    assert!(matches!(holder.field("owner"), Reply::Bulk(_)));
    let info = a.call("LOCK.INFO lock WAITERS 1");
    assert_eq!(info.field_names(), [&INFO[..], &["queue"]].concat());
    let waiter = &info.field("queue").items()[0];
    assert!(matches!(waiter, Reply::Array(items) if items.len() == 2 * WAITER.len()), "{waiter:?}");
    assert_eq!(waiter.field_names(), WAITER);
}

#[test]
fn info_is_a_map_in_resp3() {
    let (server, _a, _b) = Server::start_contended();
    let mut client = server.client3();
    let info = client.call("LOCK.INFO lock WAITERS 1");
    assert!(matches!(&info, Reply::Map(_)), "{info:?}");
    assert_eq!(info.field_names(), [&INFO[..], &["queue"]].concat());
    for (list, names) in [("holders", &HOLDER[..]), ("queue", &WAITER[..])] {
        let Reply::Array(items) = info.field(list) else { panic!("{info:?}") };
        assert!(matches!(&items[..], [Reply::Map(_)]), "{info:?}");
        assert_eq!(items[0].field_names(), names);
    }
    assert_eq!(client.call("LOCK.INFO lock").field_names(), INFO);
}

#[test]
fn top_is_an_array_of_flat_arrays_in_resp2_and_of_maps_in_resp3() {
    let (server, mut a, _b) = Server::start_contended();
    let top = a.call("LOCK.TOP");
    assert!(matches!(&top.items()[0], Reply::Array(items) if items.len() == 2 * ROW.len()), "{top:?}");
    assert_eq!(top.items()[0].field_names(), ROW);
    let top = server.client3().call("LOCK.TOP");
    assert!(matches!(&top, Reply::Array(rows) if matches!(rows[..], [Reply::Map(_)])), "{top:?}");
    assert_eq!(top.items()[0].field_names(), ROW);
}

#[test]
fn a_change_of_a_lock_invalidates_what_a_client_has_cached_of_it() {
    let server = Server::start();
    let (mut reader, mut a) = (server.client3(), server.client());
    assert_eq!(reader.call("CLIENT TRACKING ON"), Reply::ok());
    for change in
        ["LOCK.ACQUIRE lock A", "LOCK.ACQUIRE lock A", "LOCK.RENEW lock A", "LOCK.RELEASE lock A ALL"]
    {
        reader.call("LOCK.INFO lock");
        a.call(change);
        let push = reader.push();
        let expected = [Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk("lock")])];
        assert_eq!(push.items(), expected, "{change}");
    }
}

#[test]
fn commands_that_change_nothing_invalidate_no_cached_lock() {
    let server = Server::start();
    let (mut reader, mut a) = (server.client3(), server.client());
    a.acquire("lock A");
    assert_eq!(reader.call("CLIENT TRACKING ON"), Reply::ok());
    reader.call("LOCK.INFO lock");
    reader.call("LOCK.INFO mark");
    let _b = server.waiter("lock B BLOCK 0");
    a.call("LOCK.ACQUIRE lock C");
    a.call("LOCK.RELEASE lock C");
    a.call("LOCK.RENEW lock C");
    a.call("LOCK.INFO lock");
    a.acquire("mark A");
    assert_eq!(reader.push().items()[1], Reply::Array(vec![Reply::bulk("mark")]));
}

#[test]
fn a_hand_off_invalidates_what_a_client_has_cached() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut reader = server.client3();
    assert_eq!(reader.call("CLIENT TRACKING ON"), Reply::ok());
    a.call("LOCK.RENEW lock A PX 2000").int();
    reader.call("LOCK.INFO lock");
    b.reply().grant();
    assert_eq!(reader.push().items()[1], Reply::Array(vec![Reply::bulk("lock")]));
}
