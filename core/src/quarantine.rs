//! The quarantine: a time after a start or a promotion in which the server grants no new tenure.
//!
//! A server that has just started, and a replica that has just been promoted, may lack grants that were made before. The
//! quarantine is set to at least the longest lease. Meanwhile holders can re-enter, renew and release, and can restore a lost
//! tenure by its token. When the quarantine is over, the leases of all lost tenures are over too.

use crate::change::End;
use crate::holder::{Load, Mode};
use crate::token::FencingToken;
use crate::units::{Instant, Span};
use std::collections::{BTreeMap, BTreeSet};

/// When the quarantine began, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quarantine {
    began: Instant,
    length: Span,
    /// Tenures that began at this instant or before it are unconfirmed.
    unconfirmed_until: Instant,
}

impl Quarantine {
    /// A quarantine of `length` from `began`. A length of zero is no quarantine.
    #[must_use]
    pub const fn new(began: Instant, length: Span) -> Self {
        Self { began, length, unconfirmed_until: began }
    }

    /// Begins again, since the server was promoted.
    pub const fn restart(&mut self, now: Instant) {
        self.began = now;
        self.unconfirmed_until = now;
    }

    /// Data was loaded: the tenures in it are unconfirmed. The end of the quarantine does not change.
    pub const fn loaded(&mut self, now: Instant) {
        self.unconfirmed_until = now;
    }

    /// Whether a tenure that began at `since` is from before the quarantine.
    #[must_use]
    pub fn is_unconfirmed(&self, since: Instant) -> bool {
        since <= self.unconfirmed_until
    }

    /// Sets the length, counted from the instant at which the quarantine began.
    pub const fn set_length(&mut self, length: Span) {
        self.length = length;
    }

    /// The instant at which it ends; `None` when it is over.
    #[must_use]
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        if self.length == Span::default() {
            return None;
        }
        let end = self.began.after(self.length);
        (now < end).then_some(end)
    }
}

/// Of how many ended tenures of one lock the memory has an entry.
const ENDED: usize = 1_000;

/// What a server has observed of a lock's tenures in this quarantine. Its stored data are from before, and may be out of date.
///
/// Every tenure here has ended, or goes on and was confirmed. A tenure that has ended stays ended, and so does every older one that
/// could not stand beside it: it must have ended before that one was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuarantineMemory {
    /// No tenure with this token or a smaller one can be restored.
    ended_up_to: Option<FencingToken>,
    /// Tenures that have ended here, of modes that others can stand beside.
    ended: BTreeMap<FencingToken, (Mode, End)>,
    /// Tenures that their owners have renewed: they are confirmed.
    renewed: BTreeSet<FencingToken>,
    /// Tenures whose owners have named their count of holds: the count is confirmed.
    holds_named: BTreeSet<FencingToken>,
}

impl QuarantineMemory {
    /// Whether nothing was observed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ended_up_to.is_none()
            && self.ended.is_empty()
            && self.renewed.is_empty()
            && self.holds_named.is_empty()
    }

    /// Whether the owner of this tenure has renewed it.
    #[must_use]
    pub fn has_renewed(&self, token: FencingToken) -> bool {
        self.renewed.contains(&token)
    }

    /// Whether the owner of this tenure has named its count of holds.
    #[must_use]
    pub fn has_named_holds(&self, token: FencingToken) -> bool {
        self.holds_named.contains(&token)
    }

    /// The owner of this tenure has renewed it.
    pub fn see_renewed(&mut self, token: FencingToken) {
        self.renewed.insert(token);
    }

    /// The owner of this tenure has named its count of holds.
    pub fn see_holds_named(&mut self, token: FencingToken) {
        self.holds_named.insert(token);
    }

    /// A tenure has ended here. One that was released is over. One whose lease was over may be restored: its owner may have renewed it
    /// where this server did not see it.
    pub fn see_ended(&mut self, token: FencingToken, mode: Mode, end: End) {
        self.renewed.remove(&token);
        self.holds_named.remove(&token);
        if mode.admits_others() {
            self.ended.insert(token, (mode, end));
            if self.ended.len() > ENDED {
                self.end_up_to(self.last_ended());
            }
        } else {
            self.end_up_to(match end {
                End::Released => Some(token),
                End::LeaseOver => token.before(),
            });
        }
    }

    /// No tenure up to this token can be restored any more.
    pub fn end_up_to(&mut self, token: Option<FencingToken>) {
        if token > self.ended_up_to {
            self.ended_up_to = token;
            let is_later = |other: &FencingToken| Some(*other) > token;
            self.ended.retain(|other, _| is_later(other));
            self.renewed.retain(is_later);
            self.holds_named.retain(is_later);
        }
    }

    /// Forgets what is said for all locks: no tenure up to this token can be restored.
    pub(crate) fn forget_up_to(&mut self, token: Option<FencingToken>) {
        if token >= self.ended_up_to {
            self.end_up_to(token);
            self.ended_up_to = None;
        }
    }

    /// How many ended tenures have an entry of their own.
    pub(crate) fn ended_entries(&self) -> usize {
        self.ended.len()
    }

    /// The largest token of an ended tenure.
    #[must_use]
    pub fn last_ended(&self) -> Option<FencingToken> {
        self.ended_up_to.max(self.ended.last_key_value().map(|(token, _)| *token))
    }

    /// Whether a tenure with this token and mode can be restored, by what has ended here.
    #[must_use]
    pub fn may_restore(&self, token: FencingToken, mode: Mode) -> bool {
        self.ended_up_to < Some(token)
            && !matches!(self.ended.get(&token), Some((_, End::Released)))
            && self
                .ended
                .range(token..)
                .all(|(later, (ended, _))| *later == token || Load::of(*ended).admits(mode))
    }

    /// A tenure goes on that had ended here.
    pub fn see_restored(&mut self, token: FencingToken) {
        self.ended.remove(&token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::{Slots, Weight};

    const EXCLUSIVE: (u32, u32) = (1, 1);
    const READER: (u32, u32) = (0, 1);

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn mode((slots, weight): (u32, u32)) -> Mode {
        Mode::new(Slots::new(slots).unwrap(), Weight::new(weight).unwrap()).unwrap()
    }

    #[test]
    fn an_ended_tenure_stays_ended_with_the_older_ones_that_could_not_stand_beside_it() {
        use End::{LeaseOver, Released};
        for (ended, claim, may_be_restored) in [
            ((5, EXCLUSIVE, Released), (5, EXCLUSIVE), false),
            ((5, EXCLUSIVE, Released), (4, READER), false),
            ((5, EXCLUSIVE, Released), (6, EXCLUSIVE), true),
            ((5, EXCLUSIVE, LeaseOver), (5, EXCLUSIVE), true),
            ((5, EXCLUSIVE, LeaseOver), (4, READER), false),
            ((5, READER, Released), (5, READER), false),
            ((5, READER, Released), (4, READER), true),
            ((5, READER, Released), (4, EXCLUSIVE), false),
            ((5, READER, LeaseOver), (5, READER), true),
            ((5, READER, LeaseOver), (4, EXCLUSIVE), false),
            ((5, (8, 5), Released), (4, (8, 3)), true),
            ((5, (8, 5), Released), (4, (8, 4)), false),
            ((5, (8, 5), Released), (4, (5, 1)), false),
            ((5, (8, 8), Released), (4, (9, 1)), false),
        ] {
            let mut memory = QuarantineMemory::default();
            memory.see_ended(token(ended.0), mode(ended.1), ended.2);
            let may = memory.may_restore(token(claim.0), mode(claim.1));
            assert_eq!(may, may_be_restored, "{claim:?} after {ended:?}");
        }
    }

    #[test]
    fn the_end_of_one_reader_leaves_the_others() {
        let mut memory = QuarantineMemory::default();
        (1..=3).for_each(|number| memory.see_renewed(token(number)));
        memory.see_holds_named(token(2));
        memory.see_ended(token(2), mode(READER), End::Released);
        assert_eq!([1, 2, 3].map(|number| memory.has_renewed(token(number))), [true, false, true]);
        assert!(!memory.has_named_holds(token(2)) && memory.last_ended() == Some(token(2)));
        assert!(memory.may_restore(token(1), mode(READER)) && memory.may_restore(token(3), mode(READER)));
        memory.see_ended(token(3), mode(EXCLUSIVE), End::LeaseOver);
        assert!(!memory.has_renewed(token(1)) && !memory.may_restore(token(1), mode(READER)));
        memory.see_ended(token(5), mode(READER), End::LeaseOver);
        memory.see_restored(token(5));
        assert!(memory.may_restore(token(4), mode(EXCLUSIVE)));
    }

    #[test]
    fn a_lock_has_a_bounded_memory_of_ended_tenures() {
        let mut memory = QuarantineMemory::default();
        for number in 1..=u64::try_from(ENDED).unwrap() {
            memory.see_ended(token(2 * number), mode(READER), End::Released);
        }
        assert!(memory.may_restore(token(3), mode(READER)));
        memory.see_ended(token(9_000), mode(READER), End::Released);
        assert!(memory.ended.is_empty() && memory.last_ended() == Some(token(9_000)));
        assert!(
            !memory.may_restore(token(3), mode(READER)) && memory.may_restore(token(9_001), mode(READER))
        );
    }
}
