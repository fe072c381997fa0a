//! Writes the curves of a run and the sizing table into docs/scale.md.

use super::{STAGES, sizing};
use crate::docs::{stage, write_plots};
use crate::markdown::{Page, table};
use crate::results::{Results, Row};
use std::io;
use std::path::Path;

/// The curves that the tables leave out. The tables also leave out the other side of each comparison. All curves are in
/// the results.
const HIDDEN: [&str; 11] = [
    "locks/renewal-ratio",
    "locks/memory-ratio",
    "waiters/connection",
    "waiters/memory",
    "replica/median-ratio",
    "replica/late-ratio",
    "replica/pairs-ratio",
    "slots/migrate-whole-ratio",
    "slots/migrate-longest-ratio",
    "slots/atomic-whole-ratio",
    "slots/atomic-longest-ratio",
];

/// Writes the curves of each stage and the sizing table into `scale.md` in a directory, and the plots into `scale/`.
/// The part of a stage without results stays as it is. The sizing table stays as it is if one of its figures was not
/// measured.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(docs: &Path, runs: &[Results]) -> io::Result<()> {
    let mut page = Page::read(docs, "scale.md")?;
    let results = &runs[0];
    let mut put = |name: &str, written: &str| {
        page.put(name, &format!("- Measured with {}\n\n{written}\n", results.short_circumstances()))
    };
    for (name, ..) in STAGES {
        let is_shown = |row: &&Row| {
            let curve = row.name.rsplit_once('-').map_or("", |(curve, _)| curve);
            stage(row) == name && !curve.ends_with("-against") && !HIDDEN.contains(&curve)
        };
        let rows: Vec<&Row> = results.rows.iter().filter(is_shown).collect();
        if rows.is_empty() {
            continue;
        }
        let mut written = series_table(&rows);
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

/// A table with a row for each curve. The points are the columns.
fn series_table(rows: &[&Row]) -> String {
    let mut places: Vec<&str> = Vec::new();
    let mut titles: Vec<String> = Vec::new();
    for row in rows {
        let (place, title) = (row.at.as_deref().unwrap_or_default(), row.series_title());
        if !places.contains(&place) {
            places.push(place);
        }
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    let heads = [&["figure"][..], &places].concat();
    let lines = titles.iter().map(|title| {
        let cell = |place: &&str| {
            let is_here = |row: &&&Row| row.at.as_deref() == Some(*place) && row.series_title() == *title;
            rows.iter().find(is_here).map(|row| row.shown()).unwrap_or_default()
        };
        [title.clone()].into_iter().chain(places.iter().map(cell)).collect()
    });
    table(&heads, heads.len(), lines)
}
