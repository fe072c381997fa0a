//! Lost replies: a client that uses HOLDS repeats its command after a loss, and always knows its hold count.

use lockward_tests::{Client, Fate, Grant, Proxy, Random, Reply, Server, Silence, eventually, rounds};
use std::collections::HashMap;
use std::thread;
use std::time::Duration;

/// A client that connects again and repeats its command when the connection is cut before the reply.
struct Repeating<'a> {
    proxy: &'a Proxy,
    client: Option<Client>,
}

impl<'a> Repeating<'a> {
    const fn new(proxy: &'a Proxy) -> Self {
        Self { proxy, client: None }
    }

    #[track_caller]
    fn call(&mut self, command: &str) -> Reply {
        loop {
            let connect = || Client::connect(self.proxy.port()).expect("a connection");
            match self.client.get_or_insert_with(connect).try_call(command) {
                Ok(reply) => return reply,
                Err(Silence::Closed) => self.client = None,
                Err(Silence::StillOpen) => panic!("no reply: {command}"),
            }
        }
    }
}

/// Cuts the connection at about five of twelve requests. Usually the reply is lost, and sometimes the request.
fn some_lost() -> impl FnMut(&[Reply]) -> Fate + Send + 'static {
    let mut random = Random::new();
    move |_| match random.within(0..12) {
        0 | 1 => Fate::ReplyLost,
        2 => Fate::ClientLost,
        3 => Fate::RequestLost,
        4 => Fate::CutAfter(Duration::from_micros(random.within(0..3_000).unsigned_abs())),
        _ => Fate::Carried,
    }
}

/// An owner that names HOLDS in each command, and what this owner knows about its holds.
struct Reckoning<'a> {
    owner: String,
    connection: Repeating<'a>,
    observer: Client,
    held: HashMap<String, Grant>,
    last: HashMap<String, i64>,
}

impl Reckoning<'_> {
    /// Adds a hold, releases a hold, or renews, and compares the result with LOCK.INFO.
    #[track_caller]
    fn step(&mut self, key: &str, random: &mut Random) {
        let command = |name: &str, rest: &str| format!("LOCK.{name} {key} {} {rest}", self.owner);
        match self.held.get(key).copied() {
            None => {
                let wait = match random.within(0..4) {
                    0 => String::new(),
                    _ => format!("BLOCK {}", random.within(1..20)),
                };
                let reply = self.connection.call(&command("ACQUIRE", &format!("PX 600000 HOLDS 1 {wait}")));
                if reply != Reply::NullArray {
                    let grant = reply.grant();
                    let last = self.last.insert(key.to_owned(), grant.token);
                    assert!(last.is_none_or(|last| last < grant.token), "{key}: the token does not grow");
                    assert_eq!(grant.holds, 1);
                    self.held.insert(key.to_owned(), grant);
                }
            }
            Some(Grant { token, holds }) => match random.within(0..7) {
                0 | 1 => {
                    let reply = self.connection.call(&command("ACQUIRE", &format!("HOLDS {}", holds + 1)));
                    assert_eq!(reply.grant(), Grant { token, holds: holds + 1 });
                    self.held.insert(key.to_owned(), reply.grant());
                }
                2 => {
                    let lease = random.within(600_000..900_000);
                    let reply = self.connection.call(&command("RENEW", &format!("PX {lease} TOKEN {token}")));
                    assert_eq!(reply, Reply::Int(token));
                }
                _ => {
                    let named = format!("HOLDS {} TOKEN {token}", holds - 1);
                    assert_eq!(self.connection.call(&command("RELEASE", &named)), Reply::Int(holds - 1));
                    self.held.remove(key);
                    if holds > 1 {
                        self.held.insert(key.to_owned(), Grant { token, holds: holds - 1 });
                    }
                }
            },
        }
        self.compare(key);
    }

    /// Releases all locks, hold by hold.
    #[track_caller]
    fn give_back(&mut self) {
        for (key, Grant { token, holds }) in self.held.clone() {
            for left in (0..holds).rev() {
                let release = format!("LOCK.RELEASE {key} {} HOLDS {left} TOKEN {token}", self.owner);
                assert_eq!(self.connection.call(&release), Reply::Int(left));
            }
            self.held.remove(&key);
            self.compare(&key);
        }
    }

    #[track_caller]
    fn compare(&mut self, key: &str) {
        let holders = self.observer.info(key).map_or_else(Vec::new, |info| info.holders);
        let known = holders.iter().find(|holder| holder.owner == self.owner);
        let known = known.map(|holder| Grant { token: holder.token, holds: holder.holds });
        assert_eq!(
            known,
            self.held.get(key).copied(),
            "{key}: the server's holder, and what {} knows",
            self.owner
        );
    }
}

#[test]
fn with_holds_a_client_knows_its_hold_count_although_replies_are_lost() {
    const KEYS: [&str; 3] = ["lock-1", "lock-2", "lock-3"];
    let server = Server::start();
    let proxy = Proxy::start(server.port(), some_lost());
    let mut seeds = Random::new();
    let wanted = rounds(1_000, 10_000);
    thread::scope(|scope| {
        for owner in 0..6 {
            let (proxy, observer) = (&proxy, server.client());
            let mut random = Random::from_seed(seeds.number());
            scope.spawn(move || {
                let (held, last) = (HashMap::new(), HashMap::new());
                let connection = Repeating::new(proxy);
                let mut it = Reckoning { owner: format!("owner-{owner}"), connection, observer, held, last };
                while proxy.replies_lost() < wanted {
                    it.step(random.one_of(&KEYS), &mut random);
                }
                it.give_back();
            });
        }
    });
    let lost = proxy.losses();
    println!("{} replies, {} requests lost; {} cuts", lost.replies.len(), lost.requests, lost.cuts);
    let word = |reply: &Reply| matches!(reply, Reply::Error(_)).then(|| reply.error_word().to_owned());
    let superseded = lost.replies.iter().filter_map(word).filter(|word| word == "SUPERSEDED").count();
    println!("{superseded} waits superseded");
    assert!(superseded > 0 && lost.requests > 0 && lost.cuts > 0, "some kind of loss is missing");
    let mut observer = server.client();
    for key in KEYS {
        eventually("the lock is free", || observer.info(key).is_none());
    }
    observer.see_blocked(0);
    assert_eq!(observer.call("LOCK.TOP"), Reply::Array(vec![]));
}

/// The control experiment: without HOLDS, the same losses make hold counts wrong.
#[test]
fn without_holds_lost_replies_make_the_hold_count_wrong() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), some_lost());
    let mut observer = server.client();
    let mut connection = Repeating::new(&proxy);
    let mut wrong = 0;
    for round in 0..100 {
        let steps =
            [("ACQUIRE", 1), ("ACQUIRE", 2), ("ACQUIRE", 3), ("RELEASE", 2), ("RELEASE", 1), ("RELEASE", 0)];
        let right = steps.iter().all(|(name, reckoned)| {
            connection.call(&format!("LOCK.{name} lock-{round} A"));
            let holds = observer.info(&format!("lock-{round}")).map_or(0, |info| info.holders[0].holds);
            holds == *reckoned
        });
        wrong += u32::from(!right);
    }
    println!("{wrong} of 100 counts wrong, {} replies lost", proxy.replies_lost());
    assert!(wrong > 0, "{} replies lost", proxy.replies_lost());
}

/// Cuts the connection to the client at the first request.
fn first_client_lost() -> impl FnMut(&[Reply]) -> Fate + Send + 'static {
    let mut is_first = true;
    move |_| if std::mem::take(&mut is_first) { Fate::ClientLost } else { Fate::Carried }
}

#[test]
fn a_wait_whose_connection_is_lost_keeps_its_queue_position_for_the_repeat() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), first_client_lost());
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let wait = "LOCK.ACQUIRE lock B BLOCK 0 HOLDS 1";
    let mut lost = Client::connect(proxy.port()).unwrap();
    assert_eq!(lost.try_call(wait), Err(Silence::Closed));
    a.see_waiters("lock", 1);
    let mut c = server.waiter("lock C BLOCK 0");
    let mut again = Client::connect(proxy.port()).unwrap();
    again.send(wait);
    eventually("the server has replied to the first call", || proxy.replies_lost() == 1);
    assert_eq!(proxy.losses().replies[0].error_word(), "SUPERSEDED");
    assert_eq!(a.queue("lock"), ["B", "C"]);
    a.call("LOCK.RELEASE lock A");
    let grant = again.reply().grant();
    assert_eq!(a.holder("lock").tenure(), ("B", 1, grant.token));
    assert_eq!(again.call("LOCK.RELEASE lock B HOLDS 0"), Reply::Int(0));
    assert_eq!(c.reply().grant().holds, 1);
}

/// If the reply with B's grant is lost, B's repeated request gets the same grant. If B's connection is cut at about the
/// time of the grant, either C gets the lock or B's repeated request gets the grant.
#[test]
fn a_lost_grant_is_found_by_the_repeat_or_passed_on() {
    let server = Server::start();
    let mut random = Random::new();
    let proxy = Proxy::start(server.port(), move |request| match random.within(0..3) {
        // A repeated request is never lost. This pattern recognizes a repeated request by its different lease.
        _ if request[4] != Reply::bulk("600000") => Fate::Carried,
        0 => Fate::ReplyLost,
        1 => Fate::ClientLost,
        _ => Fate::CutAfter(Duration::from_micros(random.within(0..6_000).unsigned_abs())),
    });
    let (mut a, mut c) = (server.client(), server.client());
    let (mut found, mut passed_on) = (0, 0);
    let mut before = proxy.losses();
    for round in 0..rounds(300, 3_000) {
        let key = format!("lock-{round}");
        a.acquire(&format!("{key} A PX 600000"));
        let mut b = Client::connect(proxy.port()).unwrap();
        b.ask(&format!("{key} B PX 600000 HOLDS 1 BLOCK 0"));
        eventually("B waits, or its connection is cut", || {
            !a.queue(&key).is_empty() || proxy.losses().cuts > before.cuts
        });
        c.ask(&format!("{key} C PX 600000 BLOCK 0"));
        eventually("C waits", || a.queue(&key).last().is_some_and(|last| last == "C"));
        a.call(format!("LOCK.RELEASE {key} A"));
        assert!(b.is_closed());
        eventually("the reply is lost or the connection is cut", || {
            let now = proxy.losses();
            now.replies.len() > before.replies.len() || now.cuts > before.cuts
        });
        let now = proxy.losses();
        let lost = now.replies.get(before.replies.len()).map(Reply::grant);
        before = now;
        b = Client::connect(proxy.port()).unwrap();
        b.ask(&format!("{key} B PX 700000 HOLDS 1 BLOCK 0"));
        eventually("B or C is granted the lock", || b.has_unread() || c.has_unread());
        if c.has_unread() {
            assert_eq!(lost, None, "{key}: C has the lock, but B was granted it");
            let grant = c.reply().grant();
            assert_eq!(a.holder(&key).tenure(), ("C", 1, grant.token));
            assert_eq!(a.call(format!("LOCK.RELEASE {key} C")), Reply::Int(0));
            passed_on += 1;
        } else {
            found += 1;
        }
        let grant = b.reply().grant();
        assert!(
            lost.is_none_or(|lost| lost == grant),
            "{key}: the repeat gets another grant than the lost one"
        );
        assert_eq!(a.holder(&key).tenure(), ("B", 1, grant.token));
        assert_eq!(a.call(format!("LOCK.RELEASE {key} B")), Reply::Int(0));
        if lost.is_some() || a.info(&key).is_some() {
            assert_eq!(c.reply().grant().holds, 1);
            assert_eq!(a.call(format!("LOCK.RELEASE {key} C")), Reply::Int(0));
        }
        assert_eq!(a.info(&key), None);
    }
    println!("{} grants lost, {found} found, {passed_on} passed on", before.replies.len());
    assert!(!before.replies.is_empty() && passed_on > 0);
}
