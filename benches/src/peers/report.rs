//! The results as JSON and as tables.

use crate::machine::{machine, today};
use crate::markdown::{Page, table};
use crate::peers::contest::{Answer, Job, PERMITS};
use crate::peers::meter::Spent;
use crate::peers::monitor::Parts;
use crate::peers::roster::Peer;
use crate::plot::{Bar, Bars};
use crate::results::{Machine, whole};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Write};
use std::path::Path;
use std::{fs, io};

/// The parts of the page, and whether their jobs have several holders.
const PARTS: [(&str, bool); 2] = [("measured", false), ("shared", true)];

/// If other processes use more than this share of the CPUs, in per cent, they disturb the measurement.
const BUSY: f64 = 20.0;
/// The number of clients of the job that is plotted.
const PLOTTED: usize = 50;
/// The page leaves out the table of such a job, unless a library failed to run in it, its counter missed acquisitions,
/// or it gave up waiting. The list of better locks on the page still includes these jobs.
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
    /// The results of the jobs, in the order in which they ran.
    pub results: Vec<Entry>,
}

/// The result of one job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The name of the peer.
    pub peer: String,
    /// The name in the tables.
    pub title: String,
    /// The language of the library. Empty for plain commands.
    pub language: String,
    /// The name of the peer of Lockward with which this peer is compared. A peer of Lockward has its own name here.
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
    /// Acquisitions a second.
    pub a_second: f64,
    /// Grants a second to another client than the grant before, if the contestant reports them.
    pub handoffs_a_second: Option<f64>,
    /// Acquisitions that are missing in the counter of the contestant: the lock had two holders at once, or more than
    /// its limit.
    pub lost: i64,
    /// How often the library gave up waiting.
    pub gave_up: u64,
    /// The smallest number of acquisitions by one client.
    pub fewest: u64,
    /// The largest number of acquisitions by one client.
    pub most: u64,
    /// How long acquisitions took.
    pub acquire_us: Quantiles,
    /// How long acquisitions of writers took, in [`Job::Readers`].
    #[serde(default)]
    pub writers_us: Option<Quantiles>,
    /// Acquisitions of writers a second.
    #[serde(default)]
    pub writes_a_second: f64,
    /// The server's CPU time for an acquisition and its release, in microseconds.
    pub server_cpu_us: f64,
    /// Commands that clients sent for an acquisition and its release, if the server counts them.
    pub commands: Option<f64>,
    /// Commands that scripts sent for an acquisition and its release.
    pub commands_in_scripts: Option<f64>,
    /// The part of the machine's CPU time that other programs used, from 0 to 1.
    pub others: f64,
    /// The contestant's notes.
    pub notes: String,
}

/// Quantiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Quantiles {
    fn of<'a>(times: impl Iterator<Item = &'a u32>) -> Self {
        let mut times: Vec<u32> = times.copied().collect();
        times.sort_unstable();
        let part = |hundredths: usize| {
            times.get(times.len().saturating_sub(1) * hundredths / 100).copied().map_or(0.0, f64::from)
        };
        Self { p50: part(50), p99: part(99), max: part(100) }
    }
}

impl Measured {
    /// Combines the contestant's answer and the measurements of the server.
    pub fn new(
        job: Job,
        seconds: u64,
        answer: Answer,
        server: &str,
        spent: Spent,
        parts: Option<&Parts>,
    ) -> Self {
        let grants = || answer.waits_us.iter().map(|waits| waits.len() as u64);
        let (writers, others): (Vec<_>, Vec<_>) =
            answer.waits_us.iter().enumerate().partition(|(client, _)| job.is_writer(*client));
        let quantiles = |of: &[(usize, &Vec<u32>)]| Quantiles::of(of.iter().flat_map(|(_, waits)| *waits));
        let writes: usize = writers.iter().map(|(_, waits)| waits.len()).sum();
        let operations: u64 = grants().sum();
        let an_operation = 1.0 / operations.max(1) as f64;
        let all: f64 = spent.commands.values().sum();
        let scripted: Option<f64> = parts
            .map(|parts| spent.commands.iter().map(|(name, count)| count * parts.in_scripts(name)).sum());
        let counted = !spent.commands.is_empty();
        let counter = answer.counter.unwrap_or(operations);
        Self {
            server: server.to_owned(),
            operations,
            a_second: operations as f64 / seconds as f64,
            handoffs_a_second: answer.handoffs.map(|handoffs| handoffs as f64 / seconds as f64),
            lost: operations.cast_signed() - counter.cast_signed(),
            gave_up: answer.gave_up,
            fewest: grants().min().unwrap_or(0),
            most: grants().max().unwrap_or(0),
            acquire_us: quantiles(&others),
            writers_us: (!writers.is_empty()).then(|| quantiles(&writers)),
            writes_a_second: writes as f64 / seconds as f64,
            server_cpu_us: spent.cpu.as_secs_f64() * 1e6 * an_operation,
            commands: counted.then(|| (all - scripted.unwrap_or(0.0)) * an_operation),
            commands_in_scripts: scripted.filter(|_| counted).map(|scripted| scripted * an_operation),
            others: spent.others,
            version: answer.version,
            notes: answer.notes,
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

    /// The text after the name of a lock that lost acquisitions or gave up. Empty for other locks.
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

/// The line about the result of a job that the program prints.
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
    /// An empty report of this day and machine.
    pub fn new(seconds: u64, first: bool) -> Self {
        let Machine { processor, cpus, kernel, .. } = machine();
        let priority = if first { "higher priority than other programs" } else { "normal priority" };
        let circumstances = format!(
            "{}, {cpus} CPUs ({processor}) for server and clients together, {priority}, {kernel}; {seconds} s a job",
            today()
        );
        Self { circumstances, seconds, results: Vec::new() }
    }

    /// Tables in Markdown. A job in `left_out` is still shown if a library failed to run in it, its
    /// counter missed acquisitions, or it gave up waiting.
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
        text += &self.peers();
        for (job, clients) in self.kinds() {
            if !(left_out.contains(&(job, clients)) && self.all_right(job, clients)) {
                text += &format!("\n{}\n{}", title(job, clients), self.table(job, clients));
            }
        }
        self.ahead(&mut text);
        text
    }

    /// Adds the list of peers that are better than Lockward in some figure.
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
                "\nThese locks are better than Lockward in the same language, or on the same server. Each line begins with the job, the number \
                 of clients and the figure. Lockward's value is in parentheses:\n\n{lines}"
            );
        }
    }

    /// A plot of the grants to another client in a contended job. `None` if Lockward did not run this job.
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

    /// Writes the tables into `peers.md` in a directory, and the plot into `peers/`. A part without results stays as it
    /// is.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn write_docs(&self, docs: &Path) -> io::Result<()> {
        let mut page = Page::read(docs, "peers.md")?;
        for (name, shared) in PARTS {
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
            page.put(name, &tables);
        }
        page.write()
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

    /// The table of the peers, with the versions and notes of the last job of each peer.
    fn peers(&self) -> String {
        let mut named: Vec<&Entry> = Vec::new();
        for entry in &self.results {
            match named.iter_mut().find(|known| known.peer == entry.peer) {
                Some(known) if entry.result.is_ok() => *known = entry,
                Some(_) => {}
                None => named.push(entry),
            }
        }
        let rows = named.into_iter().map(|entry| {
            let details = match &entry.result {
                Ok(Measured { version, server, notes, .. }) => [version, server, notes].map(String::clone),
                Err(reason) => [String::new(), String::new(), format!("did not run: {reason}")],
            };
            [entry.title.clone(), entry.language().to_owned()].into_iter().chain(details).collect()
        });
        table(&["lock", "client in", "version", "server", "as it was used"], 5, rows)
    }

    fn table(&self, job: Job, clients: usize) -> String {
        let columns = columns(job);
        let heads = ["lock", "client in"].into_iter().chain(columns.iter().map(|(head, _)| *head));
        let rows = self.of(job, clients).map(|entry| {
            let (mut title, cells) = (entry.title.clone(), columns.iter());
            let cells: Vec<String> = match &entry.result {
                Ok(measured) => {
                    title += &measured.miscount();
                    cells.map(|(_, cell)| cell(measured)).collect()
                }
                Err(reason) => {
                    let dashes = cells.skip(1).map(|_| "-".to_owned());
                    dashes.chain([format!("did not run: {reason}")]).collect()
                }
            };
            [title, entry.language().to_owned()].into_iter().chain(cells).collect()
        });
        table(&heads.collect::<Vec<_>>(), 2, rows)
    }
}

/// A column of a table: its head, and the text for a result.
type Column = (&'static str, fn(&Measured) -> String);

/// The columns of the table of a job. The columns for the lock and its language stand before them.
fn columns(job: Job) -> Vec<Column> {
    let a_grant: [Column; 3] = [
        ("most / fewest grants", Measured::unfairness),
        ("server CPU a grant", |measured| time(measured.server_cpu_us)),
        ("commands a grant", Measured::sent),
    ];
    let waits: [Column; 3] = [
        ("wait p50", |measured| wait(measured.acquire_us.p50)),
        ("p99", |measured| wait(measured.acquire_us.p99)),
        ("longest", |measured| wait(measured.acquire_us.max)),
    ];
    match job {
        Job::Uncontended => vec![
            ("pairs a second", |measured| whole(measured.a_second)),
            ("acquire p50", |measured| wait(measured.acquire_us.p50)),
            ("p99", |measured| wait(measured.acquire_us.p99)),
            ("server CPU a pair", |measured| time(measured.server_cpu_us)),
            ("commands a pair", Measured::sent),
        ],
        Job::Contended => {
            let grants: [Column; 2] = [
                ("grants a second", |measured| whole(measured.a_second)),
                ("to another client", |measured| measured.handoffs_a_second.map_or("-".to_owned(), whole)),
            ];
            [&grants[..], &waits, &a_grant].concat()
        }
        Job::Readers => {
            let grants: [Column; 2] = [
                ("reads a second", |measured| whole(measured.a_second - measured.writes_a_second)),
                ("writes a second", |measured| whole(measured.writes_a_second)),
            ];
            let readers: [Column; 3] = [("readers wait p50", waits[0].1), waits[1], waits[2]];
            let writers: [Column; 3] = [
                ("writers wait p50", |measured| wait(measured.writers_us.unwrap_or_default().p50)),
                ("p99", |measured| wait(measured.writers_us.unwrap_or_default().p99)),
                ("longest", |measured| wait(measured.writers_us.unwrap_or_default().max)),
            ];
            [&grants[..], &readers, &writers, &a_grant].concat()
        }
        Job::Permits | Job::Weights => {
            let grants: [Column; 1] = [("grants a second", |measured| whole(measured.a_second))];
            [&grants[..], &waits, &a_grant].concat()
        }
    }
}

/// The line above the table of a job.
fn title(job: Job, clients: usize) -> String {
    let writers = (0..clients).filter(|client| job.is_writer(*client)).count();
    let plural = if clients == 1 { "" } else { "s" };
    let text = match job {
        Job::Uncontended => format!("Uncontended, {clients} client{plural}"),
        Job::Contended => format!("Contended, {clients} clients"),
        Job::Readers => {
            format!("Readers: {} clients read and {writers} write, each for 1 ms", clients - writers)
        }
        Job::Permits => format!("{PERMITS} permits, {clients} clients that take 1 for 1 ms"),
        Job::Weights => format!("{PERMITS} permits, {clients} clients that take 1, 2 or 3 for 1 ms"),
    };
    text + ":\n"
}

/// A time that a client waited. A dash if no client has acquired the lock.
fn wait(us: f64) -> String {
    if us > 0.0 { time(us) } else { "-".to_owned() }
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
