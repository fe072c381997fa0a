//! The world: servers, the link between them, owners, time, and the actions that may come next.

use crate::node::{Done, Node, Replicated, Rules, span};
use lockward_core::{Acquired, FencingToken, Grant, Instant, Lock, Quarantine};
use stateright::{Model, Property};

/// How far the monotonic clocks of the two servers differ, in ticks. An instant that left its server would then be wrong.
const MONO_APART: i64 = 500;

/// How many messages may be on the link.
const LINK_CAPACITY: usize = 4;

/// What happens to the primary when its replica is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPrimary {
    /// It has crashed, or nobody reaches it.
    Gone,
    /// It is cut off from its replica, but owners reach it.
    CutOff {
        /// How many ticks after the cut it still takes writes (min-replicas-max-lag).
        writes_for: u64,
        /// How many ticks after the cut the replica is promoted at the earliest.
        promoted_after: u64,
    },
}

/// When the token of a new tenure must be larger than all before it, after a restart or a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPromise {
    /// If the server's clock is later than the granting server's clock at the last grant.
    PastTheLastGrant,
    /// If it is later than the clock of any granting server at any grant so far.
    PastEveryGrant,
}

/// A world: its rules, and how much may happen in it.
#[derive(Clone, Debug)]
pub struct World {
    /// The rules of servers and owners.
    pub rules: Rules,
    /// How many owners there are.
    pub owners: usize,
    /// The largest count of holds that an owner acquires.
    pub most_holds: u32,
    /// Whether owners wait for a lock that is busy.
    pub waits: bool,
    /// How many ticks after the end of its lease an owner may still renew. 0 for one that follows the rule.
    pub late: u64,
    /// Whether there is a replica.
    pub replica: bool,
    /// What happens to the old primary at a promotion.
    pub old_primary: OldPrimary,
    /// When tokens must grow.
    pub token_promise: TokenPromise,
    /// By how many ticks a wall clock may be set.
    pub clock_steps: &'static [i64],
    /// How often each of these may happen.
    pub budget: Budget,
    /// The tick at which the world ends.
    pub end: u64,
    /// How many tenures there may be.
    pub most_tenures: u32,
}

/// How often each of these may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The primary restarts with nothing.
    pub crashes: u8,
    /// The primary writes its file.
    pub saves: u8,
    /// The primary restarts from its file.
    pub reloads: u8,
    /// The replica is promoted.
    pub promotions: u8,
    /// A wall clock is set.
    pub clock_steps: u8,
    /// The primary drops the key of a held lock, by eviction or because its wall clock was set ahead.
    pub drops: u8,
    /// The reply to a call is lost.
    pub lost_replies: u8,
}

/// What an owner knows of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// It has not made a call yet.
    Unknown,
    /// It knows of no tenure.
    Idle,
    /// It waits at this server.
    Waits(usize),
    /// It got a reply with a tenure.
    Holds {
        /// The token of the tenure.
        token: FencingToken,
        /// Its count of holds.
        holds: u32,
        /// It relies on the lock before this tick: one lease after the start of its last answered call.
        until: u64,
    },
}

/// What has just happened, for the properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happened {
    /// A waiter was granted a lock that another owner had held.
    HandOff,
    /// A live holder restored a tenure that the server had lost.
    Restored,
    /// A live holder restored its tenure in place of an older one.
    RestoredOverAnother,
    /// The primary has lost a tenure that an owner relies on.
    CrashedHeld,
    /// The primary has loaded a file without a tenure that an owner relies on.
    ReloadedStale,
    /// A replica was promoted that does not know a tenure that an owner relies on.
    PromotedStale,
    /// A tenure was granted by another server than the one before, or after a restart.
    GrantedElsewhere,
    /// An owner was granted the lock while another relies on it.
    GrantedOverAnother,
    /// A live holder that renewed with its token was refused.
    LiveHolderRefused,
    /// A live holder that renewed with its token and holds has another count of holds at the server.
    HoldsDiffer,
    /// A new tenure was given a token that is not larger than all before.
    TokensFell,
}

/// The state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The right time. All monotonic clocks tick with it.
    pub tick: u64,
    /// The servers: the first primary, and its replica.
    pub nodes: Vec<Node>,
    /// Which is the primary.
    pub primary: usize,
    /// Since when the first primary has been cut off.
    pub cut: Option<u64>,
    /// What the primary has sent and the replica has not received.
    pub link: Vec<Replicated>,
    /// The primary's file.
    pub file: Option<Vec<u8>>,
    /// The owners.
    pub owners: Vec<Owner>,
    /// What may still happen.
    pub budget: Budget,
    /// The grants so far.
    pub grants: Grants,
    /// What has just happened.
    pub happened: Option<Happened>,
}

/// The grants of new tenures so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants {
    /// How many there were.
    pub count: u32,
    /// The largest token.
    pub largest: Option<FencingToken>,
    /// The granting server's wall clock at the last grant.
    pub last_wall: i64,
    /// The latest wall clock of a granting server at any grant.
    pub latest_wall: i64,
}

/// What may happen next. Owners are numbered, and so are servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time passes. Leases and the quarantine may end, and timers fire.
    Tick,
    /// The replica receives the next message.
    Receive,
    /// This owner calls LOCK.ACQUIRE at this server.
    Acquire(usize, usize),
    /// This owner calls LOCK.RENEW with TOKEN and HOLDS at this server.
    Renew(usize, usize),
    /// This owner calls LOCK.RENEW in the same way, and the reply is lost.
    RenewUnanswered(usize, usize),
    /// This owner calls LOCK.RELEASE with TOKEN at this server.
    Release(usize, usize),
    /// This owner stops waiting.
    Leave(usize),
    /// The reply with this owner's tenure was lost, or the owner has died. It knows of no tenure.
    Forget(usize),
    /// The primary drops the key before the lease is over.
    Drop,
    /// The wall clock of this server is set by so many ticks.
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

impl State {
    /// Whether an owner relies on the lock now.
    #[must_use]
    pub fn relies(&self, owner: usize) -> bool {
        matches!(self.owners[owner], Owner::Holds { until, .. } if self.tick < until)
    }

    fn relying(&self) -> impl Iterator<Item = usize> {
        (0..self.owners.len()).filter(|owner| self.relies(*owner))
    }

    fn another_relies(&self, owner: usize) -> bool {
        self.relying().any(|other| other != owner)
    }

    /// Whether the primary lacks a tenure that an owner relies on.
    fn primary_has_lost_tenure(&self) -> bool {
        let known = self.nodes[self.primary].token();
        self.owners.iter().any(
            |owner| matches!(owner, Owner::Holds { token, until, .. } if self.tick < *until && known != Some(*token)),
        )
    }

    /// The waiters of a server lose their connection.
    fn disconnect(&mut self, node: usize) {
        self.nodes[node].queue.clear();
        for owner in &mut self.owners {
            if *owner == Owner::Waits(node) {
                *owner = Owner::Idle;
            }
        }
    }

    fn note(&mut self, happened: Happened) {
        // A broken promise is not overwritten by another event of the same action.
        let broken = |happened| {
            matches!(
                happened,
                Happened::GrantedOverAnother
                    | Happened::LiveHolderRefused
                    | Happened::HoldsDiffer
                    | Happened::TokensFell
            )
        };
        if !self.happened.is_some_and(broken) {
            self.happened = Some(happened);
        }
    }
}

impl World {
    fn start(&self, tick: u64, node: usize, wall_ahead: i64) -> Node {
        let apart = MONO_APART * i64::try_from(node).expect("there are two servers");
        Node::start(tick, &self.rules, wall_ahead, apart)
    }

    /// Whether a server takes writes. A primary that knows that it is cut off does not.
    fn takes_writes(&self, state: &State, node: usize) -> bool {
        let connected = match (state.cut, self.old_primary) {
            (Some(cut), OldPrimary::CutOff { writes_for, .. }) => state.tick <= cut + writes_for,
            (None, _) | (_, OldPrimary::Gone) => true,
        };
        node == state.primary && node == 1 || node == 0 && connected && self.is_reached(state, 0)
    }

    /// Whether owners reach a server as a primary.
    fn is_reached(&self, state: &State, node: usize) -> bool {
        node == state.primary || (node == 0 && self.old_primary != OldPrimary::Gone)
    }

    fn send(state: &mut State, node: usize, message: Option<Replicated>) {
        if node == 0 && state.nodes.len() == 2 && state.primary == 0 && state.cut.is_none() {
            state.link.extend(message);
        }
    }

    /// Carries out the effects of a decision, and returns its answer.
    fn carry_out<R>(&self, state: &mut State, node: usize, before: &Node, done: Done<R>) -> R {
        Self::send(state, node, done.sent);
        for (owner, grant) in done.granted {
            if before.token().is_some_and(|token| token != grant.token) {
                state.note(Happened::HandOff);
            }
            // The owner does not know when it was granted the lock. It renews at once over the same connection.
            self.granted(state, node, before, owner, grant);
        }
        done.answer
    }

    /// An owner gets the reply with a grant.
    fn granted(&self, state: &mut State, node: usize, before: &Node, owner: usize, grant: Grant) {
        if state.another_relies(owner) {
            state.note(Happened::GrantedOverAnother);
        }
        if before.token() != Some(grant.token) {
            self.note_new_tenure(state, node, before, grant.token);
        }
        let until = state.tick + self.rules.lease;
        state.owners[owner] = Owner::Holds { token: grant.token, holds: grant.holds, until };
    }

    fn note_new_tenure(&self, state: &mut State, node: usize, before: &Node, token: FencingToken) {
        let wall = state.nodes[node].wall(state.tick);
        let known_here = before.tokens.last() >= state.grants.largest;
        if !known_here {
            state.note(Happened::GrantedElsewhere);
        }
        let promised = known_here
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
        let before = state.nodes[node].clone();
        let holds = match state.owners[owner] {
            Owner::Holds { holds, .. } => holds + 1,
            Owner::Unknown | Owner::Idle | Owner::Waits(_) => 1,
        };
        let wait = self.waits && holds == 1;
        let done = state.nodes[node].acquire(state.tick, &self.rules, owner, holds, wait);
        match self.carry_out(state, node, &before, done) {
            Ok(Acquired::Granted(grant)) => self.granted(state, node, &before, owner, grant),
            Ok(Acquired::Busy) if wait => state.owners[owner] = Owner::Waits(node),
            Ok(Acquired::Busy) | Err(_) if holds == 1 => state.owners[owner] = Owner::Idle,
            Ok(Acquired::Busy) | Err(_) => {}
        }
    }

    fn renew(&self, state: &mut State, owner: usize, node: usize, answered: bool) {
        let Owner::Holds { token, holds, .. } = state.owners[owner] else { return };
        let before = state.nodes[node].clone();
        let live = state.relies(owner) && node == state.primary;
        let done = state.nodes[node].renew(state.tick, &self.rules, owner, token, holds);
        if self.carry_out(state, node, &before, done).is_err() {
            if live {
                state.note(Happened::LiveHolderRefused);
            }
            return;
        }
        if live && state.nodes[node].lock.holders().all(|holder| holder.holds != holds) {
            state.note(Happened::HoldsDiffer);
        }
        if live && before.token() != Some(token) {
            let over_another = before.token().is_some();
            state.note(if over_another { Happened::RestoredOverAnother } else { Happened::Restored });
        }
        if answered {
            let until = state.tick + self.rules.lease;
            state.owners[owner] = Owner::Holds { token, holds, until };
        }
    }

    fn release(&self, state: &mut State, owner: usize, node: usize) {
        let Owner::Holds { token, holds, until } = state.owners[owner] else { return };
        let before = state.nodes[node].clone();
        // As soon as it releases the innermost hold, it relies only on the outer ones.
        state.owners[owner] =
            if holds > 1 { Owner::Holds { token, holds: holds - 1, until } } else { Owner::Idle };
        let done = state.nodes[node].release(state.tick, &self.rules, owner, holds - 1, token);
        if let Ok(0) = self.carry_out(state, node, &before, done) {
            state.owners[owner] = Owner::Idle;
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
            if !state.nodes[node].queue.is_empty() && self.takes_writes(state, node) {
                let before = state.nodes[node].clone();
                let done = state.nodes[node].recheck(state.tick, &self.rules);
                self.carry_out(state, node, &before, done);
            }
        }
    }

    fn restart(&self, state: &mut State, file: Option<&[u8]>) {
        let node = state.primary;
        state.disconnect(node);
        state.nodes[node] = self.start(state.tick, node, state.nodes[node].wall_ahead);
        if let Some(file) = file {
            state.nodes[node].load(state.tick, &self.rules, file);
        }
        if node == 0 && state.nodes.len() == 2 && state.cut.is_none() {
            // A full resync. The replica has not restarted, so it keeps the tokens that it has received.
            state.link.clear();
            let lock = state.nodes[0].save(state.tick);
            state.nodes[1].lock = Lock::new();
            state.nodes[1].dropped = false;
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
            state.file = None;
        }
        if state.primary_has_lost_tenure() {
            state.note(Happened::PromotedStale);
        }
    }

    fn may_promote(&self, state: &State) -> bool {
        let waited = match (self.old_primary, state.cut) {
            (OldPrimary::Gone, _) => true,
            (OldPrimary::CutOff { promoted_after, .. }, Some(cut)) => cut + promoted_after <= state.tick,
            (OldPrimary::CutOff { .. }, None) => false,
        };
        self.replica && state.primary == 0 && state.budget.promotions > 0 && waited
    }

    fn owner_actions(&self, state: &State, owner: usize, actions: &mut Vec<Action>) {
        let lossy = state.budget.lost_replies > 0;
        let nodes = || (0..state.nodes.len()).filter(|node| self.takes_writes(state, *node));
        match state.owners[owner] {
            // All owners are equal, so they make their first call in order.
            Owner::Unknown if owner > 0 && state.owners[owner - 1] == Owner::Unknown => {}
            Owner::Unknown | Owner::Idle => actions.extend(nodes().map(|node| Action::Acquire(owner, node))),
            Owner::Waits(_) => actions.push(Action::Leave(owner)),
            Owner::Holds { holds, until, token } => {
                for node in nodes() {
                    let fresh = until == state.tick + self.rules.lease;
                    if !fresh || state.nodes[node].token() != Some(token) {
                        actions.push(Action::Renew(owner, node));
                        if lossy {
                            actions.push(Action::RenewUnanswered(owner, node));
                        }
                    }
                    if holds < self.most_holds && state.relies(owner) {
                        actions.push(Action::Acquire(owner, node));
                    }
                    actions.push(Action::Release(owner, node));
                }
                if lossy {
                    actions.push(Action::Forget(owner));
                }
            }
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let servers = if self.replica { 2 } else { 1 };
        // The servers started long ago. The first primary may have granted leases before a quarantine was set.
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
            owners: vec![Owner::Unknown; self.owners],
            budget: self.budget,
            grants: Grants::default(),
            happened: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tick < self.end {
            actions.push(Action::Tick);
        }
        if !state.link.is_empty() {
            actions.push(Action::Receive);
        }
        for owner in 0..self.owners {
            self.owner_actions(state, owner, actions);
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
            Action::Renew(owner, node) => self.renew(&mut state, owner, node, true),
            Action::RenewUnanswered(owner, node) => {
                state.budget.lost_replies -= 1;
                self.renew(&mut state, owner, node, false);
            }
            Action::Release(owner, node) => self.release(&mut state, owner, node),
            Action::Leave(owner) => {
                state.nodes.iter_mut().for_each(|node| node.queue.retain(|waiter| *waiter != owner));
                state.owners[owner] = Owner::Idle;
            }
            Action::Forget(owner) => {
                state.budget.lost_replies -= 1;
                state.owners[owner] = Owner::Idle;
            }
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
        macro_rules! never {
            ($name:expr, $happened:ident) => {
                Property::always($name, |_, state: &State| state.happened != Some(Happened::$happened))
            };
        }
        macro_rules! sometimes {
            ($happened:ident) => {
                Property::sometimes(stringify!($happened), |_, state: &State| {
                    state.happened == Some(Happened::$happened)
                })
            };
        }
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.relying().count() <= 1),
            never!(NOBODY_ELSE, GrantedOverAnother),
            never!(TENURE_BACK, LiveHolderRefused),
            never!(HOLDS_BACK, HoldsDiffer),
            never!(TOKENS, TokensFell),
            sometimes!(HandOff),
            sometimes!(Restored),
            sometimes!(RestoredOverAnother),
            sometimes!(CrashedHeld),
            sometimes!(ReloadedStale),
            sometimes!(PromotedStale),
            sometimes!(GrantedElsewhere),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.grants.count <= self.most_tenures && state.link.len() <= LINK_CAPACITY
    }
}

/// No two owners rely on the lock at the same instant.
pub const EXCLUSION: &str = "two owners never rely on the lock at once";
/// No owner is granted the lock while another relies on it.
pub const NOBODY_ELSE: &str = "nobody is granted what another relies on";
/// A live holder that renews with its token gets its tenure back.
pub const TENURE_BACK: &str = "a live holder that renews with its token is not refused";
/// After such a renewal, the server has the count of holds that the owner named.
pub const HOLDS_BACK: &str = "a live holder that renews with its holds has as many at the server";
/// The token of a new tenure is larger than every earlier one.
pub const TOKENS: &str = "a new tenure's token is larger than every earlier one";
