//! A lock while it is changed: its holders as plain values.

use crate::change::Change;
use crate::holder::Holder;
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Instant, Now, WallTime};
use std::collections::HashSet;
use std::{iter, mem, slice};

/// The holders of a lock, and the TTL of its key.
pub struct Unpacked {
    pub holders: UnpackedHolders,
    pub expires_at: WallTime,
}

/// The holders. One holder needs no list.
pub enum UnpackedHolders {
    None,
    One(Holder),
    Many(Vec<Holder>),
}

impl From<Vec<Holder>> for UnpackedHolders {
    fn from(mut holders: Vec<Holder>) -> Self {
        if holders.len() > 1 { Self::Many(holders) } else { holders.pop().map_or(Self::None, Self::One) }
    }
}

impl Unpacked {
    fn holders(&self) -> &[Holder] {
        match &self.holders {
            UnpackedHolders::None => &[],
            UnpackedHolders::One(holder) => slice::from_ref(holder),
            UnpackedHolders::Many(holders) => holders,
        }
    }

    fn holders_mut(&mut self) -> &mut [Holder] {
        match &mut self.holders {
            UnpackedHolders::None => &mut [],
            UnpackedHolders::One(holder) => slice::from_mut(holder),
            UnpackedHolders::Many(holders) => holders,
        }
    }

    fn last_deadline(&self) -> Option<Instant> {
        self.holders().iter().map(|holder| holder.deadline).max()
    }

    /// Computes the TTL again by the present wall clock.
    pub fn recompute_expiry(&mut self, now: Now) {
        if let Some(deadline) = self.last_deadline() {
            self.expires_at = now.wall_at(deadline);
        }
    }

    /// Carries out one change.
    pub fn apply(&mut self, change: Change, now: Now) {
        let before = self.last_deadline();
        match change {
            Change::Put(holder) => self.put(holder),
            Change::Count(token, holds) => self.count(token, holds),
            Change::End(token, _) => self.end(token),
        }
        if self.last_deadline() != before {
            self.recompute_expiry(now);
        }
    }

    /// Carries out changes in order: ends that follow each other together, and puts into a free lock together.
    pub fn apply_all(&mut self, changes: Vec<Change>, now: Now) {
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            match change {
                Change::End(token, _) => {
                    let more = iter::from_fn(|| changes.next_if(|next| matches!(next, Change::End(..))));
                    let more = more
                        .filter_map(|end| if let Change::End(token, _) = end { Some(token) } else { None });
                    self.end_all(&iter::once(token).chain(more).collect(), now);
                }
                Change::Put(first) if self.holders().is_empty() => {
                    let more = iter::from_fn(|| changes.next_if(|next| matches!(next, Change::Put(_))));
                    let more = more
                        .filter_map(|put| if let Change::Put(holder) = put { Some(holder) } else { None });
                    self.put_all(iter::once(first).chain(more).collect(), now);
                }
                Change::Put(_) | Change::Count(..) => self.apply(change, now),
            }
        }
    }

    fn end_all(&mut self, tokens: &HashSet<FencingToken>, now: Now) {
        let before = self.last_deadline();
        self.retain(|holder| !tokens.contains(&holder.token));
        if self.last_deadline() != before {
            self.recompute_expiry(now);
        }
    }

    /// Puts holders into a free lock: at once if they fit beside each other, else one by one.
    fn put_all(&mut self, holders: Vec<Holder>, now: Now) {
        let owners: HashSet<&Owner> = holders.iter().map(|holder| &holder.owner).collect();
        let tokens: HashSet<FencingToken> = holders.iter().map(|holder| holder.token).collect();
        let distinct = owners.len() == holders.len() && tokens.len() == holders.len();
        let fit = holders.iter().all(|holder| holder.slots.allows(holders.len()));
        if !distinct || !fit {
            return holders.into_iter().for_each(|holder| self.apply(Change::Put(holder), now));
        }
        self.holders = holders.into();
        self.recompute_expiry(now);
    }

    fn put(&mut self, holder: Holder) {
        self.end_conflicting(&holder);
        if let Some(known) = self.holders_mut().iter_mut().find(|known| known.owner == holder.owner) {
            *known = holder;
            return;
        }
        self.holders = match mem::replace(&mut self.holders, UnpackedHolders::None) {
            UnpackedHolders::None => UnpackedHolders::One(holder),
            UnpackedHolders::One(first) => UnpackedHolders::Many(vec![first, holder]),
            UnpackedHolders::Many(mut holders) => {
                holders.push(holder);
                UnpackedHolders::Many(holders)
            }
        };
    }

    /// Ends the tenures that do not fit beside `holder`, the oldest first. If every earlier change was applied, there are none.
    /// A damaged AOF may lack the end of a tenure, and a lock with an owner too many could not be loaded again.
    fn end_conflicting(&mut self, holder: &Holder) {
        loop {
            let others = || self.holders().iter().filter(|other| other.owner != holder.owner);
            let count = others().count().saturating_add(1);
            let same_token = others().find(|other| other.token == holder.token);
            let fits = holder.slots.allows(count) && others().all(|other| other.slots.allows(count));
            let conflicting = if fits {
                same_token
            } else {
                same_token.or_else(|| others().min_by_key(|other| other.token))
            };
            let Some(token) = conflicting.map(|other| other.token) else { return };
            self.end(token);
        }
    }

    fn count(&mut self, token: FencingToken, holds: u32) {
        if let Some(known) = self.holders_mut().iter_mut().find(|known| known.token == token) {
            known.holds = holds;
        }
    }

    fn end(&mut self, token: FencingToken) {
        self.retain(|holder| holder.token != token);
    }

    fn retain(&mut self, stays: impl Fn(&Holder) -> bool) {
        match &mut self.holders {
            UnpackedHolders::None => {}
            UnpackedHolders::One(holder) => {
                if !stays(holder) {
                    self.holders = UnpackedHolders::None;
                }
            }
            UnpackedHolders::Many(holders) => {
                holders.retain(stays);
                self.holders = mem::take(holders).into();
            }
        }
    }
}
