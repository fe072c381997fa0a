//! A client that records its lock calls.

use lockward_checker::history::{Call, Operation, Outcome};
use lockward_checker::recorder::{OpenCall, Recorder};
use lockward_tests::{Client, Redirection, Reply, Silence};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::{Duration, Instant};

/// A client that records its lock calls. In a cluster, the client has a connection to each node to which it was
/// redirected.
#[derive(Debug)]
pub(crate) struct RecordingClient<'r> {
    recorder: &'r Recorder,
    number: u32,
    port: u16,
    connections: HashMap<u16, Client>,
    /// For each lock: the port of the node that serves the lock, as redirections have shown.
    key_ports: HashMap<String, u16>,
}

/// A call that has no reply yet.
#[derive(Debug)]
pub(crate) struct PendingCall<'r> {
    client: RecordingClient<'r>,
    pub(crate) open_call: OpenCall<'r>,
    /// The port of the server to which the call was sent last; `None` if the call could not be sent.
    port: Option<u16>,
}

impl<'r> RecordingClient<'r> {
    /// Connects the client `number` to the server on `port`.
    pub(crate) fn connect(recorder: &'r Recorder, number: u32, port: u16) -> io::Result<Self> {
        let connections = HashMap::from([(port, Client::connect(port)?)]);
        Ok(Self { recorder, number, port, connections, key_ports: HashMap::new() })
    }

    /// The id that the server has given to the client's connection.
    pub(crate) fn id(&mut self) -> Option<i64> {
        Some(self.connection(self.port)?.try_call("CLIENT ID").ok()?.int())
    }

    /// The port of the client's first server.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The port of the server to which the client sends calls for a lock.
    pub(crate) fn port_of(&self, key: &str) -> u16 {
        self.key_ports.get(key).copied().unwrap_or(self.port)
    }

    /// Makes a call and waits at most `patience` for the reply, as [`PendingCall::answer`] does.
    pub(crate) fn call(
        self,
        key: &str,
        owner: &str,
        operation: Operation,
        patience: Duration,
    ) -> (Option<Self>, Call) {
        self.ask(key, owner, operation).answer(patience)
    }

    /// Sends a call.
    pub(crate) fn ask(self, key: &str, owner: &str, operation: Operation) -> PendingCall<'r> {
        let port = self.port_of(key);
        let open_call = self.recorder.start(self.number, port.into(), key, owner, operation);
        let mut call = PendingCall { client: self, open_call, port: None };
        call.port = call.send_to(port);
        call
    }

    fn connection(&mut self, port: u16) -> Option<&mut Client> {
        Some(match self.connections.entry(port) {
            Entry::Occupied(connection) => connection.into_mut(),
            Entry::Vacant(none) => none.insert(Client::connect(port).ok()?),
        })
    }
}

impl<'r> PendingCall<'r> {
    /// Sends the call to the server on `port`. Returns `None` if this is not possible.
    fn send_to(&mut self, port: u16) -> Option<u16> {
        let Call { key, owner, operation, .. } = &self.open_call.call;
        let command = operation.command(key, owner);
        self.client.connection(port)?.try_send(command).ok()?;
        Some(port)
    }

    /// Sends the call to the node that a redirection names. This node has its own queue.
    fn redirect(&mut self, redirection: Redirection) -> Option<u16> {
        let (Redirection::Moved(port) | Redirection::Ask(port)) = redirection;
        let call = &mut self.open_call.call;
        (call.enqueued, call.still_waiting) = (None, None);
        match redirection {
            Redirection::Moved(_) => drop(self.client.key_ports.insert(call.key.clone(), port)),
            Redirection::Ask(_) => drop(self.client.connection(port)?.try_call("ASKING").ok()?),
        }
        self.send_to(port)
    }

    /// Closes the connection without reading the reply.
    pub(crate) fn close(self) -> Call {
        drop(self.client);
        self.open_call.answered(Outcome::Unknown)
    }

    /// Waits at most `patience` for the reply. Without a reply, closes the connection and records that the outcome is
    /// unknown.
    pub(crate) fn answer(self, patience: Duration) -> (Option<RecordingClient<'r>>, Call) {
        self.answer_while(patience, || true)
    }

    /// Waits for the reply, as [`PendingCall::answer`] does, but also gives up when `goes_on` returns false.
    pub(crate) fn answer_while(
        mut self,
        patience: Duration,
        goes_on: impl Fn() -> bool,
    ) -> (Option<RecordingClient<'r>>, Call) {
        const SLICE: Duration = Duration::from_millis(50);
        let end = Instant::now() + patience;
        while let Some(connection) = self.port.and_then(|port| self.client.connection(port)) {
            let left = end.saturating_duration_since(Instant::now());
            match connection.reply_within(left.min(SLICE)) {
                Err(Silence::StillOpen) if left > SLICE && goes_on() => {}
                Err(Silence::StillOpen | Silence::Closed) => break,
                Ok(reply) => match reply.redirection() {
                    Some(redirection) => self.port = self.redirect(redirection),
                    None => {
                        let outcome = outcome(&self.open_call.call.operation, &reply);
                        return (Some(self.client), self.open_call.answered(outcome));
                    }
                },
            }
        }
        (None, self.close())
    }
}

/// The outcome that this reply to the operation means.
#[track_caller]
fn outcome(operation: &Operation, reply: &Reply) -> Outcome {
    let number = |reply: &Reply| u64::try_from(reply.int()).expect("a number that is not negative");
    let holds = |reply: &Reply| u32::try_from(reply.int()).expect("a count");
    match (operation, reply) {
        (_, Reply::Error(_)) => Outcome::Error(reply.error_word().to_owned()),
        (Operation::Acquire { .. }, reply) if reply.is_null() => Outcome::NotAcquired,
        (Operation::Acquire { .. }, Reply::Array(items)) if items.len() == 3 => {
            // The third element, the rest of the lease, must be a number too.
            number(&items[2]);
            Outcome::Granted { token: number(&items[0]), holds: holds(&items[1]) }
        }
        (Operation::Release { .. }, Reply::Int(_)) => Outcome::Left { holds: holds(reply) },
        (Operation::Renew { .. }, Reply::Int(_)) => Outcome::Renewed { token: number(reply) },
        (Operation::Write { .. }, Reply::Int(1..)) => Outcome::Written,
        _ => panic!("{operation:?} has the reply {reply:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockward_checker::history::{HoldsReleased, Wait};
    use lockward_tests::Reply::{Array, Error, Int};
    use std::panic::catch_unwind;

    const ACQUIRE: Operation = Operation::exclusive(1_000_000, Wait::No);
    const RELEASE: Operation = Operation::Release { released: HoldsReleased::One, token: None };
    const RENEW: Operation = Operation::Renew { lease: 1_000_000, token: None, holds: None, mode: None };

    const WRITE: Operation = Operation::Write { token: 7, guarded: true };

    #[test]
    fn a_reply_has_an_outcome() {
        for (operation, reply, expected) in [
            (ACQUIRE, Array(vec![Int(7), Int(2), Int(1)]), Outcome::Granted { token: 7, holds: 2 }),
            (ACQUIRE, Reply::NullArray, Outcome::NotAcquired),
            (ACQUIRE, Reply::Null, Outcome::NotAcquired),
            (ACQUIRE, Error("SUPERSEDED by another".to_owned()), Outcome::Error("SUPERSEDED".to_owned())),
            (RELEASE, Int(0), Outcome::Left { holds: 0 }),
            (RELEASE, Error("NOTHELD free".to_owned()), Outcome::Error("NOTHELD".to_owned())),
            (RENEW, Int(7), Outcome::Renewed { token: 7 }),
            (WRITE, Int(3), Outcome::Written),
            (WRITE, Error("FENCED the lock is free".to_owned()), Outcome::Error("FENCED".to_owned())),
        ] {
            assert_eq!(outcome(&operation, &reply), expected, "{operation:?} with the reply {reply:?}");
        }
    }

    #[test]
    fn a_reply_that_the_operation_cannot_have_panics() {
        for (operation, reply) in [
            (ACQUIRE, Int(1)),
            (ACQUIRE, Array(vec![Int(7)])),
            (ACQUIRE, Array(vec![Int(7), Int(1)])),
            (ACQUIRE, Array(vec![Int(-1), Int(1), Int(1)])),
            (ACQUIRE, Array(vec![Int(7), Int(1), Int(-1)])),
            (RELEASE, Int(-1)),
            (RELEASE, Reply::NullArray),
            (RENEW, Reply::Null),
            (WRITE, Int(0)),
            (WRITE, Reply::ok()),
        ] {
            assert!(
                catch_unwind(|| outcome(&operation, &reply)).is_err(),
                "{operation:?} with the reply {reply:?}"
            );
        }
    }
}
