//! Decimal numbers as Redis reads and writes them: digits, with a minus sign before them for a negative number.

/// Reads a number as Redis does: no plus sign, no leading zeros, no spaces.
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => parse_u64(digits)
            .filter(|number| *number > 0)
            .and_then(|number| 0_i64.checked_sub_unsigned(number)),
        digits => parse_u64(digits)?.try_into().ok(),
    }
}

/// Reads a number without a sign, of at most 19 digits. Every number of 19 digits fits in 64 bits.
#[must_use]
pub(crate) fn parse_u64(digits: &[u8]) -> Option<u64> {
    match digits {
        [digit @ b'0'..=b'9'] => return Some(u64::from(digit & 0x0f)),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut number = 0_u64;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit & 0x0f))?;
        number = number.wrapping_mul(10).wrapping_add(digit);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_decimal_number_in_its_shortest_form_is_read() {
        for number in [0, 1, -1, 9, 10, 1_795_000_000_000_000, i64::MAX, i64::MIN, i64::MIN + 1] {
            assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
        }
        for text in
            ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "9223372036854775808", "1:"]
        {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
        for beyond in ["-9223372036854775809", "9999999999999999999", "-9999999999999999999"] {
            assert_eq!(parse_i64(beyond.as_bytes()), None, "{beyond}");
        }
        for (digits, number) in [
            ("9999999999999999999", Some(9_999_999_999_999_999_999)),
            ("10000000000000000000", None),
            ("18446744073709551617", None),
        ] {
            assert_eq!(parse_u64(digits.as_bytes()), number, "{digits}");
        }
    }
}
