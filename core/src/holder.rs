//! One holder of a lock, and how many other holders it allows.

use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Instant, Span};
use std::cmp::Ordering;

/// The limit of a request: how many owners may hold the lock at once. 1 is exclusive, [`Slots::SHARED`] is any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots(pub(crate) u32);

impl Slots {
    /// One owner.
    pub const EXCLUSIVE: Self = Self(1);
    /// Any number of owners, as for a read lock. Its number is 0.
    pub const SHARED: Self = Self(0);
    /// The largest number that a request can name.
    pub const MAX: u32 = 1_000_000;

    /// A limit of `number` owners; 0 means any number. `None` above [`Slots::MAX`].
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number; 0 means any number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether so many owners may hold the lock at once.
    pub(crate) fn allows(self, holders: usize) -> bool {
        self == Self::SHARED || usize::try_from(self.0).is_ok_and(|slots| holders <= slots)
    }
}

/// A limit that allows fewer owners is smaller. [`Slots::SHARED`] is the largest.
impl Ord for Slots {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |slots: Self| if slots == Self::SHARED { u32::MAX } else { slots.0 };
        rank(*self).cmp(&rank(*other))
    }
}

impl PartialOrd for Slots {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The tenure of one owner. A lock returns it with a borrowed owner: `Holder<&Owner>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder<O = Owner> {
    /// The owner.
    pub owner: O,
    /// The number of its holds, from 1 on.
    pub holds: u32,
    /// The limit that it named.
    pub slots: Slots,
    /// The fencing token of the tenure.
    pub token: FencingToken,
    /// The instant at which the lease ends.
    pub deadline: Instant,
    /// The instant at which the tenure began.
    pub since: Instant,
}

impl<O> Holder<O> {
    /// Whether the lease is over.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    /// How much of the lease is left.
    #[must_use]
    pub fn lease_left(&self, now: Instant) -> Span {
        now.until(self.deadline)
    }

    /// The same tenure with another value or type for the owner.
    pub(crate) fn map_owner<P>(self, map: impl FnOnce(O) -> P) -> Holder<P> {
        let Self { owner, holds, slots, token, deadline, since } = self;
        Holder { owner: map(owner), holds, slots, token, deadline, since }
    }
}

impl Holder {
    /// The same tenure with a borrowed owner.
    #[must_use]
    pub const fn as_ref(&self) -> Holder<&Owner> {
        let &Self { ref owner, holds, slots, token, deadline, since } = self;
        Holder { owner, holds, slots, token, deadline, since }
    }
}

impl Holder<&Owner> {
    /// The same tenure with an owner of its own.
    #[must_use]
    pub fn cloned(self) -> Holder {
        self.map_owner(Owner::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_allows_fewer_owners_is_smaller() {
        let mut numbers = [0, 7, 1, Slots::MAX, 5].map(|number| Slots::new(number).unwrap());
        numbers.sort();
        assert_eq!(numbers.map(Slots::number), [1, 5, 7, Slots::MAX, 0]);
        assert!(Slots::EXCLUSIVE < Slots::SHARED);
    }
}
