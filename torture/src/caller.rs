//! A connection whose lock calls are recorded.

use lockward_tests::{Client, Reply, Silence};
use lockward_trial::history::{Call, Kind, Outcome};
use lockward_trial::recorder::{Recorder, Standing};
use std::io;
use std::time::{Duration, Instant};

/// A connection whose lock calls are recorded.
#[derive(Debug)]
pub struct Caller<'r> {
    recorder: &'r Recorder,
    number: u32,
    port: u16,
    wire: Client,
}

/// A call that has been sent and not been answered yet.
#[derive(Debug)]
pub struct Asked<'r> {
    caller: Caller<'r>,
    standing: Standing<'r>,
    kind: Kind,
}

impl<'r> Caller<'r> {
    /// Connects client `number` to the server on a port.
    ///
    /// # Errors
    /// As the socket tells.
    pub fn connect(recorder: &'r Recorder, number: u32, port: u16) -> io::Result<Self> {
        Ok(Self { recorder, number, port, wire: Client::connect(port)? })
    }

    /// The port of its server.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Makes a call and waits for its answer for at most `patience`; then it closes the connection, and nobody knows what
    /// came of it.
    pub fn call(self, key: &str, owner: &str, kind: Kind, patience: Duration) -> (Option<Self>, Call) {
        match self.ask(key, owner, kind) {
            Ok(asked) => asked.answer(patience),
            Err(call) => (None, *call),
        }
    }

    /// Sends a call.
    ///
    /// # Errors
    /// When the connection is gone: what was recorded.
    pub fn ask(mut self, key: &str, owner: &str, kind: Kind) -> Result<Asked<'r>, Box<Call>> {
        let command = kind.command(key, owner);
        let standing = self.recorder.start(self.number, self.port.into(), key, owner, kind.clone());
        match self.wire.try_send(&command[..]) {
            Ok(()) => Ok(Asked { caller: self, standing, kind }),
            Err(_) => Err(Box::new(standing.answered(Outcome::Unknown))),
        }
    }
}

impl<'r> Asked<'r> {
    /// It was seen in the server's queue.
    pub fn joined(&mut self) {
        self.standing.joined();
    }

    /// Waits for the answer, as [`Caller::call`] does.
    pub fn answer(self, patience: Duration) -> (Option<Caller<'r>>, Call) {
        self.answer_while(patience, || true)
    }

    /// The same, but gives up, as if its patience were over, when it is no longer so that it `goes_on`.
    pub fn answer_while(
        mut self,
        patience: Duration,
        goes_on: impl Fn() -> bool,
    ) -> (Option<Caller<'r>>, Call) {
        const SLICE: Duration = Duration::from_millis(50);
        let end = Instant::now() + patience;
        let answer = loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = self.caller.wire.reply_within(left.min(SLICE));
            if answer != Err(Silence::StillOpen) || left <= SLICE || !goes_on() {
                break answer;
            }
        };
        match answer {
            Ok(reply) => {
                let outcome = outcome(&self.kind, &reply);
                (Some(self.caller), self.standing.answered(outcome))
            }
            Err(Silence::StillOpen | Silence::Closed) => {
                let Self { caller, standing, .. } = self;
                drop(caller);
                (None, standing.answered(Outcome::Unknown))
            }
        }
    }
}

/// What a reply says.
///
/// # Panics
/// When it is none that the call can have.
#[track_caller]
fn outcome(kind: &Kind, reply: &Reply) -> Outcome {
    let number = |reply: &Reply| u64::try_from(reply.int()).expect("a number that is not negative");
    let holds = |reply: &Reply| u32::try_from(reply.int()).expect("a count");
    match (kind, reply) {
        (_, Reply::Error(_)) => Outcome::Error(reply.error_word().to_owned()),
        (Kind::Acquire { .. }, reply) if reply.is_null() => Outcome::NotAcquired,
        (Kind::Acquire { .. }, Reply::Array(items)) if items.len() == 2 => {
            Outcome::Granted { token: number(&items[0]), holds: holds(&items[1]) }
        }
        (Kind::Release { .. }, Reply::Int(_)) => Outcome::Left { holds: holds(reply) },
        (Kind::Renew { .. }, Reply::Int(_)) => Outcome::Renewed { token: number(reply) },
        (Kind::Acquire { .. } | Kind::Release { .. } | Kind::Renew { .. }, _) => {
            panic!("{kind:?} was answered {reply:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockward_tests::Reply::{Array, Error, Int};
    use lockward_trial::history::{Back, Wait};
    use std::panic::catch_unwind;

    const ACQUIRE: Kind = Kind::Acquire { lease: 1_000_000, wait: Wait::No, holds: None };
    const RELEASE: Kind = Kind::Release { back: Back::One, token: None };
    const RENEW: Kind = Kind::Renew { lease: 1_000_000, token: None, holds: None };

    #[test]
    fn a_reply_is_told_as_what_came_of_the_call() {
        for (kind, reply, told) in [
            (ACQUIRE, Array(vec![Int(7), Int(2)]), Outcome::Granted { token: 7, holds: 2 }),
            (ACQUIRE, Reply::NullArray, Outcome::NotAcquired),
            (ACQUIRE, Reply::Null, Outcome::NotAcquired),
            (ACQUIRE, Error("SUPERSEDED by another".to_owned()), Outcome::Error("SUPERSEDED".to_owned())),
            (RELEASE, Int(0), Outcome::Left { holds: 0 }),
            (RELEASE, Error("NOTHELD free".to_owned()), Outcome::Error("NOTHELD".to_owned())),
            (RENEW, Int(7), Outcome::Renewed { token: 7 }),
        ] {
            assert_eq!(outcome(&kind, &reply), told, "{kind:?} answered {reply:?}");
        }
    }

    #[test]
    fn a_reply_that_the_call_cannot_have_ends_the_run() {
        for (kind, reply) in [
            (ACQUIRE, Int(1)),
            (ACQUIRE, Array(vec![Int(7)])),
            (ACQUIRE, Array(vec![Int(-1), Int(1)])),
            (RELEASE, Int(-1)),
            (RELEASE, Reply::NullArray),
            (RENEW, Reply::Null),
        ] {
            assert!(catch_unwind(|| outcome(&kind, &reply)).is_err(), "{kind:?} answered {reply:?}");
        }
    }
}
