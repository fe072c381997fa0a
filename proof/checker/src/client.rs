//! The behaviour of a client in the simulation and on real servers: its next action, and its reaction to outcomes.

use crate::history::{Call, HoldsReleased, Mode, Nanos, Operation, Outcome, Token, Wait};
use lockward_tests::Random;
use std::mem;
use std::ops::Range;

/// The behaviour of the clients of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub keys: Vec<String>,
    /// The lengths of the short leases. Most leases are short, and a client may sleep past the end of a lease.
    pub lease: Range<Nanos>,
    /// The lengths of the long leases. If the server frees a lock only at the end of a long lease, the delay is so long
    /// that the checker finds it.
    pub long_lease: Range<Nanos>,
    /// How long a client keeps a lock without a call after it has renewed with a long lease. During this rest, a fault
    /// can hit a tenure whose lease is known and which has no pending call.
    pub rest: Range<Nanos>,
    pub wait: Range<Nanos>,
    /// The wait limits of the slices. A client that waits in slices sends several short waits with KEEP.
    pub slice: Range<Nanos>,
    pub keep: Range<Nanos>,
    pub modes: Vec<Mode>,
    /// Whether clients follow the rules for failovers that may lose a grant. Their acquisitions name HOLDS. They make
    /// no call for a tenure whose lease is over on their clock. After a lost connection, they renew at once with TOKEN
    /// and HOLDS.
    pub careful: bool,
    /// Whether a client uses a new owner for each tenure.
    pub new_owner_each_tenure: bool,
}

/// The next action of a client.
#[derive(Debug)]
pub enum Action {
    /// A call for the client's key and owner.
    Call(Operation),
    /// The client sleeps for this time, until the lease is over. Its next actions are writes to the data beside the lock.
    Pause(Nanos),
    /// The client keeps the lock for a while.
    Rest(Nanos),
}

/// A client, and what it knows about its lock.
#[derive(Debug)]
pub struct Client {
    pub number: u32,
    pub key: String,
    pub owner: String,
    owners: u32,
    token: Option<Token>,
    holds: u32,
    /// The mode of the last request.
    mode: Mode,
    /// The remaining time in which the client waits in slices.
    patience: Nanos,
    /// The lease of the last request.
    lease: Nanos,
    /// The end of the lease on the client's clock, if the client holds the lock.
    until: Nanos,
    /// Whether the owner may have holds that the client does not know: after a call without a reply, or after the error
    /// HOLDS or LIMIT. If so, the client changes its owner as soon as possible.
    unsure: bool,
    /// Whether the client rests next, after a renewal with a long lease.
    rests: bool,
    /// The next calls in reverse order: repeated calls, and writes to the data beside the lock.
    next: Vec<Operation>,
}

impl Client {
    /// A client that holds nothing.
    pub fn new(number: u32) -> Self {
        Self {
            number,
            key: String::new(),
            owner: format!("client-{number}:0"),
            owners: 0,
            token: None,
            holds: 0,
            mode: Mode::EXCLUSIVE,
            patience: 0,
            lease: 0,
            until: 0,
            unsure: false,
            rests: false,
            next: Vec::new(),
        }
    }

    pub fn next(&mut self, now: Nanos, workload: &Workload, random: &mut Random) -> Action {
        if workload.careful && self.holds > 0 && now >= self.until {
            self.holds = 0;
            self.next.retain(|next| matches!(next, Operation::Write { .. }));
        }
        if let Some(operation) = self.next.pop() {
            return Action::Call(operation);
        }
        let rests = mem::take(&mut self.rests);
        let Some(token) = self.token.filter(|_| self.holds > 0) else {
            if self.unsure || workload.new_owner_each_tenure {
                self.change_owner();
            }
            self.key = random.one_of(&workload.keys);
            self.mode = random.one_of(&workload.modes);
            return Action::Call(self.acquire(workload, random));
        };
        if rests {
            return Action::Rest(random.between(workload.rest.start, workload.rest.end));
        }
        match random.between(0, 100) {
            0..15 if self.holds < 3 => Action::Call(self.acquire(workload, random)),
            15..25 => {
                self.choose_lease(workload, random);
                Action::Call(self.renew(token, workload, random))
            }
            // Only an owner that holds the lock alone may write. Owners that may share the lock keep it for a moment
            // instead.
            25..50 if self.mode.is_alone() => {
                let [plain, guarded] = [false, true].map(|guarded| Operation::Write { token, guarded });
                self.next.push(plain);
                Action::Call(guarded)
            }
            25..50 => Action::Rest(random.between(0, workload.lease.start / 4)),
            50 => {
                self.rests = true;
                self.choose_lease_in(&workload.long_lease, random);
                Action::Call(self.renew(token, workload, random))
            }
            51..59 if self.lease < workload.lease.end && self.mode.is_alone() => {
                self.next.extend([false, true].map(|guarded| Operation::Write { token, guarded }));
                Action::Pause(self.lease + self.lease / 2)
            }
            59..64 if self.mode.slots != 0 => {
                self.choose_lease(workload, random);
                self.mode = self.larger_mode(random);
                let mode = Some(self.mode);
                Action::Call(Operation::Renew {
                    lease: self.lease,
                    token: Some(token),
                    holds: Some(self.holds),
                    mode,
                })
            }
            _ => {
                let released = match random.between(0, 5) {
                    0 => HoldsReleased::All,
                    1..3 => HoldsReleased::Leaving(self.holds - 1),
                    _ => HoldsReleased::One,
                };
                Action::Call(Operation::Release { released, token: random.percent(50).then_some(token) })
            }
        }
    }

    fn choose_lease(&mut self, workload: &Workload, random: &mut Random) {
        let range = if random.percent(75) { &workload.lease } else { &workload.long_lease };
        self.choose_lease_in(range, random);
    }

    fn choose_lease_in(&mut self, range: &Range<Nanos>, random: &mut Random) {
        self.lease = whole_ms(range, random);
    }

    fn acquire(&mut self, workload: &Workload, random: &mut Random) -> Operation {
        self.choose_lease(workload, random);
        let wait = match random.between(0, 10) {
            0..2 => Wait::No,
            2..9 => Wait::Limit(whole_ms(&workload.wait, random)),
            _ => Wait::Unlimited,
        };
        let holds = (workload.careful || random.percent(50)).then_some(self.holds + 1);
        let (lease, mode) = (self.lease, self.mode);
        let limit = match wait {
            Wait::Limit(limit) if random.percent(50) => limit,
            Wait::Unlimited if random.percent(50) => Nanos::MAX,
            Wait::No | Wait::Limit(_) | Wait::Unlimited => {
                return Operation::Acquire { lease, wait, keep: None, holds, mode };
            }
        };
        self.patience = limit;
        let wait = Wait::Limit(whole_ms(&workload.slice, random).min(limit));
        let keep = Some(whole_ms(&workload.keep, random));
        Operation::Acquire { lease, wait, keep, holds: Some(self.holds + 1), mode }
    }

    fn renew(&self, token: Token, workload: &Workload, random: &mut Random) -> Operation {
        let named = workload.careful || random.percent(50);
        Operation::Renew {
            lease: self.lease,
            token: named.then_some(token),
            holds: workload.careful.then_some(self.holds),
            // A renewal with TOKEN may restore the tenure, so it names the mode.
            mode: named.then_some(self.mode),
        }
    }

    /// A mode with the same weight and a larger limit.
    fn larger_mode(&self, random: &mut Random) -> Mode {
        let Mode { slots, weight } = self.mode;
        // With SHARED, the weight is always 1.
        if weight == 1 && random.percent(50) { Mode::SHARED } else { Mode::of_slots(slots + 3, weight) }
    }

    /// Handles a new connection after the loss of the old connection.
    pub fn reconnected(&mut self, workload: &Workload, random: &mut Random) {
        if let Some(token) = self.token.filter(|_| workload.careful && self.holds > 0) {
            self.choose_lease(workload, random);
            let renewal = self.renew(token, workload, random);
            self.next.push(renewal);
        }
    }

    /// The release at the end of the run, if the client holds the lock.
    pub fn final_release(&self, now: Nanos) -> Option<Operation> {
        let token = self.token.filter(|_| self.holds > 0 && now < self.until)?;
        Some(Operation::Release { released: HoldsReleased::All, token: Some(token) })
    }

    /// Handles the outcome of the client's call.
    pub fn handle_outcome(&mut self, call: &Call, random: &mut Random) {
        match (&call.outcome, &call.operation) {
            (&Outcome::Granted { token, holds }, &Operation::Acquire { lease, .. }) => {
                let before = if self.token == Some(token) { self.until } else { 0 };
                self.until = before.max(call.start + lease);
                (self.token, self.holds) = (Some(token), holds);
            }
            (Outcome::Renewed { .. }, &Operation::Renew { lease, .. }) => self.until = call.start + lease,
            (Outcome::Left { holds }, _) => self.holds = *holds,
            (Outcome::Granted { .. } | Outcome::Renewed { .. } | Outcome::Written, _) => {}
            (Outcome::NotAcquired, operation) => self.slice_ended(operation, random),
            (Outcome::Error(word), operation) if word == "TRYAGAIN" => self.next.push(operation.clone()),
            // The server refuses all writes for a while, or is no primary any more.
            (Outcome::Error(word), operation @ Operation::Renew { .. })
                if !["NOTHELD", "HOLDS", "LIMIT"].contains(&word.as_str()) =>
            {
                self.next.push(operation.clone());
            }
            // The state stays as it is: the client's next call on the lock shows whether the client holds the lock.
            (Outcome::Error(_) | Outcome::Unknown, Operation::Write { .. }) => {}
            (Outcome::Error(word), _) => {
                // After the error HOLDS or LIMIT, the owner may have holds that the client does not know. The client
                // does not release these holds, so they end with their lease.
                self.unsure |= word == "HOLDS" || word == "LIMIT";
                self.holds = 0;
            }
            (Outcome::Unknown, operation) => {
                self.unsure = true;
                if let Operation::Renew { lease, .. } = *operation {
                    self.until = self.until.min(call.start + lease);
                }
                let safe_to_repeat = match *operation {
                    Operation::Acquire { holds, .. } => holds.is_some(),
                    Operation::Release { released: HoldsReleased::Leaving(_), .. }
                    | Operation::Renew { .. } => true,
                    Operation::Release { .. } | Operation::Write { .. } => false,
                };
                if safe_to_repeat && random.percent(60) {
                    self.next.push(operation.clone());
                } else {
                    self.holds = 0;
                }
            }
        }
    }

    /// Decides the next call after a wait without a grant. A client that waits in slices waits again. A client that
    /// gives up either withdraws its kept place, or lets the place end by itself.
    fn slice_ended(&mut self, operation: &Operation, random: &mut Random) {
        if let Operation::Acquire { keep: Some(_), wait: Wait::Limit(slice), .. } = *operation {
            self.patience = self.patience.saturating_sub(slice);
            if self.patience > 0 {
                self.next.push(operation.clone());
                return;
            }
            if random.percent(50) {
                let released = HoldsReleased::Leaving(self.holds);
                self.next.push(Operation::Release { released, token: None });
            }
        }
        self.holds = 0;
    }

    fn change_owner(&mut self) {
        self.owners += 1;
        self.owner = format!("client-{}:{}", self.number, self.owners);
        self.unsure = false;
    }
}

/// A random time in `range`. Times in commands are whole milliseconds.
fn whole_ms(range: &Range<Nanos>, random: &mut Random) -> Nanos {
    random.between(range.start / 1_000_000, range.end / 1_000_000) * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(operation: Operation, outcome: Outcome) -> Call {
        Call { end: Some(6), outcome, ..Call::sent(0, 0, "k", "A", operation, 5) }
    }

    #[test]
    fn a_call_refused_with_tryagain_is_repeated() {
        let mut client = Client::new(0);
        let operation = Operation::exclusive(10, Wait::Unlimited);
        let sent_away = answered(operation.clone(), Outcome::Error("TRYAGAIN".to_owned()));
        client.handle_outcome(&sent_away, &mut Random::from_seed(1));
        assert_eq!(client.next, [operation]);
    }

    #[test]
    fn the_final_release_needs_a_running_lease() {
        let mut client = Client::new(0);
        assert_eq!(client.final_release(0), None);
        let granted = answered(Operation::exclusive(10, Wait::No), Outcome::Granted { token: 7, holds: 1 });
        client.handle_outcome(&granted, &mut Random::from_seed(1));
        let release = Operation::Release { released: HoldsReleased::All, token: Some(7) };
        assert_eq!(client.final_release(14), Some(release));
        assert_eq!(client.final_release(15), None);
    }
}
