//! The client's interface for programs. The conformance suite tests the protocol.

use crate::{LONG, client, client_with, granted, soon, url};
use lockward_client::redis::{Cmd, cmd};
use lockward_client::redlock::Redlock;
use lockward_client::{Address, Client, Error, Limit, Loss, Settings};
use lockward_tests::{Cluster, Fate, Proxy, Reply, Server, Setup, eventually, free_port};
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_describes_its_tenure_until_it_is_released() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("a guard");
    let mut observer = server.client();
    let holder = observer.holder("k");
    assert_eq!(holder.tenure(), (&*String::from_utf8_lossy(guard.owner()), 1, guard.token() as i64));
    assert!(guard.is_held() && guard.key() == b"k");
    assert!(guard.lease_left() <= Duration::from_secs(30) && guard.lease_left() > Duration::from_secs(20));
    guard.renew().await.expect("a renewal");
    assert!(matches!(client.lock("k").try_acquire().await, Err(Error::Busy { key }) if key == "k"));
    let lost = guard.lost();
    guard.release().await.expect("a release");
    assert_eq!(observer.info("k"), None);
    assert_eq!(soon(lost).await, Loss::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_named_without_a_lock() {
    let port = free_port();
    let sentinels = format!("redis+sentinel://127.0.0.1:{port},127.0.0.1:{port}/locks");
    let server = url(port);
    let (server, sentinels) = tokio::join!(Client::connect(&server), Client::connect(&sentinels));
    for failed in [server, sentinels] {
        let text = failed.expect_err("an error").to_string();
        let names_it = text.starts_with(&format!("no server answers: 127.0.0.1:{port}"));
        assert!(names_it && !text.contains("maxclients"), "{text}");
    }
    let server = Server::start();
    let url = format!("redis://me:wrong@127.0.0.1:{}", server.port());
    let text = Client::connect(&url).await.expect_err("an error").to_string();
    assert!(text.starts_with("the server refused the request: WRONGPASS"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_stays_lost() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("k").lease(Duration::from_millis(200)).without_renewal();
    let guard = lock.acquire().await.expect("a guard");
    let next = client.lock("k").acquire();
    let (loss, was_held) = tokio::join!(guard.lost(), async {
        let _next = next.await.expect("a guard");
        guard.is_held()
    });
    assert_eq!(loss, Loss::LeaseOver);
    assert!(!was_held && guard.lease_left() == Duration::ZERO);
    assert!(matches!(guard.renew().await, Err(Error::Lost { loss: Loss::LeaseOver, .. })));
    assert!(matches!(guard.release().await, Err(Error::Lost { loss: Loss::LeaseOver, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_a_thread_without_a_runtime_drops_is_released() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    assert!(client.close().await);
    assert_eq!(server.client().info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_owner_acquires_its_lock_again_after_a_drop() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("k").owner(b"\0\xffme");
    for _ in 0..20 {
        // The client sends the release before its next request.
        drop(lock.clone().acquire().await.expect("a guard"));
        let guard = lock.clone().acquire().await.expect("a guard");
        guard.renew().await.expect("it is held");
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_releases_the_lock_after_success_an_error_and_a_panic() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("k").lease(LONG);
    let mut observer = server.client();
    let token = lock.clone().run(async |guard| Ok::<_, Error>(guard.token())).await.expect("a value");
    assert!(token > 0);
    assert_eq!(observer.info("k"), None);
    let failed: Result<(), Box<dyn std::error::Error + Send + Sync>> =
        lock.clone().run(async |_| Err(std::io::Error::other("no"))?).await;
    assert_eq!(failed.expect_err("an error").to_string(), "no");
    assert_eq!(observer.info("k"), None);
    let panicking = lock.run(async |_| -> Result<(), Error> { panic!("as a test") });
    let panicked = futures_util::future::FutureExt::catch_unwind(AssertUnwindSafe(panicking)).await;
    assert_eq!(panicked.expect_err("a panic").downcast_ref(), Some(&"as a test"));
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_leader_releases_the_lock() {
    let server = Server::start();
    let client = client(&server).await;
    let panicking = client.lead("k", async |_| -> () { panic!("as a test") });
    let panicked = futures_util::future::FutureExt::catch_unwind(AssertUnwindSafe(panicking)).await;
    assert!(panicked.is_err());
    assert_eq!(server.client().info("k"), None);
}

#[test]
fn a_panic_that_ends_the_runtime_releases_the_lock() {
    let server = Server::start();
    let mut observer = server.client();
    for _ in 0..20 {
        let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // The unwinding of the panic drops this runtime.
            tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
                let client = client(&server).await;
                client.lock("k").run(async |_| -> Result<(), Error> { panic!("as a test") }).await
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(observer.info("k"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_lost_work_that_is_dropped_reaches_the_caller() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as a test");
        }
    }
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.locks(["k", "l"]).lease(Duration::from_millis(900));
    let panicking = lock.run(async |_| -> Result<(), Error> {
        let _bomb = Bomb;
        server.client().call("DEL k");
        pending().await
    });
    let panicked = soon(futures_util::future::FutureExt::catch_unwind(AssertUnwindSafe(panicking))).await;
    assert!(panicked.is_err());
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_ends_the_work_when_the_lock_is_lost() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    let lost = client.lock("k").lease(Duration::from_secs(3)).run(async |_| -> Result<(), Error> {
        observer.call("DEL k");
        pending().await
    });
    let error = soon(lost).await.expect_err("an error");
    assert_eq!(error.to_string(), "the lock k is lost: the lock is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_the_leader_leads_again_and_then_another_client_leads() {
    let server = Server::start();
    let client = client(&server).await;
    let terms = Arc::new(AtomicU64::new(0));
    let (leading, counted) = (client.clone(), Arc::clone(&terms));
    let candidate = client.lock("k").lease(Duration::from_millis(600)).lead(async |leader| {
        match counted.fetch_add(1, Ordering::Relaxed) {
            0 => {
                leading.lock("other").run(async |_| Ok::<_, Error>(())).await.expect("another lock");
                server.client().call("DEL k");
                pending().await
            }
            _ => leader.token(),
        }
    });
    assert!(soon(candidate).await.expect("a term") > 0);
    assert_eq!(terms.load(Ordering::Relaxed), 2);
    // This compiles only if the future of `lead` can move to another task.
    let task = tokio::spawn(async move { client.lead("k", async |leader| leader.is_held()).await });
    assert!(soon(task).await.expect("no panic").expect("a leader"));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_keys_form_one_lock() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    let lock = client.locks(["b", "a", "c", "a"]).lease(LONG);
    let guard = lock.clone().acquire().await.expect("a guard");
    assert_eq!(guard.tokens().map(|(key, _)| key).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    let waiter = tokio::spawn(lock.clone().acquire());
    observer.see_waiters("a", 1);
    assert!(matches!(client.lock("c").try_acquire().await, Err(Error::Busy { .. })));
    guard.release().await.expect("a release");
    let guard = granted(waiter).await;
    let lost = guard.lost();
    drop(guard);
    assert_eq!(soon(lost).await, Loss::Released);
    assert!(client.close().await);
    assert_eq!(observer.call("DBSIZE").int(), 0);
    let none: [&str; 0] = [];
    assert!(matches!(client.locks(none).acquire().await, Err(Error::Invalid(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_resumes_a_downgraded_semaphore_of_several_keys() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.locks(["k", "l"]).slots(3).weight(2).lease(LONG).acquire().await.expect("a guard");
    let token = guard.token();
    guard.downgrade(Limit::Slots(4)).await.expect("a downgrade");
    assert_eq!(guard.downgrade(Limit::Slots(2)).await.expect_err("an error").code(), Some("LIMIT"));
    let handle = guard.handle();
    assert!(!handle.contains(' '));
    let guard = client.resume(&handle).await.expect("a guard");
    assert_eq!((guard.token(), server.client().info("l").expect("a lock").holding), (token, 1));
    let other = client.lock("k").slots(4).weight(2).try_acquire().await.expect("a guard");
    other.release().await.expect("a release");
    guard.release().await.expect("a release");
    assert!(matches!(client.resume(&handle).await, Err(Error::Lost { .. })));
    for handle in ["", "k", "[[],30000,null]", "[[[{\"key\":[107],\"owner\":[109]},7]],30000,null]"] {
        assert!(matches!(client.resume(handle).await, Err(Error::Invalid(_))), "{handle}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_refuses_a_downgrade_to_exclusive_of_a_lock_with_a_larger_limit() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = |key| client.lock(key).lease(LONG);
    for (lock, wanted) in [
        (lock("a").shared(), "LIMIT the owner has SHARED"),
        (lock("b").slots(5), "LIMIT the owner has SLOTS 5"),
        (lock("c").slots(5).weight(2), "ERR WEIGHT must be 1 to the number of slots"),
    ] {
        let guard = lock.acquire().await.expect("a guard");
        let error = guard.downgrade(Limit::Exclusive).await.expect_err("an error").to_string();
        assert!(error.contains(wanted), "{error}");
        guard.renew().await.expect("it is held");
        guard.release().await.expect("a release");
    }
    let guard = lock("d").acquire().await.expect("a guard");
    guard.downgrade(Limit::Exclusive).await.expect("the same limit");
    guard.downgrade(Limit::Shared).await.expect("a larger limit");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_after_refused_renewals_has_the_servers_error() {
    let server = Server::start();
    let mut observer = server.client();
    observer.call("ACL SETUSER w on nopass ~* +@all");
    let client = Client::connect(&format!("redis://w:any@127.0.0.1:{}", server.port())).await;
    let lock = client.expect("a client").lock("k").lease(Duration::from_millis(900));
    let guard = lock.acquire().await.expect("a guard");
    observer.call("ACL SETUSER w -lock.renew");
    let loss = soon(guard.lost()).await.to_string();
    let wanted = "its lease is over, because the server refused to renew it: NOPERM ";
    assert!(loss.starts_with(wanted), "{loss}");
    let error = guard.release().await.expect_err("an error").to_string();
    assert_eq!(error, format!("the lock k is lost: {loss}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_has_the_rest_of_the_hold_limit() {
    let server = Server::start();
    let client = client(&server).await;
    let limit = Duration::from_secs(3);
    let lock = client.lock("k").lease(LONG).hold_limit(limit);
    let guard = lock.acquire().await.expect("a guard");
    tokio::time::sleep(limit / 3).await;
    let resumed = client.resume(&guard.handle()).await.expect("a guard");
    assert!(resumed.lease_left() <= limit * 2 / 3, "{:?}", resumed.lease_left());
    assert!(server.client().holder("k").lease_left <= 2_001, "the server frees it in time, too");
    assert_eq!(soon(resumed.lost()).await.to_string(), "its hold limit is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_renewal_is_resumed_without_renewal() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(Duration::from_millis(1_500)).without_renewal().acquire().await;
    let resumed = client.resume(&guard.expect("a guard").handle()).await.expect("a guard");
    assert_eq!(soon(resumed.lost()).await, Loss::LeaseOver);
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_refused_for_several_keys_shared_locks_slots_and_wait_limits() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = || client.lock("k");
    for lock in [client.locks(["k", "l"]), lock().shared(), lock().slots(2), lock().wait(LONG)] {
        let refused = soon(lock.lead(async |_| ())).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_is_named_as_the_cause() {
    let server = Server::start();
    let mut observer = server.client();
    assert_eq!(observer.call("CONFIG SET maxclients 1"), Reply::ok());
    let settings = Settings::default().patience(Duration::from_millis(300));
    for _ in 0..5 {
        let failed = client_with(&url(server.port()), settings.clone()).lock("k").try_acquire().await;
        let text = failed.expect_err("a full server").to_string();
        assert!(text.contains("max number of clients") || text.contains("maxclients"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_runs_and_its_reply_is_converted() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("a guard");
    let () = guard.guarded(cmd("SET").arg("{k}:data").arg("1")).await.expect("a write");
    let count: u64 = guard.guarded(cmd("INCR").arg("{k}:data")).await.expect("a count");
    assert_eq!(count, 2);
    let checked: String = guard.guarded(&Cmd::new()).await.expect("a reply");
    assert_eq!(checked, "OK");
    let converted: Result<u64, Error> = guard.guarded(cmd("HGETALL").arg("{k}:none")).await;
    assert!(matches!(converted, Err(Error::Reply(_))), "{converted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_is_not_sent_on_a_cut_connection() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    soon(async {
        loop {
            let lock = client.lock("k").lease(LONG).without_renewal(); // a renewal would find the cut
            let guard = lock.acquire().await.expect("a guard");
            observer.call("CLIENT KILL TYPE normal");
            let checked: Result<String, Error> = guard.guarded(&Cmd::new()).await;
            guard.release().await.expect("a release");
            if checked.is_ok() {
                return; // the client had noticed the cut in time
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_needs_a_lock_of_one_key() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.locks(["{k}a", "{k}b"]).acquire().await.expect("a guard");
    let refused: Result<(), Error> = guard.guarded(cmd("SET").arg("{k}:data").arg("1")).await;
    assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("one key")), "{refused:?}");
    assert!(server.client().call("GET {k}:data").is_null());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_finds_one_key_lost_releases_the_others() {
    let server = Server::start();
    let client = client(&server).await;
    let handle = client.locks(["a", "b", "c"]).lease(LONG).acquire().await.expect("a guard").handle();
    let mut observer = server.client();
    assert_eq!(observer.call("DEL b").int(), 1);
    let lost = client.resume(&handle).await;
    assert!(matches!(&lost, Err(Error::Lost { key, .. }) if key == "b"), "{lost:?}");
    assert!(soon(client.close()).await);
    assert_eq!(observer.call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_reaches_no_server_can_be_repeated() {
    let server = Server::start();
    let handle =
        client(&server).await.locks(["a", "b"]).lease(LONG).acquire().await.expect("a guard").handle();
    let proxy = Proxy::start(server.port(), |request| match &*request[0].text() {
        "LOCK.RENEW" => Fate::RequestLost,
        _ => Fate::Carried,
    });
    let client = client_with(&url(proxy.port()), Settings::default().patience(Duration::from_millis(200)));
    let failed = client.resume(&handle).await;
    assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    proxy.set_plan(|_| Fate::Carried);
    client.resume(&handle).await.expect("a guard").release().await.expect("a release");
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_options_are_reported() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = || client.lock("k");
    let brief = Duration::from_millis(1);
    for (lock, wanted) in [
        (lock().lease(brief), "a lease must be at least 2 milliseconds"),
        (lock().hold_limit(brief), "a hold limit must be at least 2 milliseconds"),
        (lock().owner("*"), "an owner must not be *, which asks the server to make one up"),
        (client.locks([""; 0]), "no key is named"),
    ] {
        let error = lock.acquire().await.expect_err("an error");
        assert!(matches!(&error, Error::Invalid(why) if why == wanted), "{error}");
    }
    for lock in [
        lock().owner(""),
        lock().weight(2),
        lock().slots(0),
        lock().slots(1_000_001),
        lock().slots(3).weight(4),
    ] {
        assert_eq!(lock.acquire().await.expect_err("an error").code(), Some("ERR"));
    }
    assert!(client.close().await);
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn close_returns_whether_all_locks_are_released() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |request| match &*request[0].text() {
        "LOCK.RELEASE" => Fate::RequestLost,
        _ => Fate::Carried,
    });
    let settings = Settings::default().patience(Duration::from_secs(1));
    let client: Client = client_with(&url(proxy.port()), settings);
    assert!(client.close().await);
    drop(client.lock("k").lease(LONG).acquire().await.expect("a guard"));
    assert!(!client.close().await);
    proxy.set_plan(|_| Fate::Carried);
    eventually("it is released", || server.client().info("k").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn close_waits_for_the_release_of_dropped_guards() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    for _ in 0..20 {
        drop(client.lock("k").lease(LONG).acquire().await.expect("a guard"));
        assert!(client.close().await);
        assert_eq!(observer.info("k"), None);
    }
}

#[tokio::test]
async fn an_address_without_servers_is_invalid() {
    let Ok(Address::Server(server)) = "redis://127.0.0.1".parse() else { panic!("a server") };
    let sentinels =
        Address::Sentinels { sentinels: Vec::new(), name: "locks".into(), server: Box::new(server) };
    for address in [sentinels, Address::Cluster(Vec::new())] {
        let client = Client::new(address.clone(), Settings::default());
        assert!(matches!(client, Err(Error::Invalid(_))), "{client:?}");
        let redlock = Redlock::new([address], Settings::default());
        assert!(matches!(redlock, Err(Error::Invalid(_))), "{redlock:?}");
    }
}

#[tokio::test]
async fn a_database_that_the_server_does_not_have_is_refused() {
    let server = Server::start();
    let client = client_with(&format!("{}/99", url(server.port())), Settings::default().patience(LONG));
    for error in
        [soon(client.lock("k").acquire()).await.err(), soon(client.lead("k", async |_| ())).await.err()]
    {
        assert!(matches!(error, Some(Error::Refused { .. })), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_one_server_refuses_to_follow_a_redirection_of_a_cluster() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let (owner, other) = cluster.owner_and_other("k");
    let client = client_with(&url(other.port()), Settings::default().patience(LONG));
    for error in
        [soon(client.lock("k").acquire()).await.err(), soon(client.lead("k", async |_| ())).await.err()]
    {
        let error = error.expect("an error");
        assert_eq!(error.code(), Some("MOVED"));
        let text = error.to_string();
        assert!(text.contains(&owner.port().to_string()) && text.contains("redis+cluster://"), "{text}");
    }
    assert!(soon(client.close()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_does_not_refuse_a_database() {
    let server = Server::start();
    let refused = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&refused);
    let proxy = Proxy::start(server.port(), move |request| {
        counted.fetch_add(u64::from(request[0].text() == "SELECT"), Ordering::Relaxed);
        Fate::Carried
    });
    let mut observer = server.client();
    observer.call("CONFIG SET busy-reply-threshold 1");
    let mut script = server.client();
    script.send(["EVAL", "while true do end", "0"]);
    eventually("the server is busy", || matches!(observer.call("PING"), Reply::Error(_)));
    let client = client_with(&format!("{}/1", url(proxy.port())), Settings::default());
    let task = tokio::spawn(client.lock("k").acquire());
    eventually("two attempts are refused", || refused.load(Ordering::Relaxed) > 1);
    observer.call("SCRIPT KILL");
    granted(task).await.release().await.expect("a release");
}
