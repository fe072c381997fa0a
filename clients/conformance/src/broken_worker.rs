//! A worker with a defect: `conformance --defect NAME -- WORKER` runs a correct worker, and changes its lines and its
//! [traffic](crate::spoiling_proxy). Without a defect of this NAME, nothing is changed.

use crate::defects::{DEFECTS, Defect};
use crate::spoiling_proxy;
use lockward_tests::{Listener, locked};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How many calls wait at a time with [`Defect::LastFirst`].
const WAITING: usize = 2;

/// Serves the commands of the suite, until the correct worker ends.
pub(crate) fn serve(defect: &str, worker: &[String]) {
    let defect = DEFECTS.map(|(defect, _)| defect).into_iter().find(|known| format!("{known:?}") == defect);
    let mut command = Command::new(&worker[0]);
    command.args(&worker[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a worker");
    let input = child.stdin.take().expect("a pipe");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let broken = Arc::new(Mutex::new(BrokenWorker {
        defect,
        input: Some(input),
        proxy: None,
        asked: HashMap::new(),
        held_after: HashMap::new(),
        stacked: Vec::new(),
    }));
    let printing = Arc::clone(&broken);
    let printer = thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            locked(&printing).print(line);
        }
        let _ = child.wait();
        process::exit(0);
    });
    for line in io::stdin().lines().map_while(Result::ok) {
        locked(&broken).obey(line);
    }
    locked(&broken).input = None;
    let _ = printer.join();
}

struct BrokenWorker {
    defect: Option<Defect>,
    /// The input of the correct worker.
    input: Option<ChildStdin>,
    proxy: Option<Listener>,
    /// For the IDs of the acquisitions in progress: the name of the lock, and the time of the command.
    asked: HashMap<String, (String, Instant)>,
    /// How long the acquisition of each held lock took.
    held_after: HashMap<String, Duration>,
    /// The acquisitions that the correct worker does not know yet.
    stacked: Vec<String>,
}

impl BrokenWorker {
    /// Handles a command of the suite.
    fn obey(&mut self, mut line: String) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match (&*words[1], self.defect) {
            ("open", _) => {
                if let Some(port) = words[2].strip_prefix("redis://127.0.0.1:") {
                    let proxy = spoiling_proxy::start(port.parse().expect("a port"), self.defect);
                    line = line.replace(port, &proxy.port().to_string());
                    self.proxy = Some(proxy);
                }
            }
            ("cancel", Some(Defect::SwallowsCancel)) => return println!("{} ok", words[0]),
            ("acquire", Some(Defect::LastFirst)) if self.asked.len() == WAITING => {
                return self.stacked.push(line);
            }
            ("acquire", Some(Defect::NeverRenews)) => line += " no-renewal",
            ("acquire", Some(Defect::NoWaitLimit)) => line = line.replace("wait=1000", "wait=3000"),
            _ => {}
        }
        if words[1] == "acquire" {
            self.asked.insert(words[0].clone(), (words[2].clone(), Instant::now()));
        }
        self.forward(&line);
    }

    fn forward(&mut self, line: &str) {
        let input = self.input.as_mut().expect("an open input");
        writeln!(input, "{line}").expect("a running worker");
    }

    /// Handles a reply or an event of the correct worker.
    fn print(&mut self, line: String) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut delay = Duration::ZERO;
        if let ["event", "lost", name] = *words {
            delay = match self.defect {
                Some(Defect::LateLoss) => Duration::from_millis(800),
                Some(Defect::LateLease) => self.held_after[name],
                _ => Duration::ZERO,
            };
        } else if let Some((name, asked)) = self.asked.remove(words[0]) {
            self.held_after.insert(name, asked.elapsed());
            if let Some(next) = self.stacked.pop() {
                self.obey(next);
            }
        }
        if delay.is_zero() {
            println!("{line}");
        } else {
            thread::spawn(move || {
                thread::sleep(delay);
                println!("{line}");
            });
        }
    }
}
