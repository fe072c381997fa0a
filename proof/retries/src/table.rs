//! The results as a table in Markdown, for docs/retries.md.

use crate::experiment::Finding;
use crate::faults::KINDS;

/// The results as a table, below a line with the server and the seed.
pub(crate) fn of(findings: &[Finding], seed: u64) -> String {
    let server = findings.first().map_or("", |finding| &finding.server);
    let head = format!(
        "{server}, seed {seed}:\n\n| client | commands | faults: {} | repeats by the client | repeats by the program \
        | miscounts with `HOLDS` | miscounts without `HOLDS` |\n\
         | --- | --- | --- | --- | --- | --- | --- |",
        KINDS.join(", ")
    );
    let rows = findings.iter().map(|Finding { client, version, kinds, .. }| {
        let [(counts, miscounts), (_, without_holds)] = kinds;
        let kinds = KINDS.map(|kind| counts.faults.get(kind).copied().unwrap_or_default().to_string());
        let cells = [
            format!("{} {version}", client.name),
            counts.commands.to_string(),
            format!("{}: {}", counts.hits(), kinds.join(", ")),
            counts.sent_again.to_string(),
            counts.issued_again.to_string(),
            miscounts.len().to_string(),
            without_holds.len().to_string(),
        ];
        format!("\n| {} |", cells.join(" | "))
    });
    head + &rows.collect::<String>()
}
