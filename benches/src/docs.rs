//! Writes the results of `make bench` into docs/performance.md.

use crate::markdown::{Page, table};
use crate::results::{Results, Row, Unit, Verdict};
use crate::{modes, stalls};
use std::path::Path;
use std::{fs, io};

/// A column of a table: its head, and the text for a row.
type Column<'a> = (&'a str, &'a dyn Fn(&Row) -> String);

/// Writes the text of a part, from the part's rows in the first run, and from the results of all runs.
type Tables = fn(&[&Row], &[Results]) -> String;

/// The parts of the page: `modes`, `stalls`, and one part for all other stages.
const PARTS: [(&str, Tables); 3] =
    [("results", most_stages), (modes::STAGE, modes_tables), (stalls::STAGE, stalls_table)];

/// Writes results into `performance.md` in a directory, with a column for each run. Writes the plots of the first run
/// into `performance/`. A part for which the first run has no rows stays as it is.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(docs: &Path, runs: &[Results]) -> io::Result<()> {
    let mut page = Page::read(docs, "performance.md")?;
    let first = &runs[0];
    for (part, tables) in PARTS {
        let is_of_part = |row: &&Row| match stage(row) {
            modes::STAGE => part == modes::STAGE,
            stalls::STAGE => part == stalls::STAGE,
            _ => part == "results",
        };
        let rows: Vec<&Row> = first.rows.iter().filter(is_of_part).collect();
        if !rows.is_empty() {
            let circumstances: String =
                runs.iter().map(|run| format!("- {}\n", run.circumstances())).collect();
            page.put(part, &format!("{circumstances}\n{}\n", tables(&rows, runs)));
        }
    }
    page.write()?;
    write_plots(&docs.join("performance"), first)
}

/// Writes the plots of a run into a directory.
///
/// # Errors
/// If a file cannot be written.
pub fn write_plots(into: &Path, results: &Results) -> io::Result<()> {
    fs::create_dir_all(into)?;
    for plot in &results.plots {
        fs::write(into.join(format!("{}.svg", plot.name)), plot.draw(&results.short_circumstances()))?;
    }
    Ok(())
}

pub(crate) fn stage(row: &Row) -> &str {
    row.name.split('/').next().unwrap_or_default()
}

/// Whether the page leaves out a figure of [`stalls::STAGE`], because the figure meets its target and is small. The
/// page mentions that it leaves out such figures.
fn is_small(row: &Row) -> bool {
    let limit = match row.unit {
        Unit::Milliseconds | Unit::Percent => 5.0,
        Unit::Bytes => 2e6,
        Unit::Times | Unit::Cheaper | Unit::Nanoseconds | Unit::Rate => return false,
    };
    row.verdict() == Some(Verdict::Met) && row.measured < limit
}

/// A table of the figures with targets, a table of the other figures, and the series and plots of the first run.
fn most_stages(rows: &[&Row], runs: &[Results]) -> String {
    let server = &runs[0].server;
    let (series, single): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.at.is_some());
    let rest: Vec<&Row> = single.into_iter().filter(|row| row.target.is_none()).collect();
    let columns: [Column<'_>; 3] =
        [("figure", &Row::title), (server, &Row::shown), ("± noise", &Row::noise_shown)];
    let others = table_of_runs(&rest, &columns, runs);
    let mut text = format!("### Targets\n\n{}\n### Other figures\n\n{others}", targets_table(rows, runs));
    for stages in series.chunk_by(|one, other| stage(one) == stage(other)) {
        text += &format!("\n{}", series_table(stages, server));
    }
    for plot in &runs[0].plots {
        text += &format!("\n![{}](performance/{}.svg)\n", plot.title, plot.name);
    }
    text
}

/// The figures with targets.
fn targets_table(rows: &[&Row], runs: &[Results]) -> String {
    let judged: Vec<&Row> = rows.iter().filter(|row| row.target.is_some()).copied().collect();
    let columns: [Column<'_>; 5] = [
        ("figure", &Row::title),
        ("target", &Row::target_shown),
        (&runs[0].server, &Row::shown),
        ("± noise", &Row::noise_shown),
        ("met?", &|row| row.verdict_shown().to_owned()),
    ];
    table_of_runs(&judged, &columns, runs)
}

/// The figures with targets, the series of the ratios to few holders, and the series in bytes.
fn modes_tables(rows: &[&Row], runs: &[Results]) -> String {
    let (bytes, ratios): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.unit == Unit::Bytes);
    let beside = ratios.into_iter().filter(|row| row.at.as_ref().is_some_and(|at| at.starts_with("beside")));
    let [beside, bytes] = [beside.collect(), bytes].map(|rows| series_table(&rows, &runs[0].server));
    format!("{}\n{beside}\n{bytes}", targets_table(rows, runs))
}

fn stalls_table(rows: &[&Row], runs: &[Results]) -> String {
    let columns: [Column<'_>; 6] = [
        ("what happens", &|row| row.what.clone()),
        ("compared with", &|row| row.against.clone().unwrap_or_default()),
        ("which takes", &|row| row.theirs_shown().unwrap_or_default()),
        ("at most", &|row| row.target_shown().trim_start_matches("at most ").to_owned()),
        (&runs[0].server, &Row::shown),
        ("met?", &|row| row.verdict_shown().to_owned()),
    ];
    let is_small_in_all = |row: &Row| runs.iter().filter_map(|run| run.row(&row.name)).all(is_small);
    let rows: Vec<&Row> = rows.iter().filter(|row| !is_small_in_all(row)).copied().collect();
    table_of_runs(&rows, &columns, runs)
}

/// A table with a row for each figure. It has these columns for the first run, and one column for each other run.
fn table_of_runs(rows: &[&Row], columns: &[Column<'_>], runs: &[Results]) -> String {
    let others = &runs[1..];
    let heads = columns.iter().map(|(head, _)| *head).chain(others.iter().map(|other| other.server.as_str()));
    let heads: Vec<&str> = heads.collect();
    let cells = rows.iter().map(|row| {
        let same = others.iter().map(|other| other.row(&row.name).map(Row::shown).unwrap_or_default());
        columns.iter().map(|(_, cell)| cell(row)).chain(same).collect()
    });
    table(&heads, heads.len(), cells)
}

/// A table with a row for each series. The figures of a series are in the columns.
pub(crate) fn series_table(rows: &[&Row], server: &str) -> String {
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
    let first = format!("figure, {server}");
    let heads = [&[first.as_str()][..], &places].concat();
    let lines = titles.iter().map(|title| {
        let cell = |place: &&str| {
            let is_here = |row: &&&Row| row.at.as_deref() == Some(*place) && row.series_title() == *title;
            let cell =
                rows.iter().find(is_here).map(|row| format!("{} ± {}", row.shown(), row.noise_shown()));
            cell.unwrap_or_default().trim_end_matches(" ± ").to_owned()
        };
        [title.clone()].into_iter().chain(places.iter().map(cell)).collect()
    });
    table(&heads, heads.len(), lines)
}
