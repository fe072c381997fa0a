//! The CPUs and priorities of clients and servers.
//!
//! With [`Place::Together`], client and server share a CPU and never run at the same time. So no other process
//! displaces the server's data in the caches, and no other cost hides the difference between two commands.
//!
//! With [`Place::Apart`], client and server have separate CPUs if there are two, as in production. Then each reply
//! wakes another CPU. Many commands take less of the server's CPU time than such a wake-up. On a virtual machine, a
//! wake-up takes several times as long as on a physical machine. Each process is bound to its CPU, so that the
//! scheduler does not move the process to another CPU.
//!
//! If the system allows it, client and server have priority over other processes, and neither interrupts the other
//! (`SCHED_RR`). So the numbers are repeatable, even on a busy machine.

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;
use std::{fs, io};

/// Where a server runs, relative to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Together,
    /// On another CPU, if there is one.
    Apart,
    /// On any CPU, as the scheduler decides, and without priority over other processes.
    Anywhere,
}

/// The CPUs and the scheduling policy of a process.
#[derive(Clone, Copy)]
pub(crate) struct Confinement {
    cpus: CpuSet,
    /// Whether the process asks for priority over other processes. The system may refuse this priority.
    first: bool,
    /// The scheduling policy of a process without priority.
    policy: libc::c_int,
}

pub fn cpus() -> usize {
    allowed().len()
}

/// Makes this process the client of servers at this place. Call this before you start the servers.
pub fn be_client_of(place: Place) {
    let client = place.confinement();
    let cpus = if place == Place::Apart { Place::Together.confinement().cpus } else { client.cpus };
    Confinement { cpus, ..client }.enter().expect("the CPU of the client");
}

impl Place {
    /// The number of the first CPU of this place. The first call reads which CPUs are available.
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

    pub(crate) fn confinement(self) -> Confinement {
        let policy = match self {
            Self::Together => libc::SCHED_BATCH,
            Self::Apart | Self::Anywhere => libc::SCHED_OTHER,
        };
        let mut cpus = CpuSet::new();
        self.cpus().iter().for_each(|cpu| cpus.set(*cpu));
        Confinement { cpus, first: self != Self::Anywhere, policy }
    }
}

impl Confinement {
    /// Confines the calling process. This function allocates nothing, so a child process may call it after a fork.
    pub(crate) fn enter(&self) -> io::Result<()> {
        sched_setaffinity(None, &self.cpus)?;
        let first = || self.first && schedule(0, libc::SCHED_RR, 1);
        if first() || schedule(0, self.policy, 0) { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Sets the scheduling policy and the priority of a thread. Thread 0 is the calling thread. Returns whether the system
/// allows it.
fn schedule(thread: u32, policy: libc::c_int, priority: libc::c_int) -> bool {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: the call only reads `priority`, which outlives the call.
    unsafe { libc::sched_setscheduler(thread.cast_signed(), policy, &raw const priority) == 0 }
}

/// Gives the calling thread priority over the other threads of this process, if the system allows it.
pub fn go_before_own_threads() {
    schedule(0, libc::SCHED_RR, 2);
}

/// Gives the main thread of a process priority over other processes, if the system allows it. The other threads and the
/// child processes get no priority: they would use so much CPU time that the kernel throttles all real-time threads for
/// 50 ms.
pub fn put_main_thread_first(pid: u32) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs");
    let threads = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<u32>().ok());
    for thread in threads.filter(|thread| *thread != pid) {
        schedule(thread, libc::SCHED_OTHER, 0);
    }
    schedule(pid, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1);
}

/// The CPUs that this process could use when it was started.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let set = sched_getaffinity(None).expect("the CPUs of this process");
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    })
}

/// Gives this process, and all processes that it starts later, a high priority on all CPUs. Returns whether the system
/// allows it.
pub fn go_first() -> bool {
    setpriority_process(None, -20).is_ok()
}
