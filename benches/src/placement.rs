//! Which CPU runs what: client and measured server share one, a replica has another.
//!
//! Left to the scheduler, the two share a CPU for some seconds and then do not. Apart, much of what a command costs the
//! server is waking the client's CPU, on a virtual machine more than the command itself: the same for every command,
//! and so it would hide what one costs beside another. Together they never run at the same time, the numbers repeat from
//! run to run, and the ratios are the strictest there are.

use std::sync::OnceLock;
use std::{io, mem};

/// Where a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the CPU of this process.
    Here,
    /// On another, where there is one.
    Aside,
}

/// The CPUs of one place, as the kernel takes them.
#[derive(Clone, Copy)]
pub(crate) struct Cpus(libc::cpu_set_t);

/// Keeps this process on the first of its CPUs. To be called before a server is started.
pub fn keep_this_process() {
    Place::Here.cpus().confine().expect("a CPU of our own");
}

impl Place {
    /// Its CPUs. Which they are is settled at the first call.
    pub(crate) fn cpus(self) -> Cpus {
        static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
        let allowed = ALLOWED.get_or_init(allowed);
        let cpu = match self {
            Self::Here => allowed.first(),
            Self::Aside => allowed.last(),
        };
        let mut set = no_cpus();
        // SAFETY: a number that the kernel has given.
        unsafe { libc::CPU_SET(*cpu.expect("a CPU to run on"), &mut set) };
        Cpus(set)
    }
}

impl Cpus {
    /// Confines the calling process to them. Allocates nothing, so that it may be called after a fork.
    pub(crate) fn confine(&self) -> io::Result<()> {
        // SAFETY: reads a set of the size it says, which outlives the call.
        let status = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The CPUs that this process may use.
fn allowed() -> Vec<usize> {
    let mut set = no_cpus();
    // SAFETY: writes a set of the size it says, which outlives the call.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    assert_eq!(status, 0, "the CPUs of this process: {}", io::Error::last_os_error());
    let size = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: numbers within the set.
    (0..size).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

fn no_cpus() -> libc::cpu_set_t {
    // SAFETY: a set of bits, all of them zero.
    unsafe { mem::zeroed() }
}
