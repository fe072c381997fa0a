//! A server process of one's own, with a copy of the module.

use crate::clients::{Client, Clients};
use crate::connection::Connection;
use crate::cpu::CpuClock;
use crate::placement::{Confinement, Place};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, mem};

/// How long a server may take for anything at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Lockward.
    Lockward,
    /// The module that does nothing: what any module costs.
    Empty,
    /// No module.
    Nothing,
}

/// A server, killed when it goes out of scope, and with the thread that started it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    dir: Directory,
    log: Option<JoinHandle<String>>,
}

impl Server {
    /// Starts a server with the module, without persistence, and with these lines of redis.conf.
    pub fn start(config: &[&str]) -> Self {
        Self::start_with(Loaded::Lockward, Place::Together, config)
    }

    /// As [`Server::start`], with another module, or elsewhere.
    pub fn start_with(loaded: Loaded, place: Place, config: &[&str]) -> Self {
        Self::start_anyhow(loaded, place, &[], config)
    }

    /// As [`Server::start`], with this module, as an argument of another program. `{dir}` stands for the server's
    /// directory.
    pub fn start_under(wrapper: &[&str], loaded: Loaded, config: &[&str]) -> Self {
        Self::start_anyhow(loaded, Place::Together, wrapper, config)
    }

    fn start_anyhow(loaded: Loaded, place: Place, wrapper: &[&str], config: &[&str]) -> Self {
        let confinement = place.confinement();
        for _ in 0..10 {
            match Self::try_start(loaded, confinement, wrapper, config) {
                Ok(server) => return server,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("the server does not start:\n{log}"),
            }
        }
        panic!("no free port");
    }

    fn try_start(
        loaded: Loaded,
        confinement: Confinement,
        wrapper: &[&str],
        config: &[&str],
    ) -> Result<Self, String> {
        let dir = Directory::new();
        let port = free_port();
        let file = dir.path.join("server.conf");
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {}", dir.path.display()),
            "save \"\"".to_owned(),
            "appendonly no".to_owned(),
            "auto-aof-rewrite-percentage 0".to_owned(),
            "repl-diskless-sync yes".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        let mut text = lines.join("\n");
        if let Some(module) = loaded.copy_to(&dir.path) {
            text.push_str(&format!("\nloadmodule {}", module.display()));
        }
        for line in config {
            text.push('\n');
            text.push_str(line);
        }
        fs::write(&file, text + "\n").expect("a writable directory");
        let program = env::var("LOCKWARD_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut words: Vec<String> =
            wrapper.iter().map(|word| word.replace("{dir}", &dir.path.display().to_string())).collect();
        words.extend([program, file.display().to_string()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let parent = process::id();
        // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(move || die_with(parent).and_then(|()| confinement.enter())) };
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{} does not run: {error}", words[0]));
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        match until_ready(output) {
            Ok(log) => Ok(Self { child, port, dir, log: Some(log) }),
            Err(log) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(log)
            }
        }
    }

    /// Starts a replica of this server, with a CPU of its own, and waits until it is in sync.
    pub fn start_replica(&self) -> Self {
        let primary = format!("replicaof 127.0.0.1 {}", self.port);
        let replica = Self::start_with(Loaded::Lockward, Place::Apart, &[&primary]);
        let mut client = replica.client();
        wait_for("the link to the primary", || client.info("replication").contains("master_link_status:up"));
        replica
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A connection that counts lines of replies, for requests whose instructions are counted.
    pub fn connect(&self) -> Connection {
        Connection::open(self.port)
    }

    /// A client of its own.
    pub fn client(&self) -> Client {
        Client::open(self.port)
    }

    /// So many clients.
    pub fn clients(&self, count: usize) -> Clients {
        Clients::open(self.port, count)
    }

    /// Its CPU clock.
    pub fn cpu(&self) -> CpuClock {
        CpuClock::of(self.child.id())
    }

    /// Its resident memory, in bytes.
    pub fn resident(&self) -> f64 {
        let statm =
            fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("a server that runs");
        let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("its pages");
        // SAFETY: asks for a number.
        pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as f64
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir.path
    }

    /// Name and version, as it gives them.
    pub fn version(&self) -> String {
        let info = self.client().info("server");
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        match (field("valkey_version:"), field("redis_version:")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or_default()),
        }
    }

    /// Asks it to end and waits until it has.
    pub fn end(&mut self) {
        let pid = self.child.id().cast_signed();
        // SAFETY: reads nothing; the child has not been waited for, so the pid is still its own.
        let sent = unsafe { libc::kill(pid, libc::SIGTERM) };
        assert_eq!(sent, 0, "{}", io::Error::last_os_error());
        self.child.wait().expect("a server that ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten().filter(|status| !status.success());
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log.take().and_then(|log| log.join().ok()).unwrap_or_default();
        if thread::panicking() || ended.is_some() {
            eprintln!("--- the log of the server ---\n{log}---");
        }
    }
}

impl Loaded {
    /// Where it is: as `make bench-builds` leaves it, or as `LOCKWARD_MODULE` and `LOCKWARD_EMPTY_MODULE` say.
    pub fn path(self) -> Option<PathBuf> {
        let (variable, file) = match self {
            Self::Lockward => ("LOCKWARD_MODULE", "release/liblockward.so"),
            Self::Empty => ("LOCKWARD_EMPTY_MODULE", "release/libempty_module.so"),
            Self::Nothing => return None,
        };
        Some(env::var_os(variable).map_or_else(|| target_dir().join(file), PathBuf::from))
    }

    /// The line of redis.conf that loads it beside another.
    pub fn line_of_config(self) -> String {
        self.path().map_or_else(String::new, |path| format!("loadmodule {}", path.display()))
    }

    /// A copy, so that a build meanwhile does not change what is measured.
    fn copy_to(self, dir: &Path) -> Option<PathBuf> {
        let path = self.path()?;
        let copy = dir.join(path.file_name()?);
        if let Err(error) = fs::copy(&path, &copy) {
            panic!("{} cannot be read ({error}): run `make bench-builds`", path.display());
        }
        Some(copy)
    }

    /// That this module is there, or what to do about it.
    pub fn is_built(self) -> Result<(), String> {
        match self.path() {
            Some(path) if !path.is_file() => {
                Err(format!("There is no {}: run `make bench-builds`.", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Where `make` builds.
pub fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/")).join("target")
}

/// Reads the log until the server serves; the rest is read by a thread, so that the pipe does not fill. An error is the
/// log of a server that has ended.
fn until_ready(mut output: BufReader<ChildStdout>) -> Result<JoinHandle<String>, String> {
    let mut log = String::new();
    while !log.contains("Ready to accept connections") {
        if output.read_line(&mut log).unwrap_or(0) == 0 {
            return Err(log);
        }
    }
    Ok(thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = output.read_to_end(&mut rest);
        mem::take(&mut log) + &String::from_utf8_lossy(&rest)
    }))
}

/// Waits until a condition is met.
pub fn wait_for(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        thread::yield_now();
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Lets a child be killed when the thread that starts it ends, also when that ends by a kill.
pub(crate) fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have ended before the call above.
    // SAFETY: has no conditions.
    if unsafe { libc::getppid() }.cast_unsigned() == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// A directory of one's own, removed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
}

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("lockward-bench-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Self { path }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
