//! One round: all clients make their increments with one kind of lock.
//!
//! The clients take their increments from one pool, so all of them compete until the end. The number of increments of each client
//! shows how fair the lock is.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use redis::Connection;
use uuid::Uuid;

use super::lock_kind::{Client, LockKind};
use crate::failure::Failure;
use crate::server::commands_executed;

/// The expiry of the number, in case the demo is killed. Every lock has a lease for the same reason.
const NUMBER_EXPIRY_S: u64 = 60;

const REDRAW: Duration = Duration::from_millis(50);

/// What the clients do in each round.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) clients: u32,
    pub(super) increments: u64,
}

impl Load {
    pub(super) fn is_exact(self, result: &RoundResult) -> bool {
        result.number == self.increments
    }

    pub(super) fn lost(self, result: &RoundResult) -> u64 {
        self.increments.saturating_sub(result.number)
    }

    /// Fails if an update was lost.
    pub(super) fn require_exact(self, result: &RoundResult) -> Result<(), Failure> {
        if self.is_exact(result) {
            return Ok(());
        }
        let (number, right) = (result.number, self.increments);
        Err(Failure::new(format!(
            "LOCK.ACQUIRE led to {number} instead of {right}: two owners held the lock at once. Please report this."
        )))
    }
}

/// The result of a round.
pub(super) struct RoundResult {
    /// The number at the end.
    pub(super) number: u64,
    pub(super) took: Duration,
    /// The commands that the server executed, including calls inside scripts.
    pub(super) commands: u64,
    /// The longest wait of one client for one increment. `None` means that clients do not wait for each other.
    pub(super) longest_wait: Option<Duration>,
    /// The increments of the client that made the fewest.
    pub(super) fewest: u64,
    /// The increments of the client that made the most.
    pub(super) most: u64,
}

/// Runs a round, and deletes its keys even if it fails.
pub(super) fn run(
    kind: &dyn LockKind,
    load: Load,
    control: &mut Connection,
    clients: &mut [Client],
    bar: &ProgressBar,
) -> Result<RoundResult, Failure> {
    kind.prepare(control)?;
    let round = Round { kind, pool: Pool::new(load.increments), keys: Keys::new() };
    let result = round.run(control, clients, bar);
    let deleted = round.keys.delete(control);
    let result = result?;
    deleted?;
    Ok(result)
}

struct Round<'a> {
    kind: &'a dyn LockKind,
    pool: Pool,
    keys: Keys,
}

impl Round<'_> {
    fn run(
        &self,
        control: &mut Connection,
        clients: &mut [Client],
        bar: &ProgressBar,
    ) -> Result<RoundResult, Failure> {
        self.keys.write_number(control, 0)?;
        let commands_before = commands_executed(control)?;
        let stats = self.run_clients(control, clients, bar)?;
        let commands = commands_executed(control)?.saturating_sub(commands_before);
        let number = self.keys.read_number(control)?;
        let result = summarize(number, commands, &stats);
        Ok(RoundResult { longest_wait: result.longest_wait.filter(|_| self.kind.waits()), ..result })
    }

    fn run_clients(
        &self,
        control: &mut Connection,
        clients: &mut [Client],
        bar: &ProgressBar,
    ) -> Result<Vec<ClientStats>, Failure> {
        let start = Barrier::new(clients.len());
        let (sender, finished) = mpsc::channel();
        thread::scope(|scope| {
            for client in clients {
                let (start, sender) = (&start, sender.clone());
                scope.spawn(move || {
                    start.wait();
                    // Cannot fail: the receiver outlives every client.
                    let _ = sender.send(self.run_client(client));
                });
            }
            // Now the channel closes when the last client has ended.
            drop(sender);

            let mut all = Vec::new();
            let mut failure = None;
            loop {
                match finished.recv_timeout(REDRAW) {
                    Ok(Ok(stats)) => all.push(stats),
                    Ok(Err(_)) if failure.is_some() => {}
                    Ok(Err(first)) => {
                        failure = Some(first);
                        self.pool.close();
                        // The client that failed may hold the lock. Without the key no client waits until its lease ends. If this
                        // fails too, the first failure is reported.
                        let _ = self.keys.delete_lock(control);
                    }
                    Err(RecvTimeoutError::Timeout) => bar.set_position(self.pool.done()),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            failure.map_or(Ok(all), Err)
        })
    }

    fn run_client(&self, client: &mut Client) -> Result<ClientStats, Failure> {
        let began = Instant::now();
        let mut count: u64 = 0;
        let mut longest_wait = Duration::ZERO;
        while self.pool.take() {
            let asked = Instant::now();
            while !self.kind.acquire(client, &self.keys.lock)? {
                if self.pool.is_closed() {
                    return Err(Failure::new("another client failed"));
                }
                thread::sleep(self.kind.pause());
            }
            longest_wait = longest_wait.max(asked.elapsed());
            self.keys.add_one(&mut client.connection)?;
            self.kind.release(client, &self.keys.lock)?;
            count = count.saturating_add(1);
            self.pool.record_done();
        }
        Ok(ClientStats { began, ended: Instant::now(), count, longest_wait })
    }
}

/// The figures of one client.
struct ClientStats {
    began: Instant,
    ended: Instant,
    count: u64,
    longest_wait: Duration,
}

fn summarize(number: u64, commands: u64, stats: &[ClientStats]) -> RoundResult {
    // The clients measure the time, because the main thread may be late on a busy machine.
    let began = stats.iter().map(|client| client.began).min();
    let ended = stats.iter().map(|client| client.ended).max();
    let counts = stats.iter().map(|client| client.count);
    RoundResult {
        number,
        took: began.zip(ended).map(|(began, ended)| ended.duration_since(began)).unwrap_or_default(),
        commands,
        longest_wait: stats.iter().map(|client| client.longest_wait).max(),
        fewest: counts.clone().min().unwrap_or_default(),
        most: counts.max().unwrap_or_default(),
    }
}

/// The increments that remain, shared by all clients.
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

/// The keys of one round. Their names are unique.
struct Keys {
    number: String,
    lock: String,
}

impl Keys {
    fn new() -> Self {
        let round = Uuid::new_v4();
        Self { number: format!("lockward:demo:{round}:number"), lock: format!("lockward:demo:{round}:lock") }
    }

    /// Increments in three steps, as an application without INCR does. Another client can change the number between these steps.
    fn add_one(&self, connection: &mut Connection) -> Result<(), Failure> {
        let number = self.read_number(connection)?;
        self.write_number(connection, number.saturating_add(1))
    }

    fn read_number(&self, connection: &mut Connection) -> Result<u64, Failure> {
        let number: Option<u64> = redis::cmd("GET").arg(&self.number).query(connection)?;
        number.ok_or_else(|| Failure::new("the demo's number disappeared from the server during the round"))
    }

    fn write_number(&self, connection: &mut Connection, number: u64) -> Result<(), Failure> {
        redis::cmd("SET").arg(&self.number).arg(number).arg("EX").arg(NUMBER_EXPIRY_S).exec(connection)?;
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

    fn result(number: u64) -> RoundResult {
        RoundResult { number, took: Duration::ZERO, commands: 0, longest_wait: None, fewest: 0, most: 0 }
    }

    #[test]
    fn a_result_covers_all_clients() {
        let start = Instant::now();
        let client = |began, ended, count, waited| ClientStats {
            began: start + Duration::from_millis(began),
            ended: start + Duration::from_millis(ended),
            count,
            longest_wait: Duration::from_millis(waited),
        };
        let result = summarize(9, 40, &[client(1, 80, 2, 30), client(0, 70, 3, 50), client(2, 100, 4, 40)]);
        assert_eq!((result.number, result.commands), (9, 40));
        assert_eq!(result.took, Duration::from_millis(100));
        assert_eq!(result.longest_wait, Some(Duration::from_millis(50)));
        assert_eq!((result.fewest, result.most), (2, 4));
    }

    #[test]
    fn a_lost_update_is_a_failure() {
        assert!(LOAD.require_exact(&result(5_000)).is_ok());
        for number in [0, 4_999, 5_001] {
            assert!(LOAD.require_exact(&result(number)).is_err(), "{number}");
        }
    }

    #[test]
    fn each_increment_is_taken_once() {
        let pool = Pool::new(3);
        assert_eq!([(); 5].map(|()| pool.take()), [true, true, true, false, false]);
    }

    #[test]
    fn a_closed_pool_is_empty() {
        let pool = Pool::new(3);
        assert!(pool.take());
        pool.close();
        assert!(!pool.take());
    }

    #[test]
    fn two_rounds_have_different_keys() {
        let (one, other) = (Keys::new(), Keys::new());
        assert_ne!(one.number, other.number);
        assert_ne!(one.lock, other.lock);
        assert_ne!(one.number, one.lock);
    }
}
