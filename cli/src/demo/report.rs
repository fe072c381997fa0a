//! The output of the demo. It fits on a screen of 80 columns.

use std::fmt::Display;
use std::time::Duration;

use console::style;
use indicatif::HumanCount;

use super::round::{Load, RoundResult};
use crate::duration;

/// The texts for one load.
pub(super) struct Report {
    load: Load,
}

impl Report {
    pub(super) fn new(load: Load) -> Self {
        Self { load }
    }

    pub(super) fn load(&self) -> Load {
        self.load
    }

    /// The introduction and the head of the table.
    pub(super) fn opening(&self, address: &str) -> String {
        let Load { clients, increments } = self.load;
        let increments = HumanCount(increments);
        let upper = line([&"", &"final", &"lost", &"", &"commands", &"longest", &"served"]);
        let lower = line([&"lock", &"number", &"updates", &"time", &"executed", &"wait", &"per client"]);
        let rule = "-".repeat(lower.len());
        format!(
            "{clients} clients together add 1 to one number {increments} times, always in three steps:\n\
             GET, add 1, SET. Done right, it ends at {increments}. Server: {address}\n\
             \n\
             {upper}\n\
             {lower}\n\
             {rule}"
        )
    }

    pub(super) fn row(&self, title: &str, result: &RoundResult) -> String {
        let number = HumanCount(result.number).to_string();
        let lost = HumanCount(self.load.lost(result)).to_string();
        let (number, lost) = if self.load.is_exact(result) {
            (style(number).green(), style(lost).green())
        } else {
            (style(number).red(), style(lost).red())
        };
        let time = duration::show(result.took);
        let commands = HumanCount(result.commands).to_string();
        let wait = result.longest_wait.map_or_else(|| "-".to_owned(), duration::show);
        let served = format!("{} to {}", HumanCount(result.fewest), HumanCount(result.most));
        line([&title, &number, &lost, &time, &commands, &wait, &served])
    }

    /// How to read the table, and what it shows.
    pub(super) fn closing(
        &self,
        no_lock: &RoundResult,
        home_made: &[RoundResult; 2],
        lockward: &RoundResult,
    ) -> String {
        let [b, c] = home_made;
        format!(
            "\n\
             commands: all that the server ran, inside Lua scripts too (INFO commandstats).\n\
             served: increments of the client with the fewest and of the one with the most;\n\
             \x20       equal shares would be {}.\n\
             \n\
             a     {}.\n\
             b, c  {}; the order is by chance; one client waited {}.\n\
             d     {}; first come, first served; nobody waited over {}.",
            self.equal_share(),
            self.without_a_lock(no_lock),
            losses(self.load.lost(b).saturating_add(self.load.lost(c))),
            duration::show(longest_wait(home_made)),
            losses(self.load.lost(lockward)),
            duration::show(longest_wait([lockward])),
        )
    }

    fn without_a_lock(&self, result: &RoundResult) -> String {
        if self.load.is_exact(result) {
            "no update was lost this time".to_owned()
        } else {
            let losses = losses(self.load.lost(result));
            format!("{losses}: two clients read the same number")
        }
    }

    fn equal_share(&self) -> String {
        let Load { clients, increments } = self.load;
        let clients = u64::from(clients);
        let share = HumanCount(increments / clients);
        if increments % clients == 0 { share.to_string() } else { format!("about {share}") }
    }
}

fn losses(lost: u64) -> String {
    match lost {
        0 => "no update lost".to_owned(),
        1 => "1 update lost".to_owned(),
        _ => format!("{} updates lost", HumanCount(lost)),
    }
}

fn longest_wait<'a>(results: impl IntoIterator<Item = &'a RoundResult>) -> Duration {
    results.into_iter().filter_map(|result| result.longest_wait).max().unwrap_or_default()
}

fn line(cells: [&dyn Display; 7]) -> String {
    let [title, number, lost, time, commands, wait, served] = cells;
    format!("{title:<25}{number:>7}{lost:>8}{time:>8}{commands:>9}{wait:>9}{served:>13}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: Report = Report { load: Load { clients: 50, increments: 5_000 } };

    fn result(number: u64, longest_wait_ms: Option<u64>) -> RoundResult {
        RoundResult {
            number,
            took: Duration::from_millis(1_820),
            commands: 30_827,
            longest_wait: longest_wait_ms.map(Duration::from_millis),
            fewest: 1,
            most: 1_107,
        }
    }

    #[test]
    fn a_row_is_aligned_with_its_head() {
        let opening = REPORT.opening("127.0.0.1:6379");
        let table: Vec<&str> = opening.lines().skip(3).collect();
        assert_eq!(
            table,
            [
                "                           final    lost         commands  longest       served",
                "lock                      number updates    time executed     wait   per client",
                "-------------------------------------------------------------------------------",
            ]
        );
        assert_eq!(
            console::strip_ansi_codes(&REPORT.row("b  SET NX PX, retry 50 ms", &result(5_000, Some(1_820)))),
            "b  SET NX PX, retry 50 ms  5,000       0  1.82 s   30,827   1.82 s   1 to 1,107"
        );
        assert_eq!(
            console::strip_ansi_codes(&REPORT.row("a  no lock", &result(187, None))),
            "a  no lock                   187   4,813  1.82 s   30,827        -   1 to 1,107"
        );
    }

    #[test]
    fn the_screen_is_80_columns_by_24_lines() {
        let closing = REPORT.closing(
            &result(114, None),
            &[result(5_000, Some(99_000)), result(4_990, None)],
            &result(5_000, Some(150)),
        );
        let opening = REPORT.opening("redis.example.org:6379");
        assert!(
            opening.lines().chain(closing.lines()).all(|line| line.chars().count() < 80),
            "{opening}\n{closing}"
        );
        let rows = 4;
        assert!(opening.lines().count() + rows + closing.lines().count() < 24);
    }

    #[test]
    fn the_closing_states_losses_and_waits() {
        let home_made = [result(5_000, Some(300)), result(4_999, Some(1_820))];
        let closing = REPORT.closing(&result(187, None), &home_made, &result(5_000, Some(14)));
        let lines: Vec<&str> = closing.lines().rev().take(3).collect();
        assert_eq!(
            lines,
            [
                "d     no update lost; first come, first served; nobody waited over 14 ms.",
                "b, c  1 update lost; the order is by chance; one client waited 1.82 s.",
                "a     4,813 updates lost: two clients read the same number.",
            ]
        );
    }

    #[test]
    fn a_round_without_a_lock_may_lose_no_update() {
        assert_eq!(REPORT.without_a_lock(&result(5_000, None)), "no update was lost this time");
    }

    #[test]
    fn an_equal_share_is_exact_or_marked_as_rounded() {
        for (clients, increments, share) in [(50, 5_000, "100"), (3, 5_000, "about 1,666"), (7, 3, "about 0")]
        {
            assert_eq!(Report::new(Load { clients, increments }).equal_share(), share);
        }
    }
}
