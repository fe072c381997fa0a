//! Keyspace events.

use lockward_tests::{Client, Reply, Server, eventually};

/// A client that is subscribed to the events of the classes `d` (module types) and `x` (expired keys).
#[track_caller]
fn listener(server: &Server) -> Client {
    let mut client = server.client();
    assert_eq!(client.call("CONFIG SET notify-keyspace-events Edx"), Reply::ok());
    client.call("PSUBSCRIBE __keyevent@*__:*");
    client
}

/// The next events, as `event key`.
#[track_caller]
fn events(listener: &mut Client, count: usize) -> Vec<String> {
    (0..count)
        .map(|_| {
            let message = listener.reply();
            let channel = message.items()[2].text();
            format!("{} {}", channel.trim_start_matches("__keyevent@0__:"), message.items()[3].text())
        })
        .collect()
}

/// Asserts that exactly the events `expected` have been published.
#[track_caller]
fn assert_events(listener: &mut Client, client: &mut Client, expected: &[&str]) {
    client.acquire("the-end X");
    let published = events(listener, expected.len() + 1);
    assert_eq!(published[..expected.len()], *expected);
    assert_eq!(published[expected.len()], "lock.acquired the-end");
    client.call("LOCK.RELEASE the-end X");
    assert_eq!(events(listener, 1), ["lock.released the-end"]);
}

#[test]
fn acquisitions_renewals_and_releases_are_published() {
    let server = Server::start();
    let (mut listener, mut a) = (listener(&server), server.client());
    a.acquire("lock A");
    a.acquire("lock A");
    a.call("LOCK.RENEW lock A");
    a.call("LOCK.RELEASE lock A");
    a.call("LOCK.RELEASE lock A");
    let expected = ["acquired", "acquired", "renewed", "released", "released"];
    let expected = expected.map(|event| format!("lock.{event} lock"));
    assert_events(&mut listener, &mut a, &expected.each_ref().map(String::as_str));
}

#[test]
fn commands_that_change_nothing_publish_no_event() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut listener = listener(&server);
    a.call("LOCK.ACQUIRE lock B");
    a.call("LOCK.ACQUIRE lock B BLOCK 20");
    a.call("LOCK.RELEASE lock B");
    a.call("LOCK.RENEW lock B");
    a.call("LOCK.RELEASE lock A HOLDS 1");
    a.call("LOCK.INFO lock");
    assert_events(&mut listener, &mut a, &[]);
}

#[test]
fn a_hand_off_is_a_release_and_an_acquisition() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut listener = listener(&server);
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_events(&mut listener, &mut a, &["lock.released lock", "lock.acquired lock"]);
}

#[test]
fn the_end_of_a_lease_is_published_as_expired() {
    let server = Server::start();
    let (mut listener, mut a) = (listener(&server), server.client());
    a.acquire("lock A PX 50");
    assert_eq!(events(&mut listener, 2), ["lock.acquired lock", "expired lock"]);
    assert_events(&mut listener, &mut a, &[]);
}

#[test]
fn a_lease_end_found_by_the_module_is_published_as_expired_once() {
    let (server, mut a, mut b) = Server::start_contended();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    let mut listener = listener(&server);
    a.call("LOCK.RENEW lock A PX 50").int();
    b.reply().grant();
    assert_events(&mut listener, &mut a, &["lock.renewed lock", "expired lock", "lock.acquired lock"]);
}

#[test]
fn a_lease_end_found_by_a_command_is_published_as_expired_once() {
    let server = Server::start();
    let (mut listener, mut a) = (listener(&server), server.client());
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    a.call_all(["LOCK.ACQUIRE lock A PX 50", "PERSIST lock"]);
    eventually("the lease is over", || a.call("LOCK.RENEW lock A TOKEN 1").error().contains("free"));
    assert_events(&mut listener, &mut a, &["lock.acquired lock", "expired lock"]);
}

#[test]
fn the_end_of_one_of_several_leases_found_by_info_is_published_as_expired_once() {
    let server = Server::start();
    let (mut listener, mut a) = (listener(&server), server.client());
    a.acquire("lock A SHARED PX 600000");
    a.acquire("lock B SHARED PX 50");
    eventually("the lease is over", || a.holders("lock").len() == 1);
    assert_events(&mut listener, &mut a, &["lock.acquired lock", "lock.acquired lock", "expired lock"]);
}

#[test]
fn a_downgrade_is_a_renewal_and_the_acquisitions_that_it_lets_in() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut readers = ["B", "C"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    let mut listener = listener(&server);
    a.call("LOCK.RENEW lock A SHARED").int();
    readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
    assert_events(&mut listener, &mut a, &["lock.renewed lock", "lock.acquired lock", "lock.acquired lock"]);
}

#[test]
fn the_end_of_one_of_several_leases_is_published_as_expired_once() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A SHARED PX 600000");
    a.acquire("lock B SHARED PX 600000");
    let mut c = server.waiter("lock C SLOTS 2 BLOCK 0");
    let mut listener = listener(&server);
    a.call("LOCK.RENEW lock B PX 50").int();
    assert_eq!(c.reply().grant().holds, 1);
    assert_events(&mut listener, &mut a, &["lock.renewed lock", "expired lock", "lock.acquired lock"]);
    assert_eq!(a.call("EXISTS lock"), Reply::Int(1));
}

#[test]
fn kept_places_publish_no_event() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut listener = listener(&server);
    drop(server.waiter("lock W BLOCK 0 HOLDS 1 KEEP 60000"));
    a.see_places_kept(1);
    a.call("LOCK.RELEASE lock W HOLDS 0");
    assert_events(&mut listener, &mut a, &[]);
}

#[test]
fn events_are_published_on_the_channel_of_the_key_too() {
    let server = Server::start();
    let mut client = server.client();
    client.call("CONFIG SET notify-keyspace-events Kd");
    client.call("SUBSCRIBE __keyspace@0__:lock");
    server.client().acquire("lock A");
    assert_eq!(client.reply().items()[2], Reply::bulk("lock.acquired"));
}

#[test]
fn events_are_off_unless_their_class_is_on() {
    let server = Server::start();
    let mut client = server.client();
    client.call("CONFIG SET notify-keyspace-events KEg$lshzxe");
    client.call("PSUBSCRIBE __key*");
    let mut a = server.client();
    a.acquire("lock A");
    a.call("LOCK.RELEASE lock A");
    a.call("SET mark 1");
    loop {
        let message = client.reply();
        assert!(!message.items()[2..].iter().any(|part| part.text().contains("lock.")), "{message:?}");
        if message.items()[3] == Reply::bulk("mark") {
            break;
        }
    }
}

#[test]
fn a_replica_publishes_the_events_of_replicated_changes() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let mut listener = listener(&replica);
    let mut a = primary.client();
    a.acquire("lock A");
    a.call("LOCK.RENEW lock A");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(events(&mut listener, 3), ["lock.acquired lock", "lock.renewed lock", "lock.released lock"]);
}
