//! The results of the jobs: as tables in Markdown, and as a plot.

use crate::machine::circumstances;
use crate::peers::job::{Answer, Job, Tenure};
use crate::peers::list::Peer;
use crate::peers::meter::Spent;
use crate::placement::cpus;
use crate::plot::draw_bars;
use crate::results::whole;
use crate::table::table;
use std::iter;

const PLOTTED: usize = 50;
/// How long before the counted time the first client must begin, in microseconds.
const WARM: i64 = 1_000_000;

#[derive(Debug, Default)]
pub struct Report {
    pub entries: Vec<Entry>,
}

#[derive(Debug)]
pub struct Entry {
    pub peer: &'static Peer,
    pub job: Job,
    pub clients: usize,
    /// The measurements, or the reason why there are none.
    pub result: Result<Measured, String>,
}

#[derive(Debug)]
pub struct Measured {
    pub version: String,
    pub server: String,
    pub notes: String,
    pub a_second: f64,
    /// Grants a second that went to a different client than the previous grant.
    pub handoffs_a_second: f64,
    /// Grants with which more clients held the lock than its limit allows.
    pub excessive: usize,
    pub gave_up: u64,
    /// The smallest number of acquisitions by one client, and the largest.
    pub fewest: usize,
    pub most: usize,
    /// How long acquisitions took. In [`Job::Readers`], the acquisitions of readers.
    pub waits: Waits,
    /// How long acquisitions of writers took, in [`Job::Readers`].
    pub writers: Waits,
    pub writes_a_second: f64,
    /// The server's CPU time for an acquisition and its release, in microseconds.
    pub server_cpu_us: f64,
    /// The commands that the server ran for an acquisition and its release, also for scripts. 0 if the server does not
    /// count commands.
    pub commands: f64,
    /// The part of the machine's CPU time that other programs used, from 0 to 1.
    pub others: f64,
}

/// Waiting times, in microseconds. 0 if no client has acquired the lock.
#[derive(Debug)]
pub struct Waits {
    pub median: f64,
    pub longest: f64,
}

impl Waits {
    fn of(times: impl Iterator<Item = i64>) -> Self {
        let mut times: Vec<i64> = times.collect();
        times.sort_unstable();
        let at = |place: usize| times.get(place).map_or(0.0, |time| *time as f64);
        Self { median: at(times.len().saturating_sub(1) / 2), longest: at(times.len().saturating_sub(1)) }
    }
}

impl Measured {
    /// Combines the peer program's answer and the measurements of the server.
    pub fn new(job: Job, seconds: u64, answer: Answer, server: &str, spent: Spent) -> Result<Self, String> {
        let all = answer.tenures();
        if all.first().is_some_and(|tenure| tenure.asked > -WARM) {
            return Err("the clients had no time to warm up".to_owned());
        }
        let end = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let counted: Vec<&Tenure> = all.iter().filter(|tenure| (0..end).contains(&tenure.granted)).collect();
        let mut grants = vec![0; answer.tenures_us.len()];
        counted.iter().for_each(|tenure| grants[tenure.client] += 1);
        let handoffs = counted.windows(2).filter(|pair| pair[0].client != pair[1].client).count();
        let (writes, others): (Vec<&Tenure>, Vec<&Tenure>) =
            counted.iter().partition(|tenure| job.is_writer(tenure.client));
        let waits = |of: &[&Tenure]| Waits::of(of.iter().map(|tenure| tenure.granted - tenure.asked));
        let a_second = |count: usize| count as f64 / seconds as f64;
        let each = 1.0 / counted.len().max(1) as f64;
        Ok(Self {
            version: answer.version,
            server: server.to_owned(),
            notes: answer.notes,
            a_second: a_second(counted.len()),
            handoffs_a_second: a_second(handoffs),
            excessive: if job == Job::Uncontended { 0 } else { excessive(job, &all) },
            gave_up: answer.gave_up,
            fewest: grants.iter().copied().min().unwrap_or(0),
            most: grants.iter().copied().max().unwrap_or(0),
            waits: waits(&others),
            writers: waits(&writes),
            writes_a_second: a_second(writes.len()),
            server_cpu_us: spent.cpu * 1e6 * each,
            commands: spent.commands * each,
            others: (spent.others / seconds as f64 / cpus() as f64).clamp(0.0, 1.0),
        })
    }

    /// The most acquisitions by one client, divided by the fewest.
    fn unfairness(&self) -> String {
        if self.fewest == 0 {
            return "∞".to_owned();
        }
        format!("{:.1}", self.most as f64 / self.fewest as f64)
    }

    fn commands(&self) -> String {
        if self.commands == 0.0 { "-".to_owned() } else { format!("{:.1}", self.commands) }
    }

    /// How the lock failed; empty if it never had too many holders and never gave up.
    fn failure(&self) -> String {
        if self.excessive > 0 {
            format!("**the lock had too many holders after {} grants**", self.excessive)
        } else if self.gave_up > 0 {
            format!("the library gave up waiting {} times", whole(self.gave_up as f64))
        } else {
            String::new()
        }
    }
}

/// The number of grants after which the sum of the holders' weights is above the limit. A client holds the lock from
/// the grant until it begins to release. `tenures` are ordered by their grants.
fn excessive(job: Job, tenures: &[Tenure]) -> usize {
    let mut ends: Vec<&Tenure> = tenures.iter().collect();
    ends.sort_by_key(|tenure| tenure.released);
    let mut ends = ends.into_iter().peekable();
    let (mut held, mut count) = (0, 0);
    for tenure in tenures {
        while let Some(ended) = ends.next_if(|end| end.released <= tenure.granted) {
            held -= i128::from(job.weight(ended.client));
        }
        held += i128::from(job.weight(tenure.client));
        count += usize::from(held > i128::from(job.limit()));
    }
    count
}

impl Report {
    /// The tables of docs/peers.md, and a list of the jobs in which a lock failed or gave up.
    pub fn tables(&self, seconds: u64) -> String {
        let measured = self.entries.iter().filter_map(|entry| entry.result.as_ref().ok());
        let others = 100.0 * measured.map(|measured| measured.others).fold(0.0, f64::max);
        let mut text = format!(
            "Conditions of this run: {}; {seconds} s for each job.\n\
             While a job ran, other programs used at most {others:.0} % of the CPU time.\n",
            circumstances()
        );
        for (title, columns) in TABLES {
            let is_measured = |(_, job, clients, _): &&Column| self.of(*job, *clients).next().is_some();
            let columns: Vec<&Column> = columns.iter().filter(is_measured).collect();
            if !columns.is_empty() {
                text += &format!("\n{title}:\n\n{}", self.table(&columns));
            }
        }
        let failed = self.entries.iter().filter_map(|Entry { peer, job, clients, result }| {
            let what = match result {
                Err(reason) => format!("the program failed with `{reason}`"),
                Ok(measured) => Some(measured.failure()).filter(|failure| !failure.is_empty())?,
            };
            Some(format!("- {} in the job \"{job}\" with {clients} clients: {what}.\n", peer.title))
        });
        let failed: String = failed.collect();
        if !failed.is_empty() {
            text += &format!("\nThese locks failed, or gave up a wait:\n\n{failed}");
        }
        format!("{text}\n{}", self.settings())
    }

    fn of(&self, job: Job, clients: usize) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.job == job && entry.clients == clients)
    }

    fn table(&self, columns: &[&Column]) -> String {
        let mut peers: Vec<&Peer> = Vec::new();
        for entry in columns.iter().flat_map(|(_, job, clients, _)| self.of(*job, *clients)) {
            if !peers.iter().any(|known| known.name == entry.peer.name) {
                peers.push(entry.peer);
            }
        }
        let heads: Vec<&str> = iter::once("lock").chain(columns.iter().map(|(head, ..)| *head)).collect();
        let rows = peers.into_iter().map(|peer| {
            let cells = columns.iter().map(|(_, job, clients, cell)| {
                let entry = self.of(*job, *clients).find(|entry| entry.peer.name == peer.name);
                match entry.map(|entry| &entry.result) {
                    None => String::new(),
                    Some(Ok(measured)) => cell(measured),
                    Some(Err(_)) => "failed".to_owned(),
                }
            });
            iter::once(peer.title.to_owned()).chain(cells).collect()
        });
        table(&heads, rows)
    }

    /// The table of the peers, with the versions and notes of the last job that each peer completed.
    fn settings(&self) -> String {
        let peers = self.entries.chunk_by(|one, other| one.peer.name == other.peer.name);
        let rows = peers.filter_map(|entries| {
            let peer = entries[0].peer;
            let Measured { version, server, notes, .. } =
                entries.iter().rev().find_map(|entry| entry.result.as_ref().ok())?;
            Some([peer.title, peer.language, version, server, notes].map(str::to_owned).into())
        });
        table(&["lock", "client in", "version", "server", "settings"], rows)
    }

    /// A plot of the hand-offs in a contended job: grants to a different client than the previous grant.
    pub fn plot(&self) -> String {
        let bars = self.of(Job::Contended, PLOTTED).filter_map(|entry| {
            let Peer { name, title, .. } = entry.peer;
            Some((*title, entry.result.as_ref().ok()?.handoffs_a_second, name.starts_with("lockward")))
        });
        let title = format!("Grants to another client a second, when {PLOTTED} clients want one lock");
        draw_bars(&title, &bars.collect::<Vec<_>>(), &circumstances())
    }
}

/// A column of a table: its head, the job and the number of clients, and the text for a result.
type Column = (&'static str, Job, usize, fn(&Measured) -> String);

const TABLES: [(&str, &[Column]); 4] = [
    (
        "Uncontended",
        &[
            ("median time to acquire, 1 client", Job::Uncontended, 1, |it| time(it.waits.median)),
            ("pairs a second, 50 clients", Job::Uncontended, 50, |it| whole(it.a_second)),
            ("server CPU for a pair, 50 clients", Job::Uncontended, 50, |it| time(it.server_cpu_us)),
            ("commands for a pair", Job::Uncontended, 50, Measured::commands),
        ],
    ),
    (
        "Contended, 50 clients",
        &[
            ("grants a second", Job::Contended, 50, |it| whole(it.a_second)),
            ("grants a second to another client", Job::Contended, 50, |it| whole(it.handoffs_a_second)),
            ("median wait", Job::Contended, 50, |it| time(it.waits.median)),
            ("longest wait", Job::Contended, 50, |it| time(it.waits.longest)),
            ("most / fewest grants", Job::Contended, 50, Measured::unfairness),
            ("server CPU for a grant", Job::Contended, 50, |it| time(it.server_cpu_us)),
            ("commands for a grant", Job::Contended, 50, Measured::commands),
            ("500 clients: grants a second to another client", Job::Contended, 500, |it| {
                whole(it.handoffs_a_second)
            }),
            ("500 clients: longest wait", Job::Contended, 500, |it| time(it.waits.longest)),
        ],
    ),
    (
        "Readers and writers, 50 clients",
        &[
            ("reads a second", Job::Readers, 50, |it| whole(it.a_second - it.writes_a_second)),
            ("writes a second", Job::Readers, 50, |it| whole(it.writes_a_second)),
            ("median wait of readers", Job::Readers, 50, |it| time(it.waits.median)),
            ("longest wait of readers", Job::Readers, 50, |it| time(it.waits.longest)),
            ("longest wait of writers", Job::Readers, 50, |it| time(it.writers.longest)),
            ("server CPU for a grant", Job::Readers, 50, |it| time(it.server_cpu_us)),
        ],
    ),
    (
        "Permits and weights, 50 clients",
        &[
            ("grants a second", Job::Permits, 50, |it| whole(it.a_second)),
            ("median wait", Job::Permits, 50, |it| time(it.waits.median)),
            ("longest wait", Job::Permits, 50, |it| time(it.waits.longest)),
            ("server CPU for a grant", Job::Permits, 50, |it| time(it.server_cpu_us)),
            ("weights: grants a second", Job::Weights, 50, |it| whole(it.a_second)),
            ("weights: median wait", Job::Weights, 50, |it| time(it.waits.median)),
            ("weights: longest wait", Job::Weights, 50, |it| time(it.waits.longest)),
            ("weights: most / fewest grants", Job::Weights, 50, Measured::unfairness),
        ],
    ),
];

/// Microseconds in a suitable unit, with two or three significant digits. A dash for 0.
fn time(us: f64) -> String {
    let (number, unit) = match us {
        0.0 => return "-".to_owned(),
        ..1e3 => (us, "µs"),
        ..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_of_an_exclusive_lock_is_noticed() {
        let answer = |second: i64| Answer {
            version: String::new(),
            notes: String::new(),
            tenures_us: vec![vec![0, 10, 20, 21, 40, 50], vec![0, second, 35]],
            gave_up: 0,
        };
        assert_eq!(excessive(Job::Contended, &answer(20).tenures()), 0);
        assert_eq!(excessive(Job::Contended, &answer(19).tenures()), 1);
        assert_eq!(excessive(Job::Permits, &answer(19).tenures()), 0);
    }
}
