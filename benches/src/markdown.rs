//! Tables in Markdown, and pages of docs/ with parts that programs write.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A table. The first `words` columns are text. The other columns are numbers, aligned to the
/// right.
pub fn table(heads: &[&str], words: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rule = (0..heads.len()).map(|column| if column < words { "---" } else { "---:" });
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ").replace('\n', " "));
    let cells = rows.into_iter().map(|row| row.into_iter().map(|cell| cell.replace('|', "\\|")).collect());
    let head = heads.iter().map(|head| (*head).to_owned()).collect();
    [head, rule.map(str::to_owned).collect()].into_iter().chain(cells).map(line).collect()
}

#[derive(Debug)]
pub struct Page {
    file: PathBuf,
    text: String,
}

impl Page {
    /// Reads a page.
    ///
    /// # Errors
    /// If the page cannot be read.
    pub fn read(docs: &Path, name: &str) -> io::Result<Self> {
        let file = docs.join(name);
        Ok(Self { text: fs::read_to_string(&file)?, file })
    }

    /// Puts a text between the marks `<!-- PART: written by ... -->` and `<!-- end of ... -->`.
    ///
    /// # Panics
    /// If the page has no such marks.
    pub fn put(&mut self, part: &str, text: &str) {
        let begin = format!("<!-- {part}: written by ");
        let begin = self.text.find(&begin).unwrap_or_else(|| panic!("no mark where {part} begins"));
        let begin = begin + self.text[begin..].find("-->\n").expect("the end of a mark") + 4;
        let end = begin + self.text[begin..].find("<!-- end of ").expect("a mark where the part ends");
        self.text.replace_range(begin..end, text);
    }

    /// Writes the page.
    ///
    /// # Errors
    /// If the page cannot be written.
    pub fn write(self) -> io::Result<()> {
        fs::write(self.file, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_page_is_replaced() {
        let text = "a\n<!-- x: written by `y` -->\nold\n<!-- end of x -->\nb".to_owned();
        let mut page = Page { file: PathBuf::new(), text };
        page.put("x", &table(&["p", "q"], 1, [vec!["1|2".to_owned(), "3".to_owned()]]));
        let table = "| p | q |\n| --- | ---: |\n| 1\\|2 | 3 |\n";
        assert_eq!(page.text, format!("a\n<!-- x: written by `y` -->\n{table}<!-- end of x -->\nb"));
    }
}
