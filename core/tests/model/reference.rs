//! The reference: how locks and queues must behave, written as simply as possible, with plain vectors and linear scans.
//!
//! The reference uses no code of core. Owners and keys are numbers, and times are microseconds. A limit of 0
//! is no limit.

use crate::KEYS;

const DAY: i64 = 24 * 3_600 * 1_000_000;

/// How long a kept place holds back the places behind it, from the instant when the wait limit is reached.
const HOLDS_BACK: i64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted { token: u64, holds: u32, lease_left: i64 },
    Busy,
    Waits,
    Full,
    Left(u32),
    Token(u64),
    FreeNotHeld,
    AnotherHas(u64),
    ItHas(u64),
    HoldsDoNotFollow(u32),
    ModeDiffers(Mode),
    TooManyHolds,
    TokenFarAhead,
    NotAcquired,
    Superseded,
    BecameReplica,
}

#[derive(Clone, Copy, Debug)]
pub enum Left {
    OneLess,
    Exactly(u32),
    None,
}

/// A limit and a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub slots: u32,
    pub weight: u32,
}

/// The limit and, if given, the weight that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedMode {
    pub slots: u32,
    pub weight: Option<u32>,
}

impl NamedMode {
    pub fn of_new_tenure(self) -> Mode {
        Mode { slots: self.slots, weight: self.weight.unwrap_or(1) }
    }
}

/// Whether holders with these modes fit together: the sum of all weights must not exceed the limit of any holder.
pub fn fit_together(modes: &[Mode]) -> bool {
    let sum: u64 = modes.iter().map(|mode| u64::from(mode.weight)).sum();
    modes.iter().all(|mode| mode.slots == 0 || sum <= u64::from(mode.slots))
}

fn is_smaller(limit: u32, other: u32) -> bool {
    limit != 0 && (other == 0 || limit < other)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub owner: usize,
    pub holds: u32,
    pub mode: Mode,
    pub token: u64,
    pub deadline: i64,
    pub since: i64,
}

/// A request for the lock. In the queue, a request without `absent` is a wait, and a request with `absent` is a kept
/// place.
#[derive(Clone, Debug)]
pub struct Wait {
    pub handle: u32,
    pub key: usize,
    pub owner: usize,
    pub lease: i64,
    pub holds: Option<u32>,
    pub mode: NamedMode,
    pub limit: Option<i64>,
    pub keep: Option<i64>,
    pub since: i64,
    /// The position in the queue. Smaller positions are served first.
    pub position: u64,
    pub absent: Option<Absent>,
}

/// The instant at which the wait ended, and the instant until which the kept place holds back the places behind it.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    pub since: i64,
    pub holds_back_until: i64,
}

/// A tenure that has ended in the present quarantine.
#[derive(Clone, Debug)]
struct Ended {
    token: u64,
    mode: Mode,
    released: bool,
}

/// What was observed about a lock in the present quarantine.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    ended: Vec<Ended>,
    /// The largest token of the tenures that a deletion of the key has ended; after a flush, the largest token of the
    /// server. No tenure with this token or a smaller token can be restored.
    deleted_up_to: u64,
    renewed: Vec<u64>,
    holds_named: Vec<u64>,
}

enum Admission {
    Admitted,
    Waits,
    Refused(Answer),
}

#[derive(Debug, Default)]
pub struct Reference {
    pub now: i64,
    pub wall: i64,
    pub locks: [Vec<Tenure>; KEYS],
    pub observed: [Observed; KEYS],
    /// The waits and the kept places for all keys, in the order of their positions.
    pub queue: Vec<Wait>,
    pub last_position: u64,
    /// The order in which the queues of the locks were opened. If two kept places have the same age, the kept place in
    /// the older queue is removed first.
    pub opened: [u64; KEYS],
    pub last_token: u64,
    pub quarantine_began: i64,
    pub quarantine_length: i64,
    pub lock_limit: usize,
    pub total_limit: usize,
    /// Waits that were granted. When a grant is passed on, the place of its wait is kept.
    pub granted: Vec<Wait>,
    /// The replies to waiters: the instant, the key, the handle and the answer.
    pub completions: Vec<(i64, usize, u32, Answer)>,
}

impl Wait {
    /// Whether the place holds back the places behind it.
    fn holds_back(&self, now: i64) -> bool {
        self.absent.is_none_or(|absent| now < absent.holds_back_until)
    }

    /// The instant at which the place stops holding back the places behind it, and the instant at which the place ends;
    /// `None` if the client waits.
    fn changes(&self) -> Option<[i64; 2]> {
        let absent = self.absent?;
        Some([absent.holds_back_until, absent.since + self.keep.unwrap_or(0)])
    }
}

impl Reference {
    pub fn quarantined(&self) -> bool {
        self.now < self.quarantine_began + self.quarantine_length
    }

    pub fn held(&self, key: usize) -> Vec<Tenure> {
        let mut held: Vec<Tenure> =
            self.locks[key].iter().filter(|tenure| self.now < tenure.deadline).cloned().collect();
        held.sort_by_key(|tenure| tenure.token);
        held
    }

    /// The waits of all clients.
    pub fn waits(&self) -> Vec<&Wait> {
        self.queue.iter().filter(|wait| wait.absent.is_none()).collect()
    }

    /// The places that are kept.
    pub fn places(&self) -> Vec<&Wait> {
        self.queue.iter().filter(|wait| wait.absent.is_some()).collect()
    }

    /// The owners of the kept places of one lock, and whether each place holds back the waiters behind it.
    pub fn places_of(&self, key: usize) -> Vec<(usize, bool)> {
        let places = self.places().into_iter().filter(|place| place.key == key);
        places.map(|place| (place.owner, place.holds_back(self.now))).collect()
    }

    fn of(&self, key: usize, owner: usize) -> Option<usize> {
        self.locks[key].iter().position(|tenure| tenure.owner == owner)
    }

    fn modes(&self, key: usize) -> Vec<Mode> {
        self.locks[key].iter().map(|tenure| tenure.mode).collect()
    }

    fn fits(&self, key: usize, mode: Mode) -> bool {
        fit_together(&[self.modes(key), vec![mode]].concat())
    }

    /// Whether a tenure began before the quarantine and was not renewed during the quarantine.
    fn is_unconfirmed(&self, key: usize, tenure: &Tenure) -> bool {
        self.quarantined()
            && tenure.since <= self.quarantine_began
            && !self.observed[key].renewed.contains(&tenure.token)
    }

    /// Whether a tenure began before the quarantine and its owner has not named its hold count during the quarantine.
    fn holds_unconfirmed(&self, key: usize, tenure: &Tenure) -> bool {
        self.quarantined()
            && tenure.since <= self.quarantine_began
            && !self.observed[key].holds_named.contains(&tenure.token)
    }

    fn observe_end(&mut self, key: usize, tenure: &Tenure, released: bool) {
        if self.quarantined() {
            self.observed[key].ended.push(Ended { token: tenure.token, mode: tenure.mode, released });
        }
    }

    /// Whether a tenure cannot be restored: the tenure was released, its key was deleted, or it does not fit beside a
    /// later tenure that has ended too.
    fn has_ended(&self, key: usize, token: u64, mode: Mode) -> bool {
        let Observed { ended, deleted_up_to, .. } = &self.observed[key];
        token <= *deleted_up_to
            || ended.iter().any(|ended| {
                if ended.token == token {
                    ended.released
                } else {
                    ended.token > token && !fit_together(&[ended.mode, mode])
                }
            })
    }

    /// Whether a request is admitted, must wait or is refused, if no other request waits before this request.
    fn admission(&self, wait: &Wait) -> Admission {
        let Some(at) = self.of(wait.key, wait.owner) else {
            return match wait.holds {
                Some(named) if named != 1 => Admission::Refused(Answer::HoldsDoNotFollow(0)),
                _ if !self.quarantined() && self.fits(wait.key, wait.mode.of_new_tenure()) => {
                    Admission::Admitted
                }
                _ => Admission::Waits,
            };
        };
        let known = &self.locks[wait.key][at];
        if wait.holds == Some(1) && self.is_unconfirmed(wait.key, known) {
            return Admission::Waits;
        }
        let weight_differs = wait.mode.weight.is_some_and(|weight| weight != known.mode.weight);
        if is_smaller(wait.mode.slots, known.mode.slots) || weight_differs {
            return Admission::Refused(Answer::ModeDiffers(known.mode));
        }
        match wait.holds {
            None if known.holds == u32::MAX => Admission::Refused(Answer::TooManyHolds),
            Some(named) if named != known.holds && u64::from(named) != u64::from(known.holds) + 1 => {
                Admission::Refused(Answer::HoldsDoNotFollow(known.holds))
            }
            _ => Admission::Admitted,
        }
    }

    /// Grants an admitted request.
    fn grant(&mut self, wait: &Wait) -> Answer {
        let until = self.now + wait.lease;
        if let Some(at) = self.of(wait.key, wait.owner) {
            let tenure = &mut self.locks[wait.key][at];
            tenure.holds = wait.holds.unwrap_or(tenure.holds.saturating_add(1));
            tenure.deadline = tenure.deadline.max(until);
            let Tenure { token, holds, deadline, .. } = *tenure;
            if wait.holds.is_some() {
                self.observed[wait.key].holds_named.push(token);
            }
            return Answer::Granted { token, holds, lease_left: (deadline - self.now) / 1_000 };
        }
        self.last_token = (self.last_token + 1).max(self.wall.max(0) as u64);
        let (token, mode) = (self.last_token, wait.mode.of_new_tenure());
        let (owner, since) = (wait.owner, self.now);
        self.locks[wait.key].push(Tenure { owner, holds: 1, mode, token, deadline: until, since });
        Answer::Granted { token, holds: 1, lease_left: wait.lease / 1_000 }
    }

    fn complete(&mut self, wait: &Wait, answer: Answer) {
        if matches!(answer, Answer::Granted { .. }) {
            self.granted.push(wait.clone());
        }
        self.completions.push((self.now, wait.key, wait.handle, answer));
    }

    /// Grants or refuses the waits of an owner that now holds the lock, because these waits are now re-entries. Also
    /// ends the owner's kept places.
    fn serve_waits_of(&mut self, key: usize, owner: usize) {
        while let Some(at) =
            self.queue.iter().position(|wait| wait.key == key && wait.owner == owner && wait.absent.is_none())
        {
            let answer = match self.admission(&self.queue[at]) {
                Admission::Waits => return,
                Admission::Refused(answer) => Some(answer),
                Admission::Admitted => None,
            };
            let wait = self.queue.remove(at);
            let answer = answer.unwrap_or_else(|| self.grant(&wait));
            self.complete(&wait, answer);
        }
        self.queue.retain(|wait| wait.key != key || wait.owner != owner || wait.absent.is_none());
    }

    /// Ends the tenures whose lease is over, and serves the waiters.
    pub fn expire_and_serve(&mut self, key: usize) {
        let now = self.now;
        let over: Vec<Tenure> = self.locks[key].extract_if(.., |tenure| tenure.deadline <= now).collect();
        over.iter().for_each(|tenure| self.observe_end(key, tenure, false));
        while let Some(at) = self.queue.iter().position(|wait| wait.key == key && wait.holds_back(now)) {
            if self.queue[at].absent.is_some() {
                return;
            }
            let answer = match self.admission(&self.queue[at]) {
                Admission::Waits => return,
                Admission::Refused(answer) => Some(answer),
                Admission::Admitted => None,
            };
            let first = self.queue.remove(at);
            let answer = answer.unwrap_or_else(|| self.grant(&first));
            self.complete(&first, answer);
            if self.of(key, first.owner).is_some() {
                self.serve_waits_of(key, first.owner);
            }
        }
    }

    pub fn expire_and_serve_all(&mut self) {
        (0..KEYS).for_each(|key| self.expire_and_serve(key));
    }

    /// Serves the waiters of a key that may contain a different lock now. Confirmed holders of the new lock that wait
    /// for the key re-enter.
    pub fn recheck(&mut self, key: usize) {
        self.expire_and_serve(key);
        let owners = self.waits().into_iter().chain(self.places()).filter(|wait| wait.key == key);
        let owners: Vec<usize> = owners.map(|wait| wait.owner).collect();
        for owner in owners {
            let confirmed = |at: usize| !self.is_unconfirmed(key, &self.locks[key][at]);
            if self.of(key, owner).is_some_and(confirmed) {
                self.serve_waits_of(key, owner);
            }
        }
        self.expire_and_serve(key);
    }

    pub fn recheck_all(&mut self) {
        (0..KEYS).for_each(|key| self.recheck(key));
    }

    /// The place that a request takes over: the first place of the same owner, if the request names a count of holds.
    fn place_for(&self, wait: &Wait) -> Option<usize> {
        wait.holds?;
        self.queue.iter().position(|other| other.key == wait.key && other.owner == wait.owner)
    }

    /// Takes over the place at this index. If a client waits in that place, its wait ends.
    fn take_over(&mut self, at: usize) -> Wait {
        let earlier = self.queue.remove(at);
        if earlier.absent.is_none() {
            self.complete(&earlier, Answer::Superseded);
        }
        earlier
    }

    pub fn acquire(&mut self, wait: Wait, may_wait: bool) -> Answer {
        let key = wait.key;
        self.expire_and_serve(key);
        match self.admission(&wait) {
            Admission::Refused(answer) => return answer,
            Admission::Admitted if self.of(key, wait.owner).is_some() => return self.grant(&wait),
            Admission::Admitted => {
                let others_first =
                    self.queue.iter().position(|other| other.key == key && other.holds_back(self.now));
                let own = self.place_for(&wait);
                if others_first.is_none_or(|first| own.is_some_and(|own| own <= first)) {
                    let answer = self.grant(&wait);
                    if let Some(own) = own {
                        self.take_over(own);
                    }
                    self.serve_waits_of(key, wait.owner);
                    self.expire_and_serve(key);
                    return answer;
                }
            }
            Admission::Waits => {}
        }
        if may_wait { self.wait(wait) } else { Answer::Busy }
    }

    fn wait(&mut self, mut wait: Wait) -> Answer {
        if let Some(at) = self.place_for(&wait) {
            let earlier = self.take_over(at);
            (wait.since, wait.position) = (earlier.since, earlier.position);
        } else {
            let waits = self.waits();
            let for_this = waits.iter().filter(|other| other.key == wait.key).count();
            if for_this >= self.lock_limit || waits.len() >= self.total_limit {
                return Answer::Full;
            }
            self.last_position += 1;
            wait.position = self.last_position;
            self.open(wait.key);
        }
        self.put_into_queue(wait);
        Answer::Waits
    }

    fn open(&mut self, key: usize) {
        if self.queue.iter().all(|other| other.key != key) {
            self.opened[key] = self.opened.iter().max().unwrap_or(&0) + 1;
        }
    }

    /// Puts a wait or a kept place at its position. If the queue is then too long, the oldest kept places are removed.
    fn put_into_queue(&mut self, wait: Wait) {
        let key = wait.key;
        self.queue.push(wait);
        self.queue.sort_by_key(|wait| wait.position);
        let of_key = |wait: &Wait| wait.key == key;
        while self.queue.iter().filter(|wait| of_key(wait)).count() > self.lock_limit && self.give_way(of_key)
        {
        }
        while self.queue.len() > self.total_limit && self.give_way(|_| true) {}
    }

    fn give_way(&mut self, is_meant: impl Fn(&Wait) -> bool) -> bool {
        let age =
            |wait: &Wait| wait.absent.map(|absent| (absent.since, self.opened[wait.key], wait.position));
        let oldest = self.queue.iter().filter(|wait| is_meant(wait)).filter_map(age).min();
        let before = self.queue.len();
        self.queue.retain(|wait| Some(wait.position) != oldest.map(|(.., position)| position));
        self.queue.len() < before
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
        if let (Answer::Left(_), Left::Exactly(left), None) = (&answer, left, token) {
            let is_meant = |wait: &Wait| {
                wait.key == key && wait.owner == owner && wait.holds.is_some_and(|named| named > left)
            };
            while let Some(at) = self.queue.iter().position(is_meant) {
                self.take_over(at);
            }
        }
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
        let Tenure { token: own, holds: has, .. } = self.locks[key][at];
        if token.is_some_and(|token| token != own) {
            return self.not_held(key, owner);
        }
        let named = matches!(left, Left::Exactly(_));
        let left = match left {
            Left::OneLess => has - 1,
            Left::None => 0,
            Left::Exactly(named) if named == has || named == has - 1 => named,
            Left::Exactly(_) => return Answer::HoldsDoNotFollow(has),
        };
        if named {
            self.observed[key].holds_named.push(own);
        }
        if left == 0 {
            let over = self.locks[key].remove(at);
            self.observe_end(key, &over, true);
        } else {
            self.locks[key][at].holds = left;
        }
        Answer::Left(left)
    }

    pub fn renew(
        &mut self,
        (key, owner): (usize, usize),
        lease: i64,
        token: Option<u64>,
        holds: Option<u32>,
        mode: Option<NamedMode>,
    ) -> Answer {
        self.expire_and_serve(key);
        let known = self.of(key, owner).map(|at| self.locks[key][at].clone());
        let answer = match (known, token) {
            (Some(known), named) if named.is_none_or(|named| named == known.token) => {
                self.renew_known(key, known, self.now + lease, token.is_some(), holds, mode)
            }
            (_, Some(token)) if self.quarantined() => {
                let mode = mode.map_or(Mode { slots: 1, weight: 1 }, NamedMode::of_new_tenure);
                let (holds, deadline, since) = (holds.unwrap_or(1), self.now + lease, self.now);
                self.restore(key, Tenure { owner, holds, mode, token, deadline, since })
            }
            _ => self.not_held(key, owner),
        };
        self.expire_and_serve(key);
        answer
    }

    fn renew_known(
        &mut self,
        key: usize,
        known: Tenure,
        deadline: i64,
        names_token: bool,
        holds: Option<u32>,
        mode: Option<NamedMode>,
    ) -> Answer {
        let token = known.token;
        let was_unconfirmed = self.is_unconfirmed(key, &known);
        let mut renewed = Tenure { deadline, ..known.clone() };
        match mode {
            // A claim (a renewal of an unconfirmed tenure by its token) sets the mode, because this server may have
            // missed a change of the mode.
            Some(mode) if was_unconfirmed && names_token => renewed.mode = mode.of_new_tenure(),
            Some(mode) => {
                let weight_differs = mode.weight.is_some_and(|weight| weight != known.mode.weight);
                if weight_differs || is_smaller(mode.slots, known.mode.slots) {
                    return Answer::ModeDiffers(known.mode);
                }
                renewed.mode.slots = mode.slots;
            }
            None => {}
        }
        if let Some(holds) = holds.filter(|_| names_token && self.holds_unconfirmed(key, &known)) {
            renewed.holds = holds;
        }
        let names_holds = holds.is_some() && names_token && self.holds_unconfirmed(key, &known);
        if !self.make_room(key, &renewed) {
            return self.not_held(key, known.owner);
        }
        if names_holds {
            self.observed[key].holds_named.push(token);
        }
        if was_unconfirmed {
            self.observed[key].renewed.push(token);
            self.serve_waits_of(key, known.owner);
        }
        Answer::Token(token)
    }

    fn restore(&mut self, key: usize, claim: Tenure) -> Answer {
        let Tenure { owner, token, mode, .. } = claim;
        if token as i64 > self.wall + DAY && token > self.last_token {
            return Answer::TokenFarAhead;
        }
        let has_later = |tenure: &Tenure| tenure.owner == owner && tenure.token > token;
        let went_on = self.locks[key].iter().any(|tenure| tenure.token == token || has_later(tenure));
        if went_on || self.has_ended(key, token, mode) || !self.make_room(key, &claim) {
            return self.not_held(key, owner);
        }
        // The restored tenure has not ended, so the record of its end is removed. The record stays if nothing fits
        // beside the tenure: then the record shows that no older tenure can be restored.
        let reader = Mode { slots: 0, weight: 1 };
        self.observed[key].ended.retain(|ended| ended.token != token || !fit_together(&[ended.mode, reader]));
        self.last_token = self.last_token.max(token);
        self.serve_waits_of(key, owner);
        Answer::Token(token)
    }

    /// Replaces the tenure of an owner by the owner's claim. If the tenures then do not fit together, this function
    /// tries them in this order: first the claim and the confirmed tenures, from the largest token to the smallest,
    /// then the unconfirmed tenures. A tenure stays if it fits beside all tenures that stay already. Returns whether
    /// the claim stays. If the claim does not stay, nothing changes.
    fn make_room(&mut self, key: usize, claim: &Tenure) -> bool {
        let mut tenures = self.locks[key].clone();
        tenures.retain(|tenure| tenure.owner != claim.owner);
        tenures.push(claim.clone());
        tenures.sort_by_key(|tenure| {
            let is_remembered = tenure != claim && self.is_unconfirmed(key, tenure);
            (is_remembered, std::cmp::Reverse(tenure.token))
        });
        let mut stay: Vec<Tenure> = Vec::new();
        for tenure in tenures {
            let modes: Vec<Mode> = stay.iter().chain([&tenure]).map(|tenure| tenure.mode).collect();
            if fit_together(&modes) {
                stay.push(tenure);
            }
        }
        let stays = stay.contains(claim);
        if stays {
            self.locks[key] = stay;
        }
        stays
    }

    /// Passes a grant on, because the client of this grant left before the reply.
    pub fn pass_on(&mut self, key: usize, owner: usize, token: u64, handle: u32) {
        let place = self.granted.iter().position(|wait| wait.handle == handle);
        let place = place.map(|at| self.granted.remove(at));
        self.expire_and_serve(key);
        let Some(at) = self.of(key, owner).filter(|at| self.locks[key][*at].token == token) else { return };
        let ended = self.locks[key][at].holds == 1;
        self.release_holds(key, owner, Left::OneLess, None);
        self.expire_and_serve(key);
        if let Some(place) = place.filter(|place| ended && place.keep.is_some()) {
            let absent = Some(Absent { since: self.now, holds_back_until: self.now });
            self.open(key);
            self.put_into_queue(Wait { absent, ..place });
        }
    }

    /// A client leaves, or its wait limit is reached.
    pub fn leave(&mut self, handle: u32, is_limit_reached: bool) {
        let is_meant = |wait: &Wait| wait.handle == handle && wait.absent.is_none();
        let Some(at) = self.queue.iter().position(is_meant) else { return };
        match self.queue[at].keep {
            Some(keep) => {
                let holds_back = if is_limit_reached { keep.min(HOLDS_BACK) } else { 0 };
                let holds_back_until = self.now + holds_back;
                self.queue[at].absent = Some(Absent { since: self.now, holds_back_until });
            }
            None => drop(self.queue.remove(at)),
        }
    }

    /// The server becomes a replica: all waits end, and no place is kept.
    pub fn end_waits(&mut self) {
        for wait in std::mem::take(&mut self.queue) {
            if wait.absent.is_none() {
                self.complete(&wait, Answer::BecameReplica);
            }
        }
    }

    /// A key is deleted.
    pub fn delete(&mut self, key: usize) {
        let last = self.locks[key].iter().map(|tenure| tenure.token).max().unwrap_or(0);
        self.locks[key].clear();
        if self.quarantined() {
            self.observed[key].deleted_up_to = self.observed[key].deleted_up_to.max(last);
        }
    }

    /// All keys are deleted.
    pub fn flush(&mut self) {
        self.locks.iter_mut().for_each(Vec::clear);
        if self.quarantined() {
            self.observed.iter_mut().for_each(|observed| observed.deleted_up_to = self.last_token);
        }
    }

    /// Forgets what was observed, if the quarantine is over.
    pub fn forget_after_quarantine(&mut self) {
        if !self.quarantined() {
            self.observed = Default::default();
        }
    }

    /// Lets time pass. At every instant at which a wait limit, a kept place, a lease or the quarantine ends,
    /// this function ends the waits that have reached their limits, and then decides on every lock.
    pub fn advance(&mut self, to: i64) {
        loop {
            let limits = self.waits().into_iter().filter_map(|wait| wait.limit).collect::<Vec<_>>();
            let places = self.queue.iter().filter_map(Wait::changes).flatten().collect::<Vec<_>>();
            let leases = self.locks.iter().flatten().map(|tenure| tenure.deadline);
            let quarantine = self.quarantine_began + self.quarantine_length;
            let events = limits.into_iter().chain(places).chain(leases).chain([quarantine]);
            let next = events.filter(|at| self.now < *at && *at <= to).min();
            let at = next.unwrap_or(to);
            self.wall += at - self.now;
            self.now = at;
            let reached = |wait: &&Wait| wait.limit.is_some_and(|limit| limit <= at);
            let mut reached: Vec<Wait> = self.waits().into_iter().filter(reached).cloned().collect();
            reached.sort_by_key(|wait| wait.handle);
            for wait in reached {
                self.leave(wait.handle, true);
                self.complete(&wait, Answer::NotAcquired);
            }
            self.queue.retain(|wait| wait.changes().is_none_or(|[_, gone]| at < gone));
            self.expire_and_serve_all();
            self.forget_after_quarantine();
            if next.is_none() {
                return;
            }
        }
    }
}
