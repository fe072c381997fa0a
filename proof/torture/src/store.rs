//! The fenced store: a server for the data that the locks protect. No fault hits this server.

use lockward_checker::history::{Line, Token, Write, WriteOutcome};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Client, Reply};

/// A script that accepts a write if the store has seen no larger token.
const TAKE: &str = "\
local seen = redis.call('GET', KEYS[1])
if seen and tonumber(seen) > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1";

/// A client's connection to the fenced store.
#[derive(Debug)]
pub(crate) struct Store<'r> {
    recorder: &'r Recorder,
    wire: Client,
}

impl<'r> Store<'r> {
    /// Connects to the store on `port`.
    pub(crate) fn connect(recorder: &'r Recorder, port: u16) -> Self {
        Self { recorder, wire: Client::connect(port).expect("a connection to the store") }
    }

    /// Writes with a token and records the outcome.
    pub(crate) fn write(&mut self, client: u32, key: &str, owner: &str, token: Token) {
        let start = now();
        let taken = self.wire.call(["EVAL", TAKE, "1", key, &token.to_string()]) == Reply::Int(1);
        let outcome = if taken { WriteOutcome::Accepted } else { WriteOutcome::Refused };
        let (key, owner) = (key.to_owned(), owner.to_owned());
        self.recorder.record(&Line::Write(Write { client, key, owner, token, start, end: now(), outcome }));
    }
}
