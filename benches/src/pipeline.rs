//! Many connections that each keep one batch of requests on the way.

use crate::connection::Connection;
use crate::server::Server;

/// A batch that a connection repeats, and how many lines the replies to it have.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The requests, encoded.
    pub requests: Vec<u8>,
    /// The lines of their replies.
    pub lines: usize,
}

/// Connections that work at the same time, in waves: all send, then all read, those who sent last first.
///
/// A wave wakes this client once. Were every connection to go on as soon as it is answered, then how often either side
/// goes to sleep would depend on how fast the other is, and sleeping costs as much as a command.
#[derive(Debug)]
pub struct Pipeline {
    connections: Vec<Connection>,
}

impl Pipeline {
    /// Opens connections to a server.
    pub fn open(server: &Server, connections: usize) -> Self {
        Self { connections: (0..connections).map(|_| server.connect()).collect() }
    }

    /// Lets every connection send its batch, `waves` times.
    pub fn run(&mut self, batches: &[Batch], waves: usize) {
        assert_eq!(batches.len(), self.connections.len(), "a batch a connection");
        for _ in 0..waves {
            for (connection, batch) in self.connections.iter_mut().zip(batches) {
                connection.send(&batch.requests);
            }
            for (connection, batch) in self.connections.iter_mut().zip(batches).rev() {
                connection.expect(batch.lines);
            }
        }
    }
}
