//! A replica that loses the link to its primary, misses grants, and is then promoted.

use super::name::{MODES, MS, QUARANTINE, WorldName};
use super::nemesis::{Nemesis, World};
use crate::recording_client::RecordingClient;
use lockward_checker::history::{Call, Mode, Nanos, Operation, Outcome, Token, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Link, Reply, Server, Setup, eventually};
use std::time::Duration;
use std::{mem, thread};

/// A primary and two replicas. The link to one replica loses all data. Then the primary dies, and the replica behind
/// this link is promoted. Grants that only the other replica has are lost, although the primary always had a replica in
/// sync.
#[derive(Debug)]
pub(super) struct CutOff {
    world: WorldName,
    primary: Server,
    /// The replica that misses grants and is then promoted.
    stale: Server,
    link: Link,
    /// The replica in sync.
    witness: Server,
}

/// A server with a quarantine as long as the longest lease. The server refuses writes unless a replica has a lag of at
/// most 2 seconds.
pub(super) fn safe_setup() -> Setup {
    let setup = Setup::new().module(&format!("quarantine {}", QUARANTINE / MS));
    setup.config("min-replicas-to-write 1").config("min-replicas-max-lag 2")
}

impl CutOff {
    pub(super) fn start(world: WorldName) -> Self {
        let server = || if world == WorldName::Lossy { Setup::new() } else { safe_setup() }.start();
        let (primary, stale, witness) = (server(), server(), server());
        witness.follow(&primary);
        let link = replicate_through_link(&primary, &stale);
        Self { world, primary, stale, link, witness }
    }

    fn take_over(&mut self, nemesis: &mut Nemesis<'_>) {
        self.link.swallow();
        nemesis.sleep(50..300);
        let mode = nemesis.random.one_of(&MODES);
        let missed = Missed::grant(nemesis.recorder, self.port(), mode);
        self.primary.kill();
        self.promote(nemesis);
        let outcome = missed.and_then(|missed| missed.come_back(self.port()));
        self.attach(nemesis);
        if let Some(name) = outcome {
            nemesis.fault(name, |_| ());
        }
    }

    /// The fault stops the replica. Changes for the replica wait in its socket, so the replica misses a change only if the
    /// socket is full.
    fn take_over_from_frozen(&mut self, nemesis: &mut Nemesis<'_>) {
        self.stale.freeze();
        nemesis.sleep(50..300);
        self.primary.kill();
        self.stale.thaw();
        let mut client = self.stale.client();
        eventually("the replica sees that its primary is gone", || {
            client.server_info("replication", "master_link_status") == "down"
        });
        self.promote(nemesis);
        self.attach(nemesis);
    }

    fn promote(&mut self, nemesis: &mut Nemesis<'_>) {
        assert_eq!(self.stale.client().call("REPLICAOF NO ONE"), Reply::ok());
        mem::swap(&mut self.primary, &mut self.stale);
        nemesis.announce_primary(self.primary.port());
        self.witness.begin_to_follow(self.primary.port());
    }

    fn attach(&mut self, nemesis: &mut Nemesis<'_>) {
        self.witness.see_in_sync_with(&self.primary);
        nemesis.sleep(1..300);
        self.stale.start_again();
        self.link = replicate_through_link(&self.primary, &self.stale);
    }
}

/// Makes `replica` a replica of `primary` over a link, and waits until every replica is online.
fn replicate_through_link(primary: &Server, replica: &Server) -> Link {
    let link = Link::to(primary);
    replica.follow_through(&link, primary);
    let mut client = primary.client();
    eventually("every replica is online", || {
        let info = client.call("INFO replication").text();
        info.lines().filter(|line| line.starts_with("slave")).all(|line| line.contains("state=online"))
    });
    link
}

impl World for CutOff {
    fn port(&self) -> u16 {
        self.primary.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        let choice = nemesis.random.between(0, 10);
        if choice == 8 && self.world == WorldName::CutOff {
            nemesis.fault("take-over by a frozen replica", |nemesis| self.take_over_from_frozen(nemesis));
        } else if choice < 8 {
            nemesis.fault("take-over by a stale replica", |nemesis| self.take_over(nemesis));
        } else {
            nemesis.cut_connections(self.port());
        }
    }
}

/// A grant that the replica misses before its promotion.
#[derive(Debug)]
struct Missed<'r> {
    recorder: &'r Recorder,
    key: String,
    mode: Mode,
    token: Token,
    /// The end of the lease on the holder's clock.
    until: Nanos,
}

impl<'r> Missed<'r> {
    const CLIENT: u32 = u32::MAX - 1;
    const LEASE: Nanos = QUARANTINE - MS;
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Acquires a lock that no client uses, on the primary on `port`. `None` if the primary refuses writes.
    fn grant(recorder: &'r Recorder, port: u16, mode: Mode) -> Option<Self> {
        let key = format!("missed-{}", now());
        let acquire = Operation::acquire(Self::LEASE, Wait::No, mode);
        let call = Self::call(recorder, port, &key, "holder", acquire);
        let (token, _) = call.granted()?;
        Some(Self { recorder, key, mode, token, until: call.start + Self::LEASE })
    }

    /// Another owner tries to acquire the lock on the new primary. If this owner gets no grant, the holder restores its
    /// tenure before the lease is over. Returns the name of the outcome, or `None` if the primary refuses writes until
    /// the lease is over.
    fn come_back(self, port: u16) -> Option<&'static str> {
        let Self { recorder, key, mode, token, until } = self;
        let acquire = Operation::acquire(Self::LEASE, Wait::No, Mode::EXCLUSIVE);
        if Self::call(recorder, port, &key, "another", acquire).granted().is_some() {
            return Some("loss of a grant");
        }
        while now() < until {
            let (token, holds, mode) = (Some(token), Some(1), Some(mode));
            let renewal = Operation::Renew { lease: Self::LEASE, token, holds, mode };
            match Self::call(recorder, port, &key, "holder", renewal).outcome {
                Outcome::Renewed { .. } => return Some("missed tenure restored"),
                Outcome::Error(word) if word == "NOREPLICAS" => {
                    thread::park_timeout(Duration::from_millis(5))
                }
                other => panic!("a missed tenure is not restored within its lease: {other:?}"),
            }
        }
        None
    }

    fn call(recorder: &Recorder, port: u16, key: &str, owner: &str, operation: Operation) -> Call {
        let caller = RecordingClient::connect(recorder, Self::CLIENT, port).expect("a connection");
        caller.call(key, owner, operation, Self::PATIENCE).1
    }
}
