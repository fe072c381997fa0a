//! A caller whose lock calls are recorded.

use lockward_checker::history::{Call, Operation, Outcome};
use lockward_checker::recorder::{Recorder, OpenCall};
use lockward_tests::{Client, Redirection, Reply, Silence};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::{Duration, Instant};

/// A client whose lock calls are recorded: its connection, and in a cluster those to the nodes that it was sent to.
#[derive(Debug)]
pub struct RecordingClient<'r> {
    recorder: &'r Recorder,
    number: u32,
    port: u16,
    connections: HashMap<u16, Client>,
    /// The nodes that it was told serve these locks.
    key_ports: HashMap<String, u16>,
}

/// A call that has been sent and not been answered yet.
#[derive(Debug)]
pub struct PendingCall<'r> {
    caller: RecordingClient<'r>,
    open_call: OpenCall<'r>,
    request: Request,
    /// Where it stands.
    port: u16,
}

#[derive(Debug)]
struct Request {
    key: String,
    owner: String,
    operation: Operation,
}

impl<'r> RecordingClient<'r> {
    /// Connects client `number` to the server on a port.
    ///
    /// # Errors
    /// As the socket tells.
    pub fn connect(recorder: &'r Recorder, number: u32, port: u16) -> io::Result<Self> {
        let connections = HashMap::from([(port, Client::connect(port)?)]);
        Ok(Self { recorder, number, port, connections, key_ports: HashMap::new() })
    }

    /// The port of its server.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The port of the server that it asks for a lock.
    pub fn port_of(&self, key: &str) -> u16 {
        self.key_ports.get(key).copied().unwrap_or(self.port)
    }

    /// Makes a call and waits for its answer for at most `patience`; then it closes the connection, and nobody knows what
    /// came of it.
    pub fn call(self, key: &str, owner: &str, operation: Operation, patience: Duration) -> (Option<Self>, Call) {
        match self.ask(key, owner, operation) {
            Ok(asked) => asked.answer(patience),
            Err(call) => (None, *call),
        }
    }

    /// Sends a call.
    ///
    /// # Errors
    /// When the connection is gone: what was recorded.
    pub fn ask(mut self, key: &str, owner: &str, operation: Operation) -> Result<PendingCall<'r>, Box<Call>> {
        let port = self.port_of(key);
        let request = Request { key: key.to_owned(), owner: owner.to_owned(), operation: operation.clone() };
        let open_call = self.recorder.start(self.number, port.into(), key, owner, operation);
        match self.send(port, &request) {
            Ok(()) => Ok(PendingCall { caller: self, open_call, request, port }),
            Err(_) => Err(Box::new(open_call.answered(Outcome::Unknown))),
        }
    }

    fn send(&mut self, port: u16, request: &Request) -> io::Result<()> {
        let command = request.operation.command(&request.key, &request.owner);
        self.connection(port)?.try_send(&command[..])
    }

    fn connection(&mut self, port: u16) -> io::Result<&mut Client> {
        Ok(match self.connections.entry(port) {
            Entry::Occupied(wire) => wire.into_mut(),
            Entry::Vacant(none) => none.insert(Client::connect(port)?),
        })
    }

    /// Goes where it was sent, and asks there; the port, unless nothing was asked there.
    fn follow(&mut self, redirection: Redirection, request: &Request) -> Option<u16> {
        let (Redirection::Moved(port) | Redirection::Ask(port)) = redirection;
        let wire = self.connection(port).ok()?;
        match redirection {
            Redirection::Moved(_) => {
                self.key_ports.insert(request.key.clone(), port);
            }
            Redirection::Ask(_) => {
                wire.try_call("ASKING").ok()?;
            }
        }
        self.send(port, request).ok()?;
        Some(port)
    }
}

impl<'r> PendingCall<'r> {
    /// It was seen in the server's queue.
    pub fn enqueued(&mut self) {
        self.open_call.enqueued();
    }

    /// Waits for the answer, as [`RecordingClient::call`] does.
    pub fn answer(self, patience: Duration) -> (Option<RecordingClient<'r>>, Call) {
        self.answer_while(patience, || true)
    }

    /// The same, but gives up, as if its patience were over, when it is no longer so that it `goes_on`.
    pub fn answer_while(
        mut self,
        patience: Duration,
        goes_on: impl Fn() -> bool,
    ) -> (Option<RecordingClient<'r>>, Call) {
        const SLICE: Duration = Duration::from_millis(50);
        let end = Instant::now() + patience;
        let answer = loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(wire) = self.caller.connection(self.port) else { break Err(Silence::Closed) };
            match wire.reply_within(left.min(SLICE)) {
                Err(Silence::StillOpen) if left > SLICE && goes_on() => {}
                Err(silence) => break Err(silence),
                Ok(reply) => match reply.redirection() {
                    None => break Ok(reply),
                    Some(redirection) => match self.caller.follow(redirection, &self.request) {
                        Some(port) => self.port = port,
                        // Nobody was asked: the one who sent it away refused it.
                        None => return (None, self.open_call.answered(outcome(&self.request.operation, &reply))),
                    },
                },
            }
        };
        match answer {
            Ok(reply) => {
                let outcome = outcome(&self.request.operation, &reply);
                (Some(self.caller), self.open_call.answered(outcome))
            }
            Err(Silence::StillOpen | Silence::Closed) => {
                let Self { caller, open_call, .. } = self;
                drop(caller);
                (None, open_call.answered(Outcome::Unknown))
            }
        }
    }
}

/// What a reply says.
///
/// # Panics
/// When it is none that the call can have.
#[track_caller]
fn outcome(operation: &Operation, reply: &Reply) -> Outcome {
    let number = |reply: &Reply| u64::try_from(reply.int()).expect("a number that is not negative");
    let holds = |reply: &Reply| u32::try_from(reply.int()).expect("a count");
    match (operation, reply) {
        (_, Reply::Error(_)) => Outcome::Error(reply.error_word().to_owned()),
        (Operation::Acquire { .. }, reply) if reply.is_null() => Outcome::NotAcquired,
        (Operation::Acquire { .. }, Reply::Array(items)) if items.len() == 2 => {
            Outcome::Granted { token: number(&items[0]), holds: holds(&items[1]) }
        }
        (Operation::Release { .. }, Reply::Int(_)) => Outcome::Left { holds: holds(reply) },
        (Operation::Renew { .. }, Reply::Int(_)) => Outcome::Renewed { token: number(reply) },
        (Operation::Acquire { .. } | Operation::Release { .. } | Operation::Renew { .. }, _) => {
            panic!("{operation:?} was answered {reply:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockward_checker::history::{HoldsReleased, Wait};
    use lockward_tests::Reply::{Array, Error, Int};
    use std::panic::catch_unwind;

    const ACQUIRE: Operation = Operation::Acquire { lease: 1_000_000, wait: Wait::No, holds: None };
    const RELEASE: Operation = Operation::Release { released: HoldsReleased::One, token: None };
    const RENEW: Operation = Operation::Renew { lease: 1_000_000, token: None, holds: None };

    #[test]
    fn a_reply_is_told_as_what_came_of_the_call() {
        for (operation, reply, told) in [
            (ACQUIRE, Array(vec![Int(7), Int(2)]), Outcome::Granted { token: 7, holds: 2 }),
            (ACQUIRE, Reply::NullArray, Outcome::NotAcquired),
            (ACQUIRE, Reply::Null, Outcome::NotAcquired),
            (ACQUIRE, Error("SUPERSEDED by another".to_owned()), Outcome::Error("SUPERSEDED".to_owned())),
            (RELEASE, Int(0), Outcome::Left { holds: 0 }),
            (RELEASE, Error("NOTHELD free".to_owned()), Outcome::Error("NOTHELD".to_owned())),
            (RENEW, Int(7), Outcome::Renewed { token: 7 }),
        ] {
            assert_eq!(outcome(&operation, &reply), told, "{operation:?} answered {reply:?}");
        }
    }

    #[test]
    fn a_reply_that_the_call_cannot_have_ends_the_run() {
        for (operation, reply) in [
            (ACQUIRE, Int(1)),
            (ACQUIRE, Array(vec![Int(7)])),
            (ACQUIRE, Array(vec![Int(-1), Int(1)])),
            (RELEASE, Int(-1)),
            (RELEASE, Reply::NullArray),
            (RENEW, Reply::Null),
        ] {
            assert!(catch_unwind(|| outcome(&operation, &reply)).is_err(), "{operation:?} answered {reply:?}");
        }
    }
}
