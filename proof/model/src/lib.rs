//! What Lockward promises across crashes and promotions, checked in every interleaving of a small world.
//!
//! The world is explored by stateright. Nothing of the lock is modelled: servers run the functions of core, as the
//! module does, and hear each other in core's encoding ([`Node`]). What is modelled is what surrounds it ([`World`]):
//!
//! | part | what it is here |
//! | --- | --- |
//! | time | ticks, the same for all monotonic clocks; wall clocks may step |
//! | a call | one action: asked, decided and answered in one instant, or decided and the reply lost; a call that never arrives is one that was not made |
//! | the link | an ordered queue of what the primary sends; its replica hears it at any later time, or never |
//! | a crash | the primary starts again in the same instant, with nothing, or with a file saved earlier |
//! | a promotion | the replica goes on with what it has heard; the old primary is gone, or cut off but reached by owners |
//! | an owner | acquires (and waits), renews with TOKEN and HOLDS, releases with TOKEN; relies on the lock from the answer until the start of its last answered call and a lease |
//!
//! A call takes no time here since that is the worst there is: one that takes longer ends what the owner relies on
//! earlier, as seen from the server. A waiter cannot tell when it was granted the lock; it renews at once over the
//! same connection, and counts from there.
//!
//! What is promised, always:
//!
//! | | |
//! | --- | --- |
//! | [`EXCLUSION`] | two owners never rely on the lock at the same instant |
//! | [`NOBODY_ELSE`] | no server grants it to one while another relies on it |
//! | [`TENURE_BACK`] | an owner that relies on it and renews with its token at the primary is not refused |
//! | [`HOLDS_BACK`] | ... and has as many holds there afterwards as it named |
//! | [`TOKENS`] | a new tenure's token is larger than every earlier one |
//!
//! And under what assumptions. Each has a test that drops it, and finds the promise broken:
//!
//! 1. A quarantine is set, and is no shorter than any lease that was granted before the crash or promotion; also by a
//!    server with other settings, and before the setting was changed.
//! 2. A renewal with TOKEN reaches the server in quarantine while the lease runs, by the owner's own clock. A server
//!    that has forgotten everything takes the owner's word for it. A late renewal takes the lock back from whoever was
//!    granted it in between, until that one renews as well (and then the larger token wins).
//! 3. The old primary has stopped taking writes when the replica is promoted: it is dead, or min-replicas-max-lag is
//!    shorter than the time in which it is taken for dead. A longer quarantine is no substitute: it holds new grants of
//!    the new primary back, but a holder that renews there is no holder any more at the old one, which goes on granting.
//! 4. Owners name HOLDS: 1 for their first hold, and 2 or more only while they rely on the lock. Who names no count is let
//!    in as a holder where the server remembers it as one.
//! 5. Tokens: the granting server has heard of the largest token so far, or its wall clock is past what the wall clock
//!    of any granting server showed at any grant of that lock before. It is not enough that no clock was set back since
//!    the last grant: one that was set back before it gave a token ahead of itself, which a restart without data
//!    forgets. (The quarantine helps: it is time in which the clock catches up.)
//!
//! All monotonic clocks run at the same rate here. Where they do not, owners have to leave a margin.
//!
//! What promises do not need: that renewals reach the replica (one that it missed is made good by the next), that
//! replies arrive, that the wall clock is right (but for tokens), that the key is still there.

mod node;
mod world;

pub use node::{Node, Replicated, Rules, Tokens};
pub use world::{
    Action, Budget, EXCLUSION, Grants, HOLDS_BACK, Happened, NOBODY_ELSE, OldPrimary, Owner, State,
    TENURE_BACK, TOKENS, TokenPromise, World,
};
