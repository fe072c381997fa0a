//! What must hold for any input: judged by the fuzz targets in `fuzz/`, and for their corpus by `tests/fuzzed.rs`.

use lockward_core::encoding::{self, Heard};
use lockward_core::{Holder, Instant, Lock, Now, WallTime};

/// The times at which inputs are read: of our days, before and after the epoch, and at the ends of the clocks.
const TIMES: [Now; 4] = [
    now(5_000_000, 1_795_000_000_000_000),
    now(0, 0),
    now(i64::MIN, i64::MAX),
    now(i64::MAX, -1_795_000_000_000_000),
];

const fn now(mono: i64, wall: i64) -> Now {
    Now { mono: Instant::from_micros(mono), wall: WallTime::from_micros(wall) }
}

/// An input where a payload is expected, as a replica hears it, as it lies in a file, and past the version that most
/// inputs would not get past.
pub fn encoding(input: &[u8]) {
    let payload = [&[encoding::VERSION], input].concat();
    for now in TIMES {
        for heard in [Heard::Live, Heard::Loaded] {
            for input in [input, &payload] {
                changes(input, heard, now);
                stored(input, heard, now);
            }
        }
    }
}

fn changes(input: &[u8], heard: Heard, now: Now) {
    let Ok(changes) = encoding::decode(input, heard, now) else { return };
    let (mut lock, mut told_on) = (Lock::new(), Vec::new());
    for change in changes {
        encoding::append(&mut told_on, &change, now);
        lock.apply(change, now);
        assert_sound(&lock);
    }
    assert!(encoding::decode(&told_on, heard, now).is_ok(), "what was heard can be told on: {told_on:x?}");
}

fn stored(input: &[u8], heard: Heard, now: Now) {
    let Ok(lock) = encoding::decode_lock(input, heard, now) else { return };
    assert!(!lock.is_free());
    assert_sound(&lock);
    let mut stored = Vec::new();
    encoding::append_lock(&mut stored, &lock, now);
    let again = encoding::decode_lock(&stored, heard, now).expect("what was loaded can be stored and loaded");
    let tenure = |holder: &Holder| (holder.owner.clone(), holder.holds, holder.slots, holder.token);
    assert!(lock.holders().iter().map(tenure).eq(again.holders().iter().map(tenure)), "{lock:?} {again:?}");
}

fn assert_sound(lock: &Lock) {
    let holders = lock.holders();
    for (number, holder) in holders.iter().enumerate() {
        let slots = holder.slots.number() as usize;
        assert!(slots == 0 || holders.len() <= slots, "too many holders: {lock:?}");
        assert!(holder.holds > 0 && !holder.owner.as_bytes().is_empty(), "{lock:?}");
        let twin = |other: &Holder| other.owner == holder.owner || other.token == holder.token;
        assert!(!holders.iter().take(number).any(twin), "an owner or a token twice: {lock:?}");
    }
}
