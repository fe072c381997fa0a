//! One holder of a lock: how much of the lock this holder takes, and how much other holders may take at the same time.

use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Instant, Span};
use std::cmp::Ordering;

/// A limit: how much of a lock may be held at the same time, as the sum of weights. A limit of 1 is exclusive, and
/// [`Slots::SHARED`] is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots(pub(crate) u32);

impl Slots {
    /// One owner.
    pub const EXCLUSIVE: Self = Self(1);
    /// Any number of owners, as for a read lock. This limit is stored as 0.
    pub const SHARED: Self = Self(0);
    /// The largest number that a request can name.
    pub const MAX: u32 = 1_000_000;

    /// A limit of `number`; 0 means no limit. `None` above [`Slots::MAX`].
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number; 0 means no limit.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether weights with this sum may be held at the same time.
    fn allows(self, sum: u64) -> bool {
        self == Self::SHARED || sum <= u64::from(self.0)
    }
}

/// A limit that allows less is smaller. [`Slots::SHARED`] is the largest.
impl Ord for Slots {
    fn cmp(&self, other: &Self) -> Ordering {
        // The number of the largest limit is 0. One less than 0 wraps to the largest number.
        self.0.wrapping_sub(1).cmp(&other.0.wrapping_sub(1))
    }
}

impl PartialOrd for Slots {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// How much of a lock a tenure takes: 1 to [`Slots::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// The weight of a request that names no weight.
    pub const ONE: Self = Self(1);

    /// A weight; `None` for 0 and above [`Slots::MAX`].
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number > 0 && number <= Slots::MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The mode of a tenure: how much of the lock the tenure takes, and how much may be held in all while the tenure lasts.
///
/// Written as (limit, weight), an exclusive lock is (1, 1), a reader is (no limit, 1), a permit of a semaphore is (n,
/// 1), and a permit of weight w is (n, w).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mode {
    /// The limit.
    pub slots: Slots,
    /// The weight.
    pub weight: Weight,
}

impl Mode {
    /// One owner alone.
    pub const EXCLUSIVE: Self = Self { slots: Slots::EXCLUSIVE, weight: Weight::ONE };

    /// A mode; `None` when the weight is larger than the limit. Without a limit, any weight is valid: a renewal can
    /// remove the limit of a tenure, and does not change its weight.
    #[must_use]
    pub fn new(slots: Slots, weight: Weight) -> Option<Self> {
        slots.allows(u64::from(weight.0)).then_some(Self { slots, weight })
    }

    /// Whether a tenure with weight 1 and without a limit fits beside a tenure of this mode.
    pub(crate) fn admits_others(self) -> bool {
        Load::of(self).admits(Self { slots: Slots::SHARED, weight: Weight::ONE })
    }
}

/// What several tenures take together: the sum of their weights, and the smallest of their limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The sum of the weights.
    pub weight: u64,
    /// The smallest limit; [`Slots::SHARED`] when there is none.
    pub slots: Slots,
}

impl Load {
    /// The load of no tenure.
    pub const NONE: Self = Self { weight: 0, slots: Slots::SHARED };

    /// The load of one tenure.
    #[must_use]
    pub fn of(mode: Mode) -> Self {
        Self { weight: u64::from(mode.weight.0), slots: mode.slots }
    }

    /// The load with one more tenure.
    #[must_use]
    pub fn plus(self, mode: Mode) -> Self {
        let weight = self.weight.saturating_add(u64::from(mode.weight.0));
        Self { weight, slots: self.slots.min(mode.slots) }
    }

    /// The one rule for all kinds of lock. A tenure of this mode fits beside the present tenures if the sum of all
    /// weights is within the limit of this mode and within the limit of each present tenure.
    #[must_use]
    pub fn admits(self, mode: Mode) -> bool {
        self.plus(mode).is_allowed()
    }

    /// Whether the tenures fit beside each other.
    pub(crate) fn is_allowed(self) -> bool {
        self.slots.allows(self.weight)
    }
}

impl FromIterator<Mode> for Load {
    fn from_iter<I: IntoIterator<Item = Mode>>(modes: I) -> Self {
        modes.into_iter().fold(Self::NONE, Self::plus)
    }
}

/// The tenure of one owner. A lock returns its tenures with a borrowed owner: `Holder<&Owner>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder<O = Owner> {
    /// The owner.
    pub owner: O,
    /// The number of the owner's holds, at least 1.
    pub holds: u32,
    /// The limit and the weight of the tenure.
    pub mode: Mode,
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
        let Self { owner, holds, mode, token, deadline, since } = self;
        Holder { owner: map(owner), holds, mode, token, deadline, since }
    }
}

impl Holder {
    /// The same tenure with a borrowed owner.
    #[must_use]
    pub const fn as_ref(&self) -> Holder<&Owner> {
        let &Self { ref owner, holds, mode, token, deadline, since } = self;
        Holder { owner, holds, mode, token, deadline, since }
    }
}

impl Holder<&Owner> {
    /// The same tenure with a clone of the owner.
    #[must_use]
    pub fn cloned(self) -> Holder {
        self.map_owner(Owner::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_allows_less_is_smaller() {
        let mut numbers = [0, 7, 1, Slots::MAX, 5].map(|number| Slots::new(number).unwrap());
        numbers.sort();
        assert_eq!(numbers.map(Slots::number), [1, 5, 7, Slots::MAX, 0]);
        assert!(Slots::EXCLUSIVE < Slots::SHARED);
    }

    fn mode(slots: u32, weight: u32) -> Mode {
        Mode::new(Slots::new(slots).unwrap(), Weight::new(weight).unwrap()).unwrap()
    }

    #[test]
    fn one_rule_admits_all_kinds() {
        let beside = |held: &[(u32, u32)], (slots, weight)| {
            held.iter()
                .map(|(slots, weight)| mode(*slots, *weight))
                .collect::<Load>()
                .admits(mode(slots, weight))
        };
        for (held, asked, admitted) in [
            (&[][..], (1, 1), true),
            (&[], (5, 5), true),
            (&[(1, 1)], (0, 1), false),
            (&[(0, 1)], (1, 1), false),
            (&[(0, 1), (0, 1)], (0, 1), true),
            (&[(0, 1), (0, 1)], (3, 1), true),
            (&[(0, 1), (0, 1)], (2, 1), false),
            (&[(3, 1), (0, 1)], (0, 1), true),
            (&[(2, 1), (0, 1)], (0, 1), false),
            (&[(8, 5)], (8, 3), true),
            (&[(8, 5)], (8, 4), false),
            (&[(8, 5)], (9, 4), false),
            (&[(9, 5)], (8, 4), false),
        ] {
            assert_eq!(beside(held, asked), admitted, "{asked:?} beside {held:?}");
        }
        assert!([mode(0, 1), mode(2, 1), mode(9, 8)].map(Mode::admits_others).iter().all(|admits| *admits));
        assert!(!mode(1, 1).admits_others() && !mode(9, 9).admits_others());
    }

    #[test]
    fn a_weight_is_from_one_to_the_limit() {
        for (slots, weight, is_mode) in
            [(1, 1, true), (1, 2, false), (5, 5, true), (5, 6, false), (0, 1, true), (0, 2, true)]
        {
            let made = Mode::new(Slots::new(slots).unwrap(), Weight::new(weight).unwrap());
            assert_eq!(made.is_some(), is_mode, "{slots} {weight}");
        }
        assert_eq!(
            [0, 1, Slots::MAX, Slots::MAX + 1].map(|number| Weight::new(number).is_some()),
            [false, true, true, false]
        );
    }
}
