//! The results of the jobs, as they are stored in JSON.

use crate::machine::{machine, today};
use crate::peers::job::{Answer, Job};
use crate::peers::meter::Spent;
use crate::peers::monitor::Parts;
use crate::results::Machine;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The day, the machine and the settings.
    pub circumstances: String,
    /// For how many seconds the acquisitions of each job were counted.
    pub seconds: u64,
    /// The results of the jobs, in the order in which they ran.
    pub results: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The name of the peer in the list.
    pub peer: String,
    pub job: Job,
    pub clients: usize,
    /// The measurements, or the reason why there are none.
    pub result: Result<Measured, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub version: String,
    /// Name and version of the server.
    pub server: String,
    /// How often the lock was acquired and released.
    pub operations: u64,
    pub a_second: f64,
    /// Grants a second that went to a different client than the previous grant, if the peer program reports them.
    pub handoffs_a_second: Option<f64>,
    /// Acquisitions that are missing in the counter of the peer program: the lock had two holders at once, or more
    /// holders than its limit allows.
    pub lost: i64,
    /// How often the library gave up waiting.
    pub gave_up: u64,
    /// The smallest number of acquisitions by one client.
    pub fewest: u64,
    /// The largest number of acquisitions by one client.
    pub most: u64,
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
    pub notes: String,
}

/// Quantiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
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
    /// Combines the peer program's answer and the measurements of the server.
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
}

impl Report {
    /// An empty report of this day and machine. `has_priority` says whether the servers and clients had a higher
    /// priority than other programs.
    pub fn new(seconds: u64, has_priority: bool) -> Self {
        let Machine { processor, cpus, kernel, .. } = machine();
        let priority = if has_priority { "higher priority than other programs" } else { "normal priority" };
        let circumstances = format!(
            "{}, {cpus} CPUs ({processor}) for server and clients together, {priority}, {kernel}; {seconds} s a job",
            today()
        );
        Self { circumstances, seconds, results: Vec::new() }
    }
}
