//! Many connections that each keep one batch of requests on the way.

use crate::connection::Connection;
use crate::server::Server;
use std::io;

/// A batch that a connection repeats, and how many lines the replies to it have.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The requests, encoded.
    pub requests: Vec<u8>,
    /// The lines of their replies.
    pub lines: usize,
}

/// Connections that work at the same time, driven by one loop.
#[derive(Debug)]
pub struct Pipeline {
    connections: Vec<Connection>,
}

#[derive(Clone, Copy)]
struct Progress {
    batches_left: usize,
    lines_left: usize,
}

impl Pipeline {
    /// Opens connections to a server.
    pub fn open(server: &Server, connections: usize) -> Self {
        let connections: Vec<Connection> = (0..connections).map(|_| server.connect()).collect();
        connections.iter().for_each(Connection::never_wait);
        Self { connections }
    }

    /// Lets every connection send its batch `times` times, each as soon as the one before is answered.
    pub fn run(&mut self, batches: &[Batch], times: usize) {
        assert_eq!(batches.len(), self.connections.len(), "a batch a connection");
        let mut progress: Vec<Progress> = batches
            .iter()
            .map(|batch| Progress { batches_left: times.saturating_sub(1), lines_left: batch.lines })
            .collect();
        let mut polled: Vec<libc::pollfd> = self
            .connections
            .iter()
            .map(|connection| libc::pollfd { fd: connection.descriptor(), events: libc::POLLIN, revents: 0 })
            .collect();
        for (connection, batch) in self.connections.iter_mut().zip(batches) {
            connection.send(&batch.requests);
        }
        let mut busy = self.connections.len();
        while busy > 0 {
            poll(&mut polled);
            for (i, polled) in polled.iter_mut().enumerate().filter(|(_, polled)| polled.revents != 0) {
                let (connection, progress) = (&mut self.connections[i], &mut progress[i]);
                let arrived = connection.arrived();
                progress.lines_left = progress.lines_left.checked_sub(arrived).expect("no reply unasked");
                if progress.lines_left > 0 {
                    continue;
                }
                if progress.batches_left == 0 {
                    polled.fd = -1; // poll passes over it
                    polled.revents = 0;
                    busy -= 1;
                } else {
                    progress.batches_left -= 1;
                    progress.lines_left = batches[i].lines;
                    connection.send(&batches[i].requests);
                }
            }
        }
    }
}

fn poll(polled: &mut [libc::pollfd]) {
    let count = libc::nfds_t::try_from(polled.len()).expect("few connections");
    // SAFETY: the structures are as many as it says and outlive the call.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), count, 60_000) };
    assert!(ready > 0, "no reply: {}", io::Error::last_os_error());
}
