//! What may happen in a world: the actions, and which of them may come next.

use crate::state::{Owner, State};
use crate::world::{OldPrimary, World};

/// What may happen next. The numbers are the indexes of owners, servers and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time passes. Leases and the quarantine may end, and timers fire.
    Tick,
    /// The replica receives the next message.
    Receive,
    /// This owner calls LOCK.ACQUIRE at this server.
    Acquire(usize, usize),
    /// This owner calls LOCK.RENEW with TOKEN, HOLDS and its mode at this server.
    Renew(usize, usize, Renewal),
    /// This owner calls LOCK.RELEASE with TOKEN at this server.
    Release(usize, usize),
    /// This owner stops waiting.
    Leave(usize),
    /// The reply with this owner's tenure was lost, or the owner has died. The owner knows of no tenure.
    Forget(usize),
    /// This owner sends LOCK.GUARD with its token and a write. The write may arrive at any later time, or never.
    SendWrite(usize),
    /// The write at this position arrives at this server.
    Write(usize, usize),
    /// The primary drops the key before the lease is over, because the key was evicted or the wall clock was set ahead.
    Drop,
    /// The wall clock of this server is moved by this many ticks.
    SetClock(usize, i64),
    /// The primary writes its file.
    Save,
    /// The primary crashes and starts from its file.
    Reload,
    /// The primary crashes and starts with nothing.
    Crash,
    /// The primary is cut off from its replica. The messages on the link are lost.
    Cut,
    /// The replica is promoted.
    Promote,
}

/// How a renewal differs from a usual renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    Usual,
    /// The reply is lost.
    Unanswered,
    /// The owner names a larger limit.
    Downgrade,
}

impl World {
    /// The actions that may come next.
    pub(crate) fn next_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tick < self.end {
            actions.push(Action::Tick);
        }
        if !state.link.is_empty() {
            actions.push(Action::Receive);
        }
        for owner in 0..self.rules.modes.len() {
            self.owner_actions(state, owner, actions);
        }
        for write in 0..state.writes.len() {
            let nodes = (0..state.nodes.len()).filter(|node| self.takes_writes(state, *node));
            actions.extend(nodes.map(|node| Action::Write(write, node)));
        }
        let (budget, primary) = (state.budget, &state.nodes[state.primary]);
        let held = !primary.lock.is_free();
        if budget.drops > 0 && held && !primary.dropped {
            actions.push(Action::Drop);
        }
        if budget.clock_steps > 0 {
            let steps = |node| self.clock_steps.iter().map(move |by| Action::SetClock(node, *by));
            actions.extend((0..state.nodes.len()).flat_map(steps));
        }
        if budget.saves > 0 {
            actions.push(Action::Save);
        }
        if budget.reloads > 0 && state.file.is_some() {
            actions.push(Action::Reload);
        }
        if budget.crashes > 0 {
            actions.push(Action::Crash);
        }
        if self.replica
            && state.cut.is_none()
            && self.old_primary != OldPrimary::Gone
            && budget.promotions > 0
        {
            actions.push(Action::Cut);
        }
        if self.may_promote(state) {
            actions.push(Action::Promote);
        }
    }

    fn owner_actions(&self, state: &State, owner: usize, actions: &mut Vec<Action>) {
        let lossy = state.budget.lost_replies > 0;
        let nodes = || (0..state.nodes.len()).filter(|node| self.takes_writes(state, *node));
        match state.owners[owner] {
            Owner::Unknown if self.has_equal_before(state, owner) => {}
            Owner::Unknown | Owner::Idle => actions.extend(nodes().map(|node| Action::Acquire(owner, node))),
            Owner::Waits(_) => actions.push(Action::Leave(owner)),
            Owner::Holds { token, holds, mode, until } => {
                for node in nodes() {
                    let fresh = until == state.tick + self.rules.lease;
                    if !fresh || !state.nodes[node].has_confirmed(state.tick, token, mode) {
                        actions.push(Action::Renew(owner, node, Renewal::Usual));
                        if lossy {
                            actions.push(Action::Renew(owner, node, Renewal::Unanswered));
                        }
                    }
                    if holds < self.most_holds && state.relies(owner) {
                        actions.push(Action::Acquire(owner, node));
                    }
                    if self.downgrade.is_some_and(|limit| limit > mode.slots) && state.relies(owner) {
                        actions.push(Action::Renew(owner, node, Renewal::Downgrade));
                    }
                    actions.push(Action::Release(owner, node));
                }
                if state.budget.writes > 0 && state.relies(owner) {
                    actions.push(Action::SendWrite(owner));
                }
                if lossy {
                    actions.push(Action::Forget(owner));
                }
            }
        }
    }

    /// Whether an owner with a smaller number and the same mode has made no call yet. Such owners are interchangeable,
    /// so the model only explores the runs in which they make their first calls in the order of their numbers.
    fn has_equal_before(&self, state: &State, owner: usize) -> bool {
        let modes = self.rules.modes;
        (0..owner).any(|other| state.owners[other] == Owner::Unknown && modes[other] == modes[owner])
    }

    fn may_promote(&self, state: &State) -> bool {
        let waited = match (self.old_primary, state.cut) {
            (OldPrimary::Gone, _) => true,
            (OldPrimary::CutOff { promoted_after, .. }, Some(cut)) => cut + promoted_after <= state.tick,
            (OldPrimary::CutOff { .. }, None) => false,
        };
        self.replica && state.primary == 0 && state.budget.promotions > 0 && waited
    }
}
