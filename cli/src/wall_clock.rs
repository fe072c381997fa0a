//! Times of the wall clock as the user reads them.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

/// In the time zone of this machine: `2026-11-23 03:12:07.123`.
pub(crate) fn local(time: SystemTime) -> String {
    let (seconds, ms) = since_epoch(time);
    let parts = broken_down(seconds, libc::localtime_r);
    format!("{} {}.{ms:03}", date(&parts), time_of_day(&parts))
}

/// As in RFC 3339, in UTC: `2026-11-23T02:12:07.123Z`.
pub(crate) fn utc(time: SystemTime) -> String {
    let (seconds, ms) = since_epoch(time);
    let parts = broken_down(seconds, libc::gmtime_r);
    format!("{}T{}.{ms:03}Z", date(&parts), time_of_day(&parts))
}

/// The seconds, and the milliseconds after them. A time before 1970 counts as the beginning of
/// 1970.
fn since_epoch(time: SystemTime) -> (libc::time_t, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (libc::time_t::try_from(since.as_secs()).unwrap_or(libc::time_t::MAX), since.subsec_millis())
}

type BreakDown = unsafe extern "C" fn(*const libc::time_t, *mut libc::tm) -> *mut libc::tm;

/// `break_down` is `localtime_r` or `gmtime_r`.
fn broken_down(seconds: libc::time_t, break_down: BreakDown) -> libc::tm {
    // SAFETY:
    // - All bits zero is a valid `tm`: it has integers and a pointer that nobody follows.
    // - Both pointers are valid during the call, and both functions only write to the `tm`.
    unsafe {
        let mut parts = std::mem::zeroed::<libc::tm>();
        break_down(&raw const seconds, &raw mut parts);
        parts
    }
}

fn date(parts: &libc::tm) -> String {
    let year = i64::from(parts.tm_year) + 1_900;
    format!("{year:04}-{:02}-{:02}", parts.tm_mon + 1, parts.tm_mday)
}

fn time_of_day(parts: &libc::tm) -> String {
    format!("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn utc_is_rfc_3339_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z"),
            (1_795_403_527_123, "2026-11-23T03:12:07.123Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn local_time_has_milliseconds_too() {
        let text = local(UNIX_EPOCH + Duration::from_millis(1_795_403_527_123));
        assert!(text.starts_with("2026-11-2") && text.ends_with(":07.123"), "{text}");
    }
}
