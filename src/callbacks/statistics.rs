//! What INFO tells of the module.

use super::{Callback, catch_panic};
use crate::server::{Context, api, lock_allocation};
use crate::{state, statistics};
use lockward_core::Histogram;
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// Registers the section. False when the server refuses.
pub fn register(context: Context) -> bool {
    // SAFETY: the context is that of the module's load.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(context.as_ptr(), Some(tell))) };
    status == raw::REDISMODULE_OK as c_int
}

/// What is told, in this order. docs/metrics.md says what each field means.
#[derive(Clone, Copy)]
enum Field {
    Number(&'static CStr, u64),
    Durations(&'static CStr, [(&'static CStr, u64); 4]),
}

fn fields() -> [Field; 19] {
    statistics::see_reset();
    state::with(|state| {
        let (statistics, kept) = (&state.statistics, number(state.dropped_locks.len()));
        let counters = &statistics.counters;
        [
            Field::Number(c"held", lock_allocation::alive().saturating_add(kept)),
            Field::Number(c"waiting", number(state.queues.waiters())),
            Field::Number(c"tenures_kept", kept),
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

unsafe extern "C" fn tell(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return; // the server may be in the middle of anything, the module as well
    }
    catch_panic(Callback::Statistics, (), || {
        // SAFETY: the server's info of this very call; the text is constant.
        let asked_for = unsafe { api!(RedisModule_InfoAddSection(info, c"".as_ptr())) };
        if asked_for != raw::REDISMODULE_OK as c_int {
            return;
        }
        let add = |name: &CStr, number| {
            // SAFETY: the server's info of this very call; the texts are constant.
            unsafe { api!(RedisModule_InfoAddFieldULongLong(info, name.as_ptr(), number)) };
        };
        for field in fields() {
            match field {
                Field::Number(name, number) => add(name, number),
                Field::Durations(name, percentiles) => {
                    // SAFETY: as above.
                    unsafe { api!(RedisModule_InfoBeginDictField(info, name.as_ptr())) };
                    percentiles.into_iter().for_each(|(name, micros)| add(name, micros));
                    // SAFETY: as above.
                    unsafe { api!(RedisModule_InfoEndDictField(info)) };
                }
            }
        }
    });
}
