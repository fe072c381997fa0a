//! A run in one world: clients, faults, and the result.

use crate::worker_process::{Worker, WorkerArgs};
use crate::world::{Nemesis, World, WorldName};
use lockward_checker::bounds::{Activity, Bounds};
use lockward_checker::checker::{Writes, count_writes, measure_activity, tenures_never_overlap};
use lockward_checker::history::{self, Data, History, Line, data_key};
use lockward_checker::random::Random;
use lockward_checker::recorder::{Recorder, now};
use lockward_checker::violation::{Check, Violation};
use lockward_tests::{Client, Reply, Server, Setup};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The world.
    pub world: WorldName,
    /// The seed of all random choices. The same seed does not give the same history, because the scheduling of
    /// processes differs.
    pub seed: u64,
    /// The length of the run.
    pub length: Duration,
    /// The longest time between two faults, in milliseconds. The shortest time is a sixth of the longest time.
    pub pace: u64,
    /// The number of clients.
    pub clients: u32,
    /// The number of worker processes.
    pub workers: u32,
    /// The folder for the histories. No other run uses it.
    pub dir: PathBuf,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    plan: Plan,
    server: String,
    history: History,
    activity: Activity,
    /// The numbers of writes to the guarded and to the plain data.
    writes: [Writes; 2],
    faults: BTreeMap<String, usize>,
    /// The number of tenures that overlapped an earlier tenure.
    pub overlaps: usize,
    /// The violations of the promises.
    pub violations: Vec<Violation>,
}

impl Outcome {
    /// How soon the history showed a violation of this check: the time from the first call to the violation, and the
    /// number of replies in this time.
    #[must_use]
    pub fn caught_after(&self, check: Check) -> Option<(Duration, usize)> {
        let violations = self.violations.iter().filter(|violation| violation.check == check);
        let seen = violations.map(|violation| violation.detected_at(&self.history)).min()?;
        let first = self.history.calls().map(|(_, call)| call.start).min()?;
        let answers = self.history.calls().filter(|(_, call)| call.answered() <= seen).count();
        Some((Duration::from_nanos(seen.saturating_sub(first)), answers))
    }
}

impl Plan {
    /// Runs the plan and checks the history.
    ///
    /// # Panics
    /// If a server does not start or stop, or sends a reply that the operation cannot have.
    #[must_use]
    pub fn run(self) -> Outcome {
        let world = self.world.start();
        let server = Client::connect(world.port()).expect("a connection").server_version();
        let (world, mut history) = self.record(world, None, |world, nemesis| world.fault(nemesis));
        let data = History { lines: self.read_data(&*world).map(Line::Data).collect() };
        data.write(&self.dir.join("data.json")).expect("a file");
        history.lines.extend(data.lines);
        self.check(server, history)
    }

    /// Runs the clients, and injects faults until the end of the run. Returns the running servers and the history.
    pub(crate) fn record(
        &self,
        mut world: Box<dyn World>,
        url: Option<String>,
        mut fault: impl FnMut(&mut dyn World, &mut Nemesis<'_>),
    ) -> (Box<dyn World>, History) {
        fs::create_dir_all(&self.dir).expect("a folder");
        let mut random = Random::new(self.seed);
        let store = Setup::without_module().start();
        let faults = self.dir.join("faults.json");
        let recorder = Recorder::create(&faults).expect("a file");
        let workers = self.start_workers(world.port(), &store, url);
        let mut nemesis = Nemesis::new(Random::new(random.number()), &recorder, workers);
        let start = Instant::now();
        loop {
            nemesis.sleep(self.pace / 6..self.pace);
            if start.elapsed() >= self.length {
                break;
            }
            fault(&mut *world, &mut nemesis);
        }
        let mut files: Vec<PathBuf> = nemesis.into_workers().into_iter().map(Worker::finish).collect();
        recorder.finish().expect("a whole history");
        files.push(faults);
        let parts = files.iter().map(|file| History::read(file).expect("a history"));
        (world, History { lines: parts.flat_map(|part| part.lines).collect() })
    }

    /// Reads the data beside each lock from the server that serves the lock.
    fn read_data(&self, world: &dyn World) -> impl Iterator<Item = Data> {
        let mut primaries: Vec<_> =
            world.ports().into_iter().map(|port| Client::connect(port).expect("a connection")).collect();
        let keys = self.world.workload().keys.into_iter().flat_map(|key| [(key.clone(), true), (key, false)]);
        keys.map(move |(key, guarded)| {
            let start = now();
            let command = format!("LRANGE {} 0 -1", data_key(&key, guarded));
            let reads = primaries.iter_mut().map(|primary| primary.call(&*command));
            let list = reads.into_iter().find(|reply| matches!(reply, Reply::Array(_))).expect("the data");
            let tokens = list.items().iter().map(|token| token.text().parse().expect("a token")).collect();
            Data { key, guarded, tokens, start, end: now() }
        })
    }

    fn start_workers(&self, port: u16, store: &Server, url: Option<String>) -> Vec<Worker> {
        let each = self.clients.div_ceil(self.workers);
        (0..self.workers)
            .map(|number| {
                Worker::start(&WorkerArgs {
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

    fn check(self, server: String, history: History) -> Outcome {
        let bounds: Bounds = self.world.bounds(self.length);
        let violations = self.world.check(&history, &bounds);
        let overlaps = tenures_never_overlap(&history, &bounds).len();
        let activity = measure_activity(&history, &bounds);
        let writes = [true, false].map(|guarded| count_writes(&history, &bounds, guarded));
        let mut faults = BTreeMap::new();
        for fault in history.faults() {
            *faults.entry(fault.name.clone()).or_default() += 1;
        }
        Outcome { plan: self, server, history, activity, writes, faults, overlaps, violations }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { plan, server, history, activity, writes, faults, overlaps, violations } = self;
        let Plan { world, seed, length, pace, clients, .. } = plan;
        writeln!(
            f,
            "{} · {server} · {} s · {clients} clients · seed {seed}",
            world.name(),
            length.as_secs()
        )?;
        let calls = history.calls().count();
        let open = history.calls().filter(|(_, call)| call.is_open()).count();
        let Activity { grants, handoffs, lease_ends, refused_writes, shared, kept, .. } = activity;
        writeln!(
            f,
            "  {calls} calls ({open} without an answer), {grants} grants, {handoffs} hand-offs, {lease_ends} lease \
             ends, {refused_writes} stale writes refused"
        )?;
        writeln!(f, "  {shared} tenures held together with another, {kept} grants at a kept place")?;
        let [guarded, plain] = writes.map(|Writes { all, stale }| format!("{stale} stale of {all}"));
        writeln!(f, "  writes beside the lock: guarded {guarded}; plain {plain}")?;
        let faults: Vec<_> = faults.iter().map(|(name, count)| format!("{count} × {name}")).collect();
        writeln!(f, "  faults: {}", faults.join(", "))?;
        let sent_away = history::Outcome::Error("TRYAGAIN".to_owned());
        match history.calls().filter(|(_, call)| call.outcome == sent_away).count() {
            0 => {}
            sent_away => writeln!(f, "  {sent_away} waiters got TRYAGAIN")?,
        }
        writeln!(f, "  {overlaps} tenures did not fit beside others")?;
        if violations.is_empty() {
            return write!(f, "  no violation");
        }
        write!(f, "  {} VIOLATIONS", violations.len())?;
        for of_check in violations.chunk_by(|one, other| one.check == other.check) {
            let shortest = of_check
                .iter()
                .min_by_key(|violation| (violation.lines.len(), violation.detected_at(history)));
            if let Some(violation) = shortest {
                write!(f, "\n{}", violation.report(history))?;
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
