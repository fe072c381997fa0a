//! The decoder never allocates more than a few times the size of a payload, even if the payload contains false counts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

mod varint;

use lockward_core::encoding::{self, Origin};
use lockward_core::{Instant, Now, WallTime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use varint::varint;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator with two counts: the bytes that this thread has allocated now, and the largest number so far.
struct Counting;

fn count(change: impl FnOnce(usize) -> usize) {
    let live = change(LIVE.get());
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: all calls are passed to the system's allocator unchanged. A thread-local cell without a destructor lives as
// long as the thread, and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|live| live + layout.size());
        // SAFETY: the caller promises what `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(|live| live.saturating_sub(layout.size()));
        // SAFETY: the caller promises what `System.dealloc` requires.
        unsafe { System.dealloc(block, layout) }
    }

    // This allocator has no `realloc`. The default `realloc` allocates the new block before it frees the old block, so
    // the test measures the worst case.
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The result of `work`, and the largest number of bytes that `work` had allocated at once.
fn peak_of<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// A payload of this many holders that share the lock. Each holder is as short as possible, and has no limit or a limit
/// that differs from the limits of the other holders.
fn payload_of(holders: usize, has_limits: bool) -> Vec<u8> {
    let mut payload = vec![encoding::VERSION];
    for holder in 0..holders {
        let owner = &holder.to_be_bytes()[(holder.max(1).leading_zeros() / 8) as usize..];
        payload.push(1);
        varint(&mut payload, holder as u64 + 1);
        payload.push(1);
        varint(&mut payload, if has_limits { (holders + holder) as u64 } else { 0 });
        payload.extend([0, 0, 0, owner.len() as u8]);
        payload.extend(owner);
    }
    payload
}

const NOW: Now = Now { mono: Instant::from_micros(0), wall: WallTime::from_micros(0) };

/// The test allows 6 KB in addition to 16 times the payload, because trees and tables are not full.
#[test]
fn a_stored_lock_takes_no_more_than_16_times_its_payload() {
    let counts = (1..=200).chain([1_000, 1_025, 1_793, 4_097, 28_673, 65_536, 114_689, 300_000]);
    for (holders, has_limits) in counts.flat_map(|holders| [(holders, false), (holders, true)]) {
        let payload = payload_of(holders, has_limits);
        let before = LIVE.get();
        let (lock, peak) = peak_of(|| encoding::decode_lock(&payload, Origin::Loaded, NOW));
        let (lock, live) = (lock.unwrap(), LIVE.get() - before);
        assert_eq!(lock.holders().len(), holders);
        // The size that MEMORY USAGE shows is exact for a list. For trees and tables this size is an
        // estimate, because core does not know how full the trees and tables are.
        let (size, near) = (lock.heap_size(), if holders > 32 { live * 2 / 5 + 4_096 } else { 0 });
        assert!(size.abs_diff(live) <= near, "{holders} holders: {live} bytes, and not {size}");
        let times = peak as f64 / payload.len() as f64;
        println!("{holders} holders: {} bytes, {peak} allocated, {times:.1}", payload.len());
        assert!(
            peak <= 16 * payload.len() + 6_144,
            "{holders} holders: {} bytes, {peak} allocated",
            payload.len()
        );
    }
}
