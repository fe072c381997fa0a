//! Text for the terminal: keys and owners, numbers and tables. Keys and owners are arbitrary bytes, and must not send
//! control characters to the terminal.

/// Returns the name as text. Control characters and bytes that are not UTF-8 are escaped: `\x1b`.
pub(crate) fn show(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                escape(&mut shown, letter.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                shown.push(letter);
            }
        }
        escape(&mut shown, chunk.invalid());
    }
    shown
}

fn escape(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        *shown += &format!("\\x{byte:02x}");
    }
}

/// A count, in groups of three digits: `12,345`.
pub(crate) fn grouped(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        _ => format!("{},{:03}", grouped(count / 1_000), count % 1_000),
    }
}

/// A table. Each column is as wide as its widest cell, and aligned to the right where `right` is true.
pub(crate) fn table<const N: usize>(head: [&str; N], right: [bool; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        cells.chain(head.get(column).copied()).map(console::measure_text_width).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: [&str; N]| {
        let mut line = String::new();
        for ((cell, width), right) in cells.into_iter().zip(&widths).zip(right) {
            let pad = " ".repeat(width.saturating_sub(console::measure_text_width(cell)));
            let (before, after) = if right { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line += &format!("{before}{cell}{after}  ");
        }
        format!("{}\n", line.trim_end())
    };
    let body = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(line(head)).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_unchanged() {
        assert_eq!(show("Auftrag:42 \u{00fc}".as_bytes()), "Auftrag:42 \u{00fc}");
    }

    #[test]
    fn control_characters_and_invalid_utf8_are_escaped() {
        assert_eq!(show(b"a\x1b[2J\n\xff\xc2\x9b"), r"a\x1b[2J\x0a\xff\xc2\x9b");
    }

    #[test]
    fn counts_are_in_groups_of_three_digits() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "10".into()], ["long".into(), "7".into()]];
        assert_eq!(table(["k", "n"], [false, true], &rows), "k      n\na     10\nlong   7\n");
    }
}
