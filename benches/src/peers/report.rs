//! The results as JSON and as tables.

use crate::machine::{machine, today};
use crate::peers::contest::{Job, Outcome, PERMITS, Quantiles, WRITERS};
use crate::peers::meter::Spent;
use crate::peers::monitor::Parts;
use crate::peers::roster::Peer;
use crate::plot::{Bar, Bars};
use crate::results::{Machine, whole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::path::Path;
use std::{fs, io};

/// The places of the results in the page: exclusive locks, and read-write locks and semaphores.
const MARKS: [[&str; 2]; 2] = [
    ["<!-- measured: written by `make bench-peers-docs` -->", "<!-- end of what was measured -->"],
    ["<!-- shared: written by `make bench-peers-docs` -->", "<!-- end of shared -->"],
];

/// If other processes use more than this share of the CPUs, in per cent, they disturb the measurement.
const BUSY: f64 = 20.0;
/// The number of clients of the job that is plotted.
const PLOTTED: usize = 50;
/// The jobs whose tables the page leaves out if every lock counted right. The list of better locks on the page has them.
const NOT_ON_THE_PAGE: &[(Job, usize)] = &[(Job::Contended, 2)];

const WARNING: &str = "**Other programs used the machine. They make times longer and rates lower, for some locks more than for others. \
    Server CPU and commands depend less on them.**";

/// The results of a whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The day, the machine and the settings.
    pub circumstances: String,
    /// How long each job was counted, in seconds.
    pub seconds: u64,
    /// The jobs, in the order in which they were done.
    pub results: Vec<Entry>,
}

/// The result of one job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The peer's name.
    pub peer: String,
    /// The name that its users know.
    pub title: String,
    /// The language of its library; empty for plain commands.
    pub language: String,
    /// The name of the Lockward that it is compared with; its own name if it is Lockward.
    pub ours: String,
    /// The job.
    pub job: Job,
    /// The number of clients.
    pub clients: usize,
    /// The measurements, or the reason why there are none.
    pub result: Result<Measured, String>,
}

/// The measurements of one job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The version of the library.
    pub version: String,
    /// Name and version of the server.
    pub server: String,
    /// How often the lock was acquired and released.
    pub operations: u64,
    /// The same for each second.
    pub a_second: f64,
    /// How many of these, for each second, went to another client than the one before; if the contestant reports it.
    pub handoffs_a_second: Option<f64>,
    /// By how much the number under the lock grew.
    pub counter: u64,
    /// Acquisitions that the number does not contain.
    pub lost: i64,
    /// How often the library gave up waiting.
    pub gave_up: u64,
    /// The smallest number of acquisitions by one client.
    pub fewest: u64,
    /// The largest number of acquisitions by one client.
    pub most: u64,
    /// How long acquisitions took.
    pub acquire_us: Quantiles,
    /// How long acquisitions of writers took, if others read.
    #[serde(default)]
    pub writers_us: Option<Quantiles>,
    /// How many acquisitions of writers there were for each second.
    #[serde(default)]
    pub writes_a_second: f64,
    /// The server's CPU time for an acquisition and its release, in microseconds.
    pub server_cpu_us: f64,
    /// Commands that clients sent for an acquisition and its release, if the server counts them.
    pub commands: Option<f64>,
    /// The same for commands that scripts sent.
    pub commands_in_scripts: Option<f64>,
    /// The part of the machine's CPU time that other programs used, from 0 to 1.
    pub others: f64,
    /// How often each command was executed in the whole time, including those in scripts.
    pub commands_by_name: BTreeMap<String, f64>,
    /// The contestant's notes.
    pub notes: String,
}

impl Measured {
    /// Combines what the contestant reports and what the server used.
    pub fn new(outcome: Outcome, server: &str, spent: Spent, parts: Option<&Parts>) -> Self {
        let a_second = 1e3 / outcome.elapsed_ms;
        let an_operation = 1.0 / outcome.operations.max(1) as f64;
        let all: f64 = spent.commands.values().sum();
        let scripted: Option<f64> = parts
            .map(|parts| spent.commands.iter().map(|(name, count)| count * parts.in_scripts(name)).sum());
        let counted = !spent.commands.is_empty();
        Self {
            version: outcome.version,
            server: server.to_owned(),
            operations: outcome.operations,
            a_second: outcome.operations as f64 * a_second,
            handoffs_a_second: outcome.handoffs.map(|handoffs| handoffs as f64 * a_second),
            counter: outcome.counter,
            lost: outcome.grants.iter().sum::<u64>().cast_signed() - outcome.counter.cast_signed(),
            gave_up: outcome.gave_up,
            fewest: outcome.grants.iter().copied().min().unwrap_or(0),
            most: outcome.grants.iter().copied().max().unwrap_or(0),
            acquire_us: outcome.acquire_us,
            writers_us: outcome.writers_us,
            writes_a_second: outcome.grants.iter().step_by(WRITERS).sum::<u64>() as f64 * a_second,
            server_cpu_us: spent.cpu.as_secs_f64() * 1e6 * an_operation,
            commands: counted.then(|| (all - scripted.unwrap_or(0.0)) * an_operation),
            commands_in_scripts: scripted.filter(|_| counted).map(|scripted| scripted * an_operation),
            others: spent.others,
            commands_by_name: spent.commands,
            notes: outcome.notes,
        }
    }

    /// The most acquisitions by one client, divided by the fewest.
    fn unfairness(&self) -> String {
        if self.fewest == 0 {
            "∞".to_owned()
        } else {
            format!("{:.1}", self.most as f64 / self.fewest as f64)
        }
    }

    /// How long writers waited, if a writer has acquired the lock.
    fn writers_wait(&self, part: fn(Quantiles) -> f64) -> Option<f64> {
        self.writers_us.map(part).filter(|us| *us > 0.0)
    }

    fn counted_right(&self) -> String {
        let counted =
            if self.lost == 0 { "right".to_owned() } else { format!("**WRONG: {} lost**", self.lost) };
        if self.gave_up == 0 {
            counted
        } else {
            format!("{counted}; gave up {} times", whole(self.gave_up as f64))
        }
    }

    /// The text after the name of a lock that did not count right, or gave up.
    fn miscount(&self) -> String {
        let counted = self.counted_right();
        if counted == "right" { String::new() } else { format!(": counted {counted}") }
    }

    fn sent(&self) -> String {
        match (self.commands, self.commands_in_scripts) {
            (None, _) => "-".to_owned(),
            (Some(sent), Some(scripted)) if scripted >= 0.05 => format!("{sent:.1} + {scripted:.1}"),
            (Some(sent), _) => format!("{sent:.1}"),
        }
    }
}

impl Entry {
    /// The result of a job of `peer`.
    pub fn new(peer: &Peer, job: Job, clients: usize, result: Result<Measured, String>) -> Self {
        Self {
            peer: peer.name.to_owned(),
            title: peer.title.to_owned(),
            language: peer.program.language().to_owned(),
            ours: peer.ours.to_owned(),
            job,
            clients,
            result,
        }
    }

    fn language(&self) -> &str {
        if self.language.is_empty() { "-" } else { &self.language }
    }

    fn is_ours(&self) -> bool {
        self.peer == self.ours
    }

    /// The measurements, if a client has acquired the lock.
    fn used(&self) -> Option<&Measured> {
        self.result.as_ref().ok().filter(|measured| measured.operations > 0)
    }
}

/// A line about the result of a job.
impl Display for Entry {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Err(reason) => write!(to, "did not run: {reason}"),
            Ok(measured) => {
                write!(to, "{} a second, ", whole(measured.a_second))?;
                write!(to, "server CPU {:.1} µs, commands {}", measured.server_cpu_us, measured.sent())?;
                if let Some(writers) = measured.writers_us {
                    write!(to, ", {} writes a second", whole(measured.writes_a_second))?;
                    write!(to, ", writers wait {} to {}", time(writers.p50), time(writers.max))?;
                }
                if self.job != Job::Uncontended {
                    write!(to, ", grants {} to {}", measured.fewest, measured.most)?;
                    write!(to, ", counted {}", measured.counted_right())?;
                }
                write!(to, "; others had {:.0} % of the CPUs", 100.0 * measured.others)
            }
        }
    }
}

impl Report {
    /// An empty report, with this day and this machine.
    pub fn new(seconds: u64, first: bool) -> Self {
        let Machine { processor, cpus, kernel, .. } = machine();
        let priority = if first { "higher priority than other programs" } else { "normal priority" };
        let circumstances = format!(
            "{}, {cpus} CPUs ({processor}) for server and clients together, {priority}, {kernel}; {seconds} s a job",
            today()
        );
        Self { circumstances, seconds, results: Vec::new() }
    }

    /// Tables in Markdown. Jobs in `left_out` are still shown if a lock did not run, counted wrong or gave up.
    pub fn tables(&self, left_out: &[(Job, usize)]) -> String {
        let mut text = String::new();
        let mut others: Vec<f64> = self.measured().map(|(_, measured)| 100.0 * measured.others).collect();
        others.sort_by(f64::total_cmp);
        let (median, most) = (others.get(others.len() / 2), others.last());
        let _ = writeln!(
            text,
            "{}. Other programs used {:.0} % of the CPU time (median of the jobs; at most {:.0} %).\n",
            self.circumstances,
            median.unwrap_or(&0.0),
            most.unwrap_or(&0.0),
        );
        if median.is_some_and(|median| *median > BUSY) {
            let _ = writeln!(text, "{WARNING}\n");
        }
        self.peers(&mut text);
        for (job, clients) in self.kinds() {
            if left_out.contains(&(job, clients)) && self.all_right(job, clients) {
                continue;
            }
            text.push('\n');
            match job {
                Job::Uncontended => self.uncontended(&mut text, clients),
                Job::Contended => self.contended(&mut text, clients),
                Job::Readers => self.readers(&mut text, clients),
                Job::Permits | Job::Weights => self.permits(&mut text, job, clients),
            }
        }
        self.ahead(&mut text);
        text
    }

    /// Names the peers that are better than their Lockward, and the figure.
    fn ahead(&self, text: &mut String) {
        type Value = fn(&Measured) -> Option<f64>;
        type Show = fn(f64) -> String;
        let less: [(&str, Value, Show); 6] = [
            ("median wait", |measured| Some(measured.acquire_us.p50), time),
            ("99th percentile of waits", |measured| Some(measured.acquire_us.p99), time),
            ("writers' median wait", |measured| measured.writers_wait(|us| us.p50), time),
            ("writers' 99th percentile", |measured| measured.writers_wait(|us| us.p99), time),
            ("server CPU", |measured| Some(measured.server_cpu_us), time),
            ("acquisitions a second", |measured| Some(-measured.a_second), |number| whole(-number)),
        ];
        let mut lines = String::new();
        for (job, clients) in self.kinds() {
            for (name, value, show) in less {
                let better: Vec<String> = self
                    .of(job, clients)
                    .filter_map(|entry| {
                        let ours = self.of(job, clients).find(|other| other.peer == entry.ours)?;
                        let (numbers, beside) = (value(entry.used()?)?, value(ours.used()?)?);
                        let (title, ours) = (&entry.title, &ours.title);
                        let (shown, beside_shown) = (show(numbers), show(beside));
                        (numbers < beside).then(|| format!("{title} {shown} ({ours} {beside_shown})"))
                    })
                    .collect();
                if !better.is_empty() {
                    let _ = writeln!(lines, "- {job}, {clients}, {name}: {}.", better.join(", "));
                }
            }
        }
        if !lines.is_empty() {
            let _ = write!(
                text,
                "\nBetter than Lockward in the same language, or on the same server, by job and number of clients:\n\n{lines}"
            );
        }
    }

    /// A plot of a contended job: the grants to another client, if Lockward did it.
    pub fn plot(&self) -> Option<String> {
        let handoffs = |entry: &Entry| {
            let number = entry.result.as_ref().ok()?.handoffs_a_second?;
            Some(Bar { name: entry.title.clone(), number, text: whole(number), is_ours: entry.is_ours() })
        };
        let bars: Vec<_> = self.of(Job::Contended, PLOTTED).filter_map(handoffs).collect();
        let title = format!("Grants to another client a second, when {PLOTTED} clients want one lock");
        let hint =
            "More is better. A grant to the client that had the lock before does not count.".to_owned();
        bars.iter().any(|bar| bar.is_ours).then(|| Bars { title, hint, bars }.draw(&self.circumstances))
    }

    /// Writes the tables between their marks of `peers.md` in a directory, and the plot into `peers/`. A part without results stays as it is.
    pub fn write_docs(&self, docs: &Path) -> io::Result<()> {
        let page = docs.join("peers.md");
        let mut text = fs::read_to_string(&page)?;
        for ([begin, end], shared) in MARKS.into_iter().zip([false, true]) {
            let results = self.results.iter().filter(|entry| entry.job.is_shared() == shared).cloned();
            let part = Self { results: results.collect(), ..self.clone() };
            if part.results.is_empty() {
                continue;
            }
            let mut tables = part.tables(NOT_ON_THE_PAGE);
            if let Some(plot) = part.plot() {
                let folder = docs.join("peers");
                fs::create_dir_all(&folder)?;
                fs::write(folder.join("handoffs.svg"), plot)?;
                tables =
                    format!("![Grants to another client a second, by lock](peers/handoffs.svg)\n\n{tables}");
            }
            let marks =
                text.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
            let (before, after) = marks.ok_or_else(|| io::Error::other("no marks where the tables go"))?;
            text = format!("{before}{begin}\n{tables}{end}{after}");
        }
        fs::write(page, text)
    }

    fn measured(&self) -> impl Iterator<Item = (&Entry, &Measured)> {
        self.results.iter().filter_map(|entry| Some((entry, entry.result.as_ref().ok()?)))
    }

    fn kinds(&self) -> Vec<(Job, usize)> {
        let mut kinds = Vec::new();
        for entry in &self.results {
            if !kinds.contains(&(entry.job, entry.clients)) {
                kinds.push((entry.job, entry.clients));
            }
        }
        kinds
    }

    fn of(&self, job: Job, clients: usize) -> impl Iterator<Item = &Entry> {
        self.results.iter().filter(move |entry| entry.job == job && entry.clients == clients)
    }

    fn all_right(&self, job: Job, clients: usize) -> bool {
        let is_right = |measured: &Measured| measured.operations > 0 && measured.miscount().is_empty();
        self.of(job, clients).all(|entry| entry.result.as_ref().is_ok_and(is_right))
    }

    fn peers(&self, text: &mut String) {
        line(text, ["lock", "client in", "version", "server", "as it was used"]);
        line(text, ["---"; 5]);
        let mut named = Vec::new();
        for entry in &self.results {
            if named.contains(&&entry.peer) {
                continue;
            }
            let of_peer = self.results.iter().filter(|other| other.peer == entry.peer);
            let measured = of_peer.filter_map(|entry| entry.result.as_ref().ok()).next_back();
            match (measured, &entry.result) {
                (Some(measured), _) => {
                    let Measured { version, server, notes, .. } = measured;
                    line(text, [&entry.title, entry.language(), version, server, notes]);
                }
                (None, Err(reason)) => {
                    let reason = format!("did not run: {reason}");
                    line(text, [&entry.title, entry.language(), "", "", &reason]);
                }
                (None, Ok(_)) => continue,
            }
            named.push(&entry.peer);
        }
    }

    fn uncontended(&self, text: &mut String, clients: usize) {
        let _ = writeln!(text, "Uncontended, {clients} client{}:\n", if clients == 1 { "" } else { "s" });
        line(
            text,
            [
                "lock",
                "client in",
                "pairs a second",
                "acquire p50",
                "p99",
                "server CPU a pair",
                "commands a pair",
            ],
        );
        line(text, ["---", "---", "---:", "---:", "---:", "---:", "---:"]);
        for entry in self.of(Job::Uncontended, clients) {
            match &entry.result {
                Err(reason) => {
                    let reason = format!("did not run: {reason}");
                    line(text, [&entry.title, entry.language(), "-", "-", "-", "-", &reason]);
                }
                Ok(measured) => line(
                    text,
                    [
                        &entry.title,
                        entry.language(),
                        &whole(measured.a_second),
                        &time(measured.acquire_us.p50),
                        &time(measured.acquire_us.p99),
                        &time(measured.server_cpu_us),
                        &measured.sent(),
                    ],
                ),
            }
        }
    }

    fn contended(&self, text: &mut String, clients: usize) {
        let _ = writeln!(text, "Contended, {clients} clients:\n");
        line(
            text,
            [
                "lock",
                "client in",
                "grants a second",
                "to another client",
                "wait p50",
                "p99",
                "longest",
                "most / fewest grants",
                "server CPU a grant",
                "commands a grant",
            ],
        );
        line(text, ["---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:"]);
        for entry in self.of(Job::Contended, clients) {
            match &entry.result {
                Err(reason) => {
                    let reason = format!("did not run: {reason}");
                    line(text, [&entry.title, entry.language(), "-", "-", "-", "-", "-", "-", "-", &reason]);
                }
                Ok(measured) if measured.operations == 0 => {
                    line(text, [&entry.title, entry.language(), "0", "0", "-", "-", "-", "-", "-", "-"]);
                }
                Ok(measured) => line(
                    text,
                    [
                        &format!("{}{}", entry.title, measured.miscount()),
                        entry.language(),
                        &whole(measured.a_second),
                        &measured.handoffs_a_second.map_or("-".to_owned(), whole),
                        &time(measured.acquire_us.p50),
                        &time(measured.acquire_us.p99),
                        &time(measured.acquire_us.max),
                        &measured.unfairness(),
                        &time(measured.server_cpu_us),
                        &measured.sent(),
                    ],
                ),
            }
        }
    }

    fn readers(&self, text: &mut String, clients: usize) {
        let writers = clients.div_ceil(WRITERS);
        let _ = writeln!(
            text,
            "Readers: {} clients read and {writers} write, each for 1 ms:\n",
            clients - writers
        );
        line(
            text,
            [
                "lock",
                "client in",
                "reads a second",
                "writes a second",
                "readers wait p50",
                "p99",
                "longest",
                "writers wait p50",
                "p99",
                "longest",
                "most / fewest grants",
                "server CPU a grant",
                "commands a grant",
            ],
        );
        line(
            text,
            [
                "---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:",
                "---:",
            ],
        );
        for entry in self.of(Job::Readers, clients) {
            match &entry.result {
                Err(reason) => {
                    let reason = format!("did not run: {reason}");
                    line(
                        text,
                        [
                            &entry.title,
                            entry.language(),
                            "-",
                            "-",
                            "-",
                            "-",
                            "-",
                            "-",
                            "-",
                            "-",
                            "-",
                            "-",
                            &reason,
                        ],
                    );
                }
                Ok(measured) => {
                    let readers = measured.acquire_us.shown();
                    let writers = measured.writers_us.unwrap_or_default().shown();
                    line(
                        text,
                        [
                            &format!("{}{}", entry.title, measured.miscount()),
                            entry.language(),
                            &whole(measured.a_second - measured.writes_a_second),
                            &whole(measured.writes_a_second),
                            &readers[0],
                            &readers[1],
                            &readers[2],
                            &writers[0],
                            &writers[1],
                            &writers[2],
                            &measured.unfairness(),
                            &time(measured.server_cpu_us),
                            &measured.sent(),
                        ],
                    );
                }
            }
        }
    }

    fn permits(&self, text: &mut String, job: Job, clients: usize) {
        let each = if job == Job::Weights { "1, 2 or 3" } else { "1" };
        let _ = writeln!(text, "{PERMITS} permits, {clients} clients that take {each} for 1 ms:\n");
        line(
            text,
            [
                "lock",
                "client in",
                "grants a second",
                "wait p50",
                "p99",
                "longest",
                "most / fewest grants",
                "server CPU a grant",
                "commands a grant",
            ],
        );
        line(text, ["---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:"]);
        for entry in self.of(job, clients) {
            match &entry.result {
                Err(reason) => {
                    let reason = format!("did not run: {reason}");
                    line(text, [&entry.title, entry.language(), "-", "-", "-", "-", "-", "-", &reason]);
                }
                Ok(measured) => {
                    let [median, late, longest] = measured.acquire_us.shown();
                    line(
                        text,
                        [
                            &format!("{}{}", entry.title, measured.miscount()),
                            entry.language(),
                            &whole(measured.a_second),
                            &median,
                            &late,
                            &longest,
                            &measured.unfairness(),
                            &time(measured.server_cpu_us),
                            &measured.sent(),
                        ],
                    );
                }
            }
        }
    }
}

fn line<const N: usize>(text: &mut String, cells: [&str; N]) {
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

impl Quantiles {
    /// The three quantiles in words; a dash if no client has acquired the lock.
    fn shown(&self) -> [String; 3] {
        [self.p50, self.p99, self.max].map(|us| if us > 0.0 { time(us) } else { "-".to_owned() })
    }
}

/// Microseconds in a suitable unit, with two or three significant digits.
fn time(us: f64) -> String {
    let (number, unit) = match us {
        ..1e3 => (us, "µs"),
        ..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}
