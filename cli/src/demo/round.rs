//! One round: all clients make their increments under one contender, and the round is scored.
//!
//! The clients take their increments from one pool rather than a fixed share each. So all of them compete until the
//! end, and how often each was served shows how fairly the lock is passed on.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use redis::Connection;
use uuid::Uuid;

use super::contender::Contender;
use crate::failure::Failure;
use crate::server::commands_executed;

/// If the demo is killed, the number goes by itself. (So does every lock: it has a lease.)
const NUMBER_LEASE_S: u64 = 60;

const REDRAW: Duration = Duration::from_millis(50);

/// What the clients do in each round.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) clients: u32,
    pub(super) increments: u64,
}

impl Load {
    pub(super) fn is_exact(self, score: &Score) -> bool {
        score.number == self.increments
    }

    pub(super) fn lost(self, score: &Score) -> u64 {
        self.increments.saturating_sub(score.number)
    }

    /// The point of the whole demo.
    pub(super) fn require_exact(self, score: &Score) -> Result<(), Failure> {
        if self.is_exact(score) {
            return Ok(());
        }
        let (number, right) = (score.number, self.increments);
        Err(Failure::new(format!(
            "LOCK.ACQUIRE led to {number} instead of {right}: two owners held the lock at once. Please report this."
        )))
    }
}

/// A client of the demo: what an application's thread would have.
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) owner: String,
}

/// What a round came to.
pub(super) struct Score {
    /// Where the number ended.
    pub(super) number: u64,
    pub(super) took: Duration,
    /// Executed by the server, calls inside scripts included.
    pub(super) commands: u64,
    /// The longest that one client waited for one turn; none if nobody has to.
    pub(super) longest_wait: Option<Duration>,
    /// Increments of the client that was served least.
    pub(super) fewest: u64,
    /// Increments of the client that was served most.
    pub(super) most: u64,
}

/// Plays a round and deletes its keys, however it ends.
pub(super) fn play(
    contender: &dyn Contender,
    load: Load,
    control: &mut Connection,
    clients: &mut [Client],
    bar: &ProgressBar,
) -> Result<Score, Failure> {
    contender.prepare(control)?;
    let round = Round { contender, pool: Pool::new(load.increments), keys: Keys::new() };
    let score = round.play(control, clients, bar);
    let deleted = round.keys.delete(control);
    let score = score?;
    deleted?;
    Ok(score)
}

struct Round<'a> {
    contender: &'a dyn Contender,
    pool: Pool,
    keys: Keys,
}

impl Round<'_> {
    fn play(
        &self,
        control: &mut Connection,
        clients: &mut [Client],
        bar: &ProgressBar,
    ) -> Result<Score, Failure> {
        self.keys.write_number(control, 0)?;
        let commands_before = commands_executed(control)?;
        let turns = self.run_clients(control, clients, bar)?;
        let commands = commands_executed(control)?.saturating_sub(commands_before);
        let number = self.keys.read_number(control)?;
        let score = score(number, commands, &turns);
        Ok(Score { longest_wait: score.longest_wait.filter(|_| self.contender.waits()), ..score })
    }

    fn run_clients(
        &self,
        control: &mut Connection,
        clients: &mut [Client],
        bar: &ProgressBar,
    ) -> Result<Vec<Turns>, Failure> {
        let start = Barrier::new(clients.len());
        let (sender, finished) = mpsc::channel();
        thread::scope(|scope| {
            for client in clients {
                let (start, sender) = (&start, sender.clone());
                scope.spawn(move || {
                    start.wait();
                    // Cannot fail: the receiver outlives every client.
                    let _ = sender.send(self.take_turns(client));
                });
            }
            // From here on the channel is open as long as a client is at work.
            drop(sender);

            let mut all = Vec::new();
            let mut failure = None;
            loop {
                match finished.recv_timeout(REDRAW) {
                    Ok(Ok(turns)) => all.push(turns),
                    Ok(Err(_)) if failure.is_some() => {}
                    Ok(Err(first)) => {
                        failure = Some(first);
                        self.pool.close();
                        // The client that failed may hold the lock: without the key nobody waits for its lease.
                        // If this fails too, the first failure is still the one to report.
                        let _ = self.keys.delete_lock(control);
                    }
                    Err(RecvTimeoutError::Timeout) => bar.set_position(self.pool.done()),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            failure.map_or(Ok(all), Err)
        })
    }

    fn take_turns(&self, client: &mut Client) -> Result<Turns, Failure> {
        let began = Instant::now();
        let mut count: u64 = 0;
        let mut longest_wait = Duration::ZERO;
        while self.pool.take() {
            let asked = Instant::now();
            while !self.contender.acquire(client, &self.keys.lock)? {
                if self.pool.is_closed() {
                    return Err(Failure::new("another client failed"));
                }
                thread::sleep(self.contender.pause());
            }
            longest_wait = longest_wait.max(asked.elapsed());
            self.keys.add_one(&mut client.connection)?;
            self.contender.release(client, &self.keys.lock)?;
            count = count.saturating_add(1);
            self.pool.record_done();
        }
        Ok(Turns { began, ended: Instant::now(), count, longest_wait })
    }
}

/// What one client got.
struct Turns {
    began: Instant,
    ended: Instant,
    count: u64,
    longest_wait: Duration,
}

fn score(number: u64, commands: u64, turns: &[Turns]) -> Score {
    // By the clients' own clocks: on a busy machine the main thread may hear of either end late.
    let began = turns.iter().map(|turns| turns.began).min();
    let ended = turns.iter().map(|turns| turns.ended).max();
    let counts = turns.iter().map(|turns| turns.count);
    Score {
        number,
        took: began.zip(ended).map(|(began, ended)| ended.duration_since(began)).unwrap_or_default(),
        commands,
        longest_wait: turns.iter().map(|turns| turns.longest_wait).max(),
        fewest: counts.clone().min().unwrap_or_default(),
        most: counts.max().unwrap_or_default(),
    }
}

/// The increments that are left to make, shared by all clients.
struct Pool {
    increments: u64,
    taken: AtomicU64,
    done: AtomicU64,
    closed: AtomicBool,
}

impl Pool {
    fn new(increments: u64) -> Self {
        Self { increments, taken: AtomicU64::new(0), done: AtomicU64::new(0), closed: AtomicBool::new(false) }
    }

    fn take(&self) -> bool {
        !self.is_closed() && self.taken.fetch_add(1, Relaxed) < self.increments
    }

    fn record_done(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

/// The keys of one round, named so that they are nobody else's.
struct Keys {
    number: String,
    lock: String,
}

impl Keys {
    fn new() -> Self {
        let round = Uuid::new_v4();
        Self { number: format!("lockward:demo:{round}:number"), lock: format!("lockward:demo:{round}:lock") }
    }

    /// The increment as an application without INCR would do it: three steps, so that another client can come between.
    fn add_one(&self, connection: &mut Connection) -> Result<(), Failure> {
        let number = self.read_number(connection)?;
        self.write_number(connection, number.saturating_add(1))
    }

    fn read_number(&self, connection: &mut Connection) -> Result<u64, Failure> {
        let number: Option<u64> = redis::cmd("GET").arg(&self.number).query(connection)?;
        number.ok_or_else(|| Failure::new("the demo's number disappeared from the server during the round"))
    }

    fn write_number(&self, connection: &mut Connection, number: u64) -> Result<(), Failure> {
        redis::cmd("SET").arg(&self.number).arg(number).arg("EX").arg(NUMBER_LEASE_S).exec(connection)?;
        Ok(())
    }

    fn delete(&self, control: &mut Connection) -> Result<(), Failure> {
        redis::cmd("DEL").arg(&self.number).arg(&self.lock).exec(control)?;
        Ok(())
    }

    fn delete_lock(&self, control: &mut Connection) -> Result<(), Failure> {
        redis::cmd("DEL").arg(&self.lock).exec(control)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { clients: 50, increments: 5_000 };

    fn score(number: u64) -> Score {
        Score { number, took: Duration::ZERO, commands: 0, longest_wait: None, fewest: 0, most: 0 }
    }

    #[test]
    fn a_score_spans_all_clients() {
        let start = Instant::now();
        let turns = |began, ended, count, waited| Turns {
            began: start + Duration::from_millis(began),
            ended: start + Duration::from_millis(ended),
            count,
            longest_wait: Duration::from_millis(waited),
        };
        let score = super::score(9, 40, &[turns(1, 80, 2, 30), turns(0, 70, 3, 50), turns(2, 100, 4, 40)]);
        assert_eq!((score.number, score.commands), (9, 40));
        assert_eq!(score.took, Duration::from_millis(100));
        assert_eq!(score.longest_wait, Some(Duration::from_millis(50)));
        assert_eq!((score.fewest, score.most), (2, 4));
    }

    #[test]
    fn one_lost_update_fails_the_demo() {
        assert!(LOAD.require_exact(&score(5_000)).is_ok());
        for number in [0, 4_999, 5_001] {
            assert!(LOAD.require_exact(&score(number)).is_err(), "{number}");
        }
    }

    #[test]
    fn the_pool_is_handed_out_once() {
        let pool = Pool::new(3);
        assert_eq!([(); 5].map(|()| pool.take()), [true, true, true, false, false]);
    }

    #[test]
    fn a_closed_pool_hands_out_nothing() {
        let pool = Pool::new(3);
        assert!(pool.take());
        pool.close();
        assert!(!pool.take());
    }

    #[test]
    fn no_two_rounds_share_a_key() {
        let (one, other) = (Keys::new(), Keys::new());
        assert_ne!(one.number, other.number);
        assert_ne!(one.lock, other.lock);
        assert_ne!(one.number, one.lock);
    }
}
