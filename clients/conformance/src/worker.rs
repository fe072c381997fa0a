//! A worker: the client under test, controlled by lines of text.
//!
//! The start of a process costs up to a second of CPU time. So one process serves many scenarios, one after another.
//! Each scenario opens a client, and closes it at the end.

use crate::log::Log;
use lockward_tests::{DEADLINE, ProcessGroup, eventually, locked};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::panic::panic_any;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// How long a worker may take until it is ready. Some languages start slowly on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A scenario panics with this value if the worker does not support a command of the scenario.
pub(crate) struct Unsupported;

/// A line of a worker, and the time when the line came.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) at: Instant,
    pub(crate) text: String,
}

/// A process that serves one worker after another.
#[derive(Debug)]
struct Process {
    group: ProcessGroup,
    input: Option<ChildStdin>,
    output: Arc<Mutex<Output>>,
}

/// The output of a process.
#[derive(Debug)]
struct Output {
    lines: Vec<Line>,
    /// The IDs of the commands without a reply.
    unanswered: BTreeSet<u64>,
    /// Whether the process has ended, so that no more lines come.
    is_over: bool,
    /// The name of the current worker, for the log.
    name: String,
    log: Log,
}

impl Process {
    #[track_caller]
    fn start(words: &[String], name: &str, log: &Log) -> Self {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut group = ProcessGroup::start(&mut command)
            .unwrap_or_else(|error| panic!("{} does not run: {error}", words[0]));
        let (input, lines, errors) = group.take_pipes();
        let output = Output {
            lines: Vec::new(),
            unanswered: BTreeSet::new(),
            is_over: false,
            name: name.to_owned(),
            log: log.clone(),
        };
        let output = Arc::new(Mutex::new(output));
        read_lines(lines.expect("a pipe"), "<", &output, |output, text| {
            if let Some(id) = text.split(' ').next().and_then(|id| id.parse().ok()) {
                output.unanswered.remove(&id);
            }
            output.lines.push(Line { at: Instant::now(), text });
        });
        read_lines(errors.expect("a pipe"), "stderr:", &output, |_, _| {});
        Self { group, input, output }
    }

    /// Waits until the process has closed the client of the previous worker. Returns false if the process has ended
    /// instead.
    fn has_closed(&self) -> bool {
        let log = locked(&self.output).log.clone();
        let closed = log.wait(START, || {
            let output = locked(&self.output);
            (output.is_over || output.unanswered.is_empty()).then_some(!output.is_over)
        });
        closed == Some(true)
    }
}

/// The processes that no worker uses now.
#[derive(Debug, Default)]
pub(crate) struct Idle(Mutex<Vec<Process>>);

/// A worker. The client is closed when this value goes out of scope.
#[derive(Debug)]
pub(crate) struct Worker {
    /// `None` after `drop` has returned the process to the idle processes.
    process: Option<Process>,
    name: String,
    log: Log,
    latest: u64,
    /// Set when no other worker may use the process.
    is_spent: bool,
    idle: Arc<Idle>,
}

impl Worker {
    /// Opens a worker. `words` start the process, and `address` is the address with the settings. The worker's log
    /// lines begin with `name`.
    #[track_caller]
    pub(crate) fn open(
        name: &str,
        words: &[String],
        address: &[String],
        idle: &Arc<Idle>,
        log: &Log,
    ) -> Self {
        let kept = locked(&idle.0).pop().filter(Process::has_closed);
        let process = kept.unwrap_or_else(|| Process::start(words, name, log));
        {
            let mut output = locked(&process.output);
            output.lines.clear();
            (output.name, output.log) = (name.to_owned(), log.clone());
        }
        let mut worker = Self {
            process: Some(process),
            name: name.to_owned(),
            log: log.clone(),
            latest: 0,
            is_spent: false,
            idle: Arc::clone(idle),
        };
        worker.send_as(0, &format!("open {}", address.join(" ")));
        let reply = worker.reply_within(0, START);
        assert!(reply.is_some_and(|line| line.text == "ok"), "{name} has opened no client");
        worker
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a worker in scope")
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        locked(&self.process.as_ref().expect("a worker in scope").output)
    }

    /// Sends a command, and returns its ID.
    #[track_caller]
    pub(crate) fn send(&mut self, command: &str) -> u64 {
        self.latest += 1;
        self.send_as(self.latest, command);
        self.latest
    }

    /// Sends a command with this ID.
    #[track_caller]
    pub(crate) fn send_as(&mut self, id: u64, command: &str) {
        self.latest = self.latest.max(id);
        self.log.add(format_args!("{} > {id} {command}", self.name));
        self.output().unanswered.insert(id);
        let input = self.process().input.as_mut().expect("an open input");
        let sent = input.write_all(format!("{id} {command}\n").as_bytes()).and_then(|()| input.flush());
        assert!(sent.is_ok(), "{} has ended before {command:?}", self.name);
    }

    /// Waits for the reply to a command.
    #[track_caller]
    pub(crate) fn reply(&mut self, id: u64) -> Line {
        self.reply_within(id, DEADLINE)
            .unwrap_or_else(|| panic!("{} does not answer command {id}", self.name))
    }

    /// Waits for the reply to a command for at most `limit`.
    #[track_caller]
    pub(crate) fn reply_within(&mut self, id: u64, limit: Duration) -> Option<Line> {
        let start = format!("{id} ");
        let mut line = self.take(limit, |line| line.starts_with(&start))?;
        line.text.drain(..start.len());
        if line.text == "unsupported" {
            panic_any(Unsupported);
        }
        Some(line)
    }

    /// Sends a command and waits for its reply.
    #[track_caller]
    pub(crate) fn call(&mut self, command: &str) -> String {
        let id = self.send(command);
        self.reply(id).text
    }

    /// Sends a command whose reply must begin with `expected`, and returns the rest of the reply.
    #[track_caller]
    pub(crate) fn expect(&mut self, command: &str, expected: &str) -> String {
        let id = self.send(command);
        self.expect_reply(id, expected)
    }

    /// Waits for the reply to a command, which must begin with `expected`, and returns the rest of the reply.
    #[track_caller]
    pub(crate) fn expect_reply(&mut self, id: u64, expected: &str) -> String {
        let reply = self.reply(id).text;
        match reply.strip_prefix(expected) {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("{} answers command {id} with {reply:?}, but {expected:?} is expected", self.name),
        }
    }

    /// Acquires a lock, and returns its token.
    #[track_caller]
    pub(crate) fn acquire(&mut self, request: &str) -> i64 {
        self.held(&format!("acquire {request}"))
    }

    /// Sends a command whose reply must be `held` and one token, and returns the token.
    #[track_caller]
    pub(crate) fn held(&mut self, command: &str) -> i64 {
        let id = self.send(command);
        self.held_reply(id)
    }

    /// Waits for the reply to a command, which must be `held` and one token, and returns the token.
    #[track_caller]
    pub(crate) fn held_reply(&mut self, id: u64) -> i64 {
        let token = self.expect_reply(id, "held ");
        token.parse().unwrap_or_else(|_| panic!("{} replies with no token: {token:?}", self.name))
    }

    /// Waits for the event `text`.
    #[track_caller]
    pub(crate) fn event(&mut self, text: &str) -> Line {
        self.event_within(text, DEADLINE)
    }

    /// Waits for an event that begins with `text`, for at most `limit`.
    #[track_caller]
    pub(crate) fn event_within(&mut self, text: &str, limit: Duration) -> Line {
        let wanted = format!("event {text}");
        self.take(limit, |line| {
            line.strip_prefix(&wanted).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        })
        .unwrap_or_else(|| panic!("{} does not print {wanted:?}", self.name))
    }

    /// Whether the worker has printed an event that begins with `text`, and no caller has taken the event.
    pub(crate) fn has_event(&self, text: &str) -> bool {
        self.output().lines.iter().any(|line| line.text.starts_with(&format!("event {text}")))
    }

    /// Takes the first line of the output that `fits` accepts. `None` if no such line has come yet.
    pub(crate) fn take_now(&self, fits: impl Fn(&str) -> bool) -> Option<Line> {
        let lines = &mut self.output().lines;
        let place = lines.iter().position(|line| fits(&line.text))?;
        Some(lines.remove(place))
    }

    /// The lines of the output that no caller has taken.
    pub(crate) fn untaken(&self) -> Vec<String> {
        self.output().lines.iter().map(|line| line.text.clone()).collect()
    }

    fn take(&mut self, limit: Duration, fits: impl Fn(&str) -> bool) -> Option<Line> {
        let log = self.log.clone();
        log.wait(limit, || {
            let ended = self.process().group.ended();
            let line = self.take_now(&fits);
            assert!(line.is_some() || ended.is_none(), "{} has ended: {ended:?}", self.name);
            line
        })
    }

    /// Kills the process with SIGKILL.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.log.add(format_args!("{} is killed", self.name));
        self.is_spent = true;
        self.process().group.kill().expect("a running worker");
    }

    /// Stops the process with SIGSTOP, and waits until all its threads have stopped, because a running thread may
    /// still read a reply.
    #[track_caller]
    pub(crate) fn freeze(&mut self) {
        self.is_spent = true;
        let group = &self.process().group;
        group.signal_all(libc::SIGSTOP).expect("a running worker");
        let threads = format!("/proc/{}/task", group.id());
        eventually("the worker has stopped", || {
            fs::read_dir(&threads).expect("a running worker").flatten().all(|thread| {
                // If the thread has ended in the meantime, its file does not exist.
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('T'))
            })
        });
        self.log.add(format_args!("{} is stopped", self.name));
    }

    /// Lets the process go on.
    #[track_caller]
    pub(crate) fn thaw(&mut self) {
        self.log.add(format_args!("{} goes on", self.name));
        self.process().group.signal_all(libc::SIGCONT).expect("a running worker");
    }

    /// Closes the input of the process, and waits for the end of the process.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        const LIMIT: Duration = Duration::from_secs(10);
        self.log.add(format_args!("the input of {} ends", self.name));
        self.is_spent = true;
        self.process().input = None;
        let log = self.log.clone();
        let ended = log.wait(LIMIT, || {
            thread::park_timeout(Duration::from_millis(2));
            self.process().group.ended()
        });
        assert!(ended.is_some(), "{} goes on for {LIMIT:?} after the end of its input", self.name);
    }
}

impl Drop for Worker {
    /// Closes the client, so that another worker can use the process. Kills a process that has commands without a
    /// reply.
    fn drop(&mut self) {
        self.is_spent |= thread::panicking() || !self.output().unanswered.is_empty();
        if !self.is_spent {
            self.latest += 1;
            self.send_as(self.latest, "close");
            locked(&self.idle.0).extend(self.process.take());
        }
    }
}

/// Reads lines on a new thread until the process ends.
fn read_lines(
    from: impl Read + Send + 'static,
    mark: &'static str,
    output: &Arc<Mutex<Output>>,
    keep: impl Fn(&mut Output, String) + Send + 'static,
) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let add = |text: &str, output: &Output| output.log.add(format_args!("{} {mark} {text}", output.name));
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut output = locked(&output);
            keep(&mut output, line.clone());
            add(&line, &output);
        }
        let mut output = locked(&output);
        output.is_over = true;
        add("(end)", &output);
    });
}
