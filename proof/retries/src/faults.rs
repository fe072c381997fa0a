//! The faults that the proxy injects.

use crate::lock_kind::LockKind;
use lockward_tests::{Fate, Random, Reply, locked};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The names of the faults.
pub(crate) const KINDS: [&str; 6] = [REQUEST, REPLY, TORN, HUNG_UP, WAITING, SILENCE];
const REQUEST: &str = "request lost";
const REPLY: &str = "reply lost";
const TORN: &str = "reply torn";
const HUNG_UP: &str = "client cut off";
const WAITING: &str = "cut while waiting";
const SILENCE: &str = "silence";

/// The numbers of commands and faults for one kind of lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultCounts {
    /// Commands that actors issued, without repeats.
    pub(crate) commands: u64,
    /// Repeats by the client itself.
    pub(crate) sent_again: u64,
    /// Repeats that actors issued after a failure.
    pub(crate) issued_again: u64,
    /// Faults by name. Each fault hit a command in flight.
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

impl FaultCounts {
    /// The number of faults.
    pub(crate) fn hits(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// The current command of one owner, as the proxy sees it.
#[derive(Debug)]
struct Traffic {
    kind: LockKind,
    random: Random,
    /// How long the proxy forwards nothing after the owner's next command.
    silence: Option<Duration>,
    /// How often the actor has issued the command.
    issued: u32,
    /// How often the command has arrived at the proxy.
    arrivals: u32,
    /// The number of repeats by the client itself: the largest difference `arrivals` - `issued` so far. The current
    /// difference may be smaller, because an issued command may not have arrived yet.
    unissued: u32,
    /// Whether the server certainly gets the command, so that only the reply can be lost.
    is_under_way: bool,
}

/// Decides the faults. Each owner has its own random numbers, so its faults do not depend on the order of the owners'
/// commands.
#[derive(Debug)]
pub(crate) struct Faults {
    actors: Vec<Mutex<Traffic>>,
    counts: [Mutex<FaultCounts>; LockKind::ALL.len()],
    goal: u64,
}

/// The owner name under which an actor acquires locks.
pub(crate) fn owner(actor: usize) -> String {
    format!("6b6f0d51-7d4e-4d0b-9a0c-5b7e7c2f1a90:{actor}")
}

fn actor_of(owner: &Reply) -> Option<usize> {
    owner.text().rsplit_once(':')?.1.parse().ok()
}

impl Faults {
    /// Injects faults for these actors until there are `goal` faults for each kind of lock. Each actor has a kind of
    /// lock, a seed, and perhaps a time in which the proxy forwards nothing for this actor.
    pub(crate) fn new(actors: impl Iterator<Item = (LockKind, u64, Option<Duration>)>, goal: u64) -> Self {
        let traffic = |(kind, seed, silence)| {
            Mutex::new(Traffic {
                kind,
                random: Random::from_seed(seed),
                silence,
                issued: 0,
                arrivals: 0,
                unissued: 0,
                is_under_way: false,
            })
        };
        Self { actors: actors.map(traffic).collect(), counts: Default::default(), goal }
    }

    /// The fate of a request.
    pub(crate) fn fate_of(&self, request: &[Reply]) -> Fate {
        let is_ours = request.first().is_some_and(|name| name.text().starts_with("LOCK."));
        let actor = request.get(2).filter(|_| is_ours).and_then(actor_of);
        actor.map_or(Fate::Carried, |actor| self.fate_for(actor, request.contains(&Reply::bulk("BLOCK"))))
    }

    fn fate_for(&self, actor: usize, waits: bool) -> Fate {
        let mut traffic = self.traffic(actor);
        let mut counts = self.counts_mut(traffic.kind);
        traffic.arrivals += 1;
        if traffic.arrivals > traffic.issued + traffic.unissued {
            traffic.unissued += 1;
            counts.sent_again += 1;
        }
        let (name, fate) = match traffic.silence.take() {
            Some(limit) => (SILENCE, Fate::Silence(limit)),
            // If the actor has already issued this command again, no actor waits for the reply to this arrival. A fault
            // would have no effect.
            None if counts.hits() >= self.goal || traffic.arrivals < traffic.issued => ("", Fate::Carried),
            None => traffic.next(waits),
        };
        traffic.is_under_way = matches!(fate, Fate::Carried | Fate::ReplyLost | Fate::ReplyTorn);
        if fate != Fate::Carried {
            *counts.faults.entry(name).or_default() += 1;
        }
        fate
    }

    /// Announces a command that an actor is about to issue, for the first time or again.
    pub(crate) fn expect(&self, actor: usize, again: bool) {
        let mut traffic = self.traffic(actor);
        traffic.is_under_way = false;
        let mut counts = self.counts_mut(traffic.kind);
        if again {
            traffic.issued += 1;
            counts.issued_again += 1;
        } else {
            (traffic.issued, traffic.arrivals, traffic.unissued) = (1, 0, 0);
            counts.commands += 1;
        }
    }

    /// Whether the server certainly gets the last announced command of an actor.
    pub(crate) fn is_under_way(&self, actor: usize) -> bool {
        self.traffic(actor).is_under_way
    }

    /// Whether there are enough faults for a kind of lock.
    pub(crate) fn are_enough(&self, kind: LockKind) -> bool {
        self.counts_mut(kind).hits() >= self.goal
    }

    /// The counts so far.
    pub(crate) fn counts(&self, kind: LockKind) -> FaultCounts {
        self.counts_mut(kind).clone()
    }

    fn counts_mut(&self, kind: LockKind) -> MutexGuard<'_, FaultCounts> {
        locked(&self.counts[kind as usize])
    }

    fn traffic(&self, actor: usize) -> MutexGuard<'_, Traffic> {
        locked(&self.actors[actor])
    }
}

impl Traffic {
    /// Chooses a fault for half of the commands, and for a third of the repeats.
    fn next(&mut self, waits: bool) -> (&'static str, Fate) {
        if !self.random.once_in(if self.arrivals == 1 { 2 } else { 3 }) {
            return ("", Fate::Carried);
        }
        let while_waiting = Duration::from_millis(self.random.within(0..50).unsigned_abs());
        match self.random.within(if waits { 0..12 } else { 0..4 }) {
            0 => (REQUEST, Fate::RequestLost),
            1 => (REPLY, Fate::ReplyLost),
            2 => (TORN, Fate::ReplyTorn),
            3 => (HUNG_UP, Fate::ClientLost),
            _ => (WAITING, Fate::CutAfter(while_waiting)),
        }
    }
}
