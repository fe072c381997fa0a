//! Thousands of connections.

use crate::client::Client;
use crate::limits::raise_open_files;
use crate::mutex::locked;
use crate::server::Server;
use std::sync::{Mutex, MutexGuard};

/// The right to open thousands of connections. One test at a time has this right, because the number of open files of
/// a process is limited.
#[derive(Debug)]
pub struct Crowd {
    _alone: MutexGuard<'static, ()>,
}

impl Crowd {
    /// Waits until no other test has a crowd. Then raises this process's limit of open files as far as the
    /// system allows.
    #[must_use]
    pub fn gather() -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let alone = locked(&ONE_AT_A_TIME);
        raise_open_files(u64::MAX);
        Self { _alone: alone }
    }

    /// Opens connections and sends one LOCK.ACQUIRE on each. `request` gets the number of a connection and returns its
    /// arguments, such as `"lock B BLOCK 0"`.
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
