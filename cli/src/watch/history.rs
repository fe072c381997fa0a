//! The locks as the watcher last read them. The history compares each new reading of a lock with the previous reading,
//! and with the events between the two readings.
//!
//! A listener uses one connection to receive the events of a lock and to read the lock. So the events that arrive
//! between two replies are exactly the events that the server published between the two readings. Owners and tokens
//! come only from readings. Events tell why and when a tenure ended.
//!
//! The history forgets free locks, so its memory is bounded by the number of held locks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::fact::{Fact, What};
use super::published::{Change, Published};
use crate::duration;
use crate::locks::{Holder, Lock};

/// Why a lock is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The watcher starts.
    Start,
    /// Events have arrived, or the last reading is too old.
    Watching,
    /// The connection is new, so events may have been missed.
    Reconnected,
}

/// The reply of a server about a lock, and its time.
pub(super) struct Reading {
    pub(super) key: Vec<u8>,
    pub(super) lock: Option<Lock>,
    /// Whether the key has a value that is not a lock.
    pub(super) is_other_type: bool,
    pub(super) published: Published,
    pub(super) node: Arc<str>,
    pub(super) occasion: Occasion,
    /// The time when the connection subscribed.
    pub(super) since: SystemTime,
    pub(super) time: SystemTime,
    pub(super) instant: Instant,
}

/// A lock as last read.
struct Known {
    /// The holders by their tokens.
    holders: BTreeMap<u64, Holder>,
    /// Holders with larger tokens than this may be missing in `holders`.
    complete_to: u64,
    read_at: Instant,
    /// When the lock was last read, or should have been read.
    checked_at: Instant,
    /// The server that has the lock.
    node: Arc<str>,
}

impl Known {
    fn read(lock: Option<Lock>, read_at: Instant, node: Arc<str>) -> Self {
        let (holding, holders) = lock.map_or((0, Vec::new()), |lock| (lock.holding, lock.holders));
        let holders: BTreeMap<u64, Holder> =
            holders.into_iter().map(|holder| (holder.token, holder)).collect();
        let is_complete = u64::try_from(holders.len()).is_ok_and(|count| count >= holding);
        let last = holders.last_key_value().map_or(0, |(token, _)| *token);
        let complete_to = if is_complete { u64::MAX } else { last };
        Self { holders, complete_to, read_at, checked_at: read_at, node }
    }

    /// Whether the lease of a holder should be over at this time.
    fn is_over(&self, holder: &Holder, at: Instant) -> bool {
        holder.lease_left <= duration::ms(at.saturating_duration_since(self.read_at))
    }

    /// Whether a lease should have ended since the last check.
    fn is_due(&self, now: Instant) -> bool {
        let mut holders = self.holders.values();
        holders.any(|holder| self.is_over(holder, now) && !self.is_over(holder, self.checked_at))
    }

    /// Whether the lock has one holder, and is exclusive.
    fn is_exclusive(&self) -> bool {
        self.holders.len() == 1 && self.holders.values().all(|holder| holder.mode.is_exclusive())
    }
}

/// All held locks that match the pattern.
#[derive(Default)]
pub(super) struct History {
    locks: HashMap<Vec<u8>, Known>,
}

impl History {
    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.locks.contains_key(key)
    }

    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        self.locks.keys().cloned().collect()
    }

    /// At most `count` keys of this node whose last check is at least this old, or whose lease should be over since. These
    /// keys now count as checked.
    pub(super) fn unchecked(&mut self, node: &str, age: Duration, count: usize) -> Vec<Vec<u8>> {
        let now = Instant::now();
        let unchecked = self.locks.iter_mut().filter(|(_, known)| {
            *known.node == *node && (now.duration_since(known.checked_at) >= age || known.is_due(now))
        });
        let checked = unchecked.take(count).map(|(key, known)| {
            known.checked_at = now;
            key.clone()
        });
        checked.collect()
    }

    /// Adds a reading, and returns what has happened to the lock since its previous reading, in the order of time.
    pub(super) fn read(&mut self, mut reading: Reading) -> Vec<Fact> {
        let lock = reading.lock.take();
        let now = Known::read(lock, reading.instant, Arc::clone(&reading.node));
        let before = self
            .locks
            .remove(&reading.key)
            .unwrap_or_else(|| Known::read(None, reading.instant, Arc::clone(&reading.node)));
        let comparison = Comparison::new(&reading, &before, &now);
        let departed = comparison.departed.iter().enumerate();
        let mut facts: Vec<Fact> =
            departed.map(|(number, holder)| comparison.departure(number, holder)).collect();
        facts.extend(comparison.unseen());
        facts.extend(comparison.arrived.iter().map(|holder| comparison.arrival(holder)));
        facts.sort_by_key(|fact| fact.time);
        if !now.holders.is_empty() {
            self.locks.insert(reading.key, now);
        }
        facts
    }
}

/// Two readings of a lock, and the events between them.
struct Comparison<'a> {
    reading: &'a Reading,
    before: &'a Known,
    now: &'a Known,
    departed: Vec<&'a Holder>,
    arrived: Vec<&'a Holder>,
}

impl<'a> Comparison<'a> {
    fn new(reading: &'a Reading, before: &'a Known, now: &'a Known) -> Self {
        let is_gone =
            |holder: &&Holder| holder.token <= now.complete_to && !now.holders.contains_key(&holder.token);
        // If the previous reading did not show all holders, that reading may have lacked a tenure that had already
        // begun. So a tenure that was missing in that reading is new only if it is younger than that reading.
        let between = duration::ms(reading.instant.saturating_duration_since(before.read_at));
        let is_new = |holder: &&Holder| {
            !before.holders.contains_key(&holder.token)
                && (holder.token <= before.complete_to || holder.held_for < between)
        };
        let departed = before.holders.values().filter(is_gone).collect();
        let arrived = now.holders.values().filter(is_new).collect();
        Self { reading, before, now, departed, arrived }
    }

    fn changes(&self) -> &'a [(Change, SystemTime)] {
        &self.reading.published
    }

    /// The event that ended the tenure of the only holder. Some events may end a tenure. The function looks for the
    /// first series of such events, without other events in between. The last event of this series ended the tenure,
    /// and the earlier events of the series released other holds of the same owner. Acquisitions before the series were
    /// repeated acquisitions by this owner.
    fn exclusive_end(&self) -> Option<(Change, SystemTime)> {
        let ends = |(change, _): &&(Change, SystemTime)| change.end().is_some();
        self.changes().iter().skip_while(|change| !ends(change)).take_while(ends).last().copied()
    }

    /// The event that ended one of several tenures. Events do not name owners, so the result is `None` if the tenures
    /// ended in different ways.
    fn shared_end(&self, number: usize) -> Option<(Change, SystemTime)> {
        let ends = self.changes().iter().filter(|(change, _)| change.end().is_some());
        let ends: Vec<_> = ends.copied().collect();
        let last = ends.last().copied()?;
        let is_one_kind = ends.iter().all(|(change, _)| *change == last.0);
        let matching = if ends.len() == self.departed.len() { ends.get(number).copied() } else { None };
        is_one_kind.then_some(matching.unwrap_or(last))
    }

    /// The fact about the end of a tenure, the one with this number among those that are over.
    fn departure(&self, number: usize, holder: &Holder) -> Fact {
        let event = if self.before.is_exclusive() { self.exclusive_end() } else { self.shared_end(number) };
        let end = event.and_then(|(change, time)| Some((change.end()?, time)));
        let has = |wanted: fn(&Change) -> bool| self.changes().iter().any(|(change, _)| wanted(change));
        let is_due = self.before.is_over(holder, self.reading.instant);
        let was_replaced = self.reading.is_other_type || has(|change| matches!(change, Change::Arrived(_)));
        // Without an event, or with an ambiguous event, the reading says how the tenure ended.
        let ((what, reason), time) = end.unwrap_or_else(|| {
            let end = if was_replaced {
                (What::Broken, Some("overwritten"))
            } else if has(|change| matches!(change, Change::Broken(_))) {
                (What::Ended, Some("released, lease over or broken"))
            } else if is_due {
                (What::Lost, Some("lease over"))
            } else if has(|change| *change == Change::Released) {
                (What::Released, None)
            } else {
                (What::Ended, None)
            };
            (end, self.reading.time)
        });
        // The watcher reads a lock when a lease should be over. Redis 7.2 and later send the event after this reply.
        let is_on_time = is_due && self.reading.occasion == Occasion::Watching;
        Fact {
            reason: reason.map(str::to_owned),
            found_later: self.changes().is_empty() && !is_on_time,
            ..Fact::of_holder(&self.reading.key, holder, time, what)
        }
    }

    /// The fact about a new tenure.
    fn arrival(&self, holder: &Holder) -> Fact {
        let reading = self.reading;
        let begun = reading.time.checked_sub(Duration::from_millis(holder.held_for)).unwrap_or(reading.time);
        if let Some(time) = self.acquisition_at(begun).filter(|_| begun >= reading.since) {
            return Fact::of_holder(&reading.key, holder, time, What::Acquired);
        }
        let way = self.changes().iter().find_map(|(change, _)| {
            if let Change::Arrived(way) = change { Some((*way).to_owned()) } else { None }
        });
        let is_first_sight = way.is_some() || reading.occasion == Occasion::Start;
        let what = if is_first_sight { What::Held } else { What::Acquired };
        Fact {
            held_for: Some(holder.held_for),
            reason: way,
            found_later: !is_first_sight,
            ..Fact::of_holder(&reading.key, holder, reading.time, what)
        }
    }

    /// The time of the acquisition event that is nearest to a time.
    fn acquisition_at(&self, time: SystemTime) -> Option<SystemTime> {
        let distance =
            |at: SystemTime| at.duration_since(time).or_else(|_| time.duration_since(at)).unwrap_or_default();
        let changes = self.changes().iter().rev();
        let acquired = changes.filter(|(change, _)| *change == Change::Acquired).map(|(_, at)| *at);
        acquired.min_by_key(|at| distance(*at))
    }

    /// A fact about acquisitions that no reading shows, if there were any.
    fn unseen(&self) -> Option<Fact> {
        let is_exclusive = self.before.is_exclusive();
        // The only holder has acquired again.
        if is_exclusive && self.departed.is_empty() {
            return None;
        }
        let later = self.changes().iter().skip_while(|(change, _)| is_exclusive && change.end().is_none());
        let mut acquired = later.filter(|(change, _)| *change == Change::Acquired).map(|(_, at)| *at);
        let first = acquired.next();
        let all = usize::from(first.is_some()) + acquired.count();
        let count = all.checked_sub(self.seen_acquisitions()).filter(|count| *count > 0)?;
        let time = first.unwrap_or(self.reading.time);
        Some(Fact { acquisitions: Some(count), ..Fact::of(&self.reading.key, time, What::Unseen) })
    }

    /// How many acquisitions the new reading shows: the holds of new tenures, and the additional holds of known
    /// tenures.
    fn seen_acquisitions(&self) -> usize {
        let arrived = self.arrived.iter().map(|holder| holder.holds).sum::<u64>();
        let repeated = self.now.holders.iter().filter_map(|(token, holder)| {
            Some(holder.holds.saturating_sub(self.before.holders.get(token)?.holds))
        });
        usize::try_from(arrived + repeated.sum::<u64>()).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::Mode;
    use crate::text::Name;

    /// The history of the lock `k`, in virtual time.
    struct Scene {
        history: History,
        begun: (SystemTime, Instant),
        ms: u64,
        published: Published,
    }

    impl Scene {
        fn new() -> Self {
            let begun = (SystemTime::now(), Instant::now());
            Self { history: History::default(), begun, ms: 0, published: Published::default() }
        }

        fn event(&mut self, ms: u64, name: &str) {
            self.published.push((Change::of(name.as_bytes()), self.begun.0 + Duration::from_millis(ms)));
            self.ms = ms;
        }

        /// Adds a reading of a lock with `holding` holders. `holders` has the holders in the reply, each with its owner,
        /// token, limit, remaining lease and tenure so far. Returns the lines without their times.
        fn read(&mut self, holding: u64, holders: &[(&str, u64, u64, u64, u64)]) -> Vec<String> {
            let holders: Vec<Holder> = holders
                .iter()
                .map(|&(owner, token, slots, lease_left, held_for)| Holder {
                    owner: Name(owner.into()),
                    holds: 1,
                    token,
                    mode: Mode { slots, weight: 1 },
                    lease_left,
                    held_for,
                })
                .collect();
            let mode = Mode { slots: 0, weight: holding };
            let lock = Lock { mode, holding, holders, waiters: 0, queue: None };
            let passed = Duration::from_millis(self.ms);
            let reading = Reading {
                key: b"k".to_vec(),
                lock: (holding > 0).then_some(lock),
                is_other_type: false,
                published: std::mem::take(&mut self.published),
                node: Arc::from("node"),
                occasion: Occasion::Watching,
                since: self.begun.0,
                time: self.begun.0 + passed,
                instant: self.begun.1 + passed,
            };
            let facts = self.history.read(reading);
            facts.iter().map(|fact| fact.line().split_at(25).1.replace("  ", " ")).collect()
        }
    }

    #[test]
    fn facts_about_a_chain_of_holders_are_in_order() {
        let mut scene = Scene::new();
        scene.event(10, "lock.acquired");
        assert_eq!(scene.read(1, &[("A", 1, 1, 1_000, 0)]), ["k acquired A token 1"]);
        for (ms, name) in
            [(20, "lock.released"), (30, "lock.acquired"), (40, "expired"), (41, "lock.acquired")]
        {
            scene.event(ms, name);
        }
        let told = ["k released A token 1", "k acquired and ended, owner not seen", "k acquired B token 3"];
        assert_eq!(scene.read(1, &[("B", 3, 1, 1_000, 0)]), told);
    }

    #[test]
    fn the_release_of_one_of_two_holds_does_not_end_the_tenure() {
        let mut scene = Scene::new();
        scene.event(10, "lock.acquired");
        scene.read(1, &[("A", 1, 1, 1_000, 0)]);
        for (ms, name) in [(20, "lock.acquired"), (30, "lock.released"), (40, "del")] {
            scene.event(ms, name);
        }
        assert_eq!(scene.read(0, &[]), ["k broken A token 1 deleted"]);
    }

    #[test]
    fn deadlines_tell_which_of_two_holders_was_released() {
        let mut scene = Scene::new();
        scene.event(10, "lock.acquired");
        scene.event(10, "lock.acquired");
        scene.read(2, &[("A", 1, 0, 50, 0), ("B", 2, 0, 1_000, 0)]);
        scene.event(70, "lock.released");
        scene.event(71, "expired");
        let told = ["k lost A token 1 shared lease over", "k released B token 2 shared"];
        assert_eq!(scene.read(0, &[]), told);
    }

    #[test]
    fn a_lease_that_ends_on_time_is_not_found_later() {
        let mut scene = Scene::new();
        scene.read(2, &[("A", 1, 0, 50, 0), ("B", 2, 0, 1_000, 0)]);
        scene.ms = 70;
        assert_eq!(scene.read(1, &[("B", 2, 0, 930, 70)]), ["k lost A token 1 shared lease over"]);
    }

    #[test]
    fn a_release_before_a_deletion_is_ambiguous() {
        let mut scene = Scene::new();
        scene.read(2, &[("A", 1, 0, 1_000, 0), ("B", 2, 0, 1_000, 0)]);
        scene.event(20, "lock.released");
        scene.event(30, "del");
        let told = scene.read(0, &[]);
        assert!(told.iter().all(|line| line.contains(" ended ")), "{told:?}");
    }

    #[test]
    fn a_holder_missing_in_an_incomplete_reading_is_neither_gone_nor_new() {
        let mut scene = Scene::new();
        scene.read(3, &[("A", 1, 0, 1_000, 0), ("B", 2, 0, 1_000, 0)]);
        scene.event(500, "lock.released");
        let told = scene.read(2, &[("B", 2, 0, 500, 500), ("C", 3, 0, 500, 500)]);
        assert_eq!(told, ["k released A token 1 shared"]);
    }
}
