//! The CPUs and priorities of clients and servers.
//!
//! With [`Place::Together`] client and server share a CPU and never run at the same time. So no other process displaces the
//! server's data in the caches, and other costs do not hide the difference between two commands: the ratios are
//! the strictest. With [`Place::Apart`] they have a CPU each, where there are two, as in production.
//! There a reply wakes another CPU, which costs the server more than some commands, on a virtual machine several times as
//! much. The CPUs are fixed, since the scheduler would move processes between them.
//!
//! Where it is allowed, both have priority over other processes and neither interrupts the other (`SCHED_RR`): so the numbers are repeatable from
//! run to run, even on a busy machine.

use std::fmt::{self, Display};
use std::sync::OnceLock;
use std::{fs, io, mem};

/// Where a server runs, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the client's CPU.
    Together,
    /// On another, where there is one.
    Apart,
    /// Where the scheduler puts it, without priority over others.
    Anywhere,
}

/// The CPUs and the scheduling policy of a process.
#[derive(Clone, Copy)]
pub(crate) struct Confinement {
    cpus: libc::cpu_set_t,
    /// Whether it goes before other processes, where that is allowed.
    first: bool,
    /// The policy otherwise.
    policy: libc::c_int,
}

/// How many CPUs there are for clients and servers.
pub fn cpus() -> usize {
    allowed().len()
}

/// Makes this process the client of servers in a place. Call this before they are started.
pub fn be_client_of(place: Place) {
    let client = place.confinement();
    let cpus = if place == Place::Apart { Place::Together.confinement().cpus } else { client.cpus };
    Confinement { cpus, ..client }.enter().expect("a CPU of our own");
}

impl Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Together => "one CPU",
            Self::Apart => "separate CPUs",
            Self::Anywhere => "any CPU",
        })
    }
}

impl Place {
    /// The number of its CPU, or of the first. The available CPUs are read at the first call.
    pub fn cpu(self) -> usize {
        *self.cpus().first().expect("a CPU to run on")
    }

    fn cpus(self) -> &'static [usize] {
        let all = allowed();
        match self {
            Self::Together => &all[..1],
            Self::Apart => &all[all.len() - 1..],
            Self::Anywhere => all,
        }
    }

    /// Its confinement.
    pub(crate) fn confinement(self) -> Confinement {
        let policy = match self {
            Self::Together => libc::SCHED_BATCH,
            Self::Apart | Self::Anywhere => libc::SCHED_OTHER,
        };
        let mut cpus = no_cpus();
        for cpu in self.cpus() {
            // SAFETY: a number that the kernel has given.
            unsafe { libc::CPU_SET(*cpu, &mut cpus) };
        }
        Confinement { cpus, first: self != Self::Anywhere, policy }
    }
}

impl Confinement {
    /// Confines the calling process. Allocates nothing, so that it may be called after a fork.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // SAFETY: reads a set of the size it says, which outlives the call.
        let confined =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.cpus) };
        let first = || self.first && schedule(libc::SCHED_RR, 1);
        if confined == 0 && (first() || schedule(self.policy, 0)) {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> bool {
    schedule_thread(0, policy, priority)
}

/// Thread 0 is the calling one.
fn schedule_thread(thread: u32, policy: libc::c_int, priority: libc::c_int) -> bool {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: reads a structure that outlives the call.
    unsafe { libc::sched_setscheduler(thread.cast_signed(), policy, &raw const priority) == 0 }
}

/// Gives the calling thread priority over the other threads of this process, where that is allowed.
pub fn go_before_own_threads() {
    schedule(libc::SCHED_RR, 2);
}

/// Gives the main thread of a process priority over other processes, where that is allowed, but no other thread of it and no process
/// that it starts: these would use so much CPU time that the kernel throttles all real-time threads for 50 ms.
pub fn put_main_thread_first(pid: u32) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs");
    let threads = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<u32>().ok());
    for thread in threads.filter(|thread| *thread != pid) {
        schedule_thread(thread, libc::SCHED_OTHER, 0);
    }
    schedule_thread(pid, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1);
}

/// Whether this process has priority over others.
pub fn goes_before_others() -> bool {
    // SAFETY: has no conditions.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_RR }
}

/// The CPUs that this process may use, as it was started.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let mut set = no_cpus();
        // SAFETY: writes a set of the size it says, which outlives the call.
        let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        assert_eq!(status, 0, "the CPUs of this process: {}", io::Error::last_os_error());
        let size = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
        // SAFETY: numbers within the set.
        (0..size).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
    })
}

fn no_cpus() -> libc::cpu_set_t {
    // SAFETY: a set of bits, all of them zero.
    unsafe { mem::zeroed() }
}

/// Gives this process, and all that it starts from now on, a high priority, if that is allowed. Returns
/// whether it was. Unlike [`be_client_of`] it leaves the choice of CPUs to the scheduler, and some CPU time to other processes.
pub fn go_first() -> bool {
    // SAFETY: has no conditions; 0 is this process.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0 }
}
