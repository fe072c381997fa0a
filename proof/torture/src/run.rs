//! A run in one world: clients, faults, and the result.

use crate::worker_process::{Worker, WorkerArgs};
use crate::world::{Nemesis, World, WorldName};
use lockward_checker::bounds::Bounds;
use lockward_checker::checker::{measure_activity, tenures_never_overlap};
use lockward_checker::history::{Data, History, Line, data_key};
use lockward_checker::recorder::{Recorder, now};
use lockward_checker::violation::Violation;
use lockward_tests::{Client, Random, Reply};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CLIENTS: u32 = 32;
/// The number of worker processes.
const WORKERS: u32 = 4;

/// The parameters of a run.
pub(crate) struct Plan {
    pub(crate) world: WorldName,
    /// The seed of all random choices. The same seed does not give the same history, because the scheduling of
    /// processes differs.
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    /// The longest time between two faults, in milliseconds. The shortest time is a sixth of the longest time.
    pub(crate) pace: u64,
    /// The folder for the histories. No other run uses this folder.
    pub(crate) dir: PathBuf,
}

impl Plan {
    /// Runs the plan and checks the history. Returns a report, and whether the run succeeded. With `expected`, the run
    /// succeeds if the named check finds a violation. Without `expected`, the run succeeds if no promise was broken. In
    /// a world that loses grants, the run must then also contain an overlap, which shows that grants were lost.
    pub(crate) fn run(self, expected: Option<&str>) -> (String, bool) {
        let world = self.world.start();
        let server = Client::connect(world.port()).expect("a connection").server_version();
        let (_, history) = self.record(world, None, |world, nemesis| world.fault(nemesis));
        let bounds = self.world.bounds(self.length);
        let violations = self.world.check(&history, &bounds);
        let overlaps = tenures_never_overlap(&history, &bounds).len();
        let is_right = match expected {
            None => violations.is_empty() && (overlaps > 0 || !self.world.loses_grants()),
            Some(name) => {
                violations.iter().any(|violation| format!("{:?}", violation.check).eq_ignore_ascii_case(name))
            }
        };
        (self.report(&server, &history, &bounds, overlaps, &violations), is_right)
    }

    fn report(
        &self,
        server: &str,
        history: &History,
        bounds: &Bounds,
        overlaps: usize,
        violations: &[Violation],
    ) -> String {
        let Self { world, seed, length, pace, .. } = self;
        let (world, seconds) = (world.name(), length.as_secs());
        let calls = history.calls().count();
        let open = history.calls().filter(|(_, call)| call.is_open()).count();
        let activity = measure_activity(history, bounds);
        let activity: Vec<_> = activity.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let mut faults = BTreeMap::<_, usize>::new();
        for fault in history.faults() {
            *faults.entry(&fault.name).or_default() += 1;
        }
        let faults: Vec<_> = faults.iter().map(|(name, count)| format!("{count} × {name}")).collect();
        let mut report = format!(
            "{world} · {server} · {seconds} s · seed {seed}
  {calls} calls ({open} without an answer), {}
  faults: {}
  {overlaps} tenures did not fit beside others
  {} violations",
            activity.join(", "),
            faults.join(", "),
            violations.len(),
        );
        for of_check in violations.chunk_by(|one, other| one.check == other.check) {
            if let Some(shortest) = of_check.iter().min_by_key(|violation| violation.lines.len()) {
                report += &format!("\n{}\n  {} of this kind", shortest.report(history), of_check.len());
            }
        }
        if !violations.is_empty() {
            report +=
                &format!("\nAgain: torture --world {world} --seconds {seconds} --pace {pace} --seed {seed}");
        }
        report
    }

    /// Runs the clients, and injects faults until the end of the run. Clients with a `url` use `lockward-client`, and write
    /// no data beside the locks. Returns the running servers and the history.
    pub(crate) fn record(
        &self,
        mut world: Box<dyn World>,
        url: Option<String>,
        mut fault: impl FnMut(&mut dyn World, &mut Nemesis<'_>),
    ) -> (Box<dyn World>, History) {
        fs::create_dir_all(&self.dir).expect("a folder");
        let mut random = Random::from_seed(self.seed);
        let servers = self.dir.join("servers.json");
        let recorder = Recorder::create(&servers).expect("a file");
        let workers = self.start_workers(world.port(), url.as_ref());
        let mut nemesis =
            Nemesis { random: Random::from_seed(random.number()), recorder: &recorder, workers };
        let start = Instant::now();
        loop {
            nemesis.sleep(self.pace / 6..self.pace);
            if start.elapsed() >= self.length {
                break;
            }
            fault(&mut *world, &mut nemesis);
        }
        let mut files: Vec<PathBuf> = nemesis.workers.into_iter().map(Worker::finish).collect();
        if url.is_none() {
            self.read_data(&*world).for_each(|data| recorder.record(&Line::Data(data)));
        }
        recorder.finish().expect("a whole history");
        files.push(servers);
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

    fn start_workers(&self, port: u16, url: Option<&String>) -> Vec<Worker> {
        let each = CLIENTS / WORKERS;
        (0..WORKERS)
            .map(|number| {
                Worker::start(&WorkerArgs {
                    world: self.world,
                    seed: self.seed,
                    first: number * each,
                    clients: each,
                    port,
                    url: url.cloned(),
                    file: self.dir.join(format!("clients-{number}.json")),
                })
            })
            .collect()
    }
}
