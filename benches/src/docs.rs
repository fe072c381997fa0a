//! The results in docs/performance.md.

use crate::results::{Results, Row};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- results: written by `make bench-docs` -->";
const END: &str = "<!-- end of results -->";

/// Puts results between the two marks of `performance.md` in a directory, and the plots of the first into `performance/`.
pub fn write(docs: &Path, first: &Results, others: &[Results]) {
    let page = docs.join("performance.md");
    let text = fs::read_to_string(&page).expect("docs/performance.md");
    let (before, rest) = text.split_once(BEGIN).expect("a mark where results begin");
    let (_, after) = rest.split_once(END).expect("a mark where they end");
    let results = format!("{BEGIN}\n{}\n{END}", results(first, others));
    fs::write(&page, [before, &results, after].concat()).expect("a page that can be written");
    let plots = docs.join("performance");
    fs::create_dir_all(&plots).expect("a directory for the plots");
    for plot in &first.plots {
        let file = plots.join(format!("{}.svg", plot.name));
        fs::write(file, plot.draw(&first.circumstances())).expect("a plot that can be written");
    }
}

fn results(first: &Results, others: &[Results]) -> String {
    let mut text = String::new();
    let mut line = |line: &str| writeln!(text, "{line}").expect("text takes more text");
    line(&first.circumstances());
    for other in others {
        line(&format!("Beside it {}", other.circumstances()));
    }
    line("");
    let names: String = others.iter().map(|other| format!(" {} |", other.server)).collect();
    line(&format!("| what | target | {} | ± noise | met? |{names}", first.server));
    line(&format!("| --- | --- | --- | --- | --- |{}", " --- |".repeat(others.len())));
    for row in &first.rows {
        let same = |other: &Results| other.rows.iter().find(|theirs| theirs.name == row.name).map(Row::shown);
        let beside: String =
            others.iter().map(|other| format!(" {} |", same(other).unwrap_or_default())).collect();
        line(&format!(
            "| {} | {} | {} | {} | {} |{beside}",
            row.title(),
            row.target_shown(),
            row.shown(),
            row.noise_shown(),
            row.verdict_shown(),
        ));
    }
    for plot in &first.plots {
        line("");
        line(&format!("![{}](performance/{}.svg)", plot.title, plot.name));
    }
    text
}
