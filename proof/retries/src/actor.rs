//! One owner that acquires and releases locks, and compares the replies with the hold counts on the server.

use crate::driver::{Driver, Outcome};
use crate::faults::{Faults, owner};
use crate::lock_kind::LockKind;
use lockward_tests::{Client, Random};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long one command may take with all its repeats.
const LIMIT: Duration = Duration::from_secs(200);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The owner that holds the lock while an actor waits.
const HOLDER: &str = "holder";

/// The behaviour of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// The owner acquires a free lock.
    Acquires,
    /// The owner first waits for a lock that another owner holds.
    Waits,
    /// After the owner's first command the proxy forwards nothing for a while. The owner runs one round.
    MeetsSilence,
    /// The owner waits for a lock for a longer time than its client waits for a reply. The owner runs one round.
    WaitsLong,
}

impl Behavior {
    /// Whether each round starts with a wait.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Waits | Self::WaitsLong)
    }

    const fn is_for_one_round(self) -> bool {
        matches!(self, Self::MeetsSilence | Self::WaitsLong)
    }
}

/// One owner.
#[derive(Debug)]
pub(crate) struct Actor<'a> {
    pub(crate) number: usize,
    pub(crate) kind: LockKind,
    pub(crate) behavior: Behavior,
    /// A time that is longer than the client's limit for a reply.
    pub(crate) long: Duration,
    pub(crate) driver: &'a Driver,
    pub(crate) faults: &'a Faults,
    /// A connection to the server that does not go through the proxy.
    pub(crate) server: Client,
    pub(crate) random: Random,
}

impl Actor<'_> {
    /// Runs rounds until there are enough faults. Returns the miscounts, at most one for each round.
    pub(crate) fn run(mut self) -> Vec<String> {
        let mut miscounts = Vec::new();
        for round in 0.. {
            // Each round has its own lock, so that a miscount does not affect later rounds.
            let key = format!("{}:{}:{round}", self.kind.prefix(), self.number);
            if let Err(miscount) = self.round(&key) {
                miscounts.push(format!("{key}: {miscount}"));
                self.server.call(["DEL", &key]);
            }
            if self.behavior.is_for_one_round() || self.faults.are_enough(self.kind) {
                break;
            }
        }
        miscounts
    }

    fn round(&mut self, key: &str) -> Result<(), String> {
        let depth = self.random.within(1..5);
        let mut token = None;
        for holds in 1..=depth {
            let reply = if self.behavior.waits() && holds == 1 {
                self.wait(key)?
            } else {
                self.call(&self.kind.acquire(key, &owner(self.number), holds, false))?
            };
            token = token.or(reply[0].as_i64());
            self.compare(key, &reply, &self.kind.granted(holds, token), holds)?;
        }
        if let Some(renewal) = self.kind.renew(key, &owner(self.number), depth, token) {
            let reply = self.call(&renewal)?;
            self.compare(key, &reply, &json!(token), depth)?;
        }
        for holds in (0..depth).rev() {
            let named = token.filter(|_| self.random.once_in(2));
            let reply = self.call(&self.kind.release(key, &owner(self.number), holds, named))?;
            self.compare(key, &reply, &self.kind.released(holds), holds)?;
        }
        Ok(())
    }

    /// Compares a reply with the expected reply, and `holds` with the count on the server.
    fn compare(&mut self, key: &str, reply: &Value, expected: &Value, holds: i64) -> Result<(), String> {
        if reply != expected {
            return Err(format!("the reply is {reply} instead of {expected}"));
        }
        let counted = self.kind.counted(&mut self.server, key, &owner(self.number))?;
        if counted == holds {
            Ok(())
        } else {
            Err(format!("the reply is {reply}, with {holds} holds, but the server counts {counted}"))
        }
    }

    /// Issues a command again after each failure, until there is a reply. An error reply is returned as a miscount.
    fn call(&self, command: &[String]) -> Result<Value, String> {
        let mut attempt = self.issue(command, false);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "no reply within {LIMIT:?}: {command:?}");
            if let Some(reply) = self.reply_within(&mut attempt, command, LIMIT)? {
                return Ok(reply);
            }
        }
    }

    /// Acquires a lock that another owner holds and then releases.
    fn wait(&mut self, key: &str) -> Result<Value, String> {
        let owner = owner(self.number);
        self.server.acquire(&format!("{key} {HOLDER} PX 36000000 HOLDS 1"));
        // The holder releases when the owner has been in the queue for this time. `None`: the holder releases as soon
        // as the owner is in the queue and the proxy has forwarded the owner's last request. Then the proxy may lose
        // the reply with the grant.
        let after = match self.behavior {
            Behavior::WaitsLong => Some(self.long),
            Behavior::Waits | Behavior::Acquires | Behavior::MeetsSilence => {
                let after = Duration::from_millis(self.random.within(0..100).unsigned_abs());
                self.random.once_in(2).then_some(after)
            }
        };
        let command = self.kind.acquire(key, &owner, 1, true);
        let mut attempt = self.issue(&command, false);
        let begun = Instant::now();
        let mut is_held = true;
        let mut waiting_since = None;
        loop {
            assert!(begun.elapsed() < LIMIT, "no reply within {LIMIT:?}: {command:?}");
            if let Some(reply) = self.reply_within(&mut attempt, &command, CHECK_INTERVAL)? {
                return if is_held {
                    Err(format!("the reply is {reply} while another owner held the lock"))
                } else {
                    Ok(reply)
                };
            }
            if is_held {
                let queue = self.server.queue(key);
                if queue.len() > 1 {
                    return Err(format!("the owner waits {} times in the queue", queue.len()));
                }
                if queue.len() == 1 {
                    waiting_since.get_or_insert_with(Instant::now);
                }
                let is_due = match after {
                    Some(after) => waiting_since.is_some_and(|since| since.elapsed() >= after),
                    None => queue.len() == 1 && self.faults.is_under_way(self.number),
                };
                if is_due {
                    self.server.call(format!("LOCK.RELEASE {key} {HOLDER} HOLDS 0"));
                    is_held = false;
                }
            }
        }
    }

    fn issue(&self, command: &[String], again: bool) -> Receiver<Outcome> {
        self.faults.expect(self.number, again);
        // In a client without a pool, four actors that acquire free locks share a connection, as in applications. Each
        // other actor has its own connection.
        let connection =
            if self.behavior == Behavior::Acquires { self.number / 4 } else { 1_000 + self.number };
        self.driver.issue(connection, command)
    }

    /// The reply, if it comes within `limit`. After a failure, this function issues the command again, as programs do.
    fn reply_within(
        &self,
        attempt: &mut Receiver<Outcome>,
        command: &[String],
        limit: Duration,
    ) -> Result<Option<Value>, String> {
        match attempt.recv_timeout(limit) {
            Ok(Outcome::Reply(reply)) => Ok(Some(reply)),
            Ok(Outcome::Refused(error)) => Err(format!("the reply is -{error}")),
            Ok(Outcome::Failed(_)) => {
                *attempt = self.issue(command, true);
                Ok(None)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => panic!("the driver has ended"),
        }
    }
}
