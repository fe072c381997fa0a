//! Processes, temporary directories and free ports.

use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, thread};

/// A process and its child processes, in their own process group.
///
/// When this value goes out of scope, the whole group is killed. The process also dies with the thread that started
/// it, so a killed test run leaves no server behind.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
}

impl ProcessGroup {
    /// Starts a process.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let parent = process::id();
        // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
        unsafe { command.process_group(0).pre_exec(move || die_with(parent)) };
        command.spawn().map(|child| Self { child })
    }

    /// The id of the process, and of the group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipes of the process: input, output and errors. `None` for a pipe that the command has not requested, or
    /// that was taken before.
    pub fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        let child = &mut self.child;
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    }

    /// The exit status of the process; `None` while the process runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the process ends.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Kills the process and waits for its end. Child processes of the process are not killed.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Sends a signal to the process. Call this only before [`ProcessGroup::wait`]: after `wait`, the id may belong to
    /// another process.
    pub fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        send_signal(self.child.id().cast_signed(), signal)
    }

    /// Sends a signal to the whole group.
    pub fn signal_all(&self, signal: libc::c_int) -> io::Result<()> {
        send_signal(-self.child.id().cast_signed(), signal)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // This signal also kills the server's child processes. Otherwise a child process that rewrites the AOF would
        // outlive the server and go on writing in the server's directory.
        let _ = self.signal_all(libc::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send_signal(pid: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: `kill` reads nothing. The process is a child of this process and leads its own group.
    let status = unsafe { libc::kill(pid, signal) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs in the new process. Tells the kernel to kill this process when the thread that started it ends, even if that
/// thread is killed.
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: prctl with PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // If the parent has ended before the call above, the kernel sends no signal. So this process ends itself.
    // SAFETY: getppid has no conditions.
    if unsafe { libc::getppid() }.cast_unsigned() == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// A temporary directory, which is removed when this value goes out of scope.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// A new, empty directory.
    #[track_caller]
    pub fn new() -> Self {
        let path = temporary_path("test");
        fs::create_dir_all(&path).expect("a temporary directory");
        Self { path }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A dying child process of the server may still add a file. In this case the removal fails, and the loop
        // repeats the removal.
        for _ in 0..1_000 {
            if fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            thread::yield_now();
        }
    }
}

/// A new path in the directory for temporary files.
pub(crate) fn temporary_path(kind: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    env::temp_dir().join(format!("lockward-{kind}-{}-{number}", process::id()))
}

/// A free port, outside the range of ports for outgoing connections.
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
    panic!("no free port");
}
