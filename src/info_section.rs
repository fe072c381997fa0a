//! The section of the module in INFO.

use crate::server::info::MonotonicStats;
use crate::server::{lock_allocation, mono};
use crate::{state, statistics};
use lockward_core::{Counters, Histogram, Span};
use std::ffi::CStr;

/// A field of the section. docs/metrics.md says what each field means.
#[derive(Clone, Copy)]
pub enum Field {
    Number(&'static CStr, u64),
    /// Percentiles, in microseconds.
    Durations(&'static CStr, [(&'static CStr, u64); 4]),
}

/// The fields in the order of the section. Checks for CONFIG RESETSTAT first.
pub fn fields() -> [Field; 21] {
    notice_reset();
    let now = mono();
    state::with(|state| {
        let (store, statistics) = (&state.store, &state.statistics);
        let (counters, kept) = (&store.counters, number(store.dropped_locks.len()));
        let quarantine_left = store.quarantine_left(now).map_or(0, Span::as_millis);
        [
            Field::Number(c"held", lock_allocation::alive().saturating_add(kept)),
            Field::Number(c"waiting", number(store.queues.waiters())),
            Field::Number(c"places_kept", number(store.queues.kept_places())),
            Field::Number(c"tenures_kept", kept),
            Field::Number(c"quarantine_left_ms", quarantine_left),
            Field::Number(c"acquired", counters.acquired),
            Field::Number(c"re_entered", counters.re_entered),
            Field::Number(c"handed_off", counters.handed_off),
            Field::Number(c"busy", statistics.busy),
            Field::Number(c"wait_limits_reached", statistics.wait_limits_reached),
            Field::Number(c"disconnected_while_waiting", statistics.disconnected),
            Field::Number(c"superseded", statistics.superseded),
            Field::Number(c"released", counters.released),
            Field::Number(c"renewed", counters.renewed),
            Field::Number(c"leases_ended", counters.leases_ended),
            Field::Number(c"tenures_kept_from_eviction", statistics.kept_from_eviction),
            Field::Number(c"tenures_kept_from_clock_steps", statistics.kept_from_clock_steps),
            Field::Number(c"restored_in_quarantine", counters.restored),
            Field::Number(c"errors", statistics::errors()),
            Field::Durations(c"wait_usec", percentiles(&counters.wait_durations)),
            Field::Durations(c"hold_usec", percentiles(&counters.tenure_durations)),
        ]
    })
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn percentiles(durations: &Histogram) -> [(&'static CStr, u64); 4] {
    [
        (c"p50", durations.per_mille(500)),
        (c"p99", durations.per_mille(990)),
        (c"p99.9", durations.per_mille(999)),
        (c"max", durations.max()),
    ]
}

/// Resets the statistics if CONFIG RESETSTAT was given.
fn notice_reset() {
    let server = MonotonicStats::read();
    state::with(|state| {
        if state.statistics.reset_with_server(server) {
            state.store.counters = Counters::default();
        }
    });
}

/// Calls [`notice_reset`] if the last call in the cron was at least 90 ms ago.
pub fn notice_reset_now_and_then() {
    let now = mono();
    if state::with(|state| state.statistics.look_is_due(now)) {
        notice_reset();
    }
}
