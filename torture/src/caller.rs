//! A connection whose lock calls are recorded.

use lockward_tests::{Client, Reply, Silence};
use lockward_trial::history::{Back, Call, Kind, Nanos, Outcome, Wait};
use lockward_trial::recorder::{Recorder, Standing};
use std::io;
use std::time::Duration;

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
        let command = command(key, owner, &kind);
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
    pub fn answer(mut self, patience: Duration) -> (Option<Caller<'r>>, Call) {
        match self.caller.wire.reply_within(patience) {
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

fn command(key: &str, owner: &str, kind: &Kind) -> Vec<String> {
    let ms = |time: Nanos| (time / 1_000_000).to_string();
    let mut options: Vec<(&str, Option<String>)> = Vec::new();
    let name = match kind {
        Kind::Acquire { lease, wait, holds } => {
            options.push(("PX", Some(ms(*lease))));
            match wait {
                Wait::No => {}
                Wait::Limit(limit) => options.push(("BLOCK", Some(ms((*limit).max(1_000_000))))),
                Wait::Unlimited => options.push(("BLOCK", Some("0".to_owned()))),
            }
            options.extend(holds.map(|holds| ("HOLDS", Some(holds.to_string()))));
            "LOCK.ACQUIRE"
        }
        Kind::Release { back, token } => {
            match back {
                Back::One => {}
                Back::Leaving(left) => options.push(("HOLDS", Some(left.to_string()))),
                Back::All => options.push(("ALL", None)),
            }
            options.extend(token.map(|token| ("TOKEN", Some(token.to_string()))));
            "LOCK.RELEASE"
        }
        Kind::Renew { lease, token, holds } => {
            options.push(("PX", Some(ms(*lease))));
            options.extend(token.map(|token| ("TOKEN", Some(token.to_string()))));
            options.extend(holds.map(|holds| ("HOLDS", Some(holds.to_string()))));
            "LOCK.RENEW"
        }
    };
    let options = options.into_iter().flat_map(|(name, value)| [Some(name.to_owned()), value]);
    [name, key, owner].map(str::to_owned).into_iter().chain(options.flatten()).collect()
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
