//! Tests the order of the queue: sends waits one after another, each when the one before is in the queue.

use crate::recording_client::{PendingCall, RecordingClient};
use lockward_checker::history::{Fault, HoldsReleased, Line, Nanos, Operation, Outcome, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Client, Reply};
use std::time::{Duration, Instant};

/// The lock that is acquired.
pub const KEY: &str = "queue";
const WAITERS: u64 = 6;
const LEASE: Nanos = 250_000_000;
/// The lease of the first holder. All waits must be in the queue before it ends, and no quarantine of a world may be shorter.
const FIRST_LEASE: Nanos = 850_000_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends one queue of waits and reads all replies. A fault ends the round early. The calls until then are checked all the same.
pub fn round(recorder: &Recorder, number: u32, round: u64, port: u16) {
    let Ok(holder) = RecordingClient::connect(recorder, number, port) else {
        return std::thread::park_timeout(Duration::from_millis(5));
    };
    let acquire = |lease, wait| Operation::Acquire { lease, wait, holds: None };
    let owner = |position: u64| format!("queue-{round}:{position}");
    let (holder, granted) =
        holder.call(KEY, &owner(0), acquire(FIRST_LEASE, Wait::Limit(2_000_000_000)), PATIENCE);
    let (Some(holder), Outcome::Granted { .. }) = (holder, &granted.outcome) else { return };
    let port = holder.port_of(KEY);
    let Ok(mut observer) = Client::connect(port) else { return };

    let mut waits: Vec<PendingCall<'_>> = Vec::new();
    for position in 1..=WAITERS {
        let Ok(caller) = RecordingClient::connect(recorder, number, port) else { break };
        let Ok(mut wait) = caller.ask(KEY, &owner(position), acquire(LEASE, Wait::Unlimited)) else { break };
        if !is_enqueued(&mut observer, &owner(position)) {
            waits.push(wait);
            break;
        }
        wait.enqueued();
        waits.push(wait);
    }
    if now() >= granted.answered() + FIRST_LEASE / 2 {
        // A waiter that was granted the lock in the meantime reads its reply late, because this thread was slow.
        let (name, client) = ("slow prober".to_owned(), Some(number));
        recorder.record(&Line::Fault(Fault { name, client, start: granted.start, end: now() }));
    }
    let release = Operation::Release { released: HoldsReleased::All, token: None };
    holder.call(KEY, &owner(0), release.clone(), PATIENCE);
    for (position, wait) in (1..).zip(waits) {
        let (caller, call) = wait.answer(PATIENCE);
        if let (Some(caller), Outcome::Granted { .. }) = (caller, call.outcome) {
            caller.call(KEY, &owner(position), release.clone(), PATIENCE);
        }
    }
}

/// Waits until an owner is in the queue. `false`: it did not happen in time.
fn is_enqueued(observer: &mut Client, owner: &str) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_nanos(LEASE) {
        let Ok(info) = observer.try_call(["LOCK.INFO", KEY, "WAITERS", "100"]) else { return false };
        if matches!(info, Reply::Error(_)) || info.is_null() {
            return false;
        }
        let queue = info.info().queue.unwrap_or_default();
        if queue.iter().any(|waiter| waiter.owner == owner) {
            return true;
        }
    }
    false
}
