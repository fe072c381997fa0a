//! One owner, who acquires and releases, and compares what it is told with what the server counts.

use crate::contestant::Contestant;
use crate::driver::{Driver, Told};
use crate::faults::{Faults, owner};
use lockward_tests::{Client, Random};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long one command may take, with all its repeats.
const LIMIT: Duration = Duration::from_secs(200);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Who holds the lock while the owner waits.
const HOLDER: &str = "holder";

/// What an owner does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// It begins with locks that are free.
    Takes,
    /// It begins with locks that another holds, and waits for them.
    Waits,
    /// It hears nothing more after its first command, and plays only one round.
    MeetsSilence,
    /// It waits for a lock for longer than its client waits for a reply, and plays only one round.
    Outlasts,
}

impl Habit {
    /// Whether it begins with a wait.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Waits | Self::Outlasts)
    }

    const fn is_for_one_round(self) -> bool {
        matches!(self, Self::MeetsSilence | Self::Outlasts)
    }
}

/// One owner.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) number: usize,
    pub(crate) contestant: Contestant,
    pub(crate) habit: Habit,
    /// Longer than the client waits for a reply.
    pub(crate) long: Duration,
    pub(crate) driver: &'a Driver,
    pub(crate) faults: &'a Faults,
    /// A connection past the proxy.
    pub(crate) server: Client,
    pub(crate) random: Random,
}

impl Lane<'_> {
    /// Plays rounds until there were enough faults. What it returns are the miscounts, one a round at most.
    pub(crate) fn play(mut self) -> Vec<String> {
        let mut miscounts = Vec::new();
        for round in 0.. {
            // A lock of its own for each round: what is miscounted in one is not found again in the next.
            let key = format!("{}:{}:{round}", self.contestant.prefix(), self.number);
            if let Err(miscount) = self.round(&key) {
                miscounts.push(format!("{key}: {miscount}"));
                self.server.call(["DEL", &key]);
            }
            if self.habit.is_for_one_round() || self.faults.are_enough(self.contestant) {
                break;
            }
        }
        miscounts
    }

    fn round(&mut self, key: &str) -> Result<(), String> {
        let depth = self.random.within(1..5);
        let mut token = None;
        for holds in 1..=depth {
            let reply = if self.habit.waits() && holds == 1 {
                self.wait(key)?
            } else {
                self.call(&self.contestant.acquire(key, &owner(self.number), holds, false))?
            };
            token = token.or(reply[0].as_i64());
            self.compare(key, &reply, &self.contestant.granted(holds, token), holds)?;
        }
        if let Some(renewal) = self.contestant.renew(key, &owner(self.number), depth, token) {
            let reply = self.call(&renewal)?;
            self.compare(key, &reply, &json!(token), depth)?;
        }
        for holds in (0..depth).rev() {
            let named = token.filter(|_| self.random.once_in(2));
            let reply = self.call(&self.contestant.release(key, &owner(self.number), holds, named))?;
            self.compare(key, &reply, &self.contestant.released(holds), holds)?;
        }
        Ok(())
    }

    /// Compares what the client was told with what it had to be told, and with what the server counts.
    fn compare(&mut self, key: &str, told: &Value, due: &Value, holds: i64) -> Result<(), String> {
        if told != due {
            return Err(format!("told {told}, where {due} was due"));
        }
        let counted = self.contestant.counted(&mut self.server, key, &owner(self.number))?;
        if counted == holds {
            Ok(())
        } else {
            Err(format!("told {told}, {holds} holds, but the server counts {counted}"))
        }
    }

    /// The server's reply to a command, however often it has to be sent. An error of the server's is a miscount: it would
    /// tell the owner what is not so.
    fn call(&self, command: &[String]) -> Result<Value, String> {
        let mut attempt = self.issue(command, false);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "no reply within {LIMIT:?}: {command:?}");
            if let Some(reply) = self.look(&mut attempt, command, LIMIT)? {
                return Ok(reply);
            }
        }
    }

    /// The reply to a request that waits, while another holds the lock and gives it back.
    fn wait(&mut self, key: &str) -> Result<Value, String> {
        let owner = owner(self.number);
        self.server.acquire(&format!("{key} {HOLDER} PX 36000000 HOLDS 1"));
        // Either some time after the owner was seen to wait, or when it is known to wait after all that has happened to its request.
        let after = match self.habit {
            Habit::Outlasts => Some(self.long),
            Habit::Waits | Habit::Takes | Habit::MeetsSilence => {
                let after = Duration::from_millis(self.random.within(0..100).unsigned_abs());
                self.random.once_in(2).then_some(after)
            }
        };
        let command = self.contestant.acquire(key, &owner, 1, true);
        let mut attempt = self.issue(&command, false);
        let begun = Instant::now();
        let mut is_held = true;
        let mut waiting_since = None;
        loop {
            assert!(begun.elapsed() < LIMIT, "no reply within {LIMIT:?}: {command:?}");
            if let Some(reply) = self.look(&mut attempt, &command, LOOK_EVERY)? {
                return if is_held {
                    Err(format!("told {reply} while another held the lock"))
                } else {
                    Ok(reply)
                };
            }
            if is_held {
                let queue = self.server.queue(key);
                if queue.len() > 1 {
                    return Err(format!("its owner waits {} times", queue.len()));
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

    fn issue(&self, command: &[String], again: bool) -> Receiver<Told> {
        self.faults.expect(self.number, again);
        // Where the client has no pool, four share a connection, as its users do; but not who waits, or is hit by silence.
        let connection = if self.habit == Habit::Takes { self.number / 4 } else { 1_000 + self.number };
        self.driver.issue(connection, command)
    }

    /// The reply, if it comes within `limit`. Where the client does not know what became of the command, it is told again, as
    /// every program does.
    fn look(
        &self,
        attempt: &mut Receiver<Told>,
        command: &[String],
        limit: Duration,
    ) -> Result<Option<Value>, String> {
        match attempt.recv_timeout(limit) {
            Ok(Told::Reply(reply)) => Ok(Some(reply)),
            Ok(Told::Refused(error)) => Err(format!("told -{error}")),
            Ok(Told::Failed(_)) => {
                *attempt = self.issue(command, true);
                Ok(None)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => panic!("the driver has ended"),
        }
    }
}
