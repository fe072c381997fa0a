//! Writes results into docs/performance.md.

use crate::results::{Results, Row, Unit, Verdict};
use crate::{modes, stalls};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The places of the results of a run in the page: most stages together, `modes`, and `stalls`.
const MARKS: [[&str; 2]; 3] = [
    ["<!-- results: written by `make bench-docs` -->", "<!-- end of results -->"],
    ["<!-- modes: written by `make bench-docs` -->", "<!-- end of modes -->"],
    ["<!-- stalls: written by `make bench-docs` -->", "<!-- end of stalls -->"],
];

/// A column of a table: its head, and the text for a row.
type Column<'a> = (&'a str, &'a dyn Fn(&Row) -> String);

/// Writes results between the marks of `performance.md` in a directory, and the plots of the first results into `performance/`.
/// Parts for which the first results have no rows stay as they are.
pub fn write(docs: &Path, first: &Results, others: &[Results]) {
    let page = docs.join("performance.md");
    let mut text = fs::read_to_string(&page).expect("docs/performance.md");
    let (stalls, rows): (Vec<&Row>, Vec<&Row>) =
        first.rows.iter().partition(|row| stage(row) == stalls::STAGE);
    let (modes, rows): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| stage(row) == modes::STAGE);
    for ([begin, end], rows, tables) in [
        (MARKS[0], &rows, tables as fn(&[&Row], &Results, &[Results]) -> String),
        (MARKS[1], &modes, modes_tables),
        (MARKS[2], &stalls, stalls_table),
    ] {
        if rows.is_empty() {
            continue;
        }
        let runs: Vec<String> =
            [first].into_iter().chain(others).map(|run| format!("- {}\n", run.circumstances())).collect();
        let written = format!("{}\n{}", runs.concat(), tables(rows, first, others));
        text = between(&text, begin, end, &written);
    }
    fs::write(&page, text).expect("a page that can be written");
    write_plots(&docs.join("performance"), first);
}

/// The page with this text between two marks.
pub(crate) fn between(page: &str, begin: &str, end: &str, text: &str) -> String {
    let (before, rest) = page.split_once(begin).expect("a mark where results begin");
    let (_, after) = rest.split_once(end).expect("a mark where they end");
    format!("{before}{begin}\n{text}\n{end}{after}")
}

/// Writes the plots of a run into a directory.
pub fn write_plots(into: &Path, results: &Results) {
    fs::create_dir_all(into).expect("a directory for the plots");
    for plot in &results.plots {
        let file = into.join(format!("{}.svg", plot.name));
        fs::write(file, plot.draw(&results.short_circumstances())).expect("a plot that can be written");
    }
}

pub(crate) fn stage(row: &Row) -> &str {
    row.name.split('/').next().unwrap_or_default()
}

/// Whether the page leaves out a figure that has no target. `results.json` has all figures.
fn is_omitted(row: &Row) -> bool {
    matches!(stage(row), "pairs" | "memory" | "expiry")
        || row.what.starts_with("a module that ")
        || row.what.starts_with("hand-off and waiting again")
}

/// Whether the page leaves out a figure of [`STAGE`]: it meets its target, and it is small. The page says that it leaves such
/// figures out.
fn is_small(row: &Row) -> bool {
    let limit = match row.unit {
        Unit::Milliseconds | Unit::Percent => 5.0,
        Unit::Bytes => 2e6,
        Unit::Times | Unit::Cheaper | Unit::Nanoseconds | Unit::Rate => return false,
    };
    row.verdict() == Some(Verdict::Met) && row.measured < limit
}

/// The figures with targets, the others, the series of the first results, and the plots.
fn tables(rows: &[&Row], first: &Results, others: &[Results]) -> String {
    let shown = rows.iter().filter(|row| !is_omitted(row)).copied();
    let rest: Vec<&Row> = shown.clone().filter(|row| row.target.is_none() && row.at.is_none()).collect();
    let mut text = format!("### Targets\n\n{}\n### Other figures\n\n", targets_table(rows, first, others));
    let columns: [Column<'_>; 3] =
        [("figure", &Row::title), (&first.server, &Row::shown), ("± noise", &Row::noise_shown)];
    table(&mut text, &rest, &columns, others);
    let mut series: Vec<&Row> = shown.filter(|row| row.at.is_some()).collect();
    while let Some(row) = series.first() {
        let name = stage(row);
        let (these, later): (Vec<&Row>, Vec<&Row>) = series.iter().partition(|row| stage(row) == name);
        text.push('\n');
        series_table(&mut text, &these, &first.server);
        series = later;
    }
    for plot in &first.plots {
        let _ = write!(text, "\n![{}](performance/{}.svg)\n", plot.title, plot.name);
    }
    text
}

/// The figures with targets.
fn targets_table(rows: &[&Row], first: &Results, others: &[Results]) -> String {
    let judged: Vec<&Row> = rows.iter().filter(|row| row.target.is_some()).copied().collect();
    let columns: [Column<'_>; 5] = [
        ("figure", &Row::title),
        ("target", &Row::target_shown),
        (&first.server, &Row::shown),
        ("± noise", &Row::noise_shown),
        ("met?", &|row| row.verdict_shown().to_owned()),
    ];
    let mut text = String::new();
    table(&mut text, &judged, &columns, others);
    text
}

/// The figures with targets, and the series of all that are compared with few holders, and of bytes.
fn modes_tables(rows: &[&Row], first: &Results, others: &[Results]) -> String {
    let mut text = targets_table(rows, first, others);
    let (bytes, ratios): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.unit == Unit::Bytes);
    let beside = ratios.into_iter().filter(|row| row.at.as_ref().is_some_and(|at| at.starts_with("beside")));
    for series in [beside.collect(), bytes] {
        text.push('\n');
        series_table(&mut text, &series, &first.server);
    }
    text
}

fn stalls_table(rows: &[&Row], first: &Results, others: &[Results]) -> String {
    let columns: [Column<'_>; 6] = [
        ("what happens", &|row| row.what.clone()),
        ("compared with", &|row| row.against.clone().unwrap_or_default()),
        ("which takes", &|row| row.theirs_shown().unwrap_or_default()),
        ("at most", &|row| row.target_shown().trim_start_matches("at most ").to_owned()),
        (&first.server, &Row::shown),
        ("met?", &|row| row.verdict_shown().to_owned()),
    ];
    let is_small_in_all =
        |row: &Row| is_small(row) && others.iter().filter_map(|other| other.row(&row.name)).all(is_small);
    let rows: Vec<&Row> = rows.iter().filter(|row| !is_small_in_all(row)).copied().collect();
    let mut text = String::new();
    table(&mut text, &rows, &columns, others);
    text
}

/// One row for each figure, and one column for each other run.
fn table(text: &mut String, rows: &[&Row], columns: &[Column<'_>], others: &[Results]) {
    let heads = columns.iter().map(|(head, _)| *head).chain(others.iter().map(|other| other.server.as_str()));
    head(text, &heads.collect::<Vec<_>>());
    for row in rows {
        let cells = columns.iter().map(|(_, cell)| cell(row));
        let same = others.iter().map(|other| other.row(&row.name).map(Row::shown).unwrap_or_default());
        line(text, &cells.chain(same).collect::<Vec<_>>());
    }
}

/// One row for each series, with its members side by side.
pub(crate) fn series_table(text: &mut String, rows: &[&Row], server: &str) {
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
    head(text, &[&[first.as_str()][..], &places].concat());
    for title in titles {
        let cell = |place: &&str| {
            let row =
                rows.iter().find(|row| row.at.as_deref() == Some(*place) && row.series_title() == title);
            row.map(|row| format!("{} ± {}", row.shown(), row.noise_shown())).unwrap_or_default()
        };
        let cells = places.iter().map(cell).map(|cell| cell.trim_end_matches(" ± ").to_owned());
        line(text, &std::iter::once(title.clone()).chain(cells).collect::<Vec<_>>());
    }
}

pub(crate) fn head(text: &mut String, heads: &[&str]) {
    line(text, heads);
    let _ = writeln!(text, "|{}", " --- |".repeat(heads.len()));
}

pub(crate) fn line<Cell: AsRef<str>>(text: &mut String, cells: &[Cell]) {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
