//! The order of the queue: waits that are sent one after the other, each only once the one before stands in line.

use crate::caller::{Asked, Caller};
use lockward_tests::{Client, Reply};
use lockward_trial::history::{Back, Kind, Nanos, Outcome, Wait};
use lockward_trial::recorder::Recorder;
use std::time::{Duration, Instant};

const KEY: &str = "queue";
const WAITERS: u64 = 6;
const LEASE: Nanos = 250_000_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// One line of waiters, from the first to the last. Where a fault comes in between, the round is given up: what was
/// seen until then still counts.
pub fn round(recorder: &Recorder, number: u32, round: u64, port: u16) {
    let (Ok(mut observer), Ok(holder)) = (Client::connect(port), Caller::connect(recorder, number, port))
    else {
        return std::thread::park_timeout(Duration::from_millis(5));
    };
    let acquire = |wait| Kind::Acquire { lease: LEASE, wait, holds: None };
    let owner = |place: u64| format!("queue-{round}:{place}");
    let (holder, granted) = holder.call(KEY, &owner(0), acquire(Wait::Limit(2_000_000_000)), PATIENCE);
    let (Some(holder), Outcome::Granted { .. }) = (holder, granted.outcome) else { return };

    let mut line: Vec<Asked<'_>> = Vec::new();
    for place in 1..=WAITERS {
        let Ok(caller) = Caller::connect(recorder, number, port) else { break };
        let Ok(mut asked) = caller.ask(KEY, &owner(place), acquire(Wait::Unlimited)) else { break };
        if !stands(&mut observer, &owner(place)) {
            line.push(asked);
            break;
        }
        asked.joined();
        line.push(asked);
    }
    let release = Kind::Release { back: Back::All, token: None };
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
