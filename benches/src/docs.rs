//! Writes the results of `make bench` into docs/performance.md.

use crate::markdown::{Page, table};
use crate::results::{Results, Row, Unit, Verdict};
use crate::{modes, stalls};
use std::path::Path;
use std::{fs, io};

/// Figures that the page leaves out, because another figure on the page says nearly the same.
const LEFT_OUT: [&str; 2] = ["handoff/1000", "plain-keys/empty"];

/// A column of a table: its head, and the text for a row.
type Column<'a> = (&'a str, &'a dyn Fn(&Row) -> String);

/// Writes results into `performance.md` in a directory, with a column for each run. Writes the plots of the first run
/// into `performance/`. A part of the page for which the first run has no rows stays as it is. The page has no part for
/// [`modes::STAGE`].
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(docs: &Path, runs: &[Results]) -> io::Result<()> {
    let mut page = Page::read(docs, "performance.md")?;
    let (stalls, others): (Vec<&Row>, Vec<&Row>) =
        runs[0].rows.iter().partition(|row| stage(row) == stalls::STAGE);
    let is_shown = |row: &&Row| {
        stage(row) != modes::STAGE
            && (row.at.is_none() || row.target.is_some())
            && !LEFT_OUT.contains(&row.name.as_str())
    };
    let others: Vec<&Row> = others.into_iter().filter(is_shown).collect();
    let plots: String = runs[0]
        .plots
        .iter()
        .map(|plot| format!("\n![{}](performance/{}.svg)\n", plot.title, plot.name))
        .collect();
    let parts = [
        ("results", !others.is_empty(), figures_table(&others, runs) + &plots),
        (stalls::STAGE, !stalls.is_empty(), stalls_table(&stalls, runs)),
    ];
    for (part, is_measured, text) in parts {
        if is_measured {
            let circumstances: String =
                runs.iter().map(|run| format!("- Measured with {}\n", run.short_circumstances())).collect();
            page.put(part, &format!("{circumstances}\n{text}\n"));
        }
    }
    page.write()?;
    write_plots(&docs.join("performance"), &runs[0])
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
        Unit::Milliseconds => 10.0,
        Unit::Percent => 5.0,
        Unit::Bytes => 2e6,
        Unit::Times => 2.0,
        Unit::Cheaper | Unit::Nanoseconds | Unit::Rate => return false,
    };
    row.verdict() == Some(Verdict::Met) && row.measured < limit
}

fn figures_table(rows: &[&Row], runs: &[Results]) -> String {
    let columns: [Column<'_>; 4] = [
        ("what is measured", &|row| row.what_shown()),
        ("compared with", &|row| row.against.clone().unwrap_or_default()),
        ("target", &Row::target_shown),
        (&runs[0].server, &Row::judged),
    ];
    table_of_runs(rows, &columns, runs)
}

fn stalls_table(rows: &[&Row], runs: &[Results]) -> String {
    let server = format!("PING with Lockward, {}", runs[0].server);
    let columns: [Column<'_>; 4] = [
        ("what happens with Lockward", &|row| row.what.clone()),
        ("what happens without modules", &|row| row.against.clone().unwrap_or_default()),
        ("PING without modules", &|row| row.theirs_shown().unwrap_or_default()),
        (&server, &Row::judged),
    ];
    let is_small_in_all = |row: &Row| runs.iter().filter_map(|run| run.row(&row.name)).all(is_small);
    let rows: Vec<&Row> = rows.iter().filter(|row| !is_small_in_all(row)).copied().collect();
    table_of_runs(&rows, &columns, runs)
}

/// A table with a row for each figure. The table has these columns for the first run, and one column for each other
/// run.
fn table_of_runs(rows: &[&Row], columns: &[Column<'_>], runs: &[Results]) -> String {
    let others = &runs[1..];
    let heads = columns.iter().map(|(head, _)| *head).chain(others.iter().map(|other| other.server.as_str()));
    let heads: Vec<&str> = heads.collect();
    let cells = rows.iter().map(|row| {
        let same = others.iter().map(|other| other.row(&row.name).map(Row::judged).unwrap_or_default());
        columns.iter().map(|(_, cell)| cell(row)).chain(same).collect()
    });
    table(&heads, heads.len(), cells)
}
