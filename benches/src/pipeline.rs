//! Many connections, each with several requests in flight.

use crate::clients::Clients;
use lockward_tests::{Reply, Server};
use std::collections::VecDeque;

/// The expected reply.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// A grant: `[token, holds, lease]`.
    Grant,
    /// A fencing token.
    Token,
    /// The reply of BLPOP: key and element.
    Element,
    /// A simple string.
    Status,
    Number(i64),
}

impl Expected {
    /// Panics if the reply is different.
    pub fn check(self, reply: &Reply) {
        let as_expected = match (self, reply) {
            (Self::Grant, Reply::Array(items)) => {
                matches!(items[..], [Reply::Int(1..), Reply::Int(1), Reply::Int(1..)])
            }
            (Self::Token, Reply::Int(1..)) => true,
            (Self::Element, Reply::Array(items)) => matches!(items[..], [Reply::Bulk(_), Reply::Bulk(_)]),
            (Self::Status, Reply::Simple(_)) => true,
            (Self::Number(wanted), Reply::Int(number)) => wanted == *number,
            _ => false,
        };
        assert!(as_expected, "{reply:?} is not the expected {self:?}");
    }
}

/// A request, and the expected reply.
pub type Command = (Vec<u8>, Expected);

/// Requests that a connection sends together.
#[derive(Clone, Debug)]
struct Part {
    requests: Vec<u8>,
    expected: Vec<Expected>,
}

/// The requests that a connection repeats, in parts. The connection sends each part as soon as it has the replies to
/// the previous part.
#[derive(Clone, Debug)]
pub struct Batch(Vec<Part>);

impl Batch {
    /// A batch of these commands, each with its reply, with `depth` commands in flight.
    pub fn of(commands: &[Command], depth: usize) -> Self {
        let part = |commands: &[Command]| Part {
            requests: commands.iter().flat_map(|(request, _)| request).copied().collect(),
            expected: commands.iter().map(|(_, expected)| *expected).collect(),
        };
        Self(commands.chunks(depth).map(part).collect())
    }
}

/// Connections that work at the same time. If client and server share a CPU, neither interrupts the other (see
/// [`crate::placement`]): the server executes all requests and sleeps, and then all connections send again. So the cost
/// of a command does not depend on the speed of the client.
#[derive(Debug)]
pub struct Pipeline {
    clients: Clients,
}

impl Pipeline {
    pub fn open(server: &Server, connections: usize) -> Self {
        Self::over(Clients::open(server.port(), connections))
    }

    /// A pipeline over these connections, which may go to several servers.
    pub const fn over(clients: Clients) -> Self {
        Self { clients }
    }

    /// Runs the batch of every connection `times` times.
    pub fn run(&mut self, batches: &[Batch], times: usize) {
        assert_eq!(batches.len(), self.clients.count(), "a batch a connection");
        let mut parts: Vec<_> =
            batches.iter().map(|Batch(parts)| parts.iter().cycle().take(parts.len() * times)).collect();
        let mut awaited = vec![VecDeque::new(); batches.len()];
        let mut send_next = |clients: &mut Clients, awaited: &mut VecDeque<Expected>, who: usize| {
            if let Some(part) = parts[who].next() {
                awaited.extend(&part.expected);
                clients.send(who, &part.requests);
            }
            !awaited.is_empty()
        };
        let mut working = 0;
        for (who, awaited) in awaited.iter_mut().enumerate() {
            working += usize::from(send_next(&mut self.clients, awaited, who));
        }
        while working > 0 {
            let arrival = self.clients.arrival();
            let awaited = &mut awaited[arrival.who];
            awaited.pop_front().expect("a reply that was asked for").check(&arrival.reply);
            if awaited.is_empty() && !send_next(&mut self.clients, awaited, arrival.who) {
                working -= 1;
            }
        }
    }
}
