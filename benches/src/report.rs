//! The figures and plots of a run: the rounds in which they are measured, and the tables that show them.

use crate::machine::circumstances;
use crate::plot::Plot;
use crate::results::{Row, Series};
use crate::{sizing, table::table};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::{fs, iter};

#[derive(Debug, Default)]
pub struct Report {
    stages: Vec<Vec<Row>>,
    plots: Vec<Plot>,
}

impl Report {
    /// Begins a stage, and prints a line about it.
    pub fn stage(&mut self, name: &str, about: &str) {
        eprintln!("{name}: {about}");
        self.stages.push(Vec::new());
    }

    pub fn row(&mut self, row: Row) {
        eprintln!("        {}", row.line());
        self.stages.last_mut().expect("a stage").push(row);
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.stages.iter().flatten()
    }

    /// Adds a plot of a curve and the curve of the other side, with these names. Numbers are divided by `scale`.
    pub fn plot(
        &mut self,
        name: &str,
        title: &str,
        [x, y]: [&str; 2],
        curve: &str,
        names: [&str; 2],
        scale: f64,
    ) {
        let line = |name: &str, side: fn(&Row) -> Option<f64>| {
            let points = self.rows().filter(|row| row.what == curve);
            let points = points.filter_map(|row| Some((row.at?.number as f64, side(row)? / scale)));
            (name.to_owned(), points.collect::<Vec<_>>())
        };
        let lines = [line(names[0], |row| Some(row.measured)), line(names[1], |row| row.theirs)];
        // A line needs two points.
        if lines[0].1.len() > 1 {
            let [name, title, x, y] = [name, title, x, y].map(str::to_owned);
            self.plots.push(Plot { name, title, x, y, lines });
        }
    }

    /// Prints the tables of the docs. Writes them into a directory, with the plots. `server` is the server's name and
    /// version.
    pub fn write(&self, server: &str, into: &Path) -> io::Result<()> {
        let circumstances = format!("{server}, {}", circumstances());
        let tables = format!("- Measured with {circumstances}\n{}", self.tables(server));
        println!("{tables}");
        fs::create_dir_all(into)?;
        fs::write(into.join("results.md"), tables)?;
        for plot in &self.plots {
            fs::write(into.join(format!("{}.svg", plot.name)), plot.draw(&circumstances))?;
        }
        println!("The results and plots are in {}.", into.display());
        Ok(())
    }

    /// The tables for docs/performance.md and docs/scale.md. These are the comparisons, the stalls, a table for each
    /// stage with curves, and the sizing tables.
    fn tables(&self, server: &str) -> String {
        let mut tables = vec![self.comparisons(server), self.stalls(server)];
        tables.extend(self.stages.iter().map(|rows| curve_table(rows)));
        tables.extend(sizing::tables(&self.rows().collect::<Vec<_>>()));
        let tables = tables.into_iter().filter(|table| !table.is_empty());
        tables.map(|table| format!("\n{table}")).collect()
    }

    fn comparisons(&self, server: &str) -> String {
        let rows = self.rows().filter(|row| row.at.is_none() && row.theirs.is_none());
        let cells = rows.map(|row| {
            vec![row.what.clone(), row.against.clone().unwrap_or_default(), row.target(), row.shown()]
        });
        table(&["what is measured", "compared with", "target", server], cells)
    }

    fn stalls(&self, server: &str) -> String {
        let ours = format!("PING with Lockward, {server}");
        let heads =
            ["what happens with Lockward", "what happens without modules", "PING without modules", &ours];
        let cells = self.rows().filter(|row| row.at.is_none()).filter_map(|row| {
            Some(vec![row.what.clone(), row.against.clone()?, row.unit.show(row.theirs?), row.shown()])
        });
        table(&heads, cells)
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

/// A table with a line for each curve, and a line for each comparison. The points are the columns.
fn curve_table(rows: &[Row]) -> String {
    let points: BTreeMap<usize, String> =
        rows.iter().filter_map(|row| row.at).map(|point| (point.number, point.shown())).collect();
    let mut curves: Vec<&Row> = Vec::new();
    for row in rows {
        if row.at.is_some() && curves.iter().all(|curve| curve.what != row.what) {
            curves.push(row);
        }
    }
    let line = |title: String, curve: &Row, cell: fn(&Row) -> String| {
        let cells = points.keys().map(|number| {
            let is_here =
                |row: &&Row| row.what == curve.what && row.at.is_some_and(|at| at.number == *number);
            rows.iter().find(is_here).map(cell).unwrap_or_default()
        });
        iter::once(title).chain(cells).collect::<Vec<_>>()
    };
    let lines = curves.into_iter().flat_map(|curve| {
        let against = curve.against.as_ref();
        let compared = against.map(|against| format!("{}, compared with {against}", curve.what));
        let compared = compared.map(|title| line(title, curve, Row::compared));
        iter::once(line(curve.what.clone(), curve, Row::shown)).chain(compared)
    });
    let heads: Vec<&str> = iter::once("figure").chain(points.values().map(String::as_str)).collect();
    table(&heads, lines)
}
