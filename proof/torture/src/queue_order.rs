//! Tests the order of the queue: sends waits one after another, and sends each wait only when the previous wait is in
//! the queue.
//!
//! The waits have random modes. One wait ends at its limit, and in most rounds a second wait loses its connection. The
//! owners of these waits come back to their places while the other owners wait.

use crate::recording_client::{PendingCall, RecordingClient};
use lockward_checker::history::{Call, HoldsReleased, Mode, Nanos, Operation, Outcome, Wait};
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Client, Random, Reply};
use std::time::{Duration, Instant};

/// The number of the client that sends the waits.
pub(crate) const CLIENT: u32 = u32::MAX;
/// The lock for which the owners wait.
pub(crate) const KEY: &str = "queue";
const WAITERS: u64 = 6;
const LEASE: Nanos = 250_000_000;
/// The lease of the first holder. The lease must be long enough for all waits to enter the queue, and not longer than
/// the quarantine of any world.
const FIRST_LEASE: Nanos = 850_000_000;
const PATIENCE: Duration = Duration::from_secs(10);
/// A wait limit that is reached before the lock becomes free.
const SLICE: Wait = Wait::Limit(60_000_000);
/// How long the places are kept.
const KEEP: Nanos = 2_000_000_000;
const MODES: [Mode; 4] = [Mode::EXCLUSIVE, Mode::SHARED, Mode::of_slots(3, 1), Mode::of_slots(3, 2)];

/// Where an owner was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    InQueue,
    Holding,
    Nowhere,
}

/// A wait of an owner.
#[derive(Debug)]
struct Waiter<'r> {
    /// The id of the owner's connection.
    id: i64,
    call: PendingCall<'r>,
}

#[derive(Debug)]
struct Prober<'r> {
    recorder: &'r Recorder,
    port: u16,
    observer: Client,
}

/// Sends one queue of waits and reads all replies. If a fault ends the round early, the calls before the fault still
/// count.
pub(crate) fn round(recorder: &Recorder, round: u64, port: u16, random: &mut Random) {
    let Ok(holder) = RecordingClient::connect(recorder, CLIENT, port) else {
        return std::thread::park_timeout(Duration::from_millis(5));
    };
    let owner = |position: u64| format!("queue-{round}:{position}");
    let mut any_mode = || random.one_of(&MODES);
    let first = Operation::acquire(FIRST_LEASE, Wait::Limit(2_000_000_000), any_mode());
    let (holder, granted) = holder.call(KEY, &owner(0), first, PATIENCE);
    let (Some(holder), Outcome::Granted { .. }) = (holder, &granted.outcome) else { return };
    let port = holder.port_of(KEY);
    let Ok(observer) = Client::connect(port) else { return };
    let mut prober = Prober { recorder, port, observer };

    let modes: Vec<_> = (0..WAITERS).map(|_| any_mode()).collect();
    let (in_slices, cut) = (random.between(1, WAITERS + 1), random.between(1, WAITERS + 1));
    let mut waiters = Vec::new();
    let mut answered = Vec::new();
    for (position, mode) in (1..).zip(modes) {
        let operation = match position {
            _ if position == in_slices => kept(SLICE, mode),
            _ if position == cut => kept(Wait::Unlimited, mode),
            _ => Operation::acquire(LEASE, Wait::Unlimited, mode),
        };
        let Some(waiter) = prober.wait(&owner(position), operation) else { break };
        let seen = prober.see(&waiter);
        waiters.push(waiter);
        match (waiters.last_mut(), seen) {
            (Some(waiter), Seen::InQueue) => waiter.call.open_call.enqueued(),
            (_, Seen::Holding) => {}
            (_, Seen::Nowhere) | (None, Seen::InQueue) => break,
        }
    }
    let mut places = Vec::new();
    for waiter in waiters {
        let (ends, is_cut) = (waiter.owner() == owner(in_slices), waiter.owner() == owner(cut));
        if ends || is_cut {
            places.extend(prober.come_back(waiter, !ends, &mut answered));
        } else {
            places.push(waiter);
        }
    }
    prober.see_still_waiting(&mut places);
    if now() >= granted.answered() + FIRST_LEASE / 2 {
        // This thread was slow, so it may read the reply to a waiter late. The recorded fault excuses the late reply.
        recorder.fault("slow prober", Some(CLIENT), granted.start);
    }
    let release = Operation::Release { released: HoldsReleased::All, token: None };
    holder.call(KEY, &owner(0), release.clone(), PATIENCE);
    for (caller, owner) in answered {
        caller.call(KEY, &owner, release.clone(), PATIENCE);
    }
    for Waiter { call, .. } in places {
        let (caller, Call { owner, outcome, .. }) = call.answer(PATIENCE);
        if let (Some(caller), Outcome::Granted { .. }) = (caller, outcome) {
            caller.call(KEY, &owner, release.clone(), PATIENCE);
        }
    }
}

impl Waiter<'_> {
    fn owner(&self) -> &str {
        &self.call.open_call.call.owner
    }
}

impl<'r> Prober<'r> {
    fn wait(&self, owner: &str, operation: Operation) -> Option<Waiter<'r>> {
        let mut caller = RecordingClient::connect(self.recorder, CLIENT, self.port).ok()?;
        let id = caller.id()?;
        Some(Waiter { id, call: caller.ask(KEY, owner, operation) })
    }

    /// Lets a wait end at its limit, or closes its connection. Then waits again at the same place. If the wait was
    /// granted or refused instead, pushes its connection and its owner to `answered`.
    fn come_back(
        &mut self,
        waiter: Waiter<'r>,
        cut: bool,
        answered: &mut Vec<(RecordingClient<'r>, String)>,
    ) -> Option<Waiter<'r>> {
        if cut && self.see(&waiter) != Seen::InQueue {
            return Some(waiter);
        }
        let (caller, call) = if cut { (None, waiter.call.close()) } else { waiter.call.answer(PATIENCE) };
        if !cut && call.outcome != Outcome::NotAcquired {
            answered.extend(caller.map(|caller| (caller, call.owner)));
            return None;
        }
        let mut waiter = self.wait(&call.owner, kept(Wait::Unlimited, call.mode()?))?;
        if self.see(&waiter) == Seen::InQueue {
            waiter.call.open_call.enqueued();
        }
        Some(waiter)
    }

    /// Watches the server until the wait is in the queue or its owner holds the lock. This function looks for the
    /// connection of the wait, not for the owner, because the queue may still have an older wait of the owner.
    fn see(&mut self, waiter: &Waiter<'_>) -> Seen {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_nanos(LEASE) {
            let Some((queue, holders)) = self.look() else { break };
            if queue.contains(&waiter.id) {
                return Seen::InQueue;
            }
            if holders.iter().any(|holder| holder == waiter.owner()) {
                return Seen::Holding;
            }
        }
        Seen::Nowhere
    }

    /// The ids of the waiting connections, and the owners that hold the lock.
    fn look(&mut self) -> Option<(Vec<i64>, Vec<String>)> {
        let info = self.observer.try_call(["LOCK.INFO", KEY, "WAITERS", "100"]).ok()?;
        if matches!(info, Reply::Error(_)) || info.is_null() {
            return None;
        }
        let info = info.info();
        let queue = info.queue.unwrap_or_default().into_iter().map(|waiter| waiter.client_id);
        Some((queue.collect(), info.holders.into_iter().map(|holder| holder.owner).collect()))
    }

    /// Reads the queue by LOCK.INFO, and records which of these waiters are still in the queue.
    fn see_still_waiting(&mut self, waiters: &mut [Waiter<'_>]) {
        let before = now();
        let Some((queue, _)) = self.look() else { return };
        for waiter in waiters.iter_mut().filter(|waiter| queue.contains(&waiter.id)) {
            waiter.call.open_call.call.still_waiting = Some(before);
        }
    }
}

const fn kept(wait: Wait, mode: Mode) -> Operation {
    Operation::Acquire { lease: LEASE, wait, keep: Some(KEEP), holds: Some(1), mode }
}
