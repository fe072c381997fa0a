//! The reference: what core does, in the simplest form.
//!
//! It uses nothing of core: owners and keys are numbers, times are microseconds.

use crate::KEYS;

const DAY: i64 = 24 * 3_600 * 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted { token: u64, holds: u32 },
    Busy,
    Waits,
    Full,
    Left(u32),
    Token(u64),
    FreeNotHeld,
    AnotherHas(u64),
    ItHas(u64),
    HoldsDoNotFollow(u32),
    TooManyHolds,
    TokenFarAhead,
    NotAcquired,
    Superseded,
}

#[derive(Clone, Copy, Debug)]
pub enum Left {
    OneLess,
    Exactly(u32),
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub owner: usize,
    pub holds: u32,
    pub slots: u32,
    pub token: u64,
    pub deadline: i64,
    pub since: i64,
}

#[derive(Clone, Debug)]
pub struct Wait {
    pub handle: u32,
    pub key: usize,
    pub owner: usize,
    pub lease: i64,
    pub holds: Option<u32>,
    pub slots: u32,
    pub limit: Option<i64>,
    pub since: i64,
}

#[derive(Debug)]
pub struct Reference {
    pub now: i64,
    pub wall: i64,
    pub locks: [Vec<Tenure>; KEYS],
    /// For each lock, no tenure with this token or a smaller one can be restored.
    pub ended: [u64; KEYS],
    /// For each lock, the latest tenure that was renewed in quarantine.
    pub renewed: [u64; KEYS],
    /// For each lock, the latest tenure whose holds were named in quarantine.
    pub holds_named: [u64; KEYS],
    /// The waits for all keys, in the order of their positions.
    pub waits: Vec<Wait>,
    pub last_token: u64,
    pub quarantine_began: i64,
    pub quarantine_length: i64,
    pub lock_limit: usize,
    pub total_limit: usize,
    pub completions: Vec<(i64, u32, Answer)>,
}

impl Reference {
    pub fn quarantined(&self) -> bool {
        self.now < self.quarantine_began + self.quarantine_length
    }

    pub fn held(&self, key: usize) -> Vec<Tenure> {
        self.locks[key].iter().filter(|tenure| self.now < tenure.deadline).cloned().collect()
    }

    pub fn queue(&self, key: usize) -> Vec<(u32, i64)> {
        let waits = self.waits.iter().filter(|wait| wait.key == key);
        waits.map(|wait| (wait.handle, wait.since)).collect()
    }

    fn of(&self, key: usize, owner: usize) -> Option<usize> {
        self.locks[key].iter().position(|tenure| tenure.owner == owner)
    }

    /// The rule of admission, as the contract states it.
    pub fn fits(&self, key: usize, slots: u32) -> bool {
        let counted = self.locks[key].len() + 1;
        let named = self.locks[key].iter().map(|tenure| tenure.slots).chain([slots]);
        named.into_iter().all(|number| number == 0 || counted <= number as usize)
    }

    /// Whether a tenure is from before the quarantine and was not renewed in it.
    fn is_unconfirmed(&self, key: usize, at: usize) -> bool {
        let tenure = &self.locks[key][at];
        self.quarantined() && tenure.since <= self.quarantine_began && self.renewed[key] != tenure.token
    }

    /// Whether a tenure is from before the quarantine and its owner has not named its holds in it.
    fn holds_unconfirmed(&self, key: usize, at: usize) -> bool {
        let tenure = &self.locks[key][at];
        self.quarantined() && tenure.since <= self.quarantine_began && self.holds_named[key] != tenure.token
    }

    /// Records that an owner has named its holds.
    fn see_holds_named(&mut self, key: usize, at: usize) {
        if self.holds_unconfirmed(key, at) {
            self.holds_named[key] = self.holds_named[key].max(self.locks[key][at].token);
        }
    }

    /// Whether a request is decided as a re-entry.
    fn re_enters(&self, wait: &Wait) -> bool {
        let known = self.of(wait.key, wait.owner);
        known.is_some_and(|at| wait.holds != Some(1) || !self.is_unconfirmed(wait.key, at))
    }

    fn grant(&mut self, wait: &Wait) -> Answer {
        if let Some(at) = self.of(wait.key, wait.owner) {
            let has = self.locks[wait.key][at].holds;
            let holds = match wait.holds {
                None if has == u32::MAX => return Answer::TooManyHolds,
                None => has + 1,
                Some(named) if named == has => has,
                Some(named) if u64::from(named) == u64::from(has) + 1 => named,
                Some(_) => return Answer::HoldsDoNotFollow(has),
            };
            if wait.holds.is_some() {
                self.see_holds_named(wait.key, at);
            }
            let until = self.now + wait.lease;
            let tenure = &mut self.locks[wait.key][at];
            tenure.holds = holds;
            if until > tenure.deadline {
                tenure.deadline = until;
            }
            if tenure.slots == 0 || (wait.slots != 0 && wait.slots < tenure.slots) {
                tenure.slots = wait.slots;
            }
            return Answer::Granted { token: tenure.token, holds };
        }
        match wait.holds {
            None | Some(1) => {}
            Some(_) => return Answer::HoldsDoNotFollow(0),
        }
        self.last_token = (self.last_token + 1).max(self.wall.max(0) as u64);
        self.locks[wait.key].push(Tenure {
            owner: wait.owner,
            holds: 1,
            slots: wait.slots,
            token: self.last_token,
            deadline: self.now + wait.lease,
            since: self.now,
        });
        Answer::Granted { token: self.last_token, holds: 1 }
    }

    fn complete(&mut self, wait: &Wait, answer: Answer) {
        self.completions.push((self.now, wait.handle, answer));
    }

    fn grant_waits_of(&mut self, key: usize, owner: usize) {
        while let Some(at) = self.waits.iter().position(|wait| wait.key == key && wait.owner == owner) {
            let wait = self.waits.remove(at);
            let answer = self.grant(&wait);
            self.complete(&wait, answer);
        }
    }

    /// Ends the tenures whose lease is over, and serves the waiters.
    pub fn expire_and_serve(&mut self, key: usize) {
        let now = self.now;
        for over in self.locks[key].extract_if(.., |tenure| tenure.deadline <= now) {
            self.ended[key] = self.ended[key].max(over.token - 1);
        }
        while let Some(first) = self.waits.iter().find(|wait| wait.key == key) {
            let owner = first.owner;
            if !self.re_enters(first) && (self.quarantined() || !self.fits(key, first.slots)) {
                return;
            }
            let first = first.clone();
            self.waits.retain(|wait| wait.handle != first.handle);
            let answer = self.grant(&first);
            self.complete(&first, answer);
            if self.of(key, owner).is_some() {
                self.grant_waits_of(key, owner);
            }
        }
    }

    pub fn expire_and_serve_all(&mut self) {
        (0..KEYS).for_each(|key| self.expire_and_serve(key));
    }

    pub fn acquire(&mut self, wait: Wait, may_wait: bool) -> Answer {
        self.expire_and_serve(wait.key);
        let waited_for = self.waits.iter().any(|other| other.key == wait.key);
        if self.re_enters(&wait) || (!waited_for && !self.quarantined() && self.fits(wait.key, wait.slots)) {
            return self.grant(&wait);
        }
        if wait.holds.is_some_and(|named| named != 1) {
            return Answer::HoldsDoNotFollow(0);
        }
        if may_wait { self.wait(wait) } else { Answer::Busy }
    }

    fn wait(&mut self, mut wait: Wait) -> Answer {
        if wait.holds.is_some() {
            let same = |other: &Wait| other.key == wait.key && other.owner == wait.owner;
            if let Some(at) = self.waits.iter().position(same) {
                wait.since = self.waits[at].since;
                let earlier = std::mem::replace(&mut self.waits[at], wait);
                self.complete(&earlier, Answer::Superseded);
                return Answer::Waits;
            }
        }
        let for_this = self.waits.iter().filter(|other| other.key == wait.key).count();
        if for_this >= self.lock_limit || self.waits.len() >= self.total_limit {
            return Answer::Full;
        }
        self.waits.push(wait);
        Answer::Waits
    }

    fn not_held(&self, key: usize, owner: usize) -> Answer {
        if let Some(at) = self.of(key, owner) {
            return Answer::ItHas(self.locks[key][at].token);
        }
        match self.locks[key].iter().map(|tenure| tenure.token).max() {
            Some(token) => Answer::AnotherHas(token),
            None => Answer::FreeNotHeld,
        }
    }

    pub fn release(&mut self, key: usize, owner: usize, left: Left, token: Option<u64>) -> Answer {
        self.expire_and_serve(key);
        let answer = self.release_holds(key, owner, left, token);
        self.expire_and_serve(key);
        answer
    }

    fn release_holds(&mut self, key: usize, owner: usize, left: Left, token: Option<u64>) -> Answer {
        let Some(at) = self.of(key, owner) else {
            return match left {
                Left::Exactly(0) => Answer::Left(0),
                Left::OneLess | Left::Exactly(_) | Left::None => self.not_held(key, owner),
            };
        };
        let has = self.locks[key][at].holds;
        if token.is_some_and(|token| token != self.locks[key][at].token) {
            return self.not_held(key, owner);
        }
        let exactly = matches!(left, Left::Exactly(_));
        let left = match left {
            Left::OneLess => has - 1,
            Left::None => 0,
            Left::Exactly(named) if named == has || named == has - 1 => named,
            Left::Exactly(_) => return Answer::HoldsDoNotFollow(has),
        };
        if exactly {
            self.see_holds_named(key, at);
        }
        if left == 0 {
            let over = self.locks[key].remove(at);
            self.ended[key] = self.ended[key].max(over.token);
        } else {
            self.locks[key][at].holds = left;
        }
        Answer::Left(left)
    }

    pub fn renew(
        &mut self,
        key: usize,
        owner: usize,
        lease: i64,
        token: Option<u64>,
        holds: Option<u32>,
    ) -> Answer {
        self.expire_and_serve(key);
        let (now, deadline) = (self.now, self.now + lease);
        if let Some(at) = self.of(key, owner) {
            let was_unconfirmed = self.is_unconfirmed(key, at);
            let holds_were_unconfirmed = self.holds_unconfirmed(key, at);
            let named = holds.filter(|_| token.is_some() && holds_were_unconfirmed);
            let tenure = &mut self.locks[key][at];
            if token.is_none_or(|token| token == tenure.token) {
                tenure.deadline = deadline;
                tenure.holds = named.unwrap_or(tenure.holds);
                let token = tenure.token;
                if named.is_some() {
                    self.see_holds_named(key, at);
                }
                if was_unconfirmed {
                    self.renewed[key] = self.renewed[key].max(token);
                    self.grant_waits_of(key, owner);
                }
                return Answer::Token(token);
            }
        }
        let Some(token) = token.filter(|_| self.quarantined()) else { return self.not_held(key, owner) };
        if token as i64 > self.wall + DAY && token > self.last_token {
            return Answer::TokenFarAhead;
        }
        let older = self.locks[key].iter().map(|tenure| tenure.token).max();
        if self.ended[key].max(older.unwrap_or(0)) >= token {
            return self.not_held(key, owner);
        }
        self.ended[key] = self.ended[key].max(older.unwrap_or(0));
        self.last_token = self.last_token.max(token);
        let holds = holds.unwrap_or(1);
        self.locks[key] = vec![Tenure { owner, holds, slots: 1, token, deadline, since: now }];
        self.grant_waits_of(key, owner);
        Answer::Token(token)
    }

    pub fn pass_on(&mut self, key: usize, owner: usize, token: u64) {
        self.expire_and_serve(key);
        if self.of(key, owner).is_some_and(|at| self.locks[key][at].token == token) {
            self.release_holds(key, owner, Left::OneLess, None);
        }
        self.expire_and_serve(key);
    }

    pub fn leave(&mut self, handle: u32) {
        self.waits.retain(|wait| wait.handle != handle);
    }

    /// Lets time pass. At every instant at which something may happen, waits end at their limits first, and then every lock
    /// gets a decision.
    pub fn advance(&mut self, to: i64) {
        loop {
            let limits = self.waits.iter().filter_map(|wait| wait.limit);
            let leases = self.locks.iter().flatten().map(|tenure| tenure.deadline);
            let quarantine = self.quarantine_began + self.quarantine_length;
            let events = limits.chain(leases).chain([quarantine]);
            let next = events.filter(|at| self.now < *at && *at <= to).min();
            let at = next.unwrap_or(to);
            self.wall += at - self.now;
            self.now = at;
            let reached = |wait: &Wait| wait.limit.is_some_and(|limit| limit <= at);
            let mut gone: Vec<Wait> = self.waits.iter().filter(|wait| reached(wait)).cloned().collect();
            gone.sort_by_key(|wait| wait.handle);
            self.waits.retain(|wait| !reached(wait));
            gone.iter().for_each(|wait| self.complete(wait, Answer::NotAcquired));
            self.expire_and_serve_all();
            if next.is_none() {
                return;
            }
        }
    }
}
