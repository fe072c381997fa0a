//! Writes the curves of a run, and the sizing table that follows from them, into docs/scale.md.

use super::{STAGES, sizing};
use crate::docs::{between, series_table, stage, write_plots};
use crate::results::{Results, Row};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Writes the curves of each stage between its marks of `scale.md` in a directory, and the plots into `scale/`. If a stage has no
/// results, or the sizing table lacks a figure, that part stays as it is.
pub fn write(docs: &Path, results: &Results) {
    let page = docs.join("scale.md");
    let mut text = fs::read_to_string(&page).expect("docs/scale.md");
    let mut put = |name: &str, written: &str| {
        let begin = format!("<!-- {name}: written by `make bench-scale-docs` -->");
        let written = format!("- {}\n\n{written}", results.circumstances());
        text = between(&text, &begin, &format!("<!-- end of {name} -->"), &written);
    };
    for (name, ..) in STAGES {
        // The other side of a comparison is only in the plots. The page has its ratio.
        let shown = |row: &&Row| stage(row) == name && !row.name.contains("-against-");
        let rows: Vec<&Row> = results.rows.iter().filter(shown).collect();
        if rows.is_empty() {
            continue;
        }
        let mut written = String::new();
        series_table(&mut written, &rows, &results.server);
        for plot in results.plots.iter().filter(|plot| plot.name.starts_with(&format!("{name}-"))) {
            let _ = write!(written, "\n![{}](scale/{}.svg)\n", plot.title, plot.name);
        }
        put(name, &written);
    }
    if let Some(tables) = sizing::tables(results) {
        put("sizing", &tables);
    }
    fs::write(&page, text).expect("a page that can be written");
    write_plots(&docs.join("scale"), results);
}
