//! Plays scenarios, several at the same time, and prints the results.

use crate::log::Log;
use crate::scenarios;
use crate::script::Script;
use crate::stage::{Latenesses, SLACK, Stage};
use crate::worker::Unsupported;
use lockward_tests::{Server, locked, print_no_logs};
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// The number of log lines that are printed for a failed scenario.
const LOG_LINES: usize = 60;
/// The slowest script: it lasts for a whole slice of a wait.
const SLOWEST: &str = "a_slice_without_a_reply_is_sent_again_on_a_new_connection";
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");

/// The options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Play only scenarios whose names contain one of these texts. If the list is empty, play all scenarios.
    pub(crate) only: Vec<String>,
    pub(crate) jobs: usize,
    /// Print nothing.
    pub(crate) is_quiet: bool,
    /// The words that start a worker.
    pub(crate) worker: Vec<String>,
}

/// A scenario. Its name says what the client must do.
pub(crate) struct Scenario {
    pub(crate) name: String,
    play: Play,
    /// How often the scenario has failed while the machine was too busy.
    replays: u32,
}

/// If a sleeping thread wakes up later than planned by more than this time, the machine is too busy for the suite to
/// judge times.
const BUSY: Duration = Duration::from_millis(40);
/// How often a scenario is repeated after a failure on a busy machine.
const REPLAYS: u32 = 3;

enum Play {
    Script(Script),
    BlackBox(fn(&Stage)),
}

/// How a scenario ended.
enum End {
    Passed,
    Failed { why: String, log: String },
    Unsupported,
}

/// The results of all scenarios.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) passed: Vec<String>,
    pub(crate) failed: Vec<String>,
    pub(crate) unsupported: Vec<String>,
    /// The number of repetitions of scenarios on a busy machine.
    replays: u32,
}

impl Summary {
    pub(crate) fn is_passed(&self) -> bool {
        self.failed.is_empty()
    }
}

/// The chosen scenarios. The slow scenarios come first.
fn chosen(options: &Options) -> VecDeque<Scenario> {
    let mut found: Vec<Scenario> = scenarios::all()
        .map(|(name, play)| Scenario { name: name.to_owned(), play: Play::BlackBox(play), replays: 0 })
        .collect();
    let mut files: Vec<_> =
        fs::read_dir(SCRIPTS).expect("the scripts").map(|entry| entry.expect("a script").path()).collect();
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).expect("a script");
        found.extend(Script::parse_all(&text).into_iter().map(|script| Scenario {
            name: script.name.clone(),
            play: Play::Script(script),
            replays: 0,
        }));
    }
    found.sort_by_key(|scenario| scenario.name != SLOWEST);
    found.retain(|scenario| {
        options.only.is_empty() || options.only.iter().any(|only| scenario.name.contains(only))
    });
    found.into()
}

/// Prints the names of the chosen scenarios.
pub(crate) fn list(options: &Options) {
    chosen(options).iter().for_each(|scenario| println!("{}", scenario.name));
}

thread_local! {
    /// The place of the last panic of this thread.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Plays the chosen scenarios and prints the failures.
pub(crate) fn run(options: &Options) -> Summary {
    print_no_logs();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(Location::to_string).unwrap_or_default();
        PANICKED_AT.with_borrow_mut(|at| *at = place);
    }));
    let begun = Instant::now();
    // A server ends with the thread that started it. This thread starts the shared server, because this thread runs
    // until all scenarios have ended.
    let server = Server::start();
    let run = Run {
        options,
        server: server.port(),
        left: Mutex::new(chosen(options)),
        summary: Mutex::default(),
        times: Mutex::default(),
        latenesses: Arc::default(),
        busy: Mutex::new(begun),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| run.watch_machine());
        let players: Vec<_> = (0..options.jobs).map(|_| scope.spawn(|| run.play_all())).collect();
        for player in players {
            player.join().expect("a caught failure");
        }
        run.is_over.store(true, Ordering::Relaxed);
    });
    let summary = run.summary.into_inner().expect("no scenario holds it");
    if !options.is_quiet {
        let times = run.times.into_inner().expect("no scenario holds it");
        print(&summary, times, &run.latenesses, begun.elapsed());
    }
    summary
}

/// What the threads of a run share.
struct Run<'o> {
    options: &'o Options,
    /// The port of the shared server.
    server: u16,
    /// The scenarios that no thread has begun.
    left: Mutex<VecDeque<Scenario>>,
    summary: Mutex<Summary>,
    times: Mutex<Vec<(Duration, String)>>,
    latenesses: Arc<Latenesses>,
    /// When the machine was last too busy.
    busy: Mutex<Instant>,
    is_over: AtomicBool,
}

impl Run<'_> {
    /// Stores the last time at which the machine was too busy, until the run is over.
    fn watch_machine(&self) {
        const NAP: Duration = Duration::from_millis(5);
        while !self.is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            thread::sleep(NAP);
            if begun.elapsed() > NAP + BUSY {
                *locked(&self.busy) = Instant::now();
            }
        }
    }

    /// Plays one scenario after the other, until none is left.
    fn play_all(&self) {
        let idle = Arc::default(); // the idle processes end with this thread
        loop {
            let Some(mut scenario) = locked(&self.left).pop_front() else { return };
            let stage = Stage {
                worker: self.options.worker.clone(),
                server: self.server,
                log: Log::new(),
                latenesses: Arc::clone(&self.latenesses),
                idle: Arc::clone(&idle),
                workers: Mutex::default(),
            };
            let begun = Instant::now();
            let end = play(&scenario, &stage);
            locked(&self.times).push((begun.elapsed(), scenario.name.clone()));
            let was_busy = *locked(&self.busy) > begun;
            if matches!(end, End::Failed { .. }) && was_busy && scenario.replays < REPLAYS {
                scenario.replays += 1;
                locked(&self.left).push_back(scenario);
            } else {
                self.record(scenario, end);
            }
        }
    }

    /// Adds the end of a scenario to the summary, and prints a failure.
    fn record(&self, scenario: Scenario, end: End) {
        let mut summary = locked(&self.summary);
        summary.replays += scenario.replays;
        match end {
            End::Passed => summary.passed.push(scenario.name),
            End::Unsupported => summary.unsupported.push(scenario.name),
            End::Failed { why, log } => {
                if !self.options.is_quiet {
                    println!("FAILED {}: {why}\n{log}\n", scenario.name);
                }
                summary.failed.push(scenario.name);
            }
        }
    }
}

fn play(scenario: &Scenario, stage: &Stage) -> End {
    let result = panic::catch_unwind(AssertUnwindSafe(|| match &scenario.play {
        Play::Script(script) => script.play(stage),
        Play::BlackBox(play) => play(stage),
    }));
    match result {
        Ok(()) => End::Passed,
        Err(panic) => failed(&*panic, &PANICKED_AT.with_borrow(Clone::clone), stage),
    }
}

fn failed(panic: &(dyn Any + Send), place: &str, stage: &Stage) -> End {
    if panic.is::<Unsupported>() {
        return End::Unsupported;
    }
    let text = panic.downcast_ref::<String>().cloned();
    let text =
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
    // A script fails in the code that plays all scripts, so the place of the panic says nothing about the script.
    let place = if place.contains("runner.rs") { String::new() } else { format!(" ({place})") };
    End::Failed { why: format!("{text}{place}"), log: stage.log.tail(LOG_LINES) }
}

fn print(summary: &Summary, mut times: Vec<(Duration, String)>, latenesses: &Latenesses, took: Duration) {
    for name in &summary.failed {
        println!("failed: {name}");
    }
    if !summary.unsupported.is_empty() {
        println!("unsupported: {}", summary.unsupported.join(", "));
    }
    times.sort();
    let slowest: Vec<String> = times
        .iter()
        .rev()
        .take(5)
        .map(|(time, name)| format!("{name} {:.1} s", time.as_secs_f64()))
        .collect();
    println!("slowest: {}", slowest.join(", "));
    for (what, (worst, bound)) in &*locked(latenesses) {
        println!("{what}: at most {worst:.0?} late (bound {bound:?}, slack {SLACK:?})");
    }
    if summary.replays > 0 {
        println!("played again, because the machine was too busy: {}", summary.replays);
    }
    println!(
        "{} passed, {} failed, {} unsupported in {:.1} s",
        summary.passed.len(),
        summary.failed.len(),
        summary.unsupported.len(),
        took.as_secs_f64()
    );
}
