//! LOCK.GUARD: the guarded command runs only if the token is the token of a present holder.

use lockward_tests::{Client, Cluster, ReplicationStream, Reply, Sent, Server, Setup, eventually};
use std::thread;

/// A server on which A holds `lock`. Also returns a client and A's token.
fn held() -> (Server, Client, i64) {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("lock A PX 600000").token;
    (server, client, token)
}

/// The names of commands, in upper case.
fn names(commands: &[Sent]) -> Vec<String> {
    commands.iter().map(|words| String::from_utf8_lossy(&words[0]).to_uppercase()).collect()
}

/// Shortens the lease of `owner`, and waits until the lease is over. No lock command runs afterwards, so the module has
/// not removed the holder yet.
fn end_lease(client: &mut Client, owner: &str) {
    client.call(format!("LOCK.RENEW lock {owner} PX 1"));
    eventually("the lease is over", || client.call("PTTL lock").int() < 0);
}

#[test]
fn a_command_runs_with_the_token_of_the_holder() {
    let (_server, mut client, token) = held();
    assert_eq!(client.call(format!("LOCK.GUARD lock {token}")), Reply::ok());
    assert_eq!(client.call(format!("lock.guard lock {token} SET data 1")), Reply::ok());
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} incr data")), Reply::Int(2));
    assert_eq!(client.holder("lock").tenure(), ("A", 1, token));
}

#[test]
fn a_command_with_another_token_does_not_run_and_the_error_contains_the_present_token() {
    let (_server, mut client, token) = held();
    for other in [1, token - 1, token + 1, (1 << 53) - 1] {
        let refused = client.call(format!("LOCK.GUARD lock {other} SET data 1"));
        assert_eq!(refused.error(), format!("FENCED the lock is held with token {token}"));
        assert_eq!(client.call(format!("LOCK.GUARD lock {other}")), refused);
    }
    let free = client.call(format!("LOCK.GUARD other {token} SET data 1"));
    assert_eq!(free.error(), "FENCED the lock is free");
    assert_eq!(client.call("EXISTS data"), Reply::Int(0));
}

#[test]
fn the_token_of_a_tenure_that_is_over_is_fenced() {
    let (_server, mut client, token) = held();
    let guarded = format!("LOCK.GUARD lock {token} SET data 1");
    client.call("LOCK.RELEASE lock A");
    assert_eq!(client.call(&*guarded).error(), "FENCED the lock is free");
    let next = client.acquire("lock A PX 600000").token;
    assert_eq!(client.call(&*guarded).error(), format!("FENCED the lock is held with token {next}"));
    client.call("DEL lock");
    assert_eq!(client.call(format!("LOCK.GUARD lock {next}")).error(), "FENCED the lock is free");
    let last = client.acquire("lock A PX 600000").token;
    end_lease(&mut client, "A");
    assert_eq!(client.call(format!("LOCK.GUARD lock {last}")).error(), "FENCED the lock is free");
    assert_eq!(client.call("EXISTS data"), Reply::Int(0));
}

#[test]
fn every_holder_of_a_shared_lock_passes_and_the_error_contains_the_largest_token() {
    let server = Server::start();
    let mut client = server.client();
    let [first, second, third] =
        ["A", "B", "C"].map(|owner| client.acquire(&format!("lock {owner} SHARED PX 600000")).token);
    for token in [first, second, third] {
        assert_eq!(client.call(format!("LOCK.GUARD lock {token}")), Reply::ok());
    }
    let told = |client: &mut Client| client.call("LOCK.GUARD lock 1").error().to_owned();
    assert_eq!(told(&mut client), format!("FENCED the lock is held with token {third}"));
    client.call("LOCK.RENEW lock C PX 1");
    eventually("the lease of C is over", || {
        told(&mut client) == format!("FENCED the lock is held with token {second}")
    });
    assert_eq!(client.call(format!("LOCK.GUARD lock {third}")).error_word(), "FENCED");
}

#[test]
fn the_error_contains_a_present_token_although_thousands_of_later_leases_are_over() {
    let server = Server::start();
    let mut client = server.client();
    let first = client.acquire("lock first SHARED PX 600000").token;
    client.call_all((0..4_200).map(|number| format!("LOCK.ACQUIRE lock {number} SHARED PX 1")));
    eventually("the later leases are over", || {
        client.call("LOCK.GUARD lock 1").error() == format!("FENCED the lock is held with token {first}")
    });
}

#[test]
fn a_writer_that_was_downgraded_passes() {
    let (_server, mut client, token) = held();
    client.call("LOCK.RENEW lock A SHARED PX 600000");
    client.acquire("lock B SHARED PX 600000");
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SET data 1")), Reply::ok());
}

#[test]
fn bad_requests_are_errors_and_run_nothing() {
    let (_server, mut client, token) = held();
    client.call("SET text 1");
    for (request, error) in [
        ("LOCK.GUARD".into(), "ERR wrong number of arguments for 'lock.guard' command"),
        ("LOCK.GUARD lock".into(), "ERR wrong number of arguments for 'lock.guard' command"),
        ("LOCK.GUARD lock one SET data 1".into(), "ERR value is not an integer or out of range"),
        ("LOCK.GUARD lock 0 SET data 1".into(), "ERR TOKEN is out of range"),
        ("LOCK.GUARD lock -1 SET data 1".into(), "ERR TOKEN is out of range"),
        ("LOCK.GUARD lock 9007199254740992".into(), "ERR TOKEN is out of range"),
        (
            "LOCK.GUARD text 1 SET data 1".into(),
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        (format!("LOCK.GUARD lock {token} LOCK.RELEASE lock A"), "ERR LOCK.GUARD cannot run LOCK commands"),
        (format!("LOCK.GUARD lock {token} lock._apply lock x"), "ERR LOCK.GUARD cannot run LOCK commands"),
        (
            format!("LOCK.GUARD lock {token} Lock.Guard lock {token}"),
            "ERR LOCK.GUARD cannot run LOCK commands",
        ),
        (format!("LOCK.GUARD lock {token} SET data"), "ERR wrong number of arguments for 'set' command"),
    ] {
        assert_eq!(client.call(&*request).error(), error, "{request}");
    }
    let token = token.to_string();
    for name in [&b"SET\0"[..], b"", b"set\r\n", b"\xff"] {
        let refused = client.call([b"LOCK.GUARD".as_slice(), b"lock", token.as_bytes(), name, b"data", b"1"]);
        assert!(refused.error().starts_with("ERR unknown command"), "{refused:?}");
    }
    assert_eq!((client.call("EXISTS data"), client.info("lock").is_some()), (Reply::Int(0), true));
}

#[test]
fn commands_that_the_server_refuses_in_scripts_are_refused() {
    let (_server, mut client, token) = held();
    for command in ["SUBSCRIBE channel", "MULTI", "EVAL return 0", "CLIENT ID", "HELLO 3", "SHUTDOWN NOSAVE"]
    {
        let refused = client.call(format!("LOCK.GUARD lock {token} {command}"));
        assert_eq!(refused.error_word(), "ERR", "{command}");
    }
    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn a_command_replies_as_without_a_guard() {
    let (server, mut client, token) = held();
    client.call_all([
        "RPUSH list a b c",
        "HSET hash field value other 1",
        "SET text value",
        "ZADD zset 1.5 a 2 b",
    ]);
    for mut client in [server.client(), server.client3()] {
        for command in [
            "GET text",
            "GET nothing",
            "LRANGE list 0 -1",
            "HGETALL hash",
            "HGET hash nothing",
            "SMEMBERS nothing",
            "ZSCORE zset a",
            "ZRANGE zset 0 -1 WITHSCORES",
            "INCR text",
            "LPUSH text a",
            "OBJECT ENCODING text",
            "XRANGE nothing - +",
            "SCAN 0 MATCH nothing",
            "SETNX text other",
            "PTTL nothing",
            "EXISTS text list",
            "GETRANGE text 0 2",
            "COMMAND COUNT",
            "ECHO hello",
            "NOSUCH a b",
            "GET",
            "MGET text nothing list",
        ] {
            let plain = client.call(command);
            assert_eq!(client.call(format!("LOCK.GUARD lock {token} {command}")), plain, "{command}");
        }
    }
}

#[test]
fn a_blocking_command_does_not_block() {
    let (_server, mut client, token) = held();
    for command in ["XREAD BLOCK 0 STREAMS stream $", "BLPOP list 0"] {
        let reply = client.call(format!("LOCK.GUARD lock {token} {command}"));
        // Redis 7.0 refuses some blocking commands with an error, as in a script.
        assert!(
            matches!(reply, Reply::Null | Reply::NullArray | Reply::Int(0) | Reply::Error(_)),
            "{reply:?}"
        );
    }
}

#[test]
fn select_does_not_change_the_database_of_the_client() {
    let (_server, mut client, token) = held();
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SELECT 1")), Reply::ok());
    client.call("SET data 1");
    let script = "redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'SELECT', 1) return redis.call('INCR', KEYS[2])";
    assert_eq!(client.call(["EVAL", script, "2", "lock", "data", &token.to_string()]), Reply::Int(2));
    assert_eq!(client.holder("lock").tenure(), ("A", 1, token));
}

#[test]
fn wait_and_waitaof_are_refused() {
    let (_server, mut client, token) = held();
    let refused = "ERR LOCK.GUARD cannot run WAIT and WAITAOF";
    for command in ["WAIT 0 0", "wait 1 0", "WAITAOF 0 0 0"] {
        let call = format!("LOCK.GUARD lock {token} {command}");
        assert_eq!(client.call(call.as_str()).error(), refused, "{command}");
        let [in_transaction] = client.transact([&call]);
        assert_eq!(in_transaction.error(), refused, "{command}");
        // In a script, the module must refuse WAIT and WAITAOF without calling them, because Valkey aborts when a
        // module calls them in a script.
        let words = call.split(' ').map(|word| format!("'{word}'")).collect::<Vec<_>>().join(",");
        let in_script = client.call(["EVAL", &format!("return redis.pcall({words})"), "0"]);
        assert!(in_script.error().starts_with(refused), "{command}: {in_script:?}");
    }
}

#[test]
fn only_the_effects_of_the_command_are_replicated() {
    let (server, mut client, token) = held();
    let mut stream = ReplicationStream::attach(&server);
    for command in
        ["", " SET data 1", " GET data", " EXPIRE data 600", " INCRBYFLOAT data 0.5", " PING", " NOSUCH"]
    {
        client.call(format!("LOCK.GUARD lock {token}{command}"));
    }
    client.call("LOCK.GUARD lock 1 SET data 2");
    let sent = names(&stream.commands(&mut client));
    assert_eq!(sent, ["SET", "PEXPIREAT", "SET"]);
}

#[test]
fn a_replica_refuses_a_guard_and_gets_the_data() {
    let (primary, mut client, token) = held();
    let replica = Server::start_replica_of(&primary);
    client.call(format!("LOCK.GUARD lock {token} SET data 1"));
    replica.see_in_sync_with(&primary);
    let mut reader = replica.client();
    assert_eq!(reader.call("GET data"), Reply::bulk("1"));
    assert_eq!(reader.call(format!("LOCK.GUARD lock {token} GET data")).error_word(), "READONLY");
    reader.call("CONFIG SET replica-read-only no");
    assert_eq!(reader.call(format!("LOCK.GUARD lock {token} GET data")).error_word(), "READONLY");
    let mut promoted = replica.promote();
    assert_eq!(promoted.call(format!("LOCK.GUARD lock {token} GET data")), Reply::bulk("1"));
}

#[test]
fn a_guard_waits_while_writes_are_paused() {
    let (server, mut client, token) = held();
    let mut admin = server.client();
    admin.call("CLIENT PAUSE 600000 WRITE");
    client.send(format!("LOCK.GUARD lock {token} GET data"));
    assert!(client.has_no_reply());
    admin.call("CLIENT UNPAUSE");
    assert!(client.reply().is_null());
}

#[test]
fn a_command_runs_with_the_rights_of_its_client() {
    let (server, mut admin, token) = held();
    let rules =
        "ACL SETUSER worker on >secret resetkeys %R~lock ~data +lock.guard +set +publish resetchannels";
    assert_eq!(admin.call(rules), Reply::ok());
    let mut client = server.client();
    client.call("AUTH worker secret");
    let mut guarded = |command: &str| client.call(format!("LOCK.GUARD lock {token} {command}"));
    assert_eq!(guarded("SET data 1"), Reply::ok());
    for command in ["SET other 1", "GET data", "PUBLISH channel hello"] {
        let refused = guarded(command);
        assert_eq!(refused.error_word(), "NOPERM", "{command}: {refused:?}");
    }
    // For LOCK.GUARD itself, the user needs only the right to read the lock's key. This right is not enough
    // for a guarded command that writes this key.
    assert_eq!(guarded("SET lock 1").error_word(), "NOPERM");
    let other = client.call(format!("LOCK.GUARD data {token} SET lock 1"));
    assert_eq!(other.error_word(), "NOPERM");
    admin.call("ACL SETUSER worker resetkeys ~data");
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SET data 2")).error_word(), "NOPERM");
    assert_eq!(admin.call("GET data"), Reply::bulk("1"));
}

/// From Redis 8.4 on, several I/O threads and the main thread ask the module for the keys of a command, and may ask at
/// the same time.
#[test]
fn the_rights_to_a_guarded_command_do_not_depend_on_the_thread_that_reads_it() {
    let server = Setup::new().config("io-threads 4").start();
    let mut admin = server.client();
    let token = admin.acquire("lock A PX 600000").token;
    admin.call("ACL SETUSER reader on nopass +@all %R~lock ~data*");
    admin.call("ACL SETUSER stranger on nopass +@all ~data*");
    let commands = [
        "SET data 1",
        "GET data",
        "MSET data 1 data2 2",
        "TTL data",
        "STRLEN data",
        "EXISTS data data2",
        "SADD data3 x",
        "SUNIONSTORE data4 data3",
        "ZADD data5 1 x",
        "XLEN data6",
        "PFADD data7 x",
        "HGET data8 x",
    ];
    let call_as = |user: &str, from: usize, judge: fn(&Reply) -> bool| {
        let mut client = server.client();
        client.call(["AUTH", user, ""]);
        for round in 0..40 {
            let guarded = (0..24).map(|number| commands[(from + round + number) % commands.len()]);
            let replies =
                client.call_all(guarded.map(|command| format!("LOCK.GUARD lock {token} {command}")));
            assert!(replies.iter().all(judge), "{user}: {replies:?}");
        }
    };
    thread::scope(|scope| {
        for from in 0..4 {
            let call_as = &call_as;
            scope.spawn(move || call_as("reader", from, |reply| !matches!(reply, Reply::Error(_))));
            scope.spawn(move || {
                call_as("stranger", from, |reply| {
                    matches!(reply, Reply::Error(_)) && reply.error_word() == "NOPERM"
                });
            });
        }
        for pair in 0..2 {
            let mut client = server.client();
            scope.spawn(move || {
                for _ in 0..40 {
                    let acquire = format!("LOCK.ACQUIRE free{pair} B");
                    let replies = client.call_all([acquire, format!("LOCK.RELEASE free{pair} B")]);
                    assert_eq!(replies[1], Reply::Int(0));
                }
            });
        }
    });
}

#[test]
fn a_command_that_needs_memory_is_refused_at_maxmemory() {
    let (_server, mut client, token) = held();
    client.call("SET data 1");
    client.call("CONFIG SET maxmemory 1");
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SET data 2")).error_word(), "OOM");
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} GET data")), Reply::bulk("1"));
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} DEL data")), Reply::Int(1));
}

#[test]
fn a_write_is_refused_while_replicas_are_missing() {
    let (_server, mut client, token) = held();
    client.call("CONFIG SET min-replicas-to-write 1");
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SET data 1")).error_word(), "NOREPLICAS");
}

#[test]
fn a_command_may_end_the_guarded_lock() {
    for command in ["DEL lock", "SET lock text", "RENAME lock other", "FLUSHALL", "EXPIRE lock 0"] {
        let (server, mut client, token) = held();
        let mut waiter = server.waiter("lock B PX 600000 BLOCK 0");
        let reply = client.call(format!("LOCK.GUARD lock {token} {command}"));
        assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
        let answer = waiter.reply();
        assert_eq!(matches!(answer, Reply::Error(_)), command.starts_with("SET"), "{command}: {answer:?}");
        let after = client.call(format!("LOCK.GUARD lock {token}"));
        assert!(["FENCED", "WRONGTYPE"].contains(&after.error_word()), "{command}: {after:?}");
    }
}

#[test]
fn a_guard_ends_no_lease_and_serves_no_waiter() {
    let (server, mut client, token) = held();
    let mut stream = ReplicationStream::attach(&server);
    end_lease(&mut client, "A");
    stream.commands(&mut client);
    client.call(format!("LOCK.GUARD lock {token}"));
    let sent = stream.commands(&mut client);
    // The server deletes the key when its TTL is over, and replicates this DEL. The guard must replicate nothing.
    let sent = names(&sent);
    assert!(sent.iter().all(|name| name == "DEL"), "{sent:?}");
}

#[test]
fn an_evicted_lock_still_guards() {
    let (_server, mut client, token) = held();
    client.evict("lock");
    assert_eq!(client.call("EXISTS lock"), Reply::Int(0));
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SET data 1")), Reply::ok());
    let refused = client.call("LOCK.GUARD lock 1 SET data 2");
    assert_eq!(refused.error(), format!("FENCED the lock is held with token {token}"));
}

#[test]
fn a_refused_guard_in_a_transaction_fails_alone() {
    let (_server, mut client, token) = held();
    let guarded = format!("LOCK.GUARD lock {token} SET data 1");
    let [first, released, second, last] =
        client.transact([&guarded, "LOCK.RELEASE lock A", &guarded, "SET other 1"]);
    assert_eq!((first, released, last), (Reply::ok(), Reply::Int(0), Reply::ok()));
    assert_eq!(second.error_word(), "FENCED");
}

#[test]
fn one_guard_protects_the_later_commands_of_a_script() {
    let (_server, mut client, token) = held();
    let script = "redis.call('LOCK.GUARD', KEYS[1], ARGV[1]) return redis.call('SET', KEYS[2], ARGV[2])";
    let run = |client: &mut Client, token: i64, value: &str| {
        client.call(["EVAL", script, "2", "lock", "data", &token.to_string(), value])
    };
    assert_eq!(run(&mut client, token, "1"), Reply::ok());
    assert!(run(&mut client, 1, "2").error().contains("FENCED the lock is held with token"));
    assert_eq!(client.call("GET data"), Reply::bulk("1"));
    let inside = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'SET', KEYS[2], ARGV[2])";
    let inner = client.call(["EVAL", inside, "2", "lock", "data", &token.to_string(), "3"]);
    assert_eq!((inner, client.call("GET data")), (Reply::ok(), Reply::bulk("3")));
    let read_only = client.call(["EVAL_RO", script, "2", "lock", "data", &token.to_string(), "4"]);
    assert!(read_only.error().contains("read-only script"), "{read_only:?}");
}

/// A script that sets a lease of 1 ms, runs for much longer, and then uses and reads the lock.
const SLOW: &str = "redis.call('LOCK.RENEW', KEYS[1], 'A', 'PX', 1)
    local began, now = redis.call('TIME')
    repeat now = redis.call('TIME')
    until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 20000
    redis.call('LOCK.GUARD', KEYS[1], ARGV[1])
    return redis.call('LOCK.INFO', KEYS[1])";

#[test]
fn no_lease_ends_while_a_script_runs() {
    let (_server, mut client, token) = held();
    let info = client.call(["EVAL", SLOW, "1", "lock", &token.to_string()]);
    assert_eq!(info.info().holders.len(), 1, "{info:?}");
    assert_eq!(client.call(format!("LOCK.GUARD lock {token}")).error(), "FENCED the lock is free");
}

#[test]
fn no_lease_ends_while_a_transaction_runs() {
    let (_server, mut client, token) = held();
    let work = "local began = redis.call('TIME') local now repeat now = redis.call('TIME') \
                until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 20000";
    client.call("MULTI");
    client.call("LOCK.RENEW lock A PX 1");
    client.call(["EVAL", work, "0"]);
    client.call(format!("LOCK.GUARD lock {token} SET data 1"));
    client.call("LOCK.ACQUIRE lock B");
    let replies = client.call("EXEC");
    let [renewed, _, set, busy] = replies.items() else { panic!("{replies:?}") };
    assert_eq!((renewed, set, busy), (&Reply::Int(token), &Reply::ok(), &Reply::NullArray));
    let [after] = client.transact([&format!("LOCK.GUARD lock {token}")]);
    assert_eq!(after.error(), "FENCED the lock is free", "the lease has not ended for the next transaction");
}

/// CLIENT PAUSE holds two transactions back. After the pause, the server runs both in one iteration of the event loop.
#[test]
fn a_transaction_that_was_paused_does_not_take_the_time_of_an_earlier_transaction() {
    let server = Server::start();
    let mut admin = server.client();
    let (mut slow, mut later) = (server.client(), server.client());
    slow.call("MULTI");
    slow.call("LOCK.ACQUIRE other A");
    slow.call("DEBUG SLEEP 0.3");
    later.call("MULTI");
    later.call("LOCK.ACQUIRE lock B PX 200");
    later.call("LOCK.INFO lock");
    assert_eq!(admin.call("CLIENT PAUSE 600000 WRITE"), Reply::ok());
    for (client, waiting) in [(&mut slow, 1), (&mut later, 2)] {
        client.send("EXEC");
        eventually("the transaction waits", || {
            admin.call("CLIENT LIST").text().matches("cmd=exec").count() == waiting
        });
    }
    assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
    let replies = later.reply();
    let [granted, info] = replies.items() else { panic!("{replies:?}") };
    assert_eq!(granted.grant().holds, 1);
    assert_eq!(info.info().holders[0].owner, "B", "the lease ended while the transaction ran");
}

#[test]
fn each_command_outside_of_a_transaction_reads_the_clock_itself() {
    let (_server, mut client, token) = held();
    let [renewed] = client.transact(["LOCK.RENEW lock A PX 1"]);
    assert_eq!(renewed, Reply::Int(token));
    eventually("the lease is over", || client.call(format!("LOCK.GUARD lock {token}")) != Reply::ok());
}

#[test]
fn the_keys_of_the_inner_command_are_those_of_the_guard() {
    let (_server, mut client, token) = held();
    let keys = |client: &mut Client, command: &str| {
        client.call(format!("COMMAND GETKEYSANDFLAGS LOCK.GUARD lock {token} {command}"))
    };
    let read =
        |flags: &[&str]| Reply::Array(flags.iter().map(|flag| Reply::Simple((*flag).into())).collect());
    let key = |name: &str, flags: &[&str]| Reply::Array(vec![Reply::bulk(name), read(flags)]);
    let lock = || key("lock", &["RO", "access"]);
    assert_eq!(keys(&mut client, ""), Reply::Array(vec![lock()]));
    let copied = [lock(), key("a", &["RO", "access"]), key("b", &["OW", "update"])];
    assert_eq!(keys(&mut client, "COPY a b"), Reply::Array(copied.into()));
    let many: Vec<String> = (0..1_000).map(|number| format!("key{number} value")).collect();
    assert_eq!(keys(&mut client, &format!("MSET {}", many.join(" "))).items().len(), 1_001);
    for command in ["PING", "NOSUCH a b", "SET a", "LOCK.GUARD a 1 SET b c", "EVAL script 1"] {
        assert_eq!(keys(&mut client, command), Reply::Array(vec![lock()]), "{command}");
    }
    let nested = vec!["LOCK.GUARD lock 1"; 10_000].join(" ");
    assert_eq!(keys(&mut client, &nested), Reply::Array(vec![lock()]));
    assert!(client.call(format!("LOCK.GUARD lock {token} {nested}")).error().contains("cannot run LOCK"));
}

#[test]
fn in_a_cluster_all_keys_must_be_in_one_slot() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let (key, data) = ("{tag}lock", "{tag}data");
    let (owner, other) = cluster.owner_and_other(key);
    let mut client = owner.client();
    let token = client.acquire(&format!("{key} A PX 600000")).token;
    assert_eq!(client.call(format!("LOCK.GUARD {key} {token} SET {data} 1")), Reply::ok());
    let elsewhere = client.call(format!("LOCK.GUARD {key} {token} SET other 1"));
    assert_eq!(elsewhere.error_word(), "CROSSSLOT");
    let moved = other.client().call(format!("LOCK.GUARD {key} {token} SET {data} 2"));
    assert_eq!(moved.error_word(), "MOVED");
}

/// If a guarded command wrote to another slot, it would damage the data of Redis from 7.4 on, and of Valkey.
#[test]
fn in_a_cluster_without_command_all_keys_must_still_be_in_one_slot() {
    let cluster = Cluster::start_primaries(Setup::new().config("rename-command COMMAND \"\""), 1);
    let mut client = cluster.nodes()[0].client();
    let token = client.acquire("{tag}lock A PX 600000").token;
    assert_eq!(client.call(format!("LOCK.GUARD {{tag}}lock {token} SET {{tag}}data 1")), Reply::ok());
    let elsewhere = client.call(format!("LOCK.GUARD {{tag}}lock {token} SET other 1"));
    assert_eq!(elsewhere.error_word(), "CROSSSLOT");
}

#[test]
fn a_blocking_command_of_another_module_is_refused() {
    let server = Setup::new().beside_another().start();
    let mut client = server.client();
    let token = client.acquire("lock A PX 600000").token;
    // EMPTY.WAIT_UNFLAGGED blocks without the flag `blocking`. In a script, such a command aborts Redis 7.0, so the
    // test leaves EMPTY.WAIT_UNFLAGGED out on Redis 7.0.
    let blocking =
        if server.has_redis(7, 2) { &["EMPTY.WAIT", "EMPTY.WAIT_UNFLAGGED"][..] } else { &["EMPTY.WAIT"] };
    for command in blocking {
        let refused = client.call(format!("LOCK.GUARD lock {token} {command} line"));
        assert_eq!(
            refused.error(),
            "ERR LOCK.GUARD cannot run a command of a module that blocks",
            "{command}"
        );
    }
    let [inside] = client.transact([&format!("LOCK.GUARD lock {token} EMPTY.WAIT line")]);
    assert_eq!(inside.error_word(), "ERR", "{inside:?}");
    blocking.iter().for_each(|_| _ = client.call("EMPTY.UNBLOCK line"));
    let taken = client.call(format!("LOCK.GUARD lock {token} EMPTY.ACQUIRE value"));
    assert_eq!(taken.items().len(), 3, "{taken:?}");
}

/// Without COMMAND, Lockward does not know which commands block. The test guards no blocking command on Redis 7.0,
/// because Redis 7.0 crashes if a module calls a blocking command of another module.
#[test]
fn a_blocking_command_of_another_module_is_refused_without_command_too() {
    let server = Setup::new().beside_another().config("rename-command COMMAND \"\"").start();
    let mut client = server.client();
    let token = client.acquire("lock A PX 600000").token;
    if server.has_redis(7, 2) {
        let refused = client.call(format!("LOCK.GUARD lock {token} EMPTY.WAIT line"));
        assert_eq!(refused.error(), "ERR LOCK.GUARD cannot run a command of a module that blocks");
        client.call("EMPTY.UNBLOCK line");
    }
    assert_eq!(client.call(format!("LOCK.GUARD lock {token} SET data 1")), Reply::ok());
}

#[test]
fn statistics_and_monitor_show_the_guard_and_the_command() {
    let (server, mut client, token) = held();
    let mut monitor = server.client();
    assert_eq!(monitor.call("MONITOR"), Reply::ok());
    client.call(format!("LOCK.GUARD lock {token} SET data 1"));
    client.call("PING");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|line: &String| !line.contains("PING")) {
        seen.push(monitor.reply().text());
    }
    assert!(seen.iter().any(|line| line.contains("LOCK.GUARD")), "{seen:?}");
    let stats = client.call("INFO commandstats").text();
    assert!(stats.contains("cmdstat_lock.guard:calls=1") && stats.contains("cmdstat_set:calls=1"), "{stats}");
}

#[test]
fn a_guard_works_in_a_function_and_appears_in_the_slow_log() {
    let (_server, mut client, token) = held();
    let library = "#!lua name=guarded\nredis.register_function('write', function(keys, args) \
                   return redis.call('LOCK.GUARD', keys[1], args[1], 'SET', keys[2], args[2]) end)";
    client.call(["FUNCTION", "LOAD", library]);
    client.call("CONFIG SET slowlog-log-slower-than 0");
    let call = |client: &mut Client, token: i64| client.call(format!("FCALL write 2 lock data {token} 1"));
    assert_eq!(call(&mut client, token), Reply::ok());
    assert!(call(&mut client, 1).error().contains("FENCED"));
    client.call(format!("LOCK.GUARD lock {token} GET data"));
    let log = format!("{:?}", client.call("SLOWLOG GET 10"));
    assert!(log.contains("LOCK.GUARD"), "{log}");
}

#[test]
fn data_that_looks_like_an_error_is_data() {
    let (_server, mut client, token) = held();
    let token = token.to_string();
    for text in
        ["ERR cannot run as user", "ERR acl verification failed, can't run this command or subcommand."]
    {
        client.call(["SET", "data", text]);
        let old = client.call(["LOCK.GUARD", "lock", &token, "GETSET", "data", "new"]);
        assert_eq!(old, Reply::bulk(text));
    }
}
