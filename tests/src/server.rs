//! Server processes.

use crate::client::Client;
use crate::paths::{built_file, server_program};
use crate::process::{Directory, ProcessGroup, free_port};
use crate::reply::Reply;
use crate::wait::{DEADLINE, eventually, soon, within};
use std::fmt::{self, Debug, Formatter};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// The time limit for the start of a server. The limit is long because a server starts slowly under valgrind
/// and similar tools.
const START: Duration = Duration::from_secs(60);

/// The settings of a server that is tested. The configuration lines of a test override these settings.
const TEST_SETTINGS: [&str; 7] = [
    "save \"\"",
    "appendonly no",
    "enable-debug-command yes",
    "repl-diskless-sync yes",
    "repl-diskless-sync-delay 0",
    "shutdown-timeout 0",
    // A server that cannot apply a replicated command or a command of its AOF ends, so that the test fails.
    "propagation-error-behavior panic",
];

/// A server to start: program, module and configuration.
#[derive(Clone, Debug)]
#[must_use]
pub struct Setup {
    module: Option<PathBuf>,
    module_arguments: Vec<String>,
    config: Vec<String>,
    environment: Vec<(String, String)>,
    panics_are_wanted: bool,
    kind: Kind,
    wrapper: Vec<String>,
    before_exec: Option<BeforeExec>,
    cluster_port: Option<u16>,
}

/// The purpose of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A server for tests, with [`TEST_SETTINGS`].
    Tested,
    /// A server for measurements, without [`TEST_SETTINGS`]. The library reads in the log that the server has started.
    /// The library does not connect, because a connection would disturb the measurement.
    Measured,
    /// A Sentinel.
    Sentinel,
}

/// A function that the new process calls before it becomes the server.
#[derive(Clone)]
struct BeforeExec(Arc<dyn Fn() -> io::Result<()> + Send + Sync>);

impl Debug for BeforeExec {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str("BeforeExec")
    }
}

impl Setup {
    /// The module with its default settings on a server without persistence.
    pub fn new() -> Self {
        Self {
            module: Some(built_file("LOCKWARD_MODULE", "release/liblockward.so")),
            module_arguments: Vec::new(),
            config: Vec::new(),
            environment: Vec::new(),
            panics_are_wanted: false,
            kind: Kind::Tested,
            wrapper: Vec::new(),
            before_exec: None,
            cluster_port: None,
        }
    }

    /// The server without the module.
    pub fn without_module() -> Self {
        Self::new().no_module()
    }

    /// A Sentinel.
    pub fn sentinel() -> Self {
        Self { kind: Kind::Sentinel, ..Self::without_module() }
    }

    /// A server for measurements, without the module and without the settings for tests.
    pub fn measured() -> Self {
        Self { kind: Kind::Measured, ..Self::without_module() }
    }

    /// Starts the server under another program such as valgrind. `words` are this program and its own arguments, in
    /// which `{dir}` stands for the server's directory.
    pub fn under(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Lets the new process call `function` before it becomes the server.
    ///
    /// # Safety
    /// The function runs between fork and exec, so it must not allocate or take a lock.
    pub unsafe fn before_exec(self, function: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { before_exec: Some(BeforeExec(Arc::new(function))), ..self }
    }

    /// Loads a build of the module that has the command LOCK._PANIC. The test does not fail if the log shows a panic.
    pub fn with_panic_probe() -> Self {
        let path = built_file("LOCKWARD_PANIC_MODULE", "panic-probe/release/liblockward.so");
        Self { module: Some(path), panics_are_wanted: true, ..Self::new() }
    }

    /// Loads the module at `path` instead of the default module.
    pub fn module_at(self, path: impl Into<PathBuf>) -> Self {
        Self { module: Some(path.into()), ..self }
    }

    /// Loads the next version of the module: this version with `tests/next-version.patch`.
    pub fn next_version(self) -> Self {
        self.module_at(built_file("LOCKWARD_NEXT_MODULE", "next-version/liblockward.so"))
    }

    /// Loads a second module. The second module runs commands of Lockward on a thread (EMPTY.CALL command arguments),
    /// or a command in the callback of an event (EMPTY.CALL_ON_EVENT event command).
    pub fn beside_another(self) -> Self {
        let path = built_file("LOCKWARD_EMPTY_MODULE", "release/libempty_module.so");
        self.config(&format!("loadmodule {}", path.display()))
    }

    /// Loads this version of the module again, after [`Setup::next_version`].
    pub fn this_version(self) -> Self {
        Self { module: Self::new().module, ..self }
    }

    /// Loads no module.
    pub fn no_module(self) -> Self {
        Self { module: None, module_arguments: Vec::new(), ..self }
    }

    /// The path of the module.
    #[track_caller]
    pub fn module_path(&self) -> String {
        self.module.as_ref().expect("a module").display().to_string()
    }

    /// Adds module arguments, such as `"quarantine 3000"`.
    pub fn module(mut self, arguments: &str) -> Self {
        self.module_arguments.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds a line of redis.conf, such as `"appendonly yes"`.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Adds a line of redis.conf before the other lines, so that the other lines override it.
    pub(crate) fn config_before(mut self, line: &str) -> Self {
        self.config.insert(0, line.to_owned());
        self
    }

    /// Adds an environment variable.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Loads a library into the server before the server's own libraries.
    pub(crate) fn preload(mut self, library: &Path) -> Self {
        const NAME: &str = "LD_PRELOAD";
        let library = library.display().to_string();
        match self.environment.iter_mut().find(|(name, _)| name == NAME) {
            Some((_, libraries)) => libraries.extend([":", &library]),
            None => self.environment.push((NAME.to_owned(), library)),
        }
        self
    }

    /// Starts a server and waits until it serves.
    #[track_caller]
    pub fn start(mut self) -> Server {
        if let Some(path) = &self.module {
            assert!(
                path.exists(),
                "{} is missing: run `make build` (or `make test`, which builds all)",
                path.display()
            );
        }
        let dir = Directory::new();
        for _ in 0..20 {
            let port = free_port();
            self.cluster_port = self.config.iter().any(|line| line == "cluster-enabled yes").then(free_port);
            match self.launch(port, dir.path()) {
                Ok(process) => {
                    let setup = self;
                    return Server {
                        process,
                        port,
                        setup,
                        dir,
                        end_is_expected: false,
                        crash_is_expected: false,
                    };
                }
                Err(Refusal { log, .. })
                    if log.contains("Address already in use") || log.contains("bind:") => {}
                Err(Refusal { log, .. }) => panic!("the server does not start:\n{log}"),
            }
        }
        panic!("no free port");
    }

    /// Starts a server that must refuse to start, and returns its log.
    #[track_caller]
    pub fn start_refused(self) -> String {
        let dir = Directory::new();
        match self.launch(free_port(), dir.path()) {
            Ok(_) => panic!("the server starts"),
            Err(refusal) => refusal.log,
        }
    }

    /// Starts a process on `port` and waits until it serves. If the process ends instead, the error says how
    /// it ended.
    fn launch(&self, port: u16, dir: &Path) -> Result<ProcessGroup, Refusal> {
        let file = dir.join("server.conf");
        fs::write(&file, self.configuration(port, dir)).expect("a writable directory");
        let log = File::options().create(true).append(true).open(dir.join("server.log")).expect("a log");
        let logged = usize::try_from(log.metadata().expect("a log").len()).expect("a size");
        let mut command = self.command(&file, dir);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let mut process = ProcessGroup::start(&mut command).unwrap_or_else(|error| {
            let program = command.get_program().display();
            panic!("{program} does not run ({error}): run `make build`, or set LOCKWARD_SERVER")
        });
        let new_log = || {
            let log = fs::read(dir.join("server.log")).unwrap_or_default();
            String::from_utf8_lossy(&log[logged..]).into_owned()
        };
        within(START, "the server serves", || {
            if let Some(status) = process.ended() {
                return Some(Err(Refusal { status, log: new_log() }));
            }
            let serves = match self.kind {
                Kind::Measured => new_log().contains("Ready to accept connections"),
                Kind::Tested | Kind::Sentinel => answers(port, process.id()),
            };
            serves.then_some(Ok(()))
        })
        .map(|()| process)
    }

    /// The server's configuration file.
    fn configuration(&self, port: u16, dir: &Path) -> String {
        let mut lines =
            vec!["bind 127.0.0.1".to_owned(), format!("port {port}"), format!("dir {}", dir.display())];
        let mut add = |line: &str| lines.push(line.to_owned());
        if self.kind == Kind::Tested {
            TEST_SETTINGS.iter().for_each(|line| add(line));
            // Further lines for all tests of a run, such as `io-threads 4`, are in `LOCKWARD_CONFIG`.
            env::var("LOCKWARD_CONFIG").unwrap_or_default().split(';').for_each(&mut add);
        }
        if is_checked() {
            // Some tests make a server crash. Without this line, the crashed server would test all memory, including
            // the memory of valgrind or a similar tool.
            add("crash-memcheck-enabled no");
        }
        self.config.iter().for_each(|line| add(line));
        if let Some(port) = self.cluster_port {
            add(&format!("cluster-port {port}"));
        }
        lines.join("\n") + "\n"
    }

    /// The command that starts the server.
    fn command(&self, config: &Path, dir: &Path) -> Command {
        let dir = dir.display().to_string();
        let mut words: Vec<String> = self.wrapper.iter().map(|word| word.replace("{dir}", &dir)).collect();
        words.push(server_program());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(config);
        if self.kind == Kind::Sentinel {
            command.arg("--sentinel");
        }
        if let Some(module) = &self.module {
            command.arg("--loadmodule").arg(module).args(&self.module_arguments);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(BeforeExec(function)) = self.before_exec.clone() {
            // SAFETY: the caller of `before_exec` has promised that the function allocates nothing and takes no lock.
            unsafe { command.pre_exec(move || function()) };
        }
        command
    }
}

/// Whether the process serves on `port`.
fn answers(port: u16, pid: u32) -> bool {
    let ask = || {
        let mut client = Client::connect(port).ok()?;
        let info = client.try_call("INFO server").ok()?;
        let ready = matches!(&info, Reply::Bulk(_)) && info.text().contains(&format!("process_id:{pid}\r\n"));
        (ready && client.try_call("PING").ok()? == Reply::Simple("PONG".into())).then_some(())
    };
    ask().is_some()
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

/// How a server that refused to start has ended.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The exit status of the process.
    pub status: ExitStatus,
    /// The log.
    pub log: String,
}

impl Refusal {
    /// Whether the server exited without a signal or a stack trace, and logged the reason. The exit code may be 0: the
    /// server ends with 0 when its own check of an RDB file finds no error.
    pub fn is_clean(&self) -> bool {
        self.status.code().is_some() && !self.log.is_empty() && !self.log.contains("BUG REPORT START")
    }
}

/// A server process, which is killed when this value goes out of scope.
///
/// Start the server in the thread of the test, because the server dies with the thread that started it. At the end of
/// the scope, the test fails if the server has crashed or the module has logged a panic.
#[derive(Debug)]
pub struct Server {
    process: ProcessGroup,
    port: u16,
    setup: Setup,
    dir: Directory,
    end_is_expected: bool,
    crash_is_expected: bool,
}

impl Server {
    /// Starts a server with the module and its default settings.
    #[track_caller]
    pub fn start() -> Self {
        Setup::new().start()
    }

    /// Starts a server with module arguments, such as `"quarantine 3000"`.
    #[track_caller]
    pub fn start_with(module_arguments: &str) -> Self {
        Setup::new().module(module_arguments).start()
    }

    /// Starts a server, makes it a replica of `primary`, and waits until it is in sync.
    #[track_caller]
    pub fn start_replica_of(primary: &Self) -> Self {
        Setup::new().start_replica_of(primary)
    }

    /// Starts a server and its replica, and waits until the replica is in sync.
    #[track_caller]
    pub fn start_with_replica() -> (Self, Self) {
        let primary = Self::start();
        let replica = Self::start_replica_of(&primary);
        (primary, replica)
    }

    /// The port of the server.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server, `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The directory of the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A new connection that speaks RESP2.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.port).expect("a connection")
    }

    /// A new connection that speaks RESP3.
    #[track_caller]
    pub fn client3(&self) -> Client {
        let mut client = self.client();
        client.speak_resp3();
        client
    }

    /// The name and version of the server: `Redis 7.0.15`.
    #[track_caller]
    pub fn version(&self) -> String {
        self.client().server_version()
    }

    /// Whether the server is Redis of at least this version. Valkey from 8 on counts as Redis 7.4.
    #[track_caller]
    pub fn has_redis(&self, major: u32, minor: u32) -> bool {
        let version = self.version();
        let (name, number) = version.split_once(' ').expect("a name and a version");
        let mut numbers = number.split('.').map_while(|part| part.parse::<u32>().ok());
        let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match name {
            "Valkey" => number >= (8, 0) && (major, minor) <= (7, 4),
            _ => number >= (major, minor),
        }
    }

    /// Whether Lockward gets the events of EXPIRE, RENAME and MOVE. Lockward does not subscribe to these events on
    /// Valkey 8.1 and 9.0: if a module is subscribed, these servers leave a client in the wrong database after MOVE or
    /// COPY.
    #[track_caller]
    pub fn tells_of_renames(&self) -> bool {
        let version = self.version();
        !["Valkey 8.1.", "Valkey 9.0."].iter().any(|other| version.starts_with(other))
    }

    /// The whole log of the server.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join("server.log")).unwrap_or_default())
            .into_owned()
    }

    /// Waits until the log contains `text`.
    #[track_caller]
    pub fn see_log(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    /// Kills the server with SIGKILL.
    #[track_caller]
    pub fn kill(&mut self) {
        self.end_is_expected = true;
        self.process.kill().expect("a running server");
    }

    /// Sends SIGTERM and waits for the end of the server.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.begin_to_terminate();
        self.see_end()
    }

    /// Sends SIGTERM.
    #[track_caller]
    pub fn begin_to_terminate(&mut self) {
        self.end_is_expected = true;
        self.signal(libc::SIGTERM);
    }

    /// Whether the server should be running: false after the test has ended the server, until the next start.
    pub const fn is_running(&self) -> bool {
        !self.end_is_expected
    }

    /// Waits until the server has ended. The test expects this end.
    #[track_caller]
    pub fn see_end(&mut self) -> ExitStatus {
        self.end_is_expected = true;
        soon("the server ends", || self.process.ended())
    }

    /// Waits until the server has crashed, and returns its log. The test expects this crash.
    #[track_caller]
    pub fn see_crash(&mut self) -> String {
        self.crash_is_expected = true;
        assert!(!self.see_end().success(), "the server ends in order");
        self.log()
    }

    /// Starts the server again after its end, with the same port, directory and setup.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(Refusal { log, .. }) = self.try_to_start_again() {
            panic!("the server does not start again:\n{log}");
        }
    }

    /// Starts the server again, as [`Server::start_again`] does, but the server may refuse to start.
    ///
    /// # Errors
    /// The error says how the server ended. The test can then call this function again.
    #[track_caller]
    pub fn try_to_start_again(&mut self) -> Result<(), Refusal> {
        assert!(self.end_is_expected, "it has not been ended");
        self.process = self.setup.launch(self.port, self.dir.path())?;
        self.end_is_expected = false;
        Ok(())
    }

    /// Kills the server with SIGKILL and starts it again.
    #[track_caller]
    pub fn kill_and_start_again(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Changes the setup for the next start.
    pub fn change_setup(&mut self, change: impl FnOnce(Setup) -> Setup) {
        self.setup = change(self.setup.clone());
    }

    /// Stops the server with SIGSTOP, and waits until it has stopped.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("the server stands still", || {
            let stat = fs::read_to_string(&stat).expect("a running server");
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        });
    }

    /// Waits until the client on `port` has sent data that this stopped server has not read.
    #[track_caller]
    pub fn see_unread_from(&self, port: u16) {
        eventually("something to read", || self.connection(port).is_some_and(|(_, unread)| unread > 0));
    }

    /// Waits until the stopped server's kernel has received the end (FIN) of the connection from the client on
    /// `port`.
    #[track_caller]
    pub fn see_left(&self, port: u16) {
        const CLOSE_WAIT: &str = "08";
        eventually("the end of a connection", || {
            self.connection(port).is_none_or(|(state, _)| state == CLOSE_WAIT)
        });
    }

    /// The connection with the client on `port`, as the server's kernel knows it: the state and the number of unread
    /// bytes.
    fn connection(&self, port: u16) -> Option<(String, u64)> {
        let table = fs::read_to_string("/proc/net/tcp").expect("the table of connections");
        table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, queues, ..] = fields[..] else { return None };
            let found =
                local.ends_with(&format!(":{:04X}", self.port)) && remote.ends_with(&format!(":{port:04X}"));
            let unread = queues.split(':').nth(1).and_then(|count| u64::from_str_radix(count, 16).ok());
            found.then(|| (state.to_owned(), unread.unwrap_or(0)))
        })
    }

    /// Continues a stopped server.
    #[track_caller]
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Makes this server a replica of `primary` and waits until the replica is in sync.
    #[track_caller]
    pub fn follow(&self, primary: &Self) {
        self.begin_to_follow(primary.port);
        self.see_in_sync_with(primary);
    }

    /// Makes this server a replica of the server on `port`, without waiting until the replica is in sync.
    #[track_caller]
    pub fn begin_to_follow(&self, port: u16) {
        assert_eq!(self.client().call(format!("REPLICAOF 127.0.0.1 {port}")), Reply::ok());
    }

    /// Makes this server a primary, and returns a connection to it.
    #[track_caller]
    pub fn promote(&self) -> Client {
        let mut client = self.client();
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        client
    }

    /// Waits until this server has received everything that `primary` has sent so far.
    #[track_caller]
    pub fn see_in_sync_with(&self, primary: &Self) {
        let mut here = self.client();
        eventually("the link to the primary is up", || {
            here.server_info("replication", "role") == "slave"
                && here.server_info("replication", "master_link_status") == "up"
        });
        let offset = primary.client().stat("replication", "master_repl_offset");
        eventually("the replica is in sync", || here.stat("replication", "slave_repl_offset") >= offset);
    }

    /// Shuts the server down normally, and waits until it has ended or the deadline is over.
    fn end_in_order(&mut self) {
        self.signal(libc::SIGCONT);
        self.signal(libc::SIGTERM);
        let begun = Instant::now();
        while self.process.ended().is_none() && begun.elapsed() < DEADLINE {
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn signal(&self, signal: libc::c_int) {
        self.process.signal(signal).unwrap_or_else(|error| panic!("signal {signal}: {error}"));
    }
}

impl Setup {
    /// Starts a server, makes it a replica of `primary`, and waits until it is in sync.
    #[track_caller]
    pub fn start_replica_of(self, primary: &Server) -> Server {
        let replica = self.start();
        replica.follow(primary);
        replica
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.process.ended().filter(|_| !self.end_is_expected);
        // A normal end makes the memory checker report leaks. Leaks do not matter after a panic, or in a server without
        // the module, such as a Sentinel.
        let reports_leaks = self.setup.module.is_some() && !self.setup.panics_are_wanted;
        if is_checked() && reports_leaks && ended.is_none() && !self.end_is_expected {
            self.end_in_order();
        }
        // Kills the child processes of the server too.
        let _ = self.process.signal_all(libc::SIGKILL);
        let _ = self.process.kill();
        let log = self.log();
        let crashed = ended.is_some() || log.contains("BUG REPORT START");
        let panicked = !self.setup.panics_are_wanted && log.to_lowercase().contains("panic");
        if thread::panicking() {
            if PRINTS_NO_LOGS.load(Ordering::Relaxed) {
                return;
            }
            let lines: Vec<&str> = log.lines().collect();
            // After a crash, the log is shown from the beginning of the crash report, which states the cause.
            let report = lines.iter().position(|line| line.contains("BUG REPORT START"));
            let from = report.unwrap_or_else(|| lines.len().saturating_sub(60));
            let shown: Vec<&str> = lines.iter().skip(from).take(60).copied().collect();
            eprintln!("--- the log of the server on port {} ---\n{}\n---", self.port, shown.join("\n"));
        } else if self.crash_is_expected {
            // The test has checked the log itself.
        } else if crashed {
            panic!("the server has ended or crashed:\n{log}");
        } else if panicked {
            panic!("the module has panicked:\n{log}");
        }
    }
}

static PRINTS_NO_LOGS: AtomicBool = AtomicBool::new(false);

/// From now on, the servers of failed tests do not print their logs.
pub fn print_no_logs() {
    PRINTS_NO_LOGS.store(true, Ordering::Relaxed);
}

/// Whether the servers run under a memory checker, which reports leaks at a normal exit.
fn is_checked() -> bool {
    env::var_os("LOCKWARD_CHECKED").is_some_and(|value| !value.is_empty() && value != "0")
}
