//! Reports of violations as text.

use crate::history::{Call, Data, Fault, History, Line, Nanos};
use crate::violation::Violation;

/// A duration in milliseconds.
pub(crate) fn ms(time: Nanos) -> String {
    format!("{}.{:03} ms", time / 1_000_000, time / 1_000 % 1_000)
}

impl Violation {
    /// The violation, the lines that show it, and the faults to the servers in the time of these lines. Times are in
    /// milliseconds from the start of the first line.
    pub fn report(&self, history: &History) -> String {
        let lines = || self.lines.iter().map(|&at| &history.lines[at]);
        let begin = lines().map(Line::start).min().unwrap_or(0);
        let end = lines().map(|line| line.end().unwrap_or(Nanos::MAX)).max().unwrap_or(0);
        let is_meanwhile = |(_, line): &(usize, &Line)| {
            let is_fault = matches!(line, Line::Fault(Fault { client: None, .. }));
            is_fault && line.start() <= end && line.end() >= Some(begin)
        };
        let faults = history.lines.iter().enumerate().filter(is_meanwhile).map(|(at, _)| at);
        let rows = self.lines.iter().copied().chain(faults).map(|at| row(history, at, begin));
        std::iter::once(self.to_string()).chain(rows).collect()
    }
}

/// One line of the report: its times, the operation and the outcome.
fn row(history: &History, at: usize, begin: Nanos) -> String {
    let line = &history.lines[at];
    let since = |time: Nanos| {
        let (sign, time) = if time < begin { ("-", begin - time) } else { ("", time - begin) };
        format!("{sign}{}", ms(time))
    };
    let text = match line {
        Line::Call(Call { key, owner, operation, enqueued, outcome, .. }) => {
            let asked = operation.command(key, owner);
            let enqueued = enqueued.map(|enqueued| format!(" (in the queue at {})", since(enqueued)));
            format!("{asked}{} -> {outcome}", enqueued.unwrap_or_default())
        }
        Line::Data(Data { key, guarded, tokens, .. }) => {
            let whose = if *guarded { "guarded" } else { "plain" };
            format!("the {whose} data beside {key} has {} tokens", tokens.len())
        }
        Line::Fault(Fault { name, client: None, .. }) => format!("fault: {name}"),
        Line::Fault(Fault { name, client: Some(client), .. }) => format!("fault to client {client}: {name}"),
    };
    let end = line.end().map_or_else(|| "the end".to_owned(), since);
    format!("\n  {:>13} to {end:>13}  {text}  [line {}]", since(line.start()), at + 1)
}
