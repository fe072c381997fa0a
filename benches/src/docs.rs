//! The results in docs/performance.md.

use crate::results::{Results, Row};
use crate::stalls::STAGE;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What is written between two marks: the rows of some stages, if a run has any.
struct Section {
    marks: [&'static str; 2],
    has: fn(&Row) -> bool,
    columns: &'static [Column],
    has_plots: bool,
}

/// A column of a table: its head, and what stands there of a row.
type Column = (&'static str, fn(&Row) -> String);

const TARGET: Column = ("target", Row::target_shown);
const MET: Column = ("met?", |row| row.verdict_shown().to_owned());

const SECTIONS: [Section; 2] = [
    Section {
        marks: ["<!-- results: written by `make bench-docs` -->", "<!-- end of results -->"],
        has: |row| !is_stall(row),
        columns: &[("what", Row::title), TARGET, (SERVER, Row::shown), ("± noise", Row::noise_shown), MET],
        has_plots: true,
    },
    Section {
        marks: ["<!-- stalls: written by `make bench-docs` -->", "<!-- end of stalls -->"],
        has: is_stall,
        columns: &[
            ("what happens", |row| row.what.clone()),
            ("beside", |row| row.against.clone().unwrap_or_default()),
            ("which takes", |row| row.theirs_shown().unwrap_or_default()),
            TARGET,
            (SERVER, Row::shown),
            MET,
        ],
        has_plots: false,
    },
];

/// Stands for the name of the server in the head of a table.
const SERVER: &str = "";

fn is_stall(row: &Row) -> bool {
    row.name.split('/').next() == Some(STAGE)
}

/// Puts results between the marks of `performance.md` in a directory, and the plots of the first into `performance/`. What the first
/// has no results for stays as it is.
pub fn write(docs: &Path, first: &Results, others: &[Results]) {
    let page = docs.join("performance.md");
    let mut text = fs::read_to_string(&page).expect("docs/performance.md");
    for section in SECTIONS.iter().filter(|section| first.rows.iter().any(section.has)) {
        let [begin, end] = section.marks;
        let (before, rest) = text.split_once(begin).expect("a mark where results begin");
        let (_, after) = rest.split_once(end).expect("a mark where they end");
        text = format!("{before}{begin}\n{}\n{end}{after}", section.results(first, others));
    }
    fs::write(&page, text).expect("a page that can be written");
    let plots = docs.join("performance");
    fs::create_dir_all(&plots).expect("a directory for the plots");
    for plot in &first.plots {
        let file = plots.join(format!("{}.svg", plot.name));
        fs::write(file, plot.draw(&first.circumstances())).expect("a plot that can be written");
    }
}

impl Section {
    fn results(&self, first: &Results, others: &[Results]) -> String {
        let mut text = String::new();
        let mut line = |line: &str| writeln!(text, "{line}").expect("text takes more text");
        line(&first.circumstances());
        for other in others {
            line(&format!("Beside it {}", other.circumstances()));
        }
        line("");
        let heads = self.columns.iter().map(|(head, _)| if *head == SERVER { &first.server } else { *head });
        let heads: Vec<&str> = heads.chain(others.iter().map(|other| other.server.as_str())).collect();
        line(&format!("| {} |", heads.join(" | ")));
        line(&format!("|{}", " --- |".repeat(heads.len())));
        for row in first.rows.iter().filter(|row| (self.has)(row)) {
            let same =
                |other: &Results| other.rows.iter().find(|theirs| theirs.name == row.name).map(Row::shown);
            let cells = self.columns.iter().map(|(_, cell)| cell(row));
            let cells: Vec<String> =
                cells.chain(others.iter().map(|other| same(other).unwrap_or_default())).collect();
            line(&format!("| {} |", cells.join(" | ")));
        }
        for plot in first.plots.iter().filter(|_| self.has_plots) {
            line("");
            line(&format!("![{}](performance/{}.svg)", plot.title, plot.name));
        }
        text
    }
}
