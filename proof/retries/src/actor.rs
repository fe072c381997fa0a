//! One owner that acquires and releases locks, and compares the replies with the hold counts on the server.

use crate::driver::{Driver, Outcome};
use crate::faults::{Faults, owner};
use crate::lock_kind::{LEASE, LockKind};
use lockward_tests::{Client, Random};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long one command may take with all its repeats.
const LIMIT: Duration = Duration::from_secs(200);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The owner that holds the lock while an actor waits.
const HOLDER: &str = "holder";

/// One owner.
#[derive(Debug)]
pub(crate) struct Actor<'a> {
    pub(crate) number: usize,
    pub(crate) kind: LockKind,
    /// Whether each round starts with a wait for a lock that another owner holds.
    pub(crate) waits: bool,
    /// A time that is longer than the client waits for a reply, if the owner runs one round with this time. The owner
    /// waits for the lock so long. Or, if `waits` is false, the proxy is silent so long after the first command.
    pub(crate) long: Option<Duration>,
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
            if self.long.is_some() || self.faults.are_enough(self.kind) {
                break;
            }
        }
        miscounts
    }

    fn round(&mut self, key: &str) -> Result<(), String> {
        let (kind, owner) = (self.kind, owner(self.number));
        let depth = self.random.within(1..5);
        let mut token = None;
        for holds in 1..=depth {
            let waits = self.waits && holds == 1;
            let command = kind.acquire(key, &owner, holds, waits);
            let reply = if waits { self.wait(key, &command)? } else { self.call(&command)? };
            token = token.or(reply[0].as_i64());
            self.compare(key, &reply, &json!([token, holds, LEASE]), holds)?;
        }
        let token = token.expect("the token of a correct reply");
        let reply = self.call(&kind.renew(key, &owner, depth, token))?;
        self.compare(key, &reply, &json!(token), depth)?;
        for holds in (0..depth).rev() {
            let named = Some(token).filter(|_| self.random.once_in(2));
            let reply = self.call(&kind.release(key, &owner, holds, named))?;
            self.compare(key, &reply, &json!(holds), holds)?;
        }
        Ok(())
    }

    /// Compares a reply with the expected reply, and `holds` with the count on the server.
    fn compare(&mut self, key: &str, reply: &Value, expected: &Value, holds: i64) -> Result<(), String> {
        if reply != expected {
            return Err(format!("the reply is {reply} instead of {expected}"));
        }
        let counted = self.counted(key)?;
        if counted == holds {
            Ok(())
        } else {
            Err(format!("the reply is {reply}, with {holds} holds, but the server counts {counted}"))
        }
    }

    /// The number of holds on the server. An error if another owner holds the lock or waits for the lock.
    fn counted(&mut self, key: &str) -> Result<i64, String> {
        let owner = owner(self.number);
        let Some(info) = self.server.info(key) else { return Ok(0) };
        match &info.holders[..] {
            [holder] if holder.owner == owner && info.waiters == 0 => Ok(holder.holds),
            _ => Err(format!("{owner} is not the only owner at the lock: {info:?}")),
        }
    }

    fn call(&mut self, command: &str) -> Result<Value, String> {
        self.call_and_watch(command, |_| Ok(()))
    }

    /// Issues a command, and issues it again after each failure, as programs do, until there is a reply. Meanwhile calls
    /// `watch` again and again. An error reply is returned as a miscount.
    fn call_and_watch(
        &mut self,
        command: &str,
        mut watch: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<Value, String> {
        let mut attempt = self.issue(command, false);
        let mut failure = String::new();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "no reply within {LIMIT:?}: {command} {failure}");
            match attempt.recv_timeout(CHECK_INTERVAL) {
                Ok(Outcome::Reply(reply)) => return Ok(reply),
                Ok(Outcome::Refused(error)) => return Err(format!("the reply is -{error}")),
                Ok(Outcome::Failed(error)) => {
                    failure = error;
                    attempt = self.issue(command, true);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the driver has ended"),
            }
            watch(self)?;
        }
    }

    /// Acquires a lock that another owner holds and then releases.
    fn wait(&mut self, key: &str, command: &str) -> Result<Value, String> {
        self.server.acquire(&format!("{key} {HOLDER} PX {LEASE} HOLDS 1"));
        // The holder releases when the owner has been in the queue for this time. `None`: the holder releases as soon
        // as the owner is in the queue and the proxy has forwarded the owner's last request. Then the proxy may lose
        // the reply with the grant.
        let short = Duration::from_millis(self.random.between(0, 100));
        let after = self.long.or(Some(short).filter(|_| self.random.once_in(2)));
        let mut is_held = true;
        let mut waiting_since = None;
        let reply = self.call_and_watch(command, |actor| {
            if !is_held {
                return Ok(());
            }
            let waits = actor.server.queue(key).len();
            if waits > 1 {
                return Err(format!("the owner waits {waits} times in the queue"));
            }
            if waits == 1 {
                waiting_since.get_or_insert_with(Instant::now);
            }
            let is_due = match after {
                Some(after) => waiting_since.is_some_and(|since| since.elapsed() >= after),
                None => waits == 1 && actor.faults.is_under_way(actor.number),
            };
            if is_due {
                actor.server.call(format!("LOCK.RELEASE {key} {HOLDER} HOLDS 0"));
                is_held = false;
            }
            Ok(())
        })?;
        if is_held {
            Err(format!("the reply is {reply} while another owner held the lock"))
        } else {
            Ok(reply)
        }
    }

    fn issue(&self, command: &str, again: bool) -> Receiver<Outcome> {
        self.faults.expect(self.number, again);
        // In a client without a pool, four actors that acquire free locks share a connection, as in applications. Each
        // other actor has its own connection.
        let is_alone = self.waits || self.long.is_some();
        let connection = if is_alone { 1_000 + self.number } else { self.number / 4 };
        self.driver.issue(connection, command)
    }
}
