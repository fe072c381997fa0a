//! The state of the world: what every server and every owner knows, and the messages between them.

use crate::node::{Node, Replicated, fit};
use lockward_core::{FencingToken, Mode};

/// What an owner knows of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The owner has not made a call yet.
    Unknown,
    /// The owner knows of no tenure.
    Idle,
    /// The owner waits at this server.
    Waits(usize),
    /// The owner got a reply that granted a tenure.
    Holds {
        token: FencingToken,
        holds: u32,
        mode: Mode,
        /// The owner relies on the lock until this tick: the start of its last answered call plus one lease.
        until: u64,
    },
}

/// The events that the properties look for. A live holder is an owner that relies on the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happened {
    /// A waiter got a lock that another owner had held.
    HandOff,
    /// An owner got the lock beside another owner that relies on the lock.
    GrantedBeside,
    /// A live holder restored a tenure that the server had lost.
    Restored,
    /// A live holder restored its tenure, and an older tenure ended because the two did not fit beside each other.
    RestoredOverAnother,
    /// A live holder restored its tenure beside the tenures of other owners.
    RestoredBeside,
    /// A live holder renewed a tenure that the server knew with another limit.
    ModeCorrected,
    /// The primary has lost a tenure that an owner relies on.
    CrashedHeld,
    /// The primary has loaded a file without a tenure that an owner relies on.
    ReloadedStale,
    /// A promoted replica does not know a tenure that an owner relies on.
    PromotedStale,
    /// A server that does not know the largest token so far has granted a tenure.
    GrantedElsewhere,
    /// An owner got the lock, but does not fit beside the other owners that rely on the lock.
    GrantedOverAnother,
    /// A server refused the renewal of a live holder with its token.
    LiveHolderRefused,
    /// A live holder has renewed with its token, holds and mode, but the server has a different hold count or mode for
    /// this holder.
    TenureDiffers,
    WriteRun,
    /// A server refused a guarded write, because a later tenure began before the write arrived.
    StaleWriteFenced,
    /// A server that knows of a later tenure, or has data with a larger token, ran a write.
    StaleWriteRun,
    /// A primary that has confirmed a live holder's tenure refused the holder's write.
    HolderFenced,
    /// A new tenure has a token that is not larger than all earlier tokens.
    TokensFell,
}

/// How often each of these events may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub saves: u8,
    pub reloads: u8,
    pub promotions: u8,
    pub clock_steps: u8,
    pub drops: u8,
    /// Calls without a reply, and owners that have died.
    pub lost_replies: u8,
    pub writes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The right time. All monotonic clocks advance with the right time.
    pub tick: u64,
    /// The servers: the first primary, and its replica.
    pub nodes: Vec<Node>,
    pub primary: usize,
    /// When the first primary was cut off.
    pub cut: Option<u64>,
    /// The messages that are on their way from the primary to the replica.
    pub link: Vec<Replicated>,
    pub file: Option<Vec<u8>>,
    /// The token of the last write that the primary's file contains.
    pub file_data: Option<FencingToken>,
    /// The guarded writes that are on their way.
    pub writes: Vec<GuardedWrite>,
    pub owners: Vec<Owner>,
    pub budget: Budget,
    pub grants: Grants,
    pub happened: Option<Happened>,
}

/// A guarded write that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuardedWrite {
    pub token: FencingToken,
    /// The server that has let the write pass, if that server writes in a second step.
    pub passed: Option<usize>,
}

/// The grants of new tenures so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants {
    pub count: u32,
    pub largest: Option<FencingToken>,
    /// The time that the wall clock of the granting server showed at the last grant.
    pub last_wall: i64,
    /// The latest time that the wall clock of a granting server showed at any grant.
    pub latest_wall: i64,
}

impl State {
    /// The token and the mode of the tenure that an owner relies on now.
    fn relied_on(&self, owner: Owner) -> Option<(FencingToken, Mode)> {
        match owner {
            Owner::Holds { token, mode, until, .. } if self.tick < until => Some((token, mode)),
            Owner::Unknown | Owner::Idle | Owner::Waits(_) | Owner::Holds { .. } => None,
        }
    }

    /// Whether an owner relies on the lock now.
    pub fn relies(&self, owner: usize) -> bool {
        self.relied_on(self.owners[owner]).is_some()
    }

    /// Whether the owners that rely on the lock fit beside each other.
    pub(crate) fn relying_fit(&self) -> bool {
        fit(self.owners.iter().filter_map(|owner| Some(self.relied_on(*owner)?.1)))
    }

    /// Whether on each server the holders that the server knows fit beside each other.
    pub(crate) fn known_fit(&self) -> bool {
        self.nodes.iter().all(|node| fit(node.lock.holders().map(|holder| holder.mode)))
    }

    /// Whether another owner relies on the lock.
    pub(crate) fn another_relies(&self, owner: usize) -> bool {
        (0..self.owners.len()).any(|other| other != owner && self.relies(other))
    }

    /// Whether the primary lacks a tenure that an owner relies on.
    pub(crate) fn primary_has_lost_tenure(&self) -> bool {
        let primary = &self.nodes[self.primary];
        let relied_on = |owner: &Owner| self.relied_on(*owner);
        self.owners.iter().filter_map(relied_on).any(|(token, _)| primary.mode_of(token).is_none())
    }

    /// The waiters of a server lose their connection.
    pub(crate) fn disconnect(&mut self, node: usize) {
        self.nodes[node].queue.clear();
        for owner in &mut self.owners {
            if *owner == Owner::Waits(node) {
                *owner = Owner::Idle;
            }
        }
    }

    pub(crate) fn note(&mut self, happened: Happened) {
        // If an action has several events, a later event must not overwrite an event that breaks a promise.
        let broken = |happened| {
            matches!(
                happened,
                Happened::GrantedOverAnother
                    | Happened::LiveHolderRefused
                    | Happened::TenureDiffers
                    | Happened::StaleWriteRun
                    | Happened::HolderFenced
                    | Happened::TokensFell
            )
        };
        if !self.happened.is_some_and(broken) {
            self.happened = Some(happened);
        }
    }
}
