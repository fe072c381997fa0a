//! Text for the terminal: keys and owners, numbers and tables. Keys and owners are arbitrary bytes, and must neither send
//! control characters to the terminal, nor hide or reorder the text of a line.

use std::fmt;

use console::Alignment;
use redis::{FromRedisValue, ParsingError, Value};
use serde::{Serialize, Serializer};

/// A key or an owner. [`show`] makes its text. In JSON, only bytes that are not UTF-8 are escaped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(&self.0))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(name) => serializer.serialize_str(name),
            Err(_) => serializer.collect_str(self),
        }
    }
}

impl FromRedisValue for Name {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::BulkString(bytes) = value else { return Err(format!("no name: {value:?}").into()) };
        Ok(Self(bytes))
    }
}

/// Returns the name as text. Invisible characters and bytes that are not UTF-8 are escaped: `\x1b`.
pub(crate) fn show(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if is_visible(letter) {
                shown.push(letter);
            } else {
                escape(&mut shown, letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        escape(&mut shown, chunk.invalid());
    }
    shown
}

/// Whether the character is neither a control character, nor a format character such as U+202E, which reverses text, nor
/// another character that terminals do not show, or show as a space.
pub(crate) fn is_visible(letter: char) -> bool {
    match letter {
        ' '..='~' => true,
        // `escape_debug` does not escape these fillers and variation selectors.
        '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' => false,
        '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}' => false,
        // `escape_debug` escapes a combining mark only at the beginning of a text.
        _ => !format!("a{letter}").escape_debug().any(|escaped| escaped == '\\'),
    }
}

fn escape(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        *shown += &format!("\\x{byte:02x}");
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
    fn invisible_characters_are_escaped() {
        for letter in "\u{a0}\u{ad}\u{34f}\u{61c}\u{115f}\u{180e}\u{200b}\u{2800}\u{200f}\u{2028}\u{202e}\u{2066}\u{2069}\u{3164}\u{fe0f}\u{feff}\u{e0041}\u{e0100}".chars() {
            assert!(show(letter.to_string().as_bytes()).is_ascii(), "{letter:?}");
        }
        assert_eq!(show("a\u{202e}b".as_bytes()), r"a\xe2\x80\xaeb");
    }

    #[test]
    fn letters_with_combining_marks_are_unchanged() {
        for name in ["e\u{301}", "\u{915}\u{94d}\u{937}", "\"'\\", "\u{1f512}"] {
            assert_eq!(show(name.as_bytes()), name);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "10".into()], ["long".into(), "7".into()]];
        let columns = [Column::Left("k"), Column::Right("n")];
        assert_eq!(table(columns, rows.into_iter()), "k      n\na     10\nlong   7\n");
    }
}
