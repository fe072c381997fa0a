//! Eviction, maxmemory, and the memory of clients that wait.

use lockward_tests::{Client, Reply, Server, Setup, eventually};

/// The bytes of a connection after its first command, and the additional bytes of a connection that waits.
/// Both figures are measured before the server shortens the buffers of idle clients. Change these figures
/// together with the section Sizing of docs/operating.md.
fn of_connection_and_wait(server: &Server) -> (i64, i64) {
    let is_valkey = server.client().call("INFO server").text().contains("valkey_version");
    let has_shared_query_buffer = is_valkey || server.has_redis(8, 0);
    (if has_shared_query_buffer { 18_200 } else { 38_200 }, 37_300)
}

/// A server on which A holds `lock`, at most `waiters` clients can wait, and there is data to evict. Also returns A's
/// connection.
fn with_data(waiters: usize) -> (Server, Client) {
    let server = Setup::new().module(&format!("max-waiters-total {waiters}")).start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.call_all((0..100).map(|number| format!("SET data-{number} value")));
    a.call("CONFIG SET maxmemory-policy allkeys-lru");
    (server, a)
}

/// Sets `maxmemory` to `bytes` above the memory that the server uses now.
fn leave_room(client: &mut Client, bytes: i64) {
    let used = client.stat("memory", "used_memory");
    client.call(format!("CONFIG SET maxmemory {}", used + bytes));
}

#[test]
fn lock_info_shows_a_held_lock_that_was_evicted() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.acquire("lock A");
    let before = a.holder("lock");
    a.evict("lock");
    assert_eq!(a.holder("lock").tenure(), before.tenure());
}

#[test]
fn a_held_lock_that_is_evicted_is_not_granted_to_another() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    let mut b = server.waiter("lock B BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_held_lock_that_is_evicted_can_be_renewed_and_re_entered() {
    let server = Server::start();
    let mut a = server.client();
    let grant = a.acquire("lock A PX 600000");
    a.evict("lock");
    assert_eq!(a.call("LOCK.RENEW lock A"), Reply::Int(grant.token));
    a.evict("lock");
    let again = a.acquire("lock A");
    assert_eq!((again.token, again.holds), (grant.token, 2));
    assert_eq!(a.call("EXISTS lock"), Reply::Int(1));
}

#[test]
fn a_held_lock_that_is_evicted_keeps_its_waiters_waiting() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.evict("lock");
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(b.has_no_reply());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn the_lease_of_a_lock_that_is_evicted_still_ends() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("LOCK.RENEW lock A PX 1000").int();
    a.evict("lock");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_flush_breaks_a_lock_that_was_evicted_before() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    a.call("FLUSHALL");
    assert_eq!(a.info("lock"), None);
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn swapdb_swaps_evicted_locks_too() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 600000").token;
    a.evict("lock");
    assert_eq!(a.call("SWAPDB 0 1"), Reply::ok());
    assert_eq!(a.info("lock"), None);
    assert_eq!(a.acquire("lock B").holds, 1);
    a.call("SELECT 1");
    assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
}

#[test]
fn a_value_stored_in_place_of_an_evicted_lock_breaks_it() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    a.call("SET lock value");
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "WRONGTYPE");
    a.call("DEL lock");
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn no_lock_is_acquired_above_the_memory_limit() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 20000");
    a.call("CONFIG SET maxmemory 1");
    for command in ["LOCK.ACQUIRE other A", "LOCK.ACQUIRE lock A", "LOCK.ACQUIRE lock B BLOCK 0"] {
        assert_eq!(a.call(command).error_word(), "OOM", "{command}");
    }
    assert_eq!(a.info("other"), None);
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn locks_can_be_renewed_and_released_above_the_memory_limit() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 20000").token;
    a.call("CONFIG SET maxmemory 1");
    assert_eq!(a.call("LOCK.RENEW lock A PX 600000"), Reply::Int(token));
    assert!(a.holder("lock").lease_left > 100_000);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_release_hands_the_lock_over_above_the_memory_limit() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("CONFIG SET maxmemory 1");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_new_waiter_takes_as_much_memory_as_the_docs_say() {
    const COUNT: i64 = 100;
    let server = Server::start();
    let (of_connection, of_wait) = of_connection_and_wait(&server);
    let mut a = server.client();
    // By default, the server shortens the reply buffer of an idle client after a second. On a busy machine, the
    // measurement may take longer.
    assert_eq!(a.call("DEBUG REPLYBUFFER RESIZING 0"), Reply::ok());
    a.acquire("lock A PX 600000");
    let before = a.stat("memory", "used_memory");
    let mut clients: Vec<Client> = (0..COUNT).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call("PING"), Reply::Simple("PONG".into())));
    let connected = a.stat("memory", "used_memory");
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask(&format!("lock owner-{number} BLOCK 0"));
    }
    a.see_blocked(COUNT);
    let waiting = a.stat("memory", "used_memory");
    // Allocators round sizes up differently, so a measured value may be up to a tenth below the documented value.
    let bounds = |told: i64| told * 9 / 10..=told;
    let measured = ((connected - before) / COUNT, (waiting - connected) / COUNT);
    assert!(bounds(of_connection).contains(&measured.0), "a connection: {measured:?}");
    assert!(bounds(of_wait).contains(&measured.1), "a wait: {measured:?}");
}

#[test]
fn waiters_evict_no_data_if_maxmemory_leaves_room_for_them() {
    const CONNECTIONS: usize = 120;
    const WAITERS: usize = 50;
    let (server, mut a) = with_data(WAITERS);
    let (of_connection, of_wait) = of_connection_and_wait(&server);
    leave_room(&mut a, CONNECTIONS as i64 * of_connection + WAITERS as i64 * of_wait + 100_000);
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| server.client()).collect();
    let (waiters, others) = clients.split_at_mut(WAITERS);
    for (number, client) in waiters.iter_mut().enumerate() {
        client.ask(&format!("lock owner-{number} BLOCK 0"));
    }
    a.see_blocked(WAITERS as i64);
    for client in others {
        assert_eq!(client.call("LOCK.ACQUIRE lock other BLOCK 0").error_word(), "MAXWAITERS");
    }
    assert_eq!(a.stat("stats", "evicted_keys"), 0);
    assert_eq!(a.call("SET more value"), Reply::ok());
}

#[test]
fn waiters_evict_data_if_maxmemory_leaves_no_room_for_them() {
    const WAITERS: usize = 100;
    let (server, mut a) = with_data(WAITERS);
    leave_room(&mut a, WAITERS as i64 * 20_000);
    let _clients: Vec<Client> = (0..WAITERS)
        .map(|number| {
            let mut client = server.client();
            client.ask(&format!("lock owner-{number} BLOCK 0"));
            client
        })
        .collect();
    eventually("data is evicted", || a.stat("stats", "evicted_keys") > 0);
    eventually("writes are refused", || {
        let reply = a.call("SET more value");
        reply != Reply::ok() && reply.error_word() == "OOM"
    });
}

#[test]
fn released_locks_free_their_memory() {
    let server = Server::start();
    let mut a = server.client();
    let mut churn = |from: usize| {
        for batch in 0..20 {
            let keys: Vec<String> = (0..500).map(|number| format!("{from}-{batch}-{number}")).collect();
            a.call_all(keys.iter().map(|key| format!("LOCK.ACQUIRE lock-{key} A")));
            a.call_all(keys.iter().map(|key| format!("LOCK.RELEASE lock-{key} A")));
        }
        a.stat("memory", "used_memory")
    };
    let before = churn(0);
    let after = (1..4).map(&mut churn).last().unwrap();
    assert!(after < before + 200_000, "{before} bytes grew to {after}");
}
