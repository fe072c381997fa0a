//! The promises as properties of a state, and the events that a check must have seen. A live holder is an owner that
//! relies on the lock.

use crate::state::{Happened, State};
use crate::world::World;
use stateright::Property;

pub const EXCLUSION: &str = "the owners that rely on the lock at one instant fit beside each other";
pub const NOBODY_ELSE: &str = "an owner that is granted the lock fits beside the owners that rely on it";
pub const TENURE_BACK: &str = "a live holder that renews with its token is not refused";
pub const HOLDS_BACK: &str = "a live holder that renews with its holds and mode has them at the server";
pub const TOKENS: &str = "a new tenure's token is larger than every earlier one";
/// The promise includes holders that no longer rely on the lock.
pub const LIMITS: &str = "the holders that a server knows fit their limits";
/// The server knows of a later tenure or write by its larger token. The promise is for exclusive owners.
pub const GUARDED: &str = "no guarded write is run after a later tenure or write";
/// The promise holds at the primary. After a restart or a promotion, the promise holds only for a holder that has
/// renewed.
pub const PASSES: &str = "the guarded write of a live holder passes";

pub const PROMISES: [&str; 8] =
    [EXCLUSION, NOBODY_ELSE, TENURE_BACK, HOLDS_BACK, TOKENS, LIMITS, GUARDED, PASSES];

pub(crate) fn properties() -> Vec<Property<World>> {
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
        Property::always(EXCLUSION, |_, state: &State| state.relying_fit()),
        never!(NOBODY_ELSE, GrantedOverAnother),
        never!(TENURE_BACK, LiveHolderRefused),
        never!(HOLDS_BACK, TenureDiffers),
        never!(TOKENS, TokensFell),
        Property::always(LIMITS, |_, state: &State| state.known_fit()),
        never!(GUARDED, StaleWriteRun),
        never!(PASSES, HolderFenced),
        sometimes!(WriteRun),
        sometimes!(StaleWriteFenced),
        sometimes!(HandOff),
        sometimes!(GrantedBeside),
        sometimes!(Restored),
        sometimes!(RestoredOverAnother),
        sometimes!(RestoredBeside),
        sometimes!(ModeCorrected),
        sometimes!(CrashedHeld),
        sometimes!(ReloadedStale),
        sometimes!(PromotedStale),
        sometimes!(GrantedElsewhere),
    ]
}
