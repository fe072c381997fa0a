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
        Self::find(pid).unwrap_or_else(|| panic!("the CPU clock of process {pid}"))
    }

    fn find(pid: u32) -> Option<Self> {
        let mut clock = 0;
        // SAFETY: the call only writes the clock id to `clock`, which outlives the call.
        let status = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
        (status == 0).then_some(Self { pid, clock })
    }

    /// Waits until the process sleeps, and reads the clock. The clock of a running process may lack the last
    /// milliseconds.
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
        let read = self.try_read();
        read.unwrap_or_else(|| {
            panic!("the CPU clock of process {}: {}", self.pid, io::Error::last_os_error())
        })
    }

    fn try_read(&self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call only writes to `time`, which outlives the call.
        let status = unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        let time = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        (status == 0).then_some(time)
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
    let own = CpuClock::find(pid).and_then(|clock| clock.try_read()).unwrap_or_default();
    own + of_ended_children(pid) + children(pid).into_iter().map(of_family).sum::<Duration>()
}

fn of_ended_children(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    // The user and kernel time of ended children are fields 16 and 17 of the line, counted from 1. The state is field
    // 3, and the first of `fields`.
    ticks(fields.split(' ').skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum())
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
    let times: Vec<u64> = all.take(8).map(|field| field.parse().unwrap_or(0)).collect();
    ticks(times.iter().enumerate().filter(|(place, _)| ![3, 4].contains(place)).map(|(_, time)| time).sum())
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * 1_000 / clock_ticks_per_second())
}
