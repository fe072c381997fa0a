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

/// A measured duration with at most three digits: `0 ms`, `0.4 ms`, `38 ms`, `2.15 s`, `75.0 s`.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let ms = seconds * 1_000.0;
    // At each bound, rounding would add a digit: 9.95 ms would become `10.0 ms`.
    if ms < 0.05 {
        "0 ms".to_owned()
    } else if ms < 9.95 {
        format!("{ms:.1} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else if seconds < 9.995 {
        format!("{seconds:.2} s")
    } else if seconds < 99.95 {
        format!("{seconds:.1} s")
    } else {
        format!("{seconds:.0} s")
    }
}

/// Shows an age or a remaining time in milliseconds: `4.2 s`, `38 s`, `12m 05s`, `3h 20m`.
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

    #[test]
    fn a_duration_has_at_most_three_digits() {
        for (us, text) in [
            (0, "0 ms"),
            (49, "0 ms"),
            (50, "0.1 ms"),
            (449, "0.4 ms"),
            (9_949, "9.9 ms"),
            (9_950, "10 ms"),
            (38_200, "38 ms"),
            (999_400, "999 ms"),
            (999_600, "1.00 s"),
            (2_154_000, "2.15 s"),
            (9_996_000, "10.0 s"),
            (75_000_000, "75.0 s"),
            (180_000_000, "180 s"),
        ] {
            assert_eq!(show(Duration::from_micros(us)), text);
        }
    }
}
