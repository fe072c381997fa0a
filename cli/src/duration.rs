//! Durations in the arguments and in the output.

use std::time::Duration;

/// Parses `50ms`, `2s`, `5m` or `1h`. A number without a unit is an error.
pub(crate) use humantime::parse_duration as parse;

/// Parses a duration as [`parse`] does, but refuses `0s`.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    let time = parse(text).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("must be longer than 0".into()) } else { Ok(time) }
}

/// The duration in milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Shows a number of milliseconds: `515 ms`, `4.2 s`, `38 s`, `12m 05s`, `3h 20m`.
pub(crate) fn show_ms(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..10 => format!("{seconds}.{} s", ms % 1_000 / 100),
        10..100 => format!("{seconds} s"),
        100..6_000 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        6_000..360_000 => format!("{}h {:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_a_unit() {
        assert_eq!(parse("5m"), Ok(Duration::from_secs(300)));
        assert!(parse("50").is_err() && parse("").is_err() && parse("-5ms").is_err());
    }

    #[test]
    fn an_age_is_shown_in_a_suitable_unit() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (9_999, "9.9 s"),
            (10_000, "10 s"),
            (100_000, "1m 40s"),
            (6_000_000, "1h 40m"),
            (360_000_000, "4d 04h"),
        ] {
            assert_eq!(show_ms(ms), text);
        }
    }
}
