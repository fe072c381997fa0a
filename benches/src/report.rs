//! The figures and plots of a run: the rounds in which they are measured, and the tables that show them.

use crate::machine::circumstances;
use crate::plot::{Line, Plot};
use crate::results::{Point, Row, Series, Unit};
use crate::{sizing, table::table};
use std::io;
use std::path::Path;
use std::time::Instant;
use std::{fs, iter};

/// The figures and plots so far.
#[derive(Debug)]
pub struct Report {
    pub rows: Vec<Row>,
    plots: Vec<Plot>,
    begin: Instant,
}

impl Report {
    #[allow(clippy::new_without_default, reason = "a report begins at this instant")]
    pub fn new() -> Self {
        Self { rows: Vec::new(), plots: Vec::new(), begin: Instant::now() }
    }

    /// Prints a line about the stage that begins, with the minutes and seconds since the run began.
    pub fn stage(&self, name: &str, about: &str) {
        let seconds = self.begin.elapsed().as_secs();
        eprintln!("[{}:{:02}] {name}: {about}", seconds / 60, seconds % 60);
    }

    pub fn row(&mut self, row: Row) {
        eprintln!("        {}", row.line());
        self.rows.push(row);
    }

    /// Adds a plot. Its name begins with the name of the stage.
    pub fn plot(&mut self, plot: Plot) {
        // A line needs two points.
        if plot.lines.iter().all(|line| line.points.len() > 1) {
            self.plots.push(plot);
        }
    }

    /// Our side of a curve and the other side, as lines of a plot. Numbers are divided by `scale`.
    pub fn lines(&self, curve: &str, names: [&str; 2], scale: f64) -> [Line; 2] {
        let line = |name: &str, side: fn(&Row) -> Option<&Series>| {
            let points = self.rows.iter().filter(|row| row.name == curve);
            let points = points.filter_map(|row| Some((row.at?.number as f64, side(row)?.median() / scale)));
            Line { name: name.to_owned(), points: points.collect() }
        };
        [line(names[0], |row| Some(&row.ours)), line(names[1], |row| row.theirs.as_ref())]
    }

    /// Prints the tables of the docs. Writes them into a directory, with the plots and all measurements. `server` is
    /// the server's name and version.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, server: &str, into: &Path) -> io::Result<()> {
        let circumstances = format!("{server}, {}", circumstances());
        let tables = format!("- Measured with {circumstances}\n{}", self.tables(server));
        println!("{tables}");
        fs::create_dir_all(into)?;
        fs::write(into.join("results.md"), tables)?;
        fs::write(into.join("results.json"), serde_json::to_string_pretty(&self.rows)?)?;
        for plot in &self.plots {
            fs::write(into.join(format!("{}.svg", plot.name)), plot.draw(&circumstances))?;
        }
        println!("The results and plots are in {}.", into.display());
        Ok(())
    }

    /// The tables for docs/performance.md and docs/scale.md. These are the comparisons, the stalls, a table for each
    /// stage with curves, and the sizing tables.
    fn tables(&self, server: &str) -> String {
        let (curves, figures): (Vec<&Row>, Vec<&Row>) = self.rows.iter().partition(|row| row.at.is_some());
        let is_stall = |row: &&Row| row.theirs.is_some() && ![Unit::Times, Unit::Cheaper].contains(&row.unit);
        let (stalls, figures): (Vec<&Row>, Vec<&Row>) = figures.into_iter().partition(is_stall);
        let mut tables = vec![comparisons(&figures, server), stall_table(&stalls, server)];
        let stage = |row: &Row| row.name.split('/').next().unwrap_or_default().to_owned();
        tables.extend(curves.chunk_by(|one, other| stage(one) == stage(other)).map(curve_table));
        let plots = self.plots.iter().map(|plot| format!("![{}]({}.svg)\n", plot.title, plot.name));
        tables.extend(plots);
        tables.extend(sizing::tables(&self.rows));
        let tables = tables.into_iter().filter(|table| !table.is_empty());
        tables.map(|table| format!("\n{table}")).collect()
    }
}

/// Measures `count` things alternately, `rounds` times each. `measure` gets the number of a thing, and returns its
/// `N` figures. Each figure becomes a series. The order of the things rotates by one from round to round. An
/// additional first round is a warm-up and does not count.
pub fn alternate<const N: usize>(
    rounds: usize,
    count: usize,
    mut measure: impl FnMut(usize) -> [f64; N],
) -> Vec<[Series; N]> {
    let mut all: Vec<[Series; N]> = (0..count).map(|_| std::array::from_fn(|_| Series::default())).collect();
    for round in 0..=rounds {
        for turn in 0..count {
            let which = (round + turn) % count;
            let numbers = measure(which);
            if round > 0 {
                all[which].iter_mut().zip(numbers).for_each(|(series, number)| series.push(number));
            }
        }
    }
    all
}

/// Measures `COUNT` things alternately, `rounds` times each, as [`alternate`] does. Each thing has one
/// figure.
pub fn compare<const COUNT: usize>(rounds: usize, mut measure: impl FnMut(usize) -> f64) -> [Series; COUNT] {
    let all = alternate(rounds, COUNT, |which| [measure(which)]);
    let all: Vec<Series> = all.into_iter().map(|[series]| series).collect();
    all.try_into().expect("a series of each")
}

fn comparisons(rows: &[&Row], server: &str) -> String {
    let cells = rows.iter().map(|row| {
        vec![row.what.clone(), row.against.clone().unwrap_or_default(), row.target_shown(), row.judged()]
    });
    table(&["what is measured", "compared with", "target", server], cells)
}

fn stall_table(rows: &[&Row], server: &str) -> String {
    let ours = format!("PING with Lockward, {server}");
    let heads = ["what happens with Lockward", "what happens without modules", "PING without modules", &ours];
    let cells = rows.iter().map(|row| {
        let theirs = row.theirs.as_ref().map(|theirs| row.unit.show(theirs.median()));
        let against = row.against.clone().unwrap_or_default();
        vec![row.what.clone(), against, theirs.unwrap_or_default(), row.judged()]
    });
    table(&heads, cells)
}

/// A table with a line for each curve, and a line for each comparison. The points are the columns.
fn curve_table(rows: &[&Row]) -> String {
    let mut points: Vec<Point> = rows.iter().filter_map(|row| row.at).collect();
    points.sort_by_key(|point| point.number);
    points.dedup();
    let mut curves: Vec<&Row> = Vec::new();
    for row in rows {
        if curves.iter().all(|curve| curve.name != row.name) {
            curves.push(row);
        }
    }
    let line = |title: String, curve: &Row, cell: &dyn Fn(&Row) -> String| {
        let of_curve =
            |point: &Point| rows.iter().find(|row| row.name == curve.name && row.at == Some(*point));
        let cells = points.iter().map(|point| of_curve(point).map(|row| cell(row)).unwrap_or_default());
        iter::once(title).chain(cells).collect::<Vec<_>>()
    };
    let lines = curves.iter().flat_map(|curve| {
        let compared = curve.against.as_ref().map(|against| {
            let ratio = |row: &Row| {
                let theirs = row.theirs.as_ref().map(|theirs| row.measured / theirs.median());
                Unit::Times.show(theirs.unwrap_or(f64::NAN))
            };
            line(format!("{}, compared with {against}", curve.what), curve, &ratio)
        });
        iter::once(line(curve.what.clone(), curve, &Row::judged)).chain(compared)
    });
    let heads: Vec<String> = points.iter().map(|point| point.shown()).collect();
    let heads: Vec<&str> = iter::once("figure").chain(heads.iter().map(String::as_str)).collect();
    table(&heads, lines)
}
