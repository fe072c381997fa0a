//! Servers that break the protocol, are silent, or change at a bad moment.

use crate::{LONG, calls, client_with, granted, soon, url};
use lockward_client::redis::cmd;
use lockward_client::{Client, Error, Limit, Settings};
use lockward_tests::{Fate, Listener, Proxy, Reply, Sentinels, Server, decode, eventually};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// Replies that no lock command has: other types, numbers out of range, lists that never end, and text that is not
/// RESP.
const STRANGE: [&[u8]; 24] = [
    b"+OK\r\n",
    b":7\r\n",
    b":-7\r\n",
    b":9223372036854775807\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",nan\r\n",
    b"(3492890328409238509324850943850943825024385\r\n",
    b"$0\r\n\r\n",
    b"$3\r\n\xff\0\xfe\r\n",
    b"*0\r\n",
    b"*1\r\n:7\r\n",
    b"*3\r\n:-7\r\n:1\r\n:30000\r\n",
    b"*3\r\n:7\r\n:1\r\n:0\r\n",
    b"*3\r\n:7\r\n:1\r\n:-1\r\n",
    b"*3\r\n:7\r\n:1\r\n:9223372036854775807\r\n",
    b"*3\r\n$20\r\n18446744073709551615\r\n:1\r\n$20\r\n18446744073709551615\r\n",
    b"%1\r\n+token\r\n:7\r\n",
    b"-\r\n",
    b"-ERR invalid expire time in 'lock.acquire' command: at most 0 (lock.max-lease)\r\n",
    b"-MOVED here there\r\n",
    b"*2147483647\r\n:1\r\n",
    b"$9223372036854775807\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
];

/// Accepts connections, and answers each command with `reply`, which gets the words of the command. If `reply` returns
/// no bytes, the client gets no answer.
fn play(reply: impl FnMut(&[String]) -> Vec<u8> + Send + 'static) -> Listener {
    let reply = Arc::new(Mutex::new(reply));
    Listener::start(move |stream| {
        let reply = Arc::clone(&reply);
        std::thread::spawn(move || serve(stream, |words| (*reply.lock().expect("no panic"))(words)));
    })
}

fn serve(mut stream: TcpStream, mut reply: impl FnMut(&[String]) -> Vec<u8>) -> Option<()> {
    stream.set_nodelay(true).ok()?; // Otherwise the second reply may wait 40 ms for the client's acknowledgement.
    let mut unread = Vec::new();
    let mut bytes = [0; 4_096];
    loop {
        while let Some((Reply::Array(words), length)) = decode(&unread).ok()? {
            unread.drain(..length);
            let words: Vec<String> = words.iter().map(Reply::text).collect();
            let answer = match &*words[0] {
                "HELLO" => b"%0\r\n".to_vec(),
                "CLIENT" => b"+OK\r\n".to_vec(),
                _ => reply(&words),
            };
            stream.write_all(&answer).ok()?;
        }
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        unread.extend_from_slice(&bytes[..count]);
    }
}

/// The panics in the client's own code and in the crates that the client uses.
fn count_panics() -> &'static AtomicU64 {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.location().is_some_and(|at| !at.file().contains("tests")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            earlier(panic);
        }));
    });
    &PANICS
}

fn hasty() -> Settings {
    Settings::default().patience(Duration::from_millis(300)).response_limit(Duration::from_millis(100))
}

/// Acquires locks, and calls the methods of their guards. The results do not matter.
async fn use_lock(client: &Client) {
    let lock = client.lock("k").lease(Duration::from_secs(2)).wait(Duration::from_millis(300));
    let _ = soon(client.lock("k").try_acquire()).await;
    let _ = soon(lock.clone().replicas(1, Duration::from_millis(50)).acquire()).await;
    if let Ok(guard) = soon(lock.acquire()).await {
        let _ = soon(guard.guarded::<String>(cmd("GET").arg("k"))).await;
        let _ = soon(guard.renew()).await;
        let _ = soon(guard.downgrade(Limit::Shared)).await;
        let _ = soon(guard.release()).await;
    }
    soon(client.close()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strange_replies_cause_no_panic_and_end_each_call() {
    let panics = count_panics();
    let grant = b"*3\r\n:7\r\n:1\r\n:2000\r\n".to_vec();
    let cases = STRANGE.iter().flat_map(|strange| {
        let commands = ["LOCK.ACQUIRE", "BLOCK", "LOCK.RENEW", "LOCK.GUARD", "LOCK.RELEASE", "WAIT"];
        commands.map(|command| (*strange, command, grant.clone()))
    });
    let played = cases.map(|(strange, command, grant)| async move {
        let server = play(move |words| match &*words[0] {
            name if name == command => strange.to_vec(),
            "LOCK.ACQUIRE" if words.iter().any(|word| word == "BLOCK") => {
                if command == "BLOCK" {
                    strange.to_vec()
                } else {
                    grant.clone()
                }
            }
            "LOCK.ACQUIRE" if command == "BLOCK" => b"_\r\n".to_vec(),
            "LOCK.ACQUIRE" => grant.clone(),
            "LOCK.RENEW" => b":7\r\n".to_vec(),
            "LOCK.RELEASE" => b":0\r\n".to_vec(),
            "WAIT" => b":1\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        });
        use_lock(&client_with(&url(server.port()), hasty())).await;
    });
    futures_util::future::join_all(played).await;
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_redirections_ends_with_the_patience() {
    for word in ["MOVED", "ASK"] {
        let asked = Arc::new(AtomicU64::new(0));
        let ports = Arc::new(Mutex::new(Vec::new()));
        let nodes = [0, 1].map(|number| {
            let (asked, ports) = (Arc::clone(&asked), Arc::clone(&ports));
            play(move |words| {
                if words[0] == "ASKING" {
                    return b"+OK\r\n".to_vec();
                }
                asked.fetch_add(1, Ordering::Relaxed);
                let ports = ports.lock().expect("no panic");
                let port: u16 = ports[1 - number];
                format!("-{word} 12706 127.0.0.1:{port}\r\n").into_bytes()
            })
        });
        *ports.lock().expect("no panic") = nodes.iter().map(Listener::port).collect();
        let address = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
        let client = client_with(&address, Settings::default().patience(Duration::from_secs(1)));
        let failed = soon(client.lock("k").try_acquire()).await;
        assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
        let asked = asked.load(Ordering::Relaxed);
        assert!(asked < 50, "{asked} requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirection_to_a_node_that_cannot_be_reached_is_no_answer() {
    let node = play(|words| match &*words[0] {
        "ASKING" => b"+OK\r\n".to_vec(),
        _ => b"-MOVED 12706 127.0.0.1:1\r\n".to_vec(),
    });
    let address = format!("redis+cluster://127.0.0.1:{}", node.port());
    let client = client_with(&address, Settings::default().patience(Duration::from_millis(500)));
    for lock in [client.lock("k"), client.lock("k").wait(Duration::from_millis(300))] {
        let failed = soon(lock.acquire()).await;
        assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_never_answers_ends_each_call_in_time() {
    let held = Mutex::new(Vec::new());
    let silent = Listener::start(move |stream| held.lock().expect("no panic").push(stream));
    let client = client_with(&url(silent.port()), hasty());
    let lock = client.lock("k");
    let failed = soon(lock.clone().try_acquire()).await.expect_err("an error");
    let address = format!("127.0.0.1:{}", silent.port());
    assert!(matches!(&failed, Error::Unreachable { cause, .. } if cause.contains(&address)), "{failed}");
    let failed = soon(lock.wait(Duration::from_millis(200)).acquire()).await;
    assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    let handle =
        r#"[[[{"key":[107],"owner":[109,101]},7,[{"limit":"Exclusive","weight":null}]]],30000,null,true]"#;
    let failed = soon(client.resume(handle)).await;
    assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    assert!(soon(client.close()).await, "nothing was sent, so there is nothing to release");
    // The Sentinel is silent, and the client knows no primary yet.
    let sentinels = format!("redis+sentinel://127.0.0.1:{}/locks", silent.port());
    let failed = soon(client_with(&sentinels, hasty()).lock("k").try_acquire()).await.expect_err("an error");
    assert!(matches!(&failed, Error::Unreachable { cause, .. } if cause.contains(&address)), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_the_connection_after_each_renewal_gets_few_renewals() {
    let renewals = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&renewals);
    let server = Listener::start(move |stream| {
        let (counted, mut closing) = (Arc::clone(&counted), stream.try_clone().expect("a stream"));
        std::thread::spawn(move || {
            serve(stream, |words| match &*words[0] {
                "LOCK.ACQUIRE" => b"*3\r\n:7\r\n:1\r\n:1000\r\n".to_vec(),
                "LOCK.RENEW" => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let sent = closing.write_all(b":7\r\n").and_then(|()| closing.shutdown(Shutdown::Both));
                    sent.map(|()| Vec::new()).unwrap_or_default()
                }
                _ => b":0\r\n".to_vec(),
            })
        });
    });
    let client = client_with(&url(server.port()), Settings::default());
    let lock = client.lock("k").lease(Duration::from_secs(1)).hold_limit(Duration::from_secs(3));
    let guard = lock.acquire().await.expect("a guard");
    soon(guard.lost()).await;
    let renewals = renewals.load(Ordering::Relaxed);
    assert!((3..200).contains(&renewals), "{renewals} renewals");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_block_gets_few_requests() {
    for is_granted in [false, true] {
        let waits = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&waits);
        let server = play(move |words| match &*words[0] {
            "LOCK.ACQUIRE" if words.iter().any(|word| word == "BLOCK") => {
                counted.fetch_add(1, Ordering::Relaxed);
                if is_granted { b"*3\r\n:7\r\n:1\r\n:3000\r\n".to_vec() } else { b"_\r\n".to_vec() }
            }
            "LOCK.ACQUIRE" => b"_\r\n".to_vec(),
            "LOCK.RENEW" => b"-NOTHELD the lock is free\r\n".to_vec(),
            _ => b":0\r\n".to_vec(),
        });
        let client = client_with(&url(server.port()), Settings::default());
        let waiter = tokio::spawn(client.lock("k").wait(LONG).acquire());
        eventually("the wait is repeated", || waits.load(Ordering::Relaxed) > 2);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let waits = waits.load(Ordering::Relaxed);
        assert!(waits < 10, "{waits} requests");
        waiter.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_keys_ask_for_replicas_once() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let server = play(move |words| {
        seen.lock().expect("no panic").push(words[0].clone());
        match &*words[0] {
            "LOCK.ACQUIRE" => b"*3\r\n:7\r\n:1\r\n:30000\r\n".to_vec(),
            "WAIT" => b":1\r\n".to_vec(),
            _ => b":0\r\n".to_vec(),
        }
    });
    let client = client_with(&url(server.port()), Settings::default());
    let lock = client.locks(["k", "l", "m"]).replicas(1, Duration::from_millis(100));
    let guard = lock.try_acquire().await.expect("a guard");
    let expected = ["LOCK.ACQUIRE", "LOCK.ACQUIRE", "LOCK.ACQUIRE", "WAIT"];
    assert_eq!(*requests.lock().expect("no panic"), expected);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_ask_after_another_redirection_is_followed_without_a_pause() {
    let ports = Arc::new(Mutex::new(Vec::new()));
    let nodes = [0, 1, 2].map(|number| {
        let (ports, mut is_asking) = (Arc::clone(&ports), false);
        play(move |words| {
            let port = |node: usize| -> u16 { ports.lock().expect("no panic")[node] };
            match (number, &*words[0]) {
                (0, _) => format!("-MOVED 12706 127.0.0.1:{}\r\n", port(1)).into_bytes(),
                (1, _) => format!("-ASK 12706 127.0.0.1:{}\r\n", port(2)).into_bytes(),
                (_, "ASKING") => {
                    is_asking = true;
                    b"+OK\r\n".to_vec()
                }
                (_, "LOCK.ACQUIRE") if is_asking => b"*3\r\n:7\r\n:1\r\n:30000\r\n".to_vec(),
                _ => b"-ERR unexpected\r\n".to_vec(),
            }
        })
    });
    *ports.lock().expect("no panic") = nodes.iter().map(Listener::port).collect();
    let address = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    // One of many calls must take less time than a pause, which takes at least 50 ms. The machine may be busy.
    let mut times = Vec::new();
    while times.iter().min() >= Some(&Duration::from_millis(45)) || times.is_empty() {
        assert!(times.len() < 50, "{times:?}");
        let client = client_with(&address, Settings::default());
        let begun = Instant::now();
        drop(client.lock("k").try_acquire().await.expect("a guard"));
        times.push(begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_have_left_a_cluster_are_forgotten() {
    let mut named = 0;
    let node = play(move |words| {
        if words[0] == "ASKING" {
            return b"+OK\r\n".to_vec();
        }
        named += 1;
        format!("-MOVED 12706 127.1.{}.{}:1\r\n", named / 256, named % 256).into_bytes()
    });
    let address = format!("redis+cluster://127.0.0.1:{}", node.port());
    let client = client_with(&address, Settings::default().patience(Duration::from_millis(300)));
    // Each known node has a task, which closes its idle connections.
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut most = 0;
    for callers in [300, 1] {
        let callers: Vec<_> = (0..callers).map(|_| tokio::spawn(client.lock("k").try_acquire())).collect();
        for caller in callers {
            let failed = soon(caller).await.expect("no panic");
            assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
        }
        most = most.max(tasks());
    }
    assert!(most > 100, "{most} tasks");
    eventually("few nodes are known", || tasks() < 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_without_a_reply_that_is_refused_later_keeps_the_lock() {
    for code in ["LIMIT", "ERR"] {
        let renewals = Arc::new(AtomicU64::new(0));
        let (counted, mut downgrades) = (Arc::clone(&renewals), 0);
        let server = play(move |words| match &*words[0] {
            "LOCK.ACQUIRE" => b"*3\r\n:7\r\n:1\r\n:1500\r\n".to_vec(),
            "LOCK.RENEW" if words.last().is_some_and(|slots| slots == "2") => {
                downgrades += 1;
                let refusal = format!("-{code} no\r\n").into_bytes();
                if downgrades == 1 { Vec::new() } else { refusal }
            }
            "LOCK.RENEW" => {
                counted.fetch_add(1, Ordering::Relaxed);
                b":7\r\n".to_vec()
            }
            _ => b":0\r\n".to_vec(),
        });
        let client = client_with(&url(server.port()), hasty());
        let lock = client.lock("k").slots(4).lease(Duration::from_millis(1_500));
        let guard = lock.acquire().await.expect("a guard");
        assert!(
            soon(async { tokio::time::timeout(Duration::ZERO, guard.downgrade(Limit::Slots(2))).await })
                .await
                .is_err()
        );
        eventually("it is renewed with its kind", || {
            renewals.load(Ordering::Relaxed) > 2 || !guard.is_held()
        });
        assert!(guard.is_held(), "{code}");
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_names_the_kind_of_each_key_after_one_key_has_refused_a_downgrade() {
    let server = play(|words| match &*words[0] {
        "LOCK.ACQUIRE" => b"*3\r\n:7\r\n:1\r\n:30000\r\n".to_vec(),
        "LOCK.RENEW" if words[1] == "k" && words.last().is_some_and(|last| last != "SHARED") => {
            b"-LIMIT the owner has SHARED\r\n".to_vec()
        }
        "LOCK.RENEW" if words[1] == "l" && words.last().is_some_and(|last| last == "SHARED") => {
            b"-LIMIT the owner has SLOTS 1\r\n".to_vec()
        }
        "LOCK.RENEW" => b":7\r\n".to_vec(),
        _ => b":0\r\n".to_vec(),
    });
    let client = client_with(&url(server.port()), Settings::default());
    let guard = client.locks(["k", "l"]).acquire().await.expect("a guard");
    let refused = guard.downgrade(Limit::Shared).await;
    assert_eq!(refused.expect_err("the key l refuses").code(), Some("LIMIT"));
    client.resume(&guard.handle()).await.expect("a guard").release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_changes_during_a_confirmation_leads_to_a_wait_at_the_new_primary() {
    let (former, primary) = (Server::start(), Server::start());
    let proxy = Proxy::start_two_way(former.port());
    let sentinels = Sentinels::watch_with(&former, 0, |_| {
        vec![
            format!("sentinel monitor locks 127.0.0.1 {} 2", proxy.port()),
            "sentinel down-after-milliseconds locks 600000".to_owned(),
        ]
    });
    let (mut observer, mut next) = (former.client(), primary.client());
    observer.acquire("k other PX 600000");
    next.acquire("k other PX 600000");
    let settings = Settings::default().response_limit(Duration::from_millis(500));
    let client = client_with(&sentinels.url(), settings);
    let waiter = tokio::spawn(client.lock("k").lease(LONG).acquire());
    observer.see_waiters("k", 1);
    proxy.set_plan(|request| if request[0].text() == "LOCK.RENEW" { Fate::Held } else { Fate::Carried });
    assert_eq!(observer.call("LOCK.RELEASE k other ALL").int(), 0);
    eventually("the confirmation is on its way", || proxy.losses().held > 0);
    for sentinel in sentinels.all() {
        let mut sentinel = sentinel.client();
        assert_eq!(sentinel.call("SENTINEL REMOVE locks"), Reply::ok());
        let monitor = format!("SENTINEL MONITOR locks 127.0.0.1 {} 2", primary.port());
        assert_eq!(sentinel.call(monitor), Reply::ok());
    }
    next.see_waiters("k", 1);
    assert_eq!(next.call("LOCK.RELEASE k other ALL").int(), 0);
    let guard = granted(waiter).await;
    assert_eq!(next.holder("k").token, guard.token() as i64);
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    assert_eq!(next.call("DBSIZE").int(), 0);
    proxy.set_plan(|_| Fate::Carried);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_callers_end_together_although_the_server_hangs() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let mut observer = server.client();
    observer.acquire("k other PX 600000");
    let client = client_with(&url(proxy.port()), Settings::default().waiting_connections(50));
    client.lock("l").acquire().await.expect("a guard").release().await.expect("a release");
    let limit = Duration::from_secs(4);
    let callers: Vec<_> = (0..4_000).map(|_| tokio::spawn(client.lock("k").wait(limit).acquire())).collect();
    eventually("each caller has tried", || calls(&mut observer, "lock.acquire") >= 4_000);
    server.freeze();
    for caller in callers {
        let ended = soon(caller).await.expect("no panic");
        assert!(matches!(ended, Err(Error::Busy { .. } | Error::Unreachable { .. })), "{ended:?}");
    }
    server.thaw();
    assert!(soon(client.close()).await);
}
