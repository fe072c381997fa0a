//! The settings of the module, as CONFIG SET, redis.conf and the module's arguments set them.

use lockward_core::{QueueLimits, Span};
use std::sync::atomic::{AtomicI64, Ordering};

/// One setting: a number with a range.
#[derive(Debug)]
pub struct Setting {
    /// The name without the prefix `lock.`.
    pub name: &'static std::ffi::CStr,
    pub default: i64,
    /// The smallest number.
    pub least: i64,
    /// The largest number.
    pub most: i64,
    value: AtomicI64,
}

const YEAR_MS: i64 = 365 * 24 * 3_600 * 1_000;

static DEFAULT_LEASE: Setting = Setting::new(c"default-lease", 30_000, 1, 100 * YEAR_MS);
static MAX_LEASE: Setting = Setting::new(c"max-lease", 10 * YEAR_MS, 1, 100 * YEAR_MS);
static MAX_WAITERS: Setting = Setting::new(c"max-waiters", 10_000, 0, 1_000_000_000);
static MAX_WAITERS_TOTAL: Setting = Setting::new(c"max-waiters-total", 10_000, 0, 1_000_000_000);
static QUARANTINE: Setting = Setting::new(c"quarantine", 0, 0, 100 * YEAR_MS);

pub static ALL: [&Setting; 5] = [&DEFAULT_LEASE, &MAX_LEASE, &MAX_WAITERS, &MAX_WAITERS_TOTAL, &QUARANTINE];

impl Setting {
    const fn new(name: &'static std::ffi::CStr, default: i64, least: i64, most: i64) -> Self {
        Self { name, default, least, most, value: AtomicI64::new(default) }
    }

    /// The present number.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the number. The caller has checked the range.
    pub fn set(&self, number: i64) {
        self.value.store(number, Ordering::Relaxed);
    }

    pub fn span(&self) -> Span {
        u64::try_from(self.get()).ok().and_then(Span::from_millis).unwrap_or(Span::MAX)
    }

    fn count(&self) -> usize {
        usize::try_from(self.get()).unwrap_or_default()
    }
}

/// The lease of a request that names no lease. The default is never longer than the longest lease that a
/// request may name.
pub fn default_lease() -> Span {
    DEFAULT_LEASE.span().min(longest_lease().span())
}

/// The configured default lease, and the default lease that is used, in milliseconds. `None` if no other setting
/// shortens the default lease.
pub fn shortened_default_lease() -> Option<(u64, u64)> {
    let (set, is) = (DEFAULT_LEASE.span(), default_lease());
    (is < set).then(|| (set.as_millis(), is.as_millis()))
}

/// The setting whose value is the longest lease that a request may name: the smaller of the maximum and the quarantine,
/// because the quarantine could not protect a longer lease.
pub fn longest_lease() -> &'static Setting {
    let is_quarantine = quarantine().is_some_and(|quarantine| quarantine < MAX_LEASE.span());
    if is_quarantine { &QUARANTINE } else { &MAX_LEASE }
}

/// How many clients may wait.
pub fn waiter_limits() -> QueueLimits {
    QueueLimits { per_lock: MAX_WAITERS.count(), total: MAX_WAITERS_TOTAL.count() }
}

/// The length of the quarantine after a start or promotion; `None` without a quarantine.
pub fn quarantine() -> Option<Span> {
    Some(QUARANTINE.span()).filter(|span| *span > Span::default())
}
