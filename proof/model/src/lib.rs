//! A model check of Lockward's promises across crashes and promotions: every interleaving in a small world.
//!
//! stateright explores the world. The lock itself is not modelled: servers run the functions of core, as the module
//! does, and exchange core's payloads ([`Node`]). The model has everything around the lock ([`World`]):
//!
//! | part | in the model |
//! | --- | --- |
//! | time | ticks, the same for all monotonic clocks; wall clocks can be set |
//! | a call | one action: sent, decided and answered in one instant, or decided and the reply is lost; a call that never arrives is the same as no call |
//! | the link | an ordered queue of what the primary sends; the replica receives each message at any later time, or never |
//! | a crash | the primary restarts in the same instant, without data, or with a file that it saved earlier |
//! | a promotion | the replica goes on with what it has received; the old primary is gone, or it is cut off from the replica and owners still reach it |
//! | a guarded write | sent in one action; it arrives at any later time, or never; the check and the write are one action |
//! | an owner | acquires (and waits) with a limit and a weight, renews with TOKEN, HOLDS, limit and weight, raises its limit, releases with TOKEN; relies on the lock until one lease after the start of its last answered call |
//!
//! A call takes no time in the model. A call without duration is the worst case: if a call takes longer, the owner only
//! stops relying on the lock earlier. A waiter does not know when the server granted the lock. So the waiter renews at
//! once over the same connection, and counts its lease from that renewal. When an owner has asked for a larger limit,
//! it no longer relies on the smaller limit, even if the reply is lost or is an error.
//!
//! The promises hold in every state. Owners fit beside each other if the sum of their weights is at most the limit of
//! each of them: an exclusive owner fits beside nobody.
//!
//! | promise | |
//! | --- | --- |
//! | [`EXCLUSION`] | the owners that rely on the lock at the same instant fit beside each other |
//! | [`NOBODY_ELSE`] | no server grants the lock to an owner that does not fit beside the owners that rely on it |
//! | [`TENURE_BACK`] | an owner that relies on the lock, and renews with its token and mode at the primary, is not refused |
//! | [`HOLDS_BACK`] | after that renewal the owner has as many holds at the primary as it named, and the limit and weight that it named |
//! | [`TOKENS`] | the token of a new tenure is larger than every earlier token |
//! | [`GUARDED`] | a server runs no guarded write whose token is smaller than the token of a tenure or a write that the server knows |
//! | [`PASSES`] | the guard does not refuse the write of an owner that relies on the lock, at a primary that has neither restarted nor been promoted, or at which the owner has renewed |
//! | [`LIMITS`] | the holders that a server knows fit beside each other, even those that no longer rely on the lock |
//!
//! [`TENURE_BACK`] does not demand that the owner fits: by [`EXCLUSION`], all owners that rely on the lock fit beside
//! each other. All other holders that the server knows must make room for these owners.
//!
//! The promises need these assumptions. For each assumption, a test drops the assumption and finds a broken promise.
//!
//! 1. The quarantine is at least as long as every lease that any server granted before the crash or promotion, even if
//!    that server had other settings.
//! 2. A renewal with TOKEN reaches a server in quarantine before the lease ends by the owner's own clock. A server that
//!    has lost its data cannot check the claim of an owner, and accepts the claim. So a late renewal takes the lock
//!    from another owner to whom the server has granted the lock meanwhile. When the other owner renews too, the owner
//!    with the larger token gets the lock.
//! 3. When the replica is promoted, the old primary takes no more writes. The old primary is dead, or
//!    min-replicas-max-lag is shorter than the time after which the old primary is declared dead. A longer quarantine
//!    does not replace this assumption, because the quarantine only delays new grants at the new primary. The old
//!    primary does not know of a renewal at the new primary. So the old primary grants the lock when the old lease has
//!    ended.
//! 4. Owners name HOLDS 1 for their first hold, and HOLDS 2 or more only while they rely on the lock. An owner that
//!    names no count re-enters an unconfirmed tenure, which may have ended.
//! 5. An owner that is not exclusive names its limit and weight when it renews with TOKEN. Without the limit and the
//!    weight, a server that has lost its data restores a tenure as exclusive, and then refuses the other owners that
//!    rely on the lock.
//! 6. For the promise about tokens, one of two conditions holds: the granting server has received the largest token so
//!    far, or its wall clock shows a later time than the wall clock of any granting server showed at any earlier grant
//!    of the lock. The promise can break even if no clock was set back since the last grant. A new token comes from the
//!    wall clock. If a clock was set back earlier, the largest token may be ahead of the clock, and a restart without
//!    data forgets this token. The quarantine helps, because the clock catches up meanwhile. If a new token is still
//!    smaller than the token of an earlier tenure, a server in quarantine treats the new tenure as the older of the
//!    two, and may refuse its owner.
//!
//! All monotonic clocks run at the same rate in the model. If the rates of real clocks differ, owners must subtract a
//! margin from the lease, as the clients do.
//!
//! The promises hold even if
//! - a renewal does not reach the replica: the next renewal corrects the replica;
//! - a reply is lost;
//! - a wall clock is wrong (except for the promise about tokens);
//! - the server drops the key.
//!
//! One test breaks a rule of the server on purpose: its guard checks and writes in two steps ([`Guards::TwoSteps`]). So
//! it runs stale writes, and the check must find them.
//!
//! Only exclusive owners write, because a reader may write beside readers with larger tokens. The promise [`GUARDED`]
//! is about the data of each server alone. So the loss of data in a failover does not break this promise.
//!
//! Not in the model: the order of the queue, kept places, and renewals without TOKEN.

mod actions;
mod node;
mod promises;
mod state;
mod steps;
mod world;

pub use actions::{Action, Renewal};
pub use node::{Guards, Node, Replicated, Rules};
pub use promises::{
    EXCLUSION, GUARDED, HOLDS_BACK, LIMITS, NOBODY_ELSE, PASSES, PROMISES, TENURE_BACK, TOKENS,
};
pub use state::{Budget, Grants, GuardedWrite, Happened, Owner, State};
pub use world::{OldPrimary, TokenPromise, World};
