//! The CPU time that a server process has used.

use rustix::param::clock_ticks_per_second;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// The CPU clock of a process: user and kernel time of all its threads, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock {
    pid: u32,
    clock: libc::clockid_t,
}

impl CpuClock {
    pub fn of(pid: u32) -> Self {
        let mut clock = 0;
        // SAFETY: the call only writes the clock id to `clock`, which outlives the call.
        let status = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
        assert_eq!(status, 0, "the CPU clock of process {pid}");
        Self { pid, clock }
    }

    /// Waits until the process sleeps, and reads the clock.
    pub fn settled(&self) -> Duration {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.sleeps() {
            assert!(Instant::now() < deadline, "process {} does not sleep", self.pid);
            thread::yield_now();
        }
        self.read()
    }

    /// Reads the clock. The clock of a running process may lack the last milliseconds.
    pub fn read(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call only writes to `time`, which outlives the call.
        let status = unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        assert_eq!(status, 0, "the CPU clock of process {}: {}", self.pid, io::Error::last_os_error());
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn sleeps(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("a server that runs");
        // The state of the process follows its name. The name is in parentheses and may contain any bytes.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
    }
}

/// The CPU time of a process and all its descendants, including descendants that have ended. A process that starts or
/// ends during the call may be missing.
pub fn of_family(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    // The user and kernel time of the process and of its ended children are fields 14 to 17 of the line, counted from
    // 1. The state is field 3, and the first of `fields`.
    let own = ticks(fields.split(' ').skip(11).take(4));
    own + children(pid).into_iter().map(of_family).sum::<Duration>()
}

/// The child processes of the main thread. These are all children, because no server and no peer program starts
/// processes from another thread.
fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The CPU time of the whole machine since its start, on all CPUs.
pub fn of_machine() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // User, nice and system time, interrupts, soft interrupts, and time taken by other virtual machines. The sum
    // leaves out the fields 3 and 4, counted from 0: idle time, and time spent waiting for a disk.
    ticks(all.take(8).enumerate().filter(|(place, _)| ![3, 4].contains(place)).map(|(_, time)| time))
}

fn ticks<'a>(times: impl Iterator<Item = &'a str>) -> Duration {
    let count: u64 = times.filter_map(|time| time.parse::<u64>().ok()).sum();
    Duration::from_millis(count * 1_000 / clock_ticks_per_second())
}
