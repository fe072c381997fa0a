//! Reports of violations as text.

use crate::history::{Call, Data, Fault, History, Line, Nanos, Outcome, Write, WriteOutcome};
use crate::violation::Violation;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The number of other calls on the same lock that a report shows.
const MEANWHILE: usize = 6;

/// Indexes of lines, each with the end of its line.
type Ended = Vec<(Nanos, usize)>;

/// A duration in milliseconds.
pub(crate) fn ms(time: Nanos) -> String {
    format!("{}.{:03} ms", time / 1_000_000, time / 1_000 % 1_000)
}

impl Violation {
    /// The violation and the lines that show it. Below them are the faults to the servers and the last calls on the
    /// same lock in the time of these lines. Times are in milliseconds from the start of the first line.
    #[must_use]
    pub fn report(&self, history: &History) -> String {
        let mut report = self.to_string();
        let lines: Vec<&Line> = self.lines.iter().map(|&at| &history.lines[at]).collect();
        let Some(begin) = lines.first().map(|line| line.start()) else { return report };
        for &at in &self.lines {
            report += &row(history, at, begin);
        }
        let (faults, calls) = meanwhile(self, history);
        if !faults.is_empty() || !calls.is_empty() {
            report += "\n  Meanwhile:";
        }
        // The calls that ended last are the most useful, so the report shows only these.
        let left_out = calls.len().saturating_sub(MEANWHILE);
        if left_out > 0 {
            // The result is ignored, because writing to a string cannot fail.
            let _ = write!(report, "\n    {left_out} calls on the same lock with a reply, then");
        }
        let mut shown: Vec<_> = faults.into_iter().chain(calls.into_iter().skip(left_out)).collect();
        shown.sort_unstable();
        for (_, at) in shown {
            report += &row(history, at, begin);
        }
        report
    }
}

/// The faults to the servers, and the calls that changed the same lock, each with its end. The function returns only
/// the faults and calls that ended between the first and the last end of the violation's lines.
fn meanwhile(violation: &Violation, history: &History) -> (Ended, Ended) {
    let shown = || violation.lines.iter().map(|&at| &history.lines[at]);
    let keys: BTreeSet<&str> = shown().filter_map(key).collect();
    let from = shown().filter_map(Line::end).min().unwrap_or(Nanos::MAX);
    let to = shown().filter_map(Line::end).max().unwrap_or(Nanos::MAX);
    let faults = history.lines.iter().enumerate().filter_map(|(at, line)| {
        let Line::Fault(fault) = line else { return None };
        (fault.client.is_none() && fault.start <= to && fault.end >= from).then_some((fault.end, at))
    });
    let calls = history.calls().filter(|(at, call)| {
        let changed =
            matches!(call.outcome, Outcome::Granted { .. } | Outcome::Left { .. } | Outcome::Renewed { .. });
        let between = (from..=to).contains(&call.answered());
        changed && between && keys.contains(call.key.as_str()) && !violation.lines.contains(at)
    });
    let mut calls: Vec<_> = calls.map(|(at, call)| (call.answered(), at)).collect();
    calls.sort_unstable();
    (faults.collect(), calls)
}

fn key(line: &Line) -> Option<&str> {
    match line {
        Line::Call(call) => Some(&call.key),
        Line::Write(write) => Some(&write.key),
        Line::Data(data) => Some(&data.key),
        Line::Fault(_) => None,
    }
}

/// One line of the report: its times, the operation and the outcome.
fn row(history: &History, at: usize, begin: Nanos) -> String {
    let line = &history.lines[at];
    let since = |time: Nanos| {
        let (sign, time) = if time < begin { ("-", begin - time) } else { ("", time - begin) };
        format!("{sign}{}.{:03}", time / 1_000_000, time / 1_000 % 1_000)
    };
    let text = match line {
        Line::Call(Call { key, owner, operation, enqueued, outcome, .. }) => {
            let asked = operation.command(key, owner).join(" ");
            let enqueued = enqueued.map(|enqueued| format!(" (in the queue at {})", since(enqueued)));
            format!("{asked}{} -> {outcome}", enqueued.unwrap_or_default())
        }
        Line::Write(Write { key, owner, token, outcome, .. }) => {
            let outcome = match outcome {
                WriteOutcome::Accepted => "accepted",
                WriteOutcome::Refused => "refused",
            };
            format!("{owner} writes to the store of {key} with token {token} -> {outcome}")
        }
        Line::Data(Data { key, guarded, tokens, .. }) => {
            let whose = if *guarded { "guarded" } else { "plain" };
            format!("the {whose} data beside {key} has {} tokens", tokens.len())
        }
        Line::Fault(Fault { name, client: None, .. }) => format!("fault: {name}"),
        Line::Fault(Fault { name, client: Some(client), .. }) => format!("fault to client {client}: {name}"),
    };
    let end = line.end().map_or_else(|| "the end".to_owned(), since);
    format!("\n  {:>10} to {end:>10} ms  {text}  [line {}]", since(line.start()), at + 1)
}
