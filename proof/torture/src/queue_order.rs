//! The order of the queue: waits that are sent one after the other, each only once the one before stands in line.

use crate::recording_client::{PendingCall, RecordingClient};
use lockward_checker::history::{HoldsReleased, Fault, Operation, Line, Nanos, Outcome, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Client, Reply};
use std::time::{Duration, Instant};

/// The lock that it asks for.
pub const KEY: &str = "queue";
const WAITERS: u64 = 6;
const LEASE: Nanos = 250_000_000;
/// The first holder's lease: the line is to stand before it ends. No longer than the shortest quarantine of the worlds.
const FIRST_LEASE: Nanos = 850_000_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// One line of waiters, from the first to the last. Where a fault comes in between, the round is given up: what was
/// seen until then still counts.
pub fn round(recorder: &Recorder, number: u32, round: u64, port: u16) {
    let Ok(holder) = RecordingClient::connect(recorder, number, port) else {
        return std::thread::park_timeout(Duration::from_millis(5));
    };
    let acquire = |lease, wait| Operation::Acquire { lease, wait, holds: None };
    let owner = |place: u64| format!("queue-{round}:{place}");
    let (holder, granted) =
        holder.call(KEY, &owner(0), acquire(FIRST_LEASE, Wait::Limit(2_000_000_000)), PATIENCE);
    let (Some(holder), Outcome::Granted { .. }) = (holder, &granted.outcome) else { return };
    let port = holder.port_of(KEY);
    let Ok(mut observer) = Client::connect(port) else { return };

    let mut line: Vec<PendingCall<'_>> = Vec::new();
    for place in 1..=WAITERS {
        let Ok(caller) = RecordingClient::connect(recorder, number, port) else { break };
        let Ok(mut asked) = caller.ask(KEY, &owner(place), acquire(LEASE, Wait::Unlimited)) else { break };
        if !stands(&mut observer, &owner(place)) {
            line.push(asked);
            break;
        }
        asked.enqueued();
        line.push(asked);
    }
    if now() >= granted.answered() + FIRST_LEASE / 2 {
        // Whoever was granted the lock meanwhile hears of it late, as nobody reads here.
        let (name, client) = ("slow prober".to_owned(), Some(number));
        recorder.record(&Line::Fault(Fault { name, client, start: granted.start, end: now() }));
    }
    let release = Operation::Release { released: HoldsReleased::All, token: None };
    holder.call(KEY, &owner(0), release.clone(), PATIENCE);
    for (place, asked) in (1..).zip(line) {
        let (caller, call) = asked.answer(PATIENCE);
        if let (Some(caller), Outcome::Granted { .. }) = (caller, call.outcome) {
            caller.call(KEY, &owner(place), release.clone(), PATIENCE);
        }
    }
}

/// Waits until an owner is seen in the queue.
fn stands(observer: &mut Client, owner: &str) -> bool {
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
