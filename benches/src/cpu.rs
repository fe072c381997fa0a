//! The CPU time that a server process has used.

use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// The CPU clock of a process: all its threads, user and kernel, in nanoseconds. It is the counter behind
/// `/proc/<pid>/schedstat`, read in one call.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock {
    pid: u32,
    clock: libc::clockid_t,
}

impl CpuClock {
    /// The clock of a process.
    pub fn of(pid: u32) -> Self {
        let mut clock = 0;
        // SAFETY: writes one clock id.
        let status = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
        assert_eq!(status, 0, "the CPU clock of process {pid}");
        Self { pid, clock }
    }

    /// What the clock shows once the process sleeps. While it runs, the kernel brings the counter up to date only now
    /// and then.
    pub fn settled(&self) -> Duration {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.sleeps() {
            assert!(Instant::now() < deadline, "process {} does not come to rest", self.pid);
            thread::yield_now();
        }
        self.read()
    }

    fn read(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a structure that outlives the call.
        let status = unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        assert_eq!(status, 0, "the CPU clock of process {}: {}", self.pid, io::Error::last_os_error());
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn sleeps(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("a server that runs");
        // The state follows the name, which stands in parentheses and may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
    }
}
