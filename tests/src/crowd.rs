//! Connections by the thousand.

use crate::client::Client;
use crate::server::Server;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The right to have thousands of connections. One test at a time has it, as a process may have so many and no more.
#[derive(Debug)]
pub struct Crowd {
    _turn: MutexGuard<'static, ()>,
}

impl Crowd {
    /// Waits until no other test has a crowd, and lets this process open as many connections as the system allows.
    #[must_use]
    pub fn gather() -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit lives as long as both calls.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
        Self { _turn: turn }
    }

    /// New connections, each of which sends one LOCK.ACQUIRE: `"lock B BLOCK 0"`.
    #[track_caller]
    pub fn ask(&self, server: &Server, count: usize, request: impl Fn(usize) -> String) -> Vec<Client> {
        let asking = |number| {
            let mut client = server.client();
            client.ask(&request(number));
            client
        };
        (0..count).map(asking).collect()
    }
}
