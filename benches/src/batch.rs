//! Requests that many connections repeat, each with several requests in flight.

use crate::clients::{Arrival, Clients};

/// Requests that a connection sends together.
#[derive(Clone, Debug)]
struct Part {
    requests: Vec<u8>,
    replies: usize,
}

/// The requests that a connection repeats, in parts. The connection sends each part as soon as it has the replies to
/// the previous part.
#[derive(Clone, Debug)]
pub struct Batch(Vec<Part>);

impl Batch {
    /// A batch of these requests, with `depth` requests in flight.
    pub fn of(requests: &[Vec<u8>], depth: usize) -> Self {
        let part = |part: &[Vec<u8>]| Part { requests: part.concat(), replies: part.len() };
        Self(requests.chunks(depth).map(part).collect())
    }
}

impl Clients {
    /// Runs the batch of every connection `times` times. Panics if a reply is null, because a lock is refused then.
    ///
    /// If client and server share a CPU, neither interrupts the other (see [`crate::placement`]): the server executes all
    /// requests and sleeps, and then all connections send again. So the cost of a command does not depend on the speed
    /// of the client.
    pub fn run(&mut self, batches: &[Batch], times: usize) {
        assert_eq!(batches.len(), self.count(), "a batch a connection");
        let mut parts: Vec<_> =
            batches.iter().map(|Batch(parts)| parts.iter().cycle().take(parts.len() * times)).collect();
        let mut send_next = |clients: &mut Clients, who: usize| {
            parts[who].next().map_or(0, |part| {
                clients.send(who, &part.requests);
                part.replies
            })
        };
        let mut awaited: Vec<usize> = (0..batches.len()).map(|who| send_next(self, who)).collect();
        let mut working = awaited.iter().filter(|replies| **replies > 0).count();
        while working > 0 {
            let Arrival { who, reply, .. } = self.arrival();
            assert!(!reply.is_null(), "a null");
            awaited[who] -= 1;
            if awaited[who] == 0 {
                awaited[who] = send_next(self, who);
                working -= usize::from(awaited[who] == 0);
            }
        }
    }
}
