//! What was found, as a table in Markdown.

use crate::trial::Finding;
use std::fmt::Write as _;

const FAULTS: [&str; 6] = ["request", "reply", "torn", "hung up", "waiting", "silence"];

/// The table of these findings.
pub(crate) fn of(findings: &[Finding]) -> String {
    let mut table = format!(
        "| client | commands | faults: {} | sent again by the client | by the program | Lockward miscounts | without `HOLDS` | a hash, in Lua |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        FAULTS.join(" / ")
    );
    for Finding { client, version, contestants, .. } in findings {
        let [(tally, miscounts), controls @ ..] = contestants;
        let faults =
            FAULTS.map(|name| tally.faults.get(name).copied().unwrap_or_default().to_string()).join(" / ");
        let _ = write!(
            table,
            "\n| {} {version} | {} | {}: {faults} | {} | {} | {}",
            client.name,
            tally.commands,
            tally.hits(),
            tally.sent_again,
            tally.told_again,
            miscounts.len()
        );
        for (tally, miscounts) in controls {
            let _ = write!(table, " | {} of {} faults", miscounts.len(), tally.hits());
        }
        table.push_str(" |");
    }
    table
}
