//! The callback of INFO.

use crate::panics::catch_panic;
use crate::server::{Context, api, lock_allocation, mono};
use crate::state::{self, State};
use crate::{background, statistics};
use lockward_core::{Histogram, Instant, Span};
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// Registers the section. Returns false if the server refuses.
pub fn register(context: Context) -> bool {
    // SAFETY: the context is valid while the server loads the module.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(context.as_ptr(), Some(on_info))) };
    status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_info(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return; // the crash may have interrupted any operation of the server or of the module
    }
    catch_panic("Statistics", (), || {
        // SAFETY: `info` is valid for this call, and the text is constant.
        let asked_for = unsafe { api!(RedisModule_InfoAddSection(info, c"".as_ptr())) };
        if asked_for != raw::REDISMODULE_OK as c_int {
            return;
        }
        background::notice_reset();
        let now = mono();
        state::with(|state| add_fields(info, state, now));
    });
}

/// Adds the fields in the order of the section. docs/metrics.md says what each field means.
fn add_fields(info: *mut raw::RedisModuleInfoCtx, state: &State, now: Instant) {
    let add = |name: &CStr, number| {
        // SAFETY: `info` is valid for this call, and the server copies the name.
        unsafe { api!(RedisModule_InfoAddFieldULongLong(info, name.as_ptr(), number)) };
    };
    let add_count = |name, count| add(name, u64::try_from(count).unwrap_or(u64::MAX));
    // Percentiles, in microseconds.
    let add_durations = |name: &CStr, durations: &Histogram| {
        // SAFETY: `info` is valid for this call, and the server copies the name.
        unsafe { api!(RedisModule_InfoBeginDictField(info, name.as_ptr())) };
        add(c"p50", durations.per_mille(500));
        add(c"p99", durations.per_mille(990));
        add(c"p99.9", durations.per_mille(999));
        add(c"max", durations.max());
        // SAFETY: `info` is valid for this call.
        unsafe { api!(RedisModule_InfoEndDictField(info)) };
    };
    let (store, statistics) = (&state.store, &state.statistics);
    let (counters, kept) = (&store.counters, store.dropped_locks.len());
    add(c"held", lock_allocation::alive().saturating_add(u64::try_from(kept).unwrap_or(u64::MAX)));
    add_count(c"waiting", store.queues.waiters());
    add_count(c"places_kept", store.queues.kept_places());
    add_count(c"tenures_kept", kept);
    add(c"quarantine_left_ms", store.quarantine_left(now).map_or(0, Span::as_millis));
    add(c"acquired", counters.acquired);
    add(c"re_entered", counters.re_entered);
    add(c"handed_off", counters.handed_off);
    add(c"busy", statistics.busy);
    add(c"wait_limits_reached", statistics.wait_limits_reached);
    add(c"disconnected_while_waiting", statistics.disconnected);
    add(c"superseded", statistics.superseded);
    add(c"released", counters.released);
    add(c"renewed", counters.renewed);
    add(c"leases_ended", counters.leases_ended);
    add(c"tenures_kept_from_eviction", statistics.kept_from_eviction);
    add(c"tenures_kept_from_clock_steps", statistics.kept_from_clock_steps);
    add(c"restored_in_quarantine", counters.restored);
    add(c"errors", statistics::errors());
    add_durations(c"wait_usec", &counters.wait_durations);
    add_durations(c"hold_usec", &counters.tenure_durations);
}
