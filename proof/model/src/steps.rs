//! What each action does to the servers, to the link between them, and to the owners.

use crate::actions::{Action, Renewal};
use crate::node::{Guards, Node, Replicated, release, span};
use crate::promises;
use crate::state::{Grants, GuardedWrite, Happened, Owner, State};
use crate::world::{OldPrimary, TokenPromise, World};
use lockward_core::{Acquired, Decision, FencingToken, Grant, Instant, Lock, Mode, Quarantine};
use stateright::{Model, Property};

/// How far the monotonic clocks of the two servers differ, in ticks. So the model finds an error if a server uses an
/// instant of the other server's clock.
const MONO_APART: i64 = 500;

/// How many messages may be on the link.
const LINK_CAPACITY: usize = 4;

/// What a server knew before a decision.
struct Before {
    /// The token and the mode of each tenure.
    tenures: Vec<(FencingToken, Mode)>,
    /// Whether the server had received the largest token so far.
    knows_largest_token: bool,
}

impl Before {
    fn of(state: &State, node: usize) -> Self {
        let node = &state.nodes[node];
        Self {
            tenures: node.lock.holders().map(|holder| (holder.token, holder.mode)).collect(),
            knows_largest_token: node.tokens.last() >= state.grants.largest,
        }
    }

    fn mode_of(&self, token: FencingToken) -> Option<Mode> {
        self.tenures.iter().find(|(known, _)| *known == token).map(|(_, mode)| *mode)
    }
}

impl World {
    fn start(&self, tick: u64, node: usize, wall_ahead: i64) -> Node {
        let apart = MONO_APART * i64::try_from(node).expect("there are two servers");
        Node::start(tick, &self.rules, wall_ahead, apart)
    }

    fn send(state: &mut State, node: usize, message: Option<Replicated>) {
        if node == 0 && state.nodes.len() == 2 && state.primary == 0 && state.cut.is_none() {
            state.link.extend(message);
        }
    }

    /// Makes a decision on a server, and carries out its effects. Returns the answer. For LOCK.RELEASE, `release` is the
    /// request.
    fn decide<R>(
        &self,
        state: &mut State,
        node: usize,
        release: Option<Replicated>,
        decide: impl FnOnce(&mut Decision<'_, usize>) -> R,
    ) -> (R, Before) {
        let before = Before::of(state, node);
        let done = state.nodes[node].decide(state.tick, &self.rules, release, decide);
        Self::send(state, node, done.sent);
        for (owner, grant) in done.completed {
            match grant {
                // The owner does not know when the server granted the lock. So the owner renews at once over the same
                // connection, and the model counts its lease from now on.
                Some(grant) => {
                    if !before.tenures.is_empty() && before.mode_of(grant.token).is_none() {
                        state.note(Happened::HandOff);
                    }
                    self.granted(state, node, &before, owner, grant);
                }
                None => state.owners[owner] = Owner::Idle,
            }
        }
        (done.answer, before)
    }

    /// The mode in which an owner acquires the lock now.
    fn mode(&self, state: &State, owner: usize) -> Mode {
        match state.owners[owner] {
            Owner::Holds { mode, .. } => mode,
            Owner::Unknown | Owner::Idle | Owner::Waits(_) => self.rules.modes[owner],
        }
    }

    /// An owner receives a grant.
    fn granted(&self, state: &mut State, node: usize, before: &Before, owner: usize, grant: Grant) {
        let (token, holds, mode) = (grant.token, grant.holds, self.mode(state, owner));
        let until = state.tick + self.rules.lease;
        state.owners[owner] = Owner::Holds { token, holds, mode, until };
        if state.another_relies(owner) {
            let fit = state.relying_fit();
            state.note(if fit { Happened::GrantedBeside } else { Happened::GrantedOverAnother });
        }
        if before.mode_of(token).is_none() {
            self.note_new_tenure(state, node, before, token);
        }
    }

    fn note_new_tenure(&self, state: &mut State, node: usize, before: &Before, token: FencingToken) {
        let wall = state.nodes[node].wall(state.tick);
        if !before.knows_largest_token {
            state.note(Happened::GrantedElsewhere);
        }
        let promised = before.knows_largest_token
            || match self.token_promise {
                TokenPromise::PastTheLastGrant => wall > state.grants.last_wall,
                TokenPromise::PastEveryGrant => wall > state.grants.latest_wall,
            };
        if promised && Some(token) <= state.grants.largest {
            state.note(Happened::TokensFell);
        }
        state.grants = Grants {
            count: state.grants.count + 1,
            largest: state.grants.largest.max(Some(token)),
            last_wall: wall,
            latest_wall: state.grants.latest_wall.max(wall),
        };
    }

    fn acquire(&self, state: &mut State, owner: usize, node: usize) {
        let mode = self.mode(state, owner);
        let holds = match state.owners[owner] {
            Owner::Holds { holds, .. } => holds + 1,
            Owner::Unknown | Owner::Idle | Owner::Waits(_) => 1,
        };
        let wait = self.waits && holds == 1;
        let request = self.rules.acquire(owner, mode, holds);
        let (answer, before) = self.decide(state, node, None, |decision| decision.acquire(&request));
        match answer {
            Ok(Acquired::Granted(grant)) => self.granted(state, node, &before, owner, grant),
            Ok(Acquired::Busy) if wait => {
                state.nodes[node].queue.push(owner);
                state.owners[owner] = Owner::Waits(node);
            }
            Ok(Acquired::Busy) | Err(_) if holds == 1 => state.owners[owner] = Owner::Idle,
            Ok(Acquired::Busy) | Err(_) => {}
        }
    }

    fn renew(&self, state: &mut State, owner: usize, node: usize, renewal: Renewal) {
        let Owner::Holds { token, holds, mode, until } = state.owners[owner] else { return };
        let live = state.relies(owner) && node == state.primary;
        // Once the owner has asked for a downgrade, it must expect that other owners hold the lock beside it.
        let larger = self.downgrade.filter(|_| renewal == Renewal::Downgrade);
        let mode = Mode { slots: larger.unwrap_or(mode.slots), ..mode };
        state.owners[owner] = Owner::Holds { token, holds, mode, until };
        let request = self.rules.renew(owner, token, holds, mode);
        let (answer, before) = self.decide(state, node, None, |decision| decision.renew(&request));
        if live {
            let refused = answer.is_err();
            let event = if refused { Some(Happened::LiveHolderRefused) } else { None };
            let event = event.or_else(|| Self::renewed(state, owner, node, &before, renewal));
            event.into_iter().for_each(|event| state.note(event));
        }
        if answer.is_ok() && renewal != Renewal::Unanswered {
            let until = state.tick + self.rules.lease;
            state.owners[owner] = Owner::Holds { token, holds, mode, until };
        }
    }

    /// Checks the result of a renewal at the primary, by an owner that relies on the lock.
    fn renewed(
        state: &State,
        owner: usize,
        node: usize,
        before: &Before,
        renewal: Renewal,
    ) -> Option<Happened> {
        let Owner::Holds { token, holds, mode, .. } = state.owners[owner] else { return None };
        let server = &state.nodes[node];
        let known = server.lock.of_token(token);
        if !known.is_some_and(|known| known.holds == holds && known.mode == mode) {
            return Some(Happened::TenureDiffers);
        }
        let has_ended = |(token, _): &(FencingToken, Mode)| server.mode_of(*token).is_none();
        match before.mode_of(token) {
            Some(earlier) if earlier != mode && renewal != Renewal::Downgrade => {
                Some(Happened::ModeCorrected)
            }
            Some(_) => None,
            None if before.tenures.iter().any(has_ended) => Some(Happened::RestoredOverAnother),
            None if before.tenures.is_empty() => Some(Happened::Restored),
            None => Some(Happened::RestoredBeside),
        }
    }

    fn release(&self, state: &mut State, owner: usize, node: usize) {
        let Owner::Holds { token, holds, mode, until } = state.owners[owner] else { return };
        let left = holds - 1;
        // Once the owner has asked to release the innermost hold, it relies only on the outer holds.
        state.owners[owner] =
            if left > 0 { Owner::Holds { token, holds: left, mode, until } } else { Owner::Idle };
        let named = self.rules.names_holds.then_some(left);
        let (request, message) = (release(owner, named, token), Replicated::Release(owner, named, token));
        let (answer, _) = self.decide(state, node, Some(message), |decision| decision.release(&request));
        if let Ok(0) = answer {
            state.owners[owner] = Owner::Idle;
        }
    }

    /// A guarded write arrives at a server. Or, after a server has let the write pass, this server carries out the
    /// write.
    fn write(&self, state: &mut State, write: usize, node: usize) {
        let GuardedWrite { token, passed } = state.writes[write];
        if passed.is_some_and(|passed| passed != node) {
            return;
        }
        let server = &mut state.nodes[node];
        let later = server.knows_later_than(token);
        if passed.is_none() && !server.lets_pass(state.tick, token) {
            state.writes.remove(write);
            let server = &state.nodes[node];
            let is_live = |owner: &Owner| match *owner {
                Owner::Holds { token: held, mode, until, .. } => {
                    held == token && state.tick < until && server.has_confirmed(state.tick, token, mode)
                }
                Owner::Unknown | Owner::Idle | Owner::Waits(_) => false,
            };
            if node == state.primary && state.owners.iter().any(is_live) {
                state.note(Happened::HolderFenced);
            } else if later {
                state.note(Happened::StaleWriteFenced);
            }
        } else if passed.is_none() && self.rules.guards == Guards::TwoSteps {
            state.writes[write].passed = Some(node);
        } else {
            server.data = Some(token);
            state.writes.remove(write);
            Self::send(state, node, Some(Replicated::Write(token)));
            state.note(if later { Happened::StaleWriteRun } else { Happened::WriteRun });
        }
    }

    fn leave(&self, state: &mut State, owner: usize) {
        let Owner::Waits(node) = state.owners[owner] else { return };
        state.owners[owner] = Owner::Idle;
        state.nodes[node].queue.retain(|waiter| *waiter != owner);
        self.recheck(state, node);
    }

    /// The server serves its waiters, if it takes writes.
    fn recheck(&self, state: &mut State, node: usize) {
        if !state.nodes[node].queue.is_empty() && self.takes_writes(state, node) {
            self.decide(state, node, None, |decision| decision.recheck());
        }
    }

    fn tick(&self, state: &mut State) {
        state.tick += 1;
        for owner in &mut state.owners {
            if matches!(owner, Owner::Holds { until, .. } if *until + self.late <= state.tick) {
                *owner = Owner::Idle;
            }
        }
        for node in 0..state.nodes.len() {
            let message = state.nodes[node].replicate_dropped(state.tick, &self.rules);
            Self::send(state, node, message);
            self.recheck(state, node);
        }
    }

    fn restart(&self, state: &mut State, file: Option<&[u8]>) {
        let node = state.primary;
        state.disconnect(node);
        state.nodes[node] = self.start(state.tick, node, state.nodes[node].wall_ahead);
        if let Some(file) = file {
            state.nodes[node].load(state.tick, &self.rules, file);
            state.nodes[node].data = state.file_data.take();
        }
        if node == 0 && state.nodes.len() == 2 && state.cut.is_none() {
            // The replica gets a full resync. The replica has not restarted, so it still knows the largest token that
            // it has received.
            state.link.clear();
            let lock = state.nodes[0].save(state.tick);
            state.nodes[1].lock = Lock::new();
            state.nodes[1].dropped = false;
            state.nodes[1].data = None;
            state.link.extend(state.nodes[0].data.map(Replicated::Write));
            state.link.extend(Some(Replicated::Apply(lock)).filter(|_| !state.nodes[0].lock.is_free()));
        }
        if state.primary_has_lost_tenure() {
            state.note(if file.is_some() { Happened::ReloadedStale } else { Happened::CrashedHeld });
        }
    }

    fn promote(&self, state: &mut State) {
        state.link.clear();
        state.primary = 1;
        state.nodes[1].promote(state.tick, &self.rules);
        if self.old_primary == OldPrimary::Gone {
            state.disconnect(0);
            state.nodes[0] = self.start(0, 0, 0);
            (state.file, state.file_data) = (None, None);
        }
        if state.primary_has_lost_tenure() {
            state.note(Happened::PromotedStale);
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let servers = if self.replica { 2 } else { 1 };
        // The servers started long ago. The first primary started without a quarantine, because an operator can set
        // the quarantine after the primary has granted leases.
        let node = |number| {
            let mut node = self.start(0, number, 0);
            let length = if number == 0 { 0 } else { self.rules.quarantine };
            node.quarantine = Quarantine::new(Instant::from_micros(-1_000_000), span(length));
            node
        };
        vec![State {
            tick: 0,
            nodes: (0..servers).map(node).collect(),
            primary: 0,
            cut: None,
            link: Vec::new(),
            file: None,
            file_data: None,
            writes: Vec::new(),
            owners: vec![Owner::Unknown; self.rules.modes.len()],
            budget: self.budget,
            grants: Grants::default(),
            happened: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.next_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.happened = None;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Receive => {
                let message = state.link.remove(0);
                state.nodes[1].receive(state.tick, &self.rules, &message);
            }
            Action::Acquire(owner, node) => self.acquire(&mut state, owner, node),
            Action::Renew(owner, node, renewal) => {
                state.budget.lost_replies -= u8::from(renewal == Renewal::Unanswered);
                self.renew(&mut state, owner, node, renewal);
            }
            Action::Release(owner, node) => self.release(&mut state, owner, node),
            Action::Leave(owner) => self.leave(&mut state, owner),
            Action::Forget(owner) => {
                state.budget.lost_replies -= 1;
                state.owners[owner] = Owner::Idle;
            }
            Action::SendWrite(owner) => {
                let Owner::Holds { token, .. } = state.owners[owner] else { return None };
                state.budget.writes -= 1;
                state.writes.push(GuardedWrite { token, passed: None });
            }
            Action::Write(write, node) => self.write(&mut state, write, node),
            Action::Drop => {
                state.budget.drops -= 1;
                let primary = state.primary;
                state.nodes[primary].drop_key(state.tick, &self.rules);
                Self::send(&mut state, primary, Some(Replicated::Delete));
            }
            Action::SetClock(node, by) => {
                state.budget.clock_steps -= 1;
                state.nodes[node].wall_ahead += by;
            }
            Action::Save => {
                state.budget.saves -= 1;
                state.file = Some(state.nodes[state.primary].save(state.tick));
                state.file_data = state.nodes[state.primary].data;
            }
            Action::Reload => {
                state.budget.reloads -= 1;
                let file = state.file.take()?;
                self.restart(&mut state, Some(&file));
            }
            Action::Crash => {
                state.budget.crashes -= 1;
                self.restart(&mut state, None);
            }
            Action::Cut => {
                state.cut = Some(state.tick);
                state.link.clear();
            }
            Action::Promote => {
                state.budget.promotions -= 1;
                self.promote(&mut state);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties()
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.grants.count <= self.most_tenures && state.link.len() <= LINK_CAPACITY
    }
}
