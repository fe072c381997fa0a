//! Text for the terminal: keys and owners, numbers and tables. Keys and owners are arbitrary bytes, and must not send
//! control characters to the terminal.

use console::Alignment;

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

/// The head of a column, and the side on which the cells of the column are aligned.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    Left(&'static str),
    Right(&'static str),
}

/// The largest width of a column. If a name is longer, the rest of its line moves to the right.
const WIDEST: usize = 200;

/// A table. Each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(columns: [Column; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let head = columns.map(|(Column::Left(head) | Column::Right(head))| head.to_owned());
    let lines: Vec<[String; N]> = std::iter::once(head).chain(rows).collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = console::measure_text_width(cell).min(WIDEST).max(*width);
        }
    }
    let mut table = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).zip(columns).map(|((cell, width), column)| match column {
            Column::Left(_) => console::pad_str(cell, width, Alignment::Left, None),
            Column::Right(_) => console::pad_str(cell, width, Alignment::Right, None),
        });
        table += &format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    table
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
        let columns = [Column::Left("k"), Column::Right("n")];
        assert_eq!(table(columns, rows.into_iter()), "k      n\na     10\nlong   7\n");
    }
}
