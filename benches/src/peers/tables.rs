//! The results of the jobs as tables in Markdown, as a plot, and as lines of text.

use crate::markdown::{Page, table};
use crate::peers::job::Job;
use crate::peers::list::{PEERS, Peer};
use crate::peers::report::{Entry, Measured, Report};
use crate::plot::{Bar, Bars};
use crate::results::whole;
use std::fmt::{self, Display, Write};
use std::path::Path;
use std::{fs, io};

/// The parts of the page, and whether their jobs have several holders.
const PARTS: [(&str, bool); 2] = [("measured", false), ("shared", true)];

/// The share of the CPUs, in per cent, above which other processes disturb the measurement.
const BUSY: f64 = 20.0;
/// The number of clients of the job that is plotted.
const PLOTTED: usize = 50;

const WARNING: &str = "**Other programs used the machine. They make times longer and rates lower, for some locks more than for others. \
    Server CPU and commands depend less on them.**";

impl Measured {
    /// The most acquisitions by one client, divided by the fewest.
    fn unfairness(&self) -> String {
        if self.fewest == 0 {
            "∞".to_owned()
        } else {
            format!("{:.1}", self.most as f64 / self.fewest as f64)
        }
    }

    fn grants(&self) -> String {
        whole(self.a_second)
    }

    fn handoffs(&self) -> String {
        self.handoffs_a_second.map_or("-".to_owned(), whole)
    }

    fn median(&self) -> String {
        wait(self.acquire_us.p50)
    }

    fn longest(&self) -> String {
        wait(self.acquire_us.max)
    }

    fn server_cpu(&self) -> String {
        time(self.server_cpu_us)
    }

    /// How the lock failed; empty if it lost no acquisition and never gave up.
    fn failure(&self) -> String {
        let lost = format!("**the lock lost {} acquisitions**", self.lost);
        let gave_up = format!("the library gave up waiting {} times", whole(self.gave_up as f64));
        let failed = [(self.lost != 0, lost), (self.gave_up > 0, gave_up)].into_iter();
        failed.filter_map(|(has, text)| has.then_some(text)).collect::<Vec<_>>().join("; ")
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
    fn peer(&self) -> &'static Peer {
        PEERS.iter().find(|peer| peer.name == self.peer).expect("a peer of the list")
    }

    /// A line for the list of failures. `None` if the lock ran, lost no acquisition and never gave up.
    fn failure(&self) -> Option<String> {
        let what = match &self.result {
            Err(reason) => format!("the program failed with `{reason}`"),
            Ok(measured) => measured.failure(),
        };
        if what.is_empty() {
            return None;
        }
        let title = self.peer().title;
        Some(format!("- {title} in the job \"{}\" with {} clients: {what}.\n", self.job, self.clients))
    }
}

/// The line that the program prints about a job.
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
                }
                write!(to, "; others had {:.0} % of the CPUs", 100.0 * measured.others)?;
                let failure = measured.failure();
                if failure.is_empty() { Ok(()) } else { write!(to, "; {failure}") }
            }
        }
    }
}

impl Report {
    /// Tables in Markdown, and a list of the jobs in which a lock failed or gave up. The list includes jobs that are in
    /// no table.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        let mut others: Vec<f64> = self
            .results
            .iter()
            .filter_map(|entry| Some(100.0 * entry.result.as_ref().ok()?.others))
            .collect();
        others.sort_by(f64::total_cmp);
        let (median, most) = (others.get(others.len() / 2), others.last());
        let _ = writeln!(
            text,
            "Conditions of this run: {}. Other programs used {:.0} % of the CPU time in the median job, and at most {:.0} %.",
            self.circumstances,
            median.unwrap_or(&0.0),
            most.unwrap_or(&0.0),
        );
        if median.is_some_and(|median| *median > BUSY) {
            let _ = writeln!(text, "\n{WARNING}");
        }
        for (title, columns) in TABLES {
            let measured =
                columns.iter().filter(|(_, job, clients, _)| self.of(*job, *clients).next().is_some());
            let measured: Vec<&Column> = measured.collect();
            if !measured.is_empty() {
                let _ = write!(text, "\n{title}:\n\n{}", self.table(&measured));
            }
        }
        let failed: String = self.results.iter().filter_map(Entry::failure).collect();
        if !failed.is_empty() {
            let _ = write!(text, "\nThese locks failed, or gave up a wait:\n\n{failed}");
        }
        text
    }

    /// A plot of the hand-offs in a contended job: grants to a different client than the previous grant. `None` if
    /// Lockward did not run this job.
    pub fn plot(&self) -> Option<String> {
        let handoffs = |entry: &Entry| {
            let number = entry.result.as_ref().ok()?.handoffs_a_second?;
            let Peer { title, .. } = entry.peer();
            let is_ours = entry.peer().is_ours();
            Some(Bar { name: (*title).to_owned(), number, text: whole(number), is_ours })
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
            let mut tables = part.tables();
            if let Some(plot) = part.plot() {
                let folder = docs.join("peers");
                fs::create_dir_all(&folder)?;
                fs::write(folder.join("handoffs.svg"), plot)?;
                tables =
                    format!("![Grants to another client a second, by lock](peers/handoffs.svg)\n\n{tables}");
            }
            page.put(name, &tables);
        }
        page.put("settings", &self.settings());
        page.write()
    }

    fn of(&self, job: Job, clients: usize) -> impl Iterator<Item = &Entry> {
        self.results.iter().filter(move |entry| entry.job == job && entry.clients == clients)
    }

    /// The table of the peers, with the versions and notes of the last job that each peer completed.
    pub fn settings(&self) -> String {
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
            let Peer { title, program, .. } = entry.peer();
            [*title, program.language()].map(str::to_owned).into_iter().chain(details).collect()
        });
        table(&["lock", "client in", "version", "server", "settings"], 5, rows)
    }

    /// A table with a row for each lock.
    fn table(&self, columns: &[&Column]) -> String {
        let mut peers: Vec<&Peer> = Vec::new();
        for entry in columns.iter().flat_map(|(_, job, clients, _)| self.of(*job, *clients)) {
            if !peers.iter().any(|known| known.name == entry.peer) {
                peers.push(entry.peer());
            }
        }
        let heads: Vec<&str> = ["lock"].into_iter().chain(columns.iter().map(|(head, ..)| *head)).collect();
        let rows = peers.into_iter().map(|peer| {
            let cells = columns.iter().map(|(_, job, clients, cell)| {
                let entry = self.of(*job, *clients).find(|entry| entry.peer == peer.name);
                match entry.map(|entry| &entry.result) {
                    None => String::new(),
                    Some(Ok(measured)) => cell(measured),
                    Some(Err(_)) => "failed".to_owned(),
                }
            });
            [peer.title.to_owned()].into_iter().chain(cells).collect()
        });
        table(&heads, 1, rows)
    }
}

/// A column of a table: its head, the job and the number of clients, and the text for a result.
type Column = (&'static str, Job, usize, fn(&Measured) -> String);

/// The titles and columns of the tables.
const TABLES: [(&str, &[Column]); 4] = [
    (
        "Uncontended",
        &[
            ("median time to acquire, 1 client", Job::Uncontended, 1, Measured::median),
            ("pairs a second, 50 clients", Job::Uncontended, 50, Measured::grants),
            ("server CPU for a pair, 50 clients", Job::Uncontended, 50, Measured::server_cpu),
            ("commands for a pair", Job::Uncontended, 50, Measured::sent),
        ],
    ),
    (
        "Contended, 50 clients",
        &[
            ("grants a second", Job::Contended, 50, Measured::grants),
            ("grants a second to another client", Job::Contended, 50, Measured::handoffs),
            ("median wait", Job::Contended, 50, Measured::median),
            ("longest wait", Job::Contended, 50, Measured::longest),
            ("most / fewest grants", Job::Contended, 50, Measured::unfairness),
            ("server CPU for a grant", Job::Contended, 50, Measured::server_cpu),
            ("commands for a grant", Job::Contended, 50, Measured::sent),
            ("500 clients: grants a second to another client", Job::Contended, 500, Measured::handoffs),
            ("500 clients: longest wait", Job::Contended, 500, Measured::longest),
        ],
    ),
    (
        "Readers and writers, 50 clients",
        &[
            ("reads a second", Job::Readers, 50, |measured| {
                whole(measured.a_second - measured.writes_a_second)
            }),
            ("writes a second", Job::Readers, 50, |measured| whole(measured.writes_a_second)),
            ("median wait of readers", Job::Readers, 50, Measured::median),
            ("longest wait of readers", Job::Readers, 50, Measured::longest),
            ("longest wait of writers", Job::Readers, 50, |measured| {
                wait(measured.writers_us.unwrap_or_default().max)
            }),
            ("server CPU for a grant", Job::Readers, 50, Measured::server_cpu),
        ],
    ),
    (
        "Permits and weights, 50 clients",
        &[
            ("grants a second", Job::Permits, 50, Measured::grants),
            ("median wait", Job::Permits, 50, Measured::median),
            ("longest wait", Job::Permits, 50, Measured::longest),
            ("server CPU for a grant", Job::Permits, 50, Measured::server_cpu),
            ("weights: grants a second", Job::Weights, 50, Measured::grants),
            ("weights: median wait", Job::Weights, 50, Measured::median),
            ("weights: longest wait", Job::Weights, 50, Measured::longest),
            ("weights: most / fewest grants", Job::Weights, 50, Measured::unfairness),
        ],
    ),
];

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
