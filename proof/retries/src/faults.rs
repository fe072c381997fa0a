//! What the proxy loses.

use crate::contestant::{Contestant, owner_of};
use lockward_tests::{Fate, Random, Reply};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The names of the faults.
pub(crate) const KINDS: [&str; 6] = [REQUEST, REPLY, TORN, HUNG_UP, WAITING, SILENCE];
const REQUEST: &str = "request lost";
const REPLY: &str = "reply lost";
const TORN: &str = "reply torn";
const HUNG_UP: &str = "client cut off";
const WAITING: &str = "cut while waiting";
const SILENCE: &str = "silence";

/// What has been done to the commands of a contestant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// How many commands the client was told to issue; those that it was told again are not among them.
    pub(crate) commands: u64,
    /// How often a command came though the client was not told to issue it again.
    pub(crate) sent_again: u64,
    /// How often the client was told again, after it had failed.
    pub(crate) told_again: u64,
    /// The faults, by their names. Each hit a command in flight.
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// How many faults there were.
    pub(crate) fn hits(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// One owner's command, as the proxy sees it.
#[derive(Debug)]
struct Traffic {
    contestant: Contestant,
    random: Random,
    /// For how long its next command is to hear nothing more.
    silence: Option<Duration>,
    /// How often the client was told to issue it.
    told: u32,
    /// How often it has come.
    arrivals: u32,
    /// How often it has come though the client was not told: the most seen, since what it was told may come late.
    untold: u32,
    /// Whether it is on its way to the reply: nothing befalls it before that.
    is_under_way: bool,
}

/// Decides what is lost: for each owner by numbers of its own, however the owners' commands are mixed.
#[derive(Debug)]
pub(crate) struct Faults {
    lanes: Vec<Mutex<Traffic>>,
    tallies: [Mutex<Tally>; Contestant::ALL.len()],
    goal: u64,
}

/// The owner in a lane.
pub(crate) fn owner(lane: usize) -> String {
    format!("6b6f0d51-7d4e-4d0b-9a0c-5b7e7c2f1a90:{lane}")
}

fn lane_of(owner: &Reply) -> Option<usize> {
    owner.text().rsplit_once(':')?.1.parse().ok()
}

impl Faults {
    /// Faults for these lanes, each with its seed and its silence, until there were so many for each contestant.
    pub(crate) fn new(lanes: impl Iterator<Item = (Contestant, u64, Option<Duration>)>, goal: u64) -> Self {
        let traffic = |(contestant, seed, silence)| {
            Mutex::new(Traffic {
                contestant,
                random: Random::from_seed(seed),
                silence,
                told: 0,
                arrivals: 0,
                untold: 0,
                is_under_way: false,
            })
        };
        Self { lanes: lanes.map(traffic).collect(), tallies: Default::default(), goal }
    }

    /// What becomes of a request.
    pub(crate) fn fate_of(&self, request: &[Reply]) -> Fate {
        let name = request.first().map(Reply::text).unwrap_or_default();
        let lane = owner_of(request, &name).and_then(lane_of);
        lane.map_or(Fate::Carried, |lane| self.fate_in(lane, request.contains(&Reply::bulk("BLOCK"))))
    }

    fn fate_in(&self, lane: usize, waits: bool) -> Fate {
        let mut traffic = self.traffic(lane);
        let mut tally = self.tally_mut(traffic.contestant);
        traffic.arrivals += 1;
        if traffic.arrivals > traffic.told + traffic.untold {
            traffic.untold += 1;
            tally.sent_again += 1;
        }
        let (name, fate) = match traffic.silence.take() {
            Some(limit) => (SILENCE, Fate::Silence(limit)),
            // What comes late, when the client has given up and was told again, is no longer in flight.
            None if tally.hits() >= self.goal || traffic.arrivals < traffic.told => ("", Fate::Carried),
            None => traffic.next(waits),
        };
        traffic.is_under_way = matches!(fate, Fate::Carried | Fate::ReplyLost | Fate::ReplyTorn);
        if fate != Fate::Carried {
            *tally.faults.entry(name).or_default() += 1;
        }
        fate
    }

    /// The client is told to issue a command, or told again.
    pub(crate) fn expect(&self, lane: usize, again: bool) {
        let mut traffic = self.traffic(lane);
        traffic.is_under_way = false;
        let mut tally = self.tally_mut(traffic.contestant);
        if again {
            traffic.told += 1;
            tally.told_again += 1;
        } else {
            (traffic.told, traffic.arrivals, traffic.untold) = (1, 0, 0);
            tally.commands += 1;
        }
    }

    /// Whether the command that was last expected has come, and nothing befalls it before its reply.
    pub(crate) fn is_under_way(&self, lane: usize) -> bool {
        self.traffic(lane).is_under_way
    }

    /// Whether there were enough faults.
    pub(crate) fn are_enough(&self, contestant: Contestant) -> bool {
        self.tally_mut(contestant).hits() >= self.goal
    }

    /// What was done up to now.
    pub(crate) fn tally(&self, contestant: Contestant) -> Tally {
        self.tally_mut(contestant).clone()
    }

    fn tally_mut(&self, contestant: Contestant) -> MutexGuard<'_, Tally> {
        self.tallies[contestant as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traffic(&self, lane: usize) -> MutexGuard<'_, Traffic> {
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    /// Every second command is hit, and of those that come again every third: some as often as a client tries.
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
