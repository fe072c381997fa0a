//! A server process of one's own.

use crate::client::Client;
use crate::link::Link;
use crate::reply::Reply;
use crate::wait::{DEADLINE, eventually, soon};
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

/// What to start.
#[derive(Clone, Debug)]
#[must_use]
pub struct Setup {
    module: Option<PathBuf>,
    module_arguments: Vec<String>,
    config: Vec<String>,
    environment: Vec<(String, String)>,
    panics_are_wanted: bool,
    sentinel: bool,
    cluster_port: Option<u16>,
}

impl Setup {
    /// The module with its default settings on a server without persistence.
    pub fn new() -> Self {
        Self {
            module: Some(module_path("LOCKWARD_MODULE", "target/release/liblockward.so")),
            module_arguments: Vec::new(),
            config: Vec::new(),
            environment: Vec::new(),
            panics_are_wanted: false,
            sentinel: false,
            cluster_port: None,
        }
    }

    /// The server alone.
    pub fn without_module() -> Self {
        Self::new().no_module()
    }

    /// The server as a Sentinel.
    pub(crate) fn sentinel() -> Self {
        Self { sentinel: true, ..Self::without_module() }
    }

    /// The module with LOCK._PANIC; panics in the log are no failure.
    pub fn with_panic_probe() -> Self {
        let path = module_path("LOCKWARD_PANIC_MODULE", "target/panic-probe/release/liblockward.so");
        Self { module: Some(path), panics_are_wanted: true, ..Self::new() }
    }

    /// The same with the module at `path`.
    pub fn module_at(self, path: impl Into<PathBuf>) -> Self {
        Self { module: Some(path.into()), ..self }
    }

    /// The same with the next version of the module: this one with `tests/next-version.patch`.
    pub fn next_version(self) -> Self {
        self.module_at(module_path("LOCKWARD_NEXT_MODULE", "target/next-version/liblockward.so"))
    }

    /// The same with a module beside it that gives commands of ours on a thread of its own, EMPTY.CALL command arguments, or
    /// runs a command in the midst of what an event tells of, EMPTY.MEDDLE event command.
    pub fn beside_another(self) -> Self {
        let path = module_path("LOCKWARD_EMPTY_MODULE", "target/release/libempty_module.so");
        self.config(&format!("loadmodule {}", path.display()))
    }

    /// The same with this version of the module, after it was another.
    pub fn this_version(self) -> Self {
        Self { module: Self::new().module, ..self }
    }

    /// The same without the module.
    pub fn no_module(self) -> Self {
        Self { module: None, module_arguments: Vec::new(), ..self }
    }

    /// The path of the module.
    #[track_caller]
    pub fn module_path(&self) -> String {
        self.module.as_ref().expect("a module").display().to_string()
    }

    /// Adds module arguments: `"quarantine 3000"`.
    pub fn module(mut self, arguments: &str) -> Self {
        self.module_arguments.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds a line of redis.conf: `"appendonly yes"`.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// The same, before the lines there are: one of them that names the same setting stands.
    pub(crate) fn config_before(mut self, line: &str) -> Self {
        self.config.insert(0, line.to_owned());
        self
    }

    /// Adds an environment variable.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Loads a library into the server before its own.
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
            match self.launch(port, &dir.path) {
                Ok(child) => {
                    let setup = self;
                    return Server {
                        child,
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

    /// Starts a server that is to refuse to start, and returns what it logs.
    #[track_caller]
    pub fn start_refused(self) -> String {
        let dir = Directory::new();
        match self.launch(free_port(), &dir.path) {
            Ok(mut child) => {
                child.kill().expect("a child to end");
                child.wait().expect("a child that ends");
                panic!("the server starts");
            }
            Err(refusal) => refusal.log,
        }
    }

    /// Starts a process on `port` and waits until it serves, or tells how it ended.
    fn launch(&self, port: u16, dir: &Path) -> Result<Child, Refusal> {
        let mut config = format!("bind 127.0.0.1\nport {port}\ndir {}\n", dir.display());
        if !self.sentinel {
            config.push_str(
                "save \"\"\nappendonly no\nenable-debug-command yes\nrepl-diskless-sync yes\n\
                 repl-diskless-sync-delay 0\nshutdown-timeout 0\n",
            );
            // What a replica hears from its primary, and a server from its AOF, must never fail: where it does, the
            // server ends, and with it the test.
            config.push_str("propagation-error-behavior panic\n");
        }
        if is_checked() {
            // When the server crashes, as some tests want it to, it would look through all memory, the checker's too.
            config.push_str("crash-memcheck-enabled no\n");
        }
        for line in &self.config {
            config.push_str(line);
            config.push('\n');
        }
        if let Some(port) = self.cluster_port {
            config.push_str(&format!("cluster-port {port}\n"));
        }
        let file = dir.join("server.conf");
        fs::write(&file, config).expect("a writable directory");
        let log = File::options().create(true).append(true).open(dir.join("server.log")).expect("a log");
        let logged = usize::try_from(log.metadata().expect("a log").len()).expect("a size");
        let program = env::var("LOCKWARD_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut command = Command::new(&program);
        command.arg(&file);
        if self.sentinel {
            command.arg("--sentinel");
        }
        if let Some(module) = &self.module {
            command.arg("--loadmodule").arg(module).args(&self.module_arguments);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        command.process_group(0);
        let parent = process::id();
        // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(move || die_with(parent)) };
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{program} does not run ({error}): run `make build`, or set LOCKWARD_SERVER")
        });
        let pid = format!("process_id:{}\r\n", child.id());
        let serves = |child: &mut Child| -> Option<Result<(), Refusal>> {
            if let Some(status) = child.try_wait().expect("a child") {
                let log = fs::read(dir.join("server.log")).unwrap_or_default();
                let log = String::from_utf8_lossy(&log[logged..]).into_owned();
                return Some(Err(Refusal { status, log }));
            }
            let mut client = Client::connect(port).ok()?;
            let info = client.try_call("INFO server").ok()?;
            let ready = matches!(&info, Reply::Bulk(_)) && info.text().contains(&pid);
            (ready && client.try_call("PING").ok()? == Reply::Simple("PONG".into())).then_some(Ok(()))
        };
        soon("the server serves", || serves(&mut child)).map(|()| child)
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

/// How a server ended that did not start.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// How its process ended.
    pub status: ExitStatus,
    /// What it logged.
    pub log: String,
}

impl Refusal {
    /// Whether it ended of its own will and said why: neither by a signal nor with a stack trace. (Not always with 1:
    /// the server ends with 0 when its own check of an RDB file finds nothing.)
    pub fn is_clean(&self) -> bool {
        self.status.code().is_some() && !self.log.is_empty() && !self.log.contains("BUG REPORT START")
    }
}

/// A server process, killed when it goes out of scope.
///
/// It also dies with the thread that started it, so that a killed test run leaves nothing behind: start it in the
/// thread of the test. If it has crashed by the end of the test, or the module has logged a panic, the test fails.
#[derive(Debug)]
pub struct Server {
    child: Child,
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

    /// Starts a server with module arguments: `"quarantine 3000"`.
    #[track_caller]
    pub fn start_with(module_arguments: &str) -> Self {
        Setup::new().module(module_arguments).start()
    }

    /// Starts a server and makes it a replica of `primary`, in sync.
    #[track_caller]
    pub fn start_replica_of(primary: &Self) -> Self {
        Setup::new().start_replica_of(primary)
    }

    /// The port it listens on.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir.path
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

    /// Whether it is Redis of at least this version, or Valkey from 8 on, which has what Redis 7.4 has.
    #[track_caller]
    pub fn has_redis(&self, major: u32, minor: u32) -> bool {
        let info = self.client().call("INFO server").text();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let parts = |version: String| -> (u32, u32) {
            let mut numbers = version.split('.').map_while(|part| part.parse().ok());
            (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
        };
        match field("valkey_version:") {
            Some(version) => parts(version) >= (8, 0) && (major, minor) <= (7, 4),
            None => field("redis_version:").map(parts) >= Some((major, minor)),
        }
    }

    /// Whether modules may listen to the events of EXPIRE, RENAME and MOVE: not on Valkey 8.1 and 9.0, where that leaves clients of
    /// MOVE and COPY in another database.
    #[track_caller]
    pub fn tells_of_renames(&self) -> bool {
        let info = self.client().call("INFO server").text();
        !["8.1.", "9.0."].iter().any(|version| info.contains(&format!("valkey_version:{version}")))
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path.join("server.log")).unwrap_or_default()).into_owned()
    }

    /// Waits until it has logged `text`.
    #[track_caller]
    pub fn see_log(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    /// Ends it at once, as kill -9 does.
    #[track_caller]
    pub fn kill(&mut self) {
        self.end_is_expected = true;
        self.child.kill().expect("a running server");
        self.child.wait().expect("a server that ends");
    }

    /// Asks it to end, as SIGTERM does, and waits for that.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.begin_to_terminate();
        self.see_end()
    }

    /// Asks it to end, as SIGTERM does.
    #[track_caller]
    pub fn begin_to_terminate(&mut self) {
        self.end_is_expected = true;
        self.signal(libc::SIGTERM);
    }

    /// Whether the test has not ended it.
    pub const fn is_running(&self) -> bool {
        !self.end_is_expected
    }

    /// Waits until it has ended, which is what the test wants.
    #[track_caller]
    pub fn see_end(&mut self) -> ExitStatus {
        self.end_is_expected = true;
        soon("the server ends", || self.child.try_wait().expect("a child"))
    }

    /// Waits until it has crashed, which is what the test wants, and returns its log.
    #[track_caller]
    pub fn see_crash(&mut self) -> String {
        self.crash_is_expected = true;
        assert!(!self.see_end().success(), "the server ends in order");
        self.log()
    }

    /// Starts it again after its end: same port, same directory, same setup.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(Refusal { log, .. }) = self.try_to_start_again() {
            panic!("the server does not start again:\n{log}");
        }
    }

    /// As [`Server::start_again`], where the server may refuse to.
    ///
    /// # Errors
    /// How it ended instead. It may be started again.
    #[track_caller]
    pub fn try_to_start_again(&mut self) -> Result<(), Refusal> {
        assert!(self.end_is_expected, "it has not been ended");
        self.child = self.setup.launch(self.port, &self.dir.path)?;
        self.end_is_expected = false;
        Ok(())
    }

    /// Ends it at once and starts it again.
    #[track_caller]
    pub fn kill_and_start_again(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Changes what the next start starts with.
    pub fn change_setup(&mut self, change: impl FnOnce(Setup) -> Setup) {
        self.setup = change(self.setup.clone());
    }

    /// Freezes it, as SIGSTOP does, and waits until it stands still.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("the server stands still", || {
            let stat = fs::read_to_string(&stat).expect("a running server");
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        });
    }

    /// Waits until what the client on `port` has sent to this frozen server has arrived there.
    #[track_caller]
    pub fn see_unread_from(&self, port: u16) {
        eventually("something to read", || self.connection(port).is_some_and(|(_, unread)| unread > 0));
    }

    /// Waits until it has arrived at this frozen server that the client on `port` has left.
    #[track_caller]
    pub fn see_left(&self, port: u16) {
        const CLOSE_WAIT: &str = "08";
        eventually("the end of a connection", || {
            self.connection(port).is_none_or(|(state, _)| state == CLOSE_WAIT)
        });
    }

    /// This side of the connection with the client on `port`: its state, and the bytes that wait to be read.
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

    /// Lets a frozen server go on.
    #[track_caller]
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Makes it a replica of `primary` and waits until it is in sync.
    #[track_caller]
    pub fn follow(&self, primary: &Self) {
        self.begin_to_follow(primary.port);
        self.see_in_sync_with(primary);
    }

    /// Makes it a replica of what is behind `port`, and does not wait until it is in sync.
    #[track_caller]
    pub fn begin_to_follow(&self, port: u16) {
        assert_eq!(self.client().call(format!("REPLICAOF 127.0.0.1 {port}")), Reply::ok());
    }

    /// Makes it a replica of `primary` by way of `link`, and waits until it is in sync.
    #[track_caller]
    pub fn follow_through(&self, link: &Link, primary: &Self) {
        self.begin_to_follow(link.port());
        self.see_in_sync_with(primary);
    }

    /// Makes it a primary, and returns a connection to it.
    #[track_caller]
    pub fn promote(&self) -> Client {
        let mut client = self.client();
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        client
    }

    /// Waits until it has heard all that `primary` has sent up to now.
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

    /// Ends it in order, should it still be able to.
    fn end_in_order(&mut self) {
        self.signal(libc::SIGCONT);
        self.signal(libc::SIGTERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < DEADLINE {
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn signal(&self, signal: i32) {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: `kill` reads nothing; the child has not been waited for, so its pid is still its own.
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0, "signal {signal}");
    }
}

impl Setup {
    /// Starts a server and makes it a replica of `primary`, in sync.
    #[track_caller]
    pub fn start_replica_of(self, primary: &Server) -> Server {
        let replica = self.start();
        replica.follow(primary);
        replica
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten().filter(|_| !self.end_is_expected);
        // What a panic leaks, or a Sentinel, is not asked for.
        let tells = self.setup.module.is_some() && !self.setup.panics_are_wanted;
        if is_checked() && tells && ended.is_none() && !self.end_is_expected {
            self.end_in_order();
        }
        // With the children it may have: one that rewrites the AOF outlives it, and writes on in its directory.
        let group = -libc::pid_t::try_from(self.child.id()).unwrap_or(libc::pid_t::MAX);
        // SAFETY: `kill` reads nothing; the group was made for this server.
        unsafe { libc::kill(group, libc::SIGKILL) };
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        let crashed = ended.is_some() || log.contains("BUG REPORT START");
        let panicked = !self.setup.panics_are_wanted && log.to_lowercase().contains("panic");
        if thread::panicking() {
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!("--- the log of the server on port {} ---\n{}\n---", self.port, tail.join("\n"));
        } else if self.crash_is_expected {
            // It has been looked at.
        } else if crashed {
            panic!("the server has ended or crashed:\n{log}");
        } else if panicked {
            panic!("the module has panicked:\n{log}");
        }
    }
}

/// A directory of one's own, removed when it goes out of scope.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("lockward-test-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Self { path }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A child of the server that is just ending may still add a file.
        for _ in 0..1_000 {
            if fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            thread::yield_now();
        }
    }
}

/// Lets a child be killed when the thread that starts it ends, also when that ends by a kill.
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: prctl with PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have ended before the call above.
    // SAFETY: getppid has no conditions.
    if u32::try_from(unsafe { libc::getppid() }) == Ok(parent) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Whether the servers run under a checker of their memory, which tells of leaks when they end in order.
fn is_checked() -> bool {
    env::var_os("LOCKWARD_CHECKED").is_some_and(|value| !value.is_empty() && value != "0")
}

fn module_path(variable: &str, default: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    env::var_os(variable).map_or_else(|| root.join(default), PathBuf::from)
}

/// A port that nobody listens on, outside the range that outgoing connections take theirs from.
#[track_caller]
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = process::id().wrapping_mul(7_919);
    for _ in 0..COUNT {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port within {DEADLINE:?}");
}
