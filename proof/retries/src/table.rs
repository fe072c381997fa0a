//! The results as a table in Markdown.

use crate::experiment::Finding;
use crate::faults::KINDS;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- table: written by `make test-retries RETRIES=\"--docs docs\"` -->";
const END: &str = "<!-- end of table -->";

/// Writes a table between the two marks of a page.
pub(crate) fn write(page: &Path, table: &str) {
    let text = fs::read_to_string(page).expect("docs/retries.md");
    let (before, rest) = text.split_once(BEGIN).expect("a mark where the table begins");
    let (_, after) = rest.split_once(END).expect("a mark where it ends");
    let table = format!("{BEGIN}\n{table}\n{END}");
    fs::write(page, [before, &table, after].concat()).expect("a page that can be written");
}

/// The results as a table, below a line with the server and the seed.
pub(crate) fn of(findings: &[Finding], seed: u64) -> String {
    let server = findings.first().map_or("", |finding| &finding.server);
    let head = format!(
        "{server}, seed {seed}:\n\n| client | commands | faults: {} | repeats by the client | repeats by the program \
        | miscounts: Lockward with `HOLDS` | miscounts: Lockward without `HOLDS` | miscounts: hash and Lua scripts |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |",
        KINDS.join(", ")
    );
    let rows = findings.iter().map(|Finding { client, version, kinds, .. }| {
        let [(counts, miscounts), (_, without_holds), (_, hash)] = kinds;
        let kinds = KINDS.map(|kind| counts.faults.get(kind).copied().unwrap_or_default().to_string());
        let cells = [
            format!("{} {version}", client.name),
            counts.commands.to_string(),
            format!("{}: {}", counts.hits(), kinds.join(", ")),
            counts.sent_again.to_string(),
            counts.issued_again.to_string(),
            miscounts.len().to_string(),
            without_holds.len().to_string(),
            hash.len().to_string(),
        ];
        format!("\n| {} |", cells.join(" | "))
    });
    head + &rows.collect::<String>()
}
