//! The lease where none is named: that of the server.

use crate::{LONG, client, hasty, soon};
use lockward_client::{Client, Error, Guard, Loss};
use lockward_tests::{Fate, Proxy, Reply, Server, eventually};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What clients are seen to ask for, in milliseconds; `None` where they name no lease.
type Asked = Arc<Mutex<Vec<Option<u64>>>>;

/// A proxy that notes the leases that acquisitions name, and does something at the first LOCK.INFO.
fn watch(server: &Server, at_first: impl FnOnce() -> Fate + Send + 'static) -> (Proxy, Asked) {
    let asked = Asked::default();
    let noted = Arc::clone(&asked);
    let mut at_first = Some(at_first);
    let proxy = Proxy::start(server.port(), move |request: &[Reply]| {
        let words: Vec<_> = request.iter().map(Reply::text).collect();
        match words.first().map(|word| &**word) {
            Some("LOCK.ACQUIRE") => {
                let named = words.iter().position(|word| &**word == "PX").map(|at| words[at + 1].parse());
                noted.lock().unwrap().push(named.transpose().expect("a lease"));
                Fate::Carried
            }
            Some("LOCK.INFO") => at_first.take().map_or(Fate::Carried, |at_first| at_first()),
            _ => Fate::Carried,
        }
    });
    (proxy, asked)
}

async fn through(proxy: &Proxy) -> Client {
    Client::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.expect("a client")
}

/// How often the server has run a command, or refused to.
fn count(observer: &mut lockward_tests::Client, command: &str, what: &str) -> u64 {
    let stats = observer.call("INFO commandstats").text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let mut fields = line.into_iter().flat_map(|line| line.split(','));
    let count = fields.find_map(|field| field.strip_prefix(what)?.strip_prefix('='));
    count.map_or(0, |count| count.parse().expect("a count"))
}

fn see_lease(guard: &Guard, millis: u64) {
    let left = guard.lease_left();
    assert!(left <= Duration::from_millis(millis) && left > Duration::from_millis(millis / 3), "{left:?}");
}

async fn see_kept(settings: &str) {
    let server = Server::start_with(settings);
    let client = client(&server).await;
    let guard = soon(client.lock("k").acquire()).await.expect("a guard");
    see_lease(&guard, 3_000);
    let mut observer = server.client();
    eventually("it is held for more than a lease", || observer.holder("k").held_for > 4_000);
    assert!(guard.is_held());
    see_lease(&guard.re_enter().await.expect("a guard"), 3_000);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_not_named_is_the_default_of_the_server() {
    see_kept("default-lease 3000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_no_longer_than_the_longest() {
    see_kept("max-lease 3000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_no_longer_than_the_quarantine_which_is_waited_for() {
    see_kept("quarantine 3000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_asked_for_it_once() {
    let server = Server::start_with("default-lease 20000");
    let client = client(&server).await;
    for _ in 0..5 {
        let guard = client.lock("k").acquire().await.expect("a guard");
        see_lease(&guard, 20_000);
        guard.release().await.expect("a release");
    }
    assert_eq!(count(&mut server.client(), "lock.info", "calls"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longest_lease_that_is_set_later_is_learnt() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    for (longest, calls) in [(30_000, 1), (10_000, 2), (5_000, 3)] {
        observer.call(format!("CONFIG SET lock.max-lease {longest}"));
        for _ in 0..2 {
            let guard = client.lock("k").acquire().await.expect("a guard");
            see_lease(&guard, longest);
            guard.release().await.expect("a release");
        }
        assert_eq!(count(&mut observer, "lock.info", "calls"), calls);
    }
    let refused = client.lock("k").lease(Duration::from_secs(10)).acquire().await;
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn so_is_one_that_is_set_while_it_is_waited_for() {
    let server = Server::start();
    let client = client(&server).await;
    // The client knows the default.
    client.lock("k").acquire().await.expect("a guard").release().await.expect("a release");
    let holder = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    // What replicas are to hear of is renewed before anybody hears of it.
    let waiter = tokio::spawn(client.lock("k").replicas(0, Duration::from_secs(1)).acquire());
    let mut observer = server.client();
    observer.see_waiters("k", 1);
    observer.call("CONFIG SET lock.max-lease 5000");
    holder.release().await.expect("a release");
    let guard = soon(waiter).await.expect("no panic").expect("a guard");
    see_lease(&guard, 5_000);
    assert!(observer.holder("k").lease_left <= 5_000);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_goes_on_with_a_shorter_one() {
    for setting in ["max-lease", "quarantine"] {
        let server = Server::start_with("default-lease 9000");
        let client = client(&server).await;
        let guard = client.lock("k").owner("job").acquire().await.expect("a guard");
        let named = client.lock("l").lease(Duration::from_secs(9)).acquire().await.expect("a guard");
        let mut observer = server.client();
        observer.call(format!("CONFIG SET lock.{setting} 5000"));
        let again = client.lock("k").owner("job").acquire().await.expect("a guard");
        guard.re_enter().await.expect("a guard").release().await.expect("a release");
        eventually("both are renewed", || {
            let [all, failed] =
                ["calls", "failed_calls"].map(|what| count(&mut observer, "lock.renew", what));
            failed > 0 && all >= failed + 2
        });
        for lock in ["k", "l"] {
            assert!(observer.holder(lock).lease_left <= 5_000);
        }
        named.renew().await.expect("a renewal");
        named.release().await.expect("a release");
        again.release().await.expect("a release");
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_believes_in_more_than_the_shorter_one_though_no_reply_to_it_comes() {
    let server = Server::start_with("default-lease 6000");
    let mut told = 0;
    let proxy = Proxy::start(server.port(), move |request: &[Reply]| {
        let words: Vec<_> = request.iter().map(Reply::text).collect();
        let is_shorter = words.first().is_some_and(|word| *word == "LOCK.RENEW")
            && !words.iter().any(|word| *word == "6000");
        told += usize::from(is_shorter);
        match (is_shorter, told) {
            (false, _) => Fate::Carried,
            (true, 1) => Fate::ReplyLost,
            (true, _) => Fate::RequestLost,
        }
    });
    let guard = through(&proxy).await.lock("k").acquire().await.expect("a guard");
    let mut observer = server.client();
    observer.call("CONFIG SET lock.max-lease 5000");
    eventually("a shorter one is given", || observer.holder("k").lease_left < 2_900);
    eventually("it is over", || observer.info("k").is_none());
    assert!(!guard.is_held(), "{:?}", guard.lease_left());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_has_named_for_the_same_owner_is_not_the_default() {
    let server = Server::start();
    let mut observer = server.client();
    observer.acquire("k job PX 600000");
    eventually("it is older than a request", || observer.holder("k").held_for > 1_000);
    let client = client(&server).await;
    let guard = client.lock("k").owner("job").acquire().await.expect("a guard");
    let other = client.lock("l").acquire().await.expect("a guard");
    see_lease(&guard, 30_000);
    see_lease(&other, 30_000);
    for guard in [guard, other] {
        guard.release().await.expect("a release");
    }
}

/// A proxy that has each such request arrive when the lock is free again.
fn late(server: &Server, command: &'static str) -> Proxy {
    let mut observer = server.client();
    Proxy::start(server.port(), move |request: &[Reply]| {
        if request.first().is_some_and(|word| word.text() == command) {
            eventually("the lease is over", || observer.info("k").is_none());
        }
        Fate::Carried
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_ends_where_no_reply_comes_within_a_lease() {
    let server = Server::start_with("default-lease 40");
    let proxies = ["LOCK.INFO", "LOCK.RENEW"].map(|command| late(&server, command));
    let [unnamed, named] = [&proxies[0], &proxies[1]].map(|proxy| hasty(proxy.port()).lock("k"));
    let lease = Duration::from_millis(40);
    let named = named.lease(lease).replicas(0, lease / 2);
    for lock in [unnamed, named] {
        let told = soon(lock.try_acquire()).await;
        assert!(matches!(told, Err(Error::Lost(Loss::LeaseOver))), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_standstills_have_left_of_it_is_no_measure() {
    let server = Server::start_with("default-lease 3000");
    let mut observer = server.client();
    let mut infos = 0;
    let proxy = Proxy::start(server.port(), move |request: &[Reply]| {
        if request.first().is_some_and(|word| word.text() == "LOCK.INFO") {
            infos += 1;
            let left = [2_500, 1_000].get(infos - 1).copied().unwrap_or(3_000);
            eventually("so much is left", || observer.holder("k").lease_left <= left);
        }
        Fate::Carried
    });
    let guard = soon(through(&proxy).await.lock("k").acquire()).await.expect("a guard");
    guard.renew().await.expect("a renewal");
    see_lease(&guard, 3_000);
    assert!(server.client().holder("k").lease_left > 1_500);
    guard.release().await.expect("a release");
}

async fn without_info(server: &Server) -> Client {
    let rules = "~* +lock.acquire +lock.renew +lock.release +ping";
    server.client().call(format!("ACL SETUSER worker on >secret {rules}"));
    let url = format!("redis://worker:secret@127.0.0.1:{}", server.port());
    Client::connect(&url).await.expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_ask_for_it_names_thirty_seconds() {
    let server = Server::start_with("default-lease 5000");
    let client = without_info(&server).await;
    let mut observer = server.client();
    for _ in 0..3 {
        let guard = client.lock("k").acquire().await.expect("a guard");
        see_lease(&guard, 30_000);
        assert!(observer.holder("k").lease_left > 5_000);
        assert_eq!(observer.holder("k").holds, 1);
        guard.release().await.expect("a release");
    }
    assert_eq!(count(&mut observer, "lock.info", "rejected_calls"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_that_is_refused_nothing_is_left() {
    let server = Server::start_with("max-lease 600000 default-lease 600000");
    let client = without_info(&server).await;
    let mut observer = server.client();
    observer.call("CONFIG SET lock.max-lease 20000");
    for _ in 0..2 {
        let refused = client.lock("k").acquire().await.expect_err("an error");
        assert!(refused.to_string().starts_with("ERR invalid expire time"), "{refused}");
        soon(client.settled()).await;
        assert_eq!(observer.info("k"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_standstill_has_left_of_it_is_not_taken_for_all() {
    let server = Server::start_with("default-lease 20000");
    let mut observer = server.client();
    let (proxy, asked) = watch(&server, move || {
        eventually("a fifth of it is over", || observer.holder("k").held_for > 4_000);
        Fate::Carried
    });
    let client = through(&proxy).await;
    for _ in 0..2 {
        let guard = soon(client.lock("k").acquire()).await.expect("a guard");
        assert!(guard.lease_left() > Duration::from_secs(16), "{:?}", guard.lease_left());
        guard.release().await.expect("a release");
    }
    let asked = asked.lock().unwrap();
    assert!(asked.iter().flatten().all(|lease| (18_000..=20_000).contains(lease)), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_broken_before_its_lease_is_known_is_acquired_again() {
    let server = Server::start();
    let mut observer = server.client();
    let (proxy, _) = watch(&server, move || {
        observer.call("DEL k");
        Fate::Carried
    });
    let guard = soon(through(&proxy).await.lock("k").acquire()).await.expect("a guard");
    assert_eq!(server.client().holder("k").token, guard.token() as i64);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn or_is_busy_if_another_has_it_by_then() {
    let server = Server::start();
    let mut observer = server.client();
    let (proxy, _) = watch(&server, move || {
        observer.call("DEL k");
        observer.acquire("k other");
        Fate::Carried
    });
    let told = through(&proxy).await.lock("k").try_acquire().await;
    assert!(matches!(told, Err(Error::Busy)), "{told:?}");
    assert_eq!(server.client().holder("k").owner, "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_does_not_keep_it_from_being_known() {
    for fate in [Fate::RequestLost, Fate::ReplyLost, Fate::ReplyTorn] {
        let server = Server::start();
        let (proxy, _) = watch(&server, move || fate);
        let guard = soon(through(&proxy).await.lock("k").acquire()).await.expect("a guard");
        see_lease(&guard, 30_000);
        assert_eq!(server.client().holder("k").holds, 1);
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_before_it_is_known_leaves_nothing() {
    let server = Server::start();
    let (asks, asking) = tokio::sync::oneshot::channel();
    let (proxy, _) = watch(&server, || {
        asks.send(()).expect("a test");
        Fate::Silence(LONG)
    });
    let client = through(&proxy).await;
    let mut observer = server.client();
    tokio::select! {
        _ = client.lock("k").acquire() => panic!("nothing is known"),
        asked = soon(asking) => asked.expect("a request"),
    }
    assert_eq!(observer.holder("k").holds, 1);
    soon(client.settled()).await;
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_limit_cuts_it_at_the_server() {
    let server = Server::start();
    let client = client(&server).await;
    for _ in 0..2 {
        let guard = client.lock("k").hold_limit(Duration::from_secs(9)).acquire().await.expect("a guard");
        see_lease(&guard, 9_000);
        assert!(server.client().holder("k").lease_left <= 9_000);
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_have_less_time_than_it_lasts() {
    let server = Server::start_with("default-lease 20000");
    let client = client(&server).await;
    let mut observer = server.client();
    for (within, is_enough) in [(20_000, false), (10_000, true), (20_000, false)] {
        let lock = client.lock("k").replicas(0, Duration::from_millis(within));
        match lock.acquire().await {
            Ok(guard) => {
                assert!(is_enough, "{within}");
                guard.release().await.expect("a release");
            }
            Err(Error::Invalid(_)) => assert!(!is_enough),
            Err(error) => panic!("{error}"),
        }
        soon(client.settled()).await;
        assert_eq!(observer.info("k"), None);
    }
}
