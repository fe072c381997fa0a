//! Writes the curves of a run and the sizing table into docs/scale.md.

use super::{STAGES, sizing};
use crate::docs::{series_table, stage, write_plots};
use crate::markdown::Page;
use crate::results::{Results, Row};
use std::io;
use std::path::Path;

/// Writes the curves of each stage and the sizing table into `scale.md` in a directory, and the plots into `scale/`.
/// The part of a stage without results stays as it is, and so does the sizing table if one of its figures was not
/// measured.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(docs: &Path, runs: &[Results]) -> io::Result<()> {
    let mut page = Page::read(docs, "scale.md")?;
    let results = &runs[0];
    let mut put =
        |name: &str, written: &str| page.put(name, &format!("- {}\n\n{written}\n", results.circumstances()));
    for (name, ..) in STAGES {
        // The other side of a comparison is only in the plots. The tables have the ratio.
        let shown = |row: &&Row| stage(row) == name && !row.name.contains("-against-");
        let rows: Vec<&Row> = results.rows.iter().filter(shown).collect();
        if rows.is_empty() {
            continue;
        }
        let mut written = series_table(&rows, &results.server);
        for plot in results.plots.iter().filter(|plot| plot.name.starts_with(&format!("{name}-"))) {
            written += &format!("\n![{}](scale/{}.svg)\n", plot.title, plot.name);
        }
        put(name, &written);
    }
    if let Some(tables) = sizing::tables(results) {
        put("sizing", &tables);
    }
    page.write()?;
    write_plots(&docs.join("scale"), results)
}
