//! One run in one world: its clients, its faults, and what was made of it.

use crate::wire::Break;
use crate::worker::{Orders, Worker};
use crate::world::{Kind, Nemesis};
use lockward_checker::alarm::{Alarm, Check};
use lockward_checker::bounds::{Bounds, Happened};
use lockward_checker::checker::{tenures_never_overlap, what_happened};
use lockward_checker::history::{self, History};
use lockward_checker::random::Random;
use lockward_checker::recorder::Recorder;
use lockward_tests::{Client, Server, Setup};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The world.
    pub world: Kind,
    /// What everything that happens by chance follows from. The order in which processes get to run does not.
    pub seed: u64,
    /// For how long.
    pub length: Duration,
    /// The longest time between two faults, in milliseconds; the shortest is a sixth of it.
    pub pace: u64,
    /// How many clients.
    pub clients: u32,
    /// In how many processes.
    pub workers: u32,
    /// How a wire loses what is sent.
    pub how: Break,
    /// A folder of its own for the histories.
    pub dir: PathBuf,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    plan: Plan,
    server: String,
    history: History,
    happened: Happened,
    faults: BTreeMap<String, usize>,
    /// How often two were seen to hold a lock at once.
    pub overlaps: usize,
    /// The promises that it broke.
    pub alarms: Vec<Alarm>,
}

impl Outcome {
    /// How long after the first call, and after how many answers, this check had seen enough to raise its first alarm.
    #[must_use]
    pub fn caught_after(&self, check: Check) -> Option<(Duration, usize)> {
        let alarms = self.alarms.iter().filter(|alarm| alarm.check == check);
        let seen = alarms.map(|alarm| alarm.seen_by(&self.history)).min()?;
        let first = self.history.calls().map(|(_, call)| call.start).min()?;
        let answers = self.history.calls().filter(|(_, call)| call.answered() <= seen).count();
        Some((Duration::from_nanos(seen.saturating_sub(first)), answers))
    }
}

impl Plan {
    /// Runs it and judges it.
    ///
    /// # Panics
    /// When a server does not do as it is told, or a client reads what the contract does not know.
    #[must_use]
    pub fn run(self) -> Outcome {
        fs::create_dir_all(&self.dir).expect("a folder");
        let mut random = Random::new(self.seed);
        let store = Setup::without_module().start();
        let mut world = self.world.start(self.how);
        let server = Client::connect(world.port()).expect("a connection").server_version();
        let faults = self.dir.join("faults.json");
        let recorder = Recorder::create(&faults).expect("a file");
        let workers = self.start_workers(world.port(), &store, None);
        let mut nemesis = Nemesis::new(Random::new(random.number()), &recorder, workers);
        let begun = Instant::now();
        loop {
            nemesis.pass(self.pace / 6..self.pace);
            if begun.elapsed() >= self.length {
                break;
            }
            world.fault(&mut nemesis);
        }
        let workers = nemesis.into_workers();
        let mut files: Vec<PathBuf> = workers.into_iter().map(Worker::finish).collect();
        recorder.finish().expect("a whole history");
        files.push(faults);
        self.judge(server, &files)
    }

    pub(crate) fn start_workers(&self, port: u16, store: &Server, url: Option<String>) -> Vec<Worker> {
        let each = self.clients.div_ceil(self.workers);
        (0..self.workers)
            .map(|number| {
                Worker::start(&Orders {
                    world: self.world,
                    seed: self.seed,
                    first: number * each,
                    clients: each,
                    store: store.port(),
                    port,
                    url: url.clone(),
                    file: self.dir.join(format!("clients-{number}.json")),
                })
            })
            .collect()
    }

    fn judge(self, server: String, files: &[PathBuf]) -> Outcome {
        let parts = files.iter().map(|file| History::read(file).expect("a history"));
        let history = History { lines: parts.flat_map(|part| part.lines).collect() };
        let bounds: Bounds = self.world.bounds(self.length);
        let alarms = self.world.judge(&history, &bounds);
        let overlaps = tenures_never_overlap(&history, &bounds).len();
        let happened = what_happened(&history, &bounds);
        let mut faults = BTreeMap::new();
        for fault in history.faults() {
            *faults.entry(fault.name.clone()).or_default() += 1;
        }
        Outcome { plan: self, server, history, happened, faults, overlaps, alarms }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { plan, server, history, happened, faults, overlaps, alarms } = self;
        let Plan { world, seed, length, pace, clients, .. } = plan;
        writeln!(
            f,
            "{} · {server} · {} s · {clients} clients · seed {seed}",
            world.name(),
            length.as_secs()
        )?;
        let calls = history.calls().count();
        let open = history.calls().filter(|(_, call)| call.is_open()).count();
        let Happened { grants, handoffs, lease_ends, refused_writes, .. } = happened;
        writeln!(
            f,
            "  {calls} calls ({open} without an answer), {grants} grants, {handoffs} hand-offs, {lease_ends} lease \
             ends, {refused_writes} stale writes refused"
        )?;
        let faults: Vec<_> = faults.iter().map(|(name, count)| format!("{count} × {name}")).collect();
        writeln!(f, "  faults: {}", faults.join(", "))?;
        let sent_away = history::Outcome::Error("TRYAGAIN".to_owned());
        match history.calls().filter(|(_, call)| call.outcome == sent_away).count() {
            0 => {}
            sent_away => writeln!(f, "  {sent_away} waiters sent away")?,
        }
        writeln!(f, "  {overlaps} tenures overlapped another")?;
        if alarms.is_empty() {
            return write!(f, "  no alarm");
        }
        write!(f, "  {} ALARMS", alarms.len())?;
        for of_check in alarms.chunk_by(|one, other| one.check == other.check) {
            let shortest = of_check.iter().min_by_key(|alarm| (alarm.lines.len(), alarm.seen_by(history)));
            if let Some(alarm) = shortest {
                write!(f, "\n{}", alarm.report(history))?;
            }
            if let Some(more @ 1..) = of_check.len().checked_sub(1) {
                write!(f, "\n  {more} more like this")?;
            }
        }
        write!(
            f,
            "\nAgain: torture --world {} --seconds {} --pace {pace} --clients {clients} --seed {seed}",
            world.name(),
            length.as_secs()
        )
    }
}
