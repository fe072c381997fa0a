//! Durations in the arguments and in the output.

use std::time::Duration;

/// Parses `50ms`, `2s`, `5m` or `1h`. A number without a unit is an error.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let number_ends = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let unit_in_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("expected a number and a unit, such as 50ms, 2s, 5m or 1h".into()),
    };
    let number: u64 = number.parse().map_err(|_| format!("'{number}' is not a valid number"))?;
    number.checked_mul(unit_in_ms).map(Duration::from_millis).ok_or_else(|| "too long".into())
}

/// Parses a duration as [`parse`] does, but refuses `0s`.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    parse(text).and_then(|time| if time.is_zero() { Err("must be longer than 0".into()) } else { Ok(time) })
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
    fn parses_each_unit() {
        for (text, ms) in [("50ms", 50), ("0ms", 0), ("2s", 2_000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn refuses_a_missing_unit_a_fraction_and_an_overflow() {
        for text in
            ["", "50", "ms", "-5ms", "1.5s", "5 s", "5d", "99999999999999999999ms", "18446744073709551615s"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
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
