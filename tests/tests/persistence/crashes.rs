//! Crashes under load: the server is killed, and its disk loses what had not been synced.
//!
//! Whatever a client was told must be there after the restart where the AOF is synced always. What a client has asked
//! for without having been answered may be there or not. Where the AOF is synced later or never, the same load loses
//! what clients were told: that shows that this test would see it.

use lockward_tests::{
    Client, Disk, Holder, Random, Reply, Server, Setup, Silence, appended_files, eventually, rounds,
};
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Clients with a lock of their own.
const LONERS: usize = 4;
/// Clients that wait for each other.
const RIVALS: usize = 6;
/// The locks they wait for.
const SHARED: [&str; 2] = ["shared-0", "shared-1"];

/// What came of some crashes.
#[derive(Debug, Default)]
struct Outcome {
    /// Replies that clients got.
    told: usize,
    /// New tenures among them.
    grants: usize,
    /// Crashes that cost the AOF something.
    cuts: usize,
    /// What clients were told and was not so after the restart.
    lost: Vec<String>,
    /// Tokens given anew.
    repeated: Vec<String>,
}

/// How a lock was at one time, as far as its only client knows.
#[derive(Clone, Debug)]
struct Stage {
    holds: i64,
    lease: i64,
    /// `None` where the reply that tells it has not come.
    token: Option<i64>,
}

impl Stage {
    const FREE: Self = Self { holds: 0, lease: 0, token: None };

    fn fits(&self, found: Option<&Holder>, owner: &str) -> bool {
        let Some(found) = found else { return self.holds == 0 };
        // Leases are far apart, so what is left of one tells which it was.
        self.holds == found.holds
            && found.owner == owner
            && self.token.is_none_or(|token| token == found.token)
            && self.lease - 100_000 < found.lease_left
            && found.lease_left <= self.lease
    }
}

/// A client with a lock of its own, and what it did with it.
struct Loner {
    key: String,
    owner: String,
    /// The lock as it was told last.
    told: Stage,
    /// The lock as it will be when the last request is carried out.
    asked: Stage,
    tokens: Vec<i64>,
}

impl Loner {
    /// Asks this and that of its lock until the server is gone.
    fn run(key: String, owner: String, port: u16, mut random: Random, told: &AtomicUsize) -> Self {
        let mut loner = Self { key, owner, told: Stage::FREE, asked: Stage::FREE, tokens: Vec::new() };
        let Ok(mut client) = Client::connect(port) else { return loner };
        loop {
            let Stage { holds, lease, token } = loner.told;
            let (key, owner) = (&loner.key, &loner.owner);
            let other_lease = random.within(1..10_000) * 1_000_000;
            let (request, asked) = match random.within(0..5) {
                _ if holds == 0 => (
                    format!("LOCK.ACQUIRE {key} {owner} PX {other_lease}"),
                    Stage { holds: 1, lease: other_lease, token: None },
                ),
                0 | 1 => {
                    (format!("LOCK.ACQUIRE {key} {owner} PX 1"), Stage { holds: holds + 1, lease, token })
                }
                2 => (
                    format!("LOCK.RENEW {key} {owner} PX {other_lease}"),
                    Stage { holds, lease: other_lease, token },
                ),
                3 if holds > 1 => {
                    (format!("LOCK.RELEASE {key} {owner}"), Stage { holds: holds - 1, lease, token })
                }
                _ => (format!("LOCK.RELEASE {key} {owner} ALL"), Stage::FREE),
            };
            loner.asked = asked;
            let Ok(reply) = client.try_call(request) else { return loner };
            told.fetch_add(1, Ordering::Relaxed);
            if let (1.., None) = (loner.asked.holds, loner.asked.token) {
                let token = reply.grant().token;
                loner.asked.token = Some(token);
                loner.tokens.push(token);
            }
            assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
            loner.told = loner.asked.clone();
        }
    }

    fn check(&self, found: Option<&Holder>, outcome: &mut Outcome) {
        if !self.told.fits(found, &self.owner) && !self.asked.fits(found, &self.owner) {
            outcome.lost.push(format!("told {:?}, asked {:?}, found {found:?}", self.told, self.asked));
        }
    }
}

/// A tenure of a lock that others want.
#[derive(Debug)]
struct Tenure {
    key: &'static str,
    owner: String,
    token: i64,
    holds: i64,
    /// The holds that a request would leave which may have been carried out.
    asked: i64,
}

/// Takes locks that others want until the server is gone. Returns the tenures it was told of.
fn rival(owner: &str, port: u16, mut random: Random, told: &AtomicUsize) -> Vec<Tenure> {
    let mut tenures = Vec::new();
    let _: Result<(), Silence> = (|| {
        let mut client = Client::connect(port).map_err(|_| Silence::Closed)?;
        let mut call = |request: String| {
            let reply = client.try_call(request)?;
            told.fetch_add(1, Ordering::Relaxed);
            Ok(reply)
        };
        loop {
            let key = random.one_of(&SHARED);
            let owner = format!("{owner}-{}", tenures.len());
            let grant = call(format!("LOCK.ACQUIRE {key} {owner} PX 86400000 BLOCK 0"))?.grant();
            tenures.push(Tenure { key, owner: owner.clone(), token: grant.token, holds: 1, asked: 1 });
            let tenure = tenures.last_mut().expect("a tenure");
            if random.once_in(3) {
                tenure.asked = 2;
                assert_eq!(call(format!("LOCK.ACQUIRE {key} {owner} HOLDS 2"))?.grant().holds, 2);
                tenure.holds = 2;
            }
            tenure.asked = 0;
            let (end, told) = if random.once_in(6) {
                // Whoever comes next is granted the lock in the background.
                (format!("LOCK.RENEW {key} {owner} PX 1"), grant.token)
            } else {
                (format!("LOCK.RELEASE {key} {owner} ALL TOKEN {}", grant.token), 0)
            };
            assert_eq!(call(end)?, Reply::Int(told));
            tenure.holds = 0;
        }
    })();
    tenures
}

/// Compares a lock that was found after the restart with what its rivals were told.
fn check_rivals(key: &str, tenures: &[Tenure], found: Option<&Holder>, outcome: &mut Outcome) {
    let token = found.map(|found| found.token);
    for tenure in tenures.iter().filter(|tenure| tenure.key == key) {
        let found_it = found.filter(|found| found.token == tenure.token);
        let stands = match found_it {
            Some(found) => found.owner == tenure.owner && [tenure.holds, tenure.asked].contains(&found.holds),
            // It is over where that was asked for. Then the lock is free, or in the hands of somebody later.
            None => tenure.asked == 0 && token.is_none_or(|token| token > tenure.token),
        };
        if !stands {
            outcome.lost.push(format!("told {tenure:?}, found {found:?}"));
        }
    }
}

/// Takes away a transaction that lacks its end, as `redis-check-aof --fix` does.
///
/// The server takes away but the torn command at its end, and goes on behind a MULTI that is never carried out: after
/// the next restart all that was written since is gone (https://github.com/valkey-io/valkey/pull/4342). It writes a
/// transaction of its own when it drops a key whose TTL has passed for a command that stores it anew.
fn mend(server: &Server) {
    let path = appended_files(server).pop().expect("an AOF");
    let aof = fs::read(&path).expect("an AOF");
    let last = |command: &[u8]| aof.windows(command.len()).rposition(|window| window == command);
    if let Some(begin) = last(b"*1\r\n$5\r\nMULTI\r\n")
        && last(b"*1\r\n$4\r\nEXEC\r\n") < Some(begin)
    {
        fs::write(&path, &aof[..begin]).expect("an AOF");
    }
}

/// Kills a server under load `cycles` times, with a disk that loses what was not synced.
fn crash(appendfsync: &str, cycles: u32) -> Outcome {
    let mut random = Random::new();
    let disk = Disk::new();
    let policy = format!("appendfsync {appendfsync}");
    let mut server = Setup::new().config("appendonly yes").config(&policy).disk(&disk).start();
    let mut outcome = Outcome::default();
    let loner_keys: Vec<String> = (0..LONERS).map(|number| format!("own-{number}")).collect();
    let keys: Vec<&str> = loner_keys.iter().map(String::as_str).chain(SHARED).collect();
    let mut given = vec![BTreeSet::new(); keys.len()];
    for cycle in 0..cycles {
        let (told, port) = (AtomicUsize::new(0), server.port());
        let (loners, tenures) = thread::scope(|scope| {
            let mut seed = || Random::from_seed(random.number());
            let loners: Vec<_> = loner_keys
                .iter()
                .map(|key| (key.clone(), format!("{key}-{cycle}"), seed()))
                .map(|(key, owner, chance)| {
                    let told = &told;
                    scope.spawn(move || Loner::run(key, owner, port, chance, told))
                })
                .collect();
            let rivals: Vec<_> = (0..RIVALS)
                .map(|number| (format!("rival-{number}-{cycle}"), seed()))
                .map(|(owner, chance)| {
                    let told = &told;
                    scope.spawn(move || rival(&owner, port, chance, told))
                })
                .collect();
            // An AOF that is not synced may lose its middle while it is rewritten. Then the server does not start.
            if appendfsync == "always" && random.once_in(4) {
                let mut client = server.client();
                client.call(format!("CONFIG SET aof-use-rdb-preamble {}", random.one_of(&["yes", "no"])));
                client.call("BGREWRITEAOF");
            }
            let enough = usize::try_from(random.within(50..400)).expect("a count");
            eventually("clients are told much", || told.load(Ordering::Relaxed) >= enough);
            server.kill();
            let loners: Vec<_> = loners.into_iter().map(|loner| loner.join().expect("a loner")).collect();
            let tenures: Vec<_> =
                rivals.into_iter().flat_map(|rival| rival.join().expect("a rival")).collect();
            (loners, tenures)
        });
        outcome.told += told.into_inner();
        outcome.cuts += usize::from(disk.lose_unsynced(&server, &mut random) > 0);
        mend(&server);
        server.start_again();

        let mut client = server.client();
        for (key, given) in keys.iter().zip(&mut given) {
            let found = client.info(key).map(|mut info| info.holders.remove(0));
            let mut tokens = match loners.iter().find(|loner| loner.key == *key) {
                Some(loner) => {
                    loner.check(found.as_ref(), &mut outcome);
                    loner.tokens.clone()
                }
                None => {
                    check_rivals(key, &tenures, found.as_ref(), &mut outcome);
                    let mut tokens: Vec<_> = tenures
                        .iter()
                        .filter(|tenure| tenure.key == *key)
                        .map(|tenure| tenure.token)
                        .collect();
                    // Rivals do not know in which order they were told.
                    tokens.sort_unstable();
                    tokens
                }
            };
            outcome.grants += tokens.len();
            if let Some(found) = found {
                // Its client may not have been told.
                tokens.extend((!tokens.contains(&found.token)).then_some(found.token));
                // What was lost may be the end of an older tenure: that is not a new one.
                tokens.retain(|token| !given.contains(token) || *token != found.token);
                assert_eq!(client.call(["LOCK.RELEASE", key, &found.owner, "ALL"]), Reply::Int(0));
            }
            tokens.push(client.acquire(&format!("{key} after-{cycle}")).token);
            assert_eq!(client.call(format!("LOCK.RELEASE {key} after-{cycle}")), Reply::Int(0));
            for token in tokens {
                if given.last().is_some_and(|last| token <= *last) {
                    outcome.repeated.push(format!("{key}: {token} after {:?}", given.last()));
                }
                given.insert(token);
            }
        }
    }
    println!(
        "{cycles} crashes, {} cost the AOF something; {} rewrites; {} replies, {} grants, {} losses",
        outcome.cuts,
        server.log().matches("Background AOF rewrite finished successfully").count(),
        outcome.told,
        outcome.grants,
        outcome.lost.len()
    );
    outcome
}

#[test]
fn with_appendfsync_always_a_crash_loses_nothing_that_was_acknowledged() {
    let outcome = crash("always", rounds(20, 200));
    assert_eq!(outcome.lost, [""; 0], "lost");
    assert_eq!(outcome.repeated, [""; 0], "tokens");
    assert!(outcome.cuts > 0, "no crash has cost the AOF anything");
}

#[test]
fn without_appendfsync_always_a_crash_may_lose_acknowledged_changes_but_tokens_grow() {
    for policy in ["everysec", "no"] {
        let outcome = crash(policy, rounds(4, 40));
        assert!(!outcome.lost.is_empty(), "{policy}: {outcome:?}");
        assert_eq!(outcome.repeated, [""; 0], "{policy}");
    }
}
