//! A client of the workload: it acquires, waits, re-enters, renews, releases, gives up, disconnects, and sleeps past
//! its lease.

use crate::recording_client::RecordingClient;
use lockward_checker::client::{Action, Client, Workload};
use lockward_checker::history::{Operation, Outcome, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::Random;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// How long a client waits for a reply that is due. No fault stops a server for so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client with its connection and its random choices.
#[derive(Debug)]
pub(crate) struct WorkloadClient<'r> {
    client: Client,
    workload: &'r Workload,
    random: Random,
    recorder: &'r Recorder,
    /// The port of the primary.
    primary: &'r AtomicU16,
    caller: Option<RecordingClient<'r>>,
}

impl<'r> WorkloadClient<'r> {
    pub(crate) fn new(
        number: u32,
        workload: &'r Workload,
        random: Random,
        recorder: &'r Recorder,
        primary: &'r AtomicU16,
    ) -> Self {
        Self { client: Client::new(number), workload, random, recorder, primary, caller: None }
    }

    pub(crate) fn act(&mut self) {
        let Some(caller) = self.connected() else {
            return thread::park_timeout(Duration::from_millis(5));
        };
        match self.client.next(now(), self.workload, &mut self.random) {
            Action::Call(operation) => self.call(caller, operation),
            Action::Pause(length) => {
                self.caller = Some(caller);
                let start = now();
                thread::sleep(Duration::from_nanos(length));
                self.recorder.fault("sleep", Some(self.client.number), start);
            }
            Action::Rest(length) => {
                self.caller = Some(caller);
                thread::sleep(Duration::from_nanos(length));
            }
        }
    }

    /// Releases the lock at the end of the run, so that waiters need not wait for the end of the lease.
    pub(crate) fn finish(mut self) {
        if let (Some(caller), Some(operation)) = (self.caller.take(), self.client.final_release(now())) {
            self.call(caller, operation);
        }
    }

    fn connected(&mut self) -> Option<RecordingClient<'r>> {
        let port = self.primary.load(Ordering::Relaxed);
        if let Some(caller) =
            self.caller.take().filter(|caller| self.ignores_moves() || caller.port() == port)
        {
            return Some(caller);
        }
        let caller = RecordingClient::connect(self.recorder, self.client.number, port).ok()?;
        self.client.reconnected(self.workload, &mut self.random);
        Some(caller)
    }

    /// Every fourth client ignores a failover until its connection is closed or a call is refused.
    const fn ignores_moves(&self) -> bool {
        self.client.number.is_multiple_of(4)
    }

    fn call(&mut self, caller: RecordingClient<'r>, operation: Operation) {
        let patience = self.patience(&operation);
        let (port, stays) = (caller.port(), self.ignores_moves());
        let asked = caller.ask(&self.client.key, &self.client.owner, operation);
        let call;
        (self.caller, call) =
            asked.answer_while(patience, || stays || self.primary.load(Ordering::Relaxed) == port);
        self.client.handle_outcome(&call, &mut self.random);
        if let Outcome::Error(word) = &call.outcome
            && !matches!(word.as_str(), "NOTHELD" | "HOLDS" | "LIMIT" | "SUPERSEDED" | "TRYAGAIN" | "FENCED")
        {
            // The server refuses all writes for a while, or is no primary any more. So the client drops the connection
            // and connects again, perhaps to a new primary.
            self.caller = None;
            thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// How long the client waits for a reply. Some waiters give up early, often at about the time of the grant.
    fn patience(&mut self, operation: &Operation) -> Duration {
        let wait = match *operation {
            Operation::Acquire { wait: Wait::Limit(limit), .. } => Duration::from_nanos(limit),
            Operation::Acquire { wait: Wait::Unlimited, .. } => PATIENCE,
            _ => Duration::ZERO,
        };
        if !wait.is_zero() && self.random.percent(5) {
            return Duration::from_micros(self.random.between(200, 20_000));
        }
        wait + PATIENCE
    }
}
