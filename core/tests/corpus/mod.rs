//! Checks that must hold for any input. The fuzz targets in `proof/fuzz/` run these checks, and `tests/fuzzed.rs` runs
//! the checks on the inputs that the fuzz targets have kept.

use lockward_core::arguments::{Arguments, OptionName, ParseError};
use lockward_core::encoding::{self, Origin};
use lockward_core::{Holder, Instant, Lock, Mode, Now, Owner, Slots, WallTime};
use std::ops::RangeInclusive;

/// The times at which inputs are decoded: today, at the epoch, and at the limits of the clocks.
const TIMES: [Now; 4] = [
    now(5_000_000, 1_795_000_000_000_000),
    now(0, 0),
    now(i64::MIN, i64::MAX),
    now(i64::MAX, -1_795_000_000_000_000),
];

const fn now(mono: i64, wall: i64) -> Now {
    Now { mono: Instant::from_micros(mono), wall: WallTime::from_micros(wall) }
}

/// Decodes an input, alone and after a valid version byte, as a payload from a primary and as a payload from a file.
pub fn encoding(input: &[u8]) {
    let payload = [&[encoding::VERSION], input].concat();
    for now in TIMES {
        for origin in [Origin::Live, Origin::Loaded] {
            for input in [input, &payload] {
                changes(input, origin, now);
                stored(input, origin, now);
            }
        }
    }
}

fn changes(input: &[u8], origin: Origin, now: Now) {
    let Ok(changes) = encoding::decode(input, origin, now) else { return };
    let (mut lock, mut encoded) = (Lock::new(), Vec::new());
    for change in changes {
        encoding::append(&mut encoded, &change, now);
        lock.apply(change, now);
        assert_sound(&lock);
    }
    assert!(encoding::decode(&encoded, origin, now).is_ok(), "received changes can be encoded: {encoded:x?}");
}

fn stored(input: &[u8], origin: Origin, now: Now) {
    let Ok(lock) = encoding::decode_lock(input, origin, now) else { return };
    assert!(!lock.is_free());
    assert_sound(&lock);
    let mut stored = Vec::new();
    encoding::append_lock(&mut stored, &lock, now);
    let again = encoding::decode_lock(&stored, origin, now).expect("a loaded lock can be stored and loaded");
    let tenure = |holder: Holder<&Owner>| (holder.owner.clone(), holder.holds, holder.mode, holder.token);
    assert!(lock.holders().map(tenure).eq(again.holders().map(tenure)), "{lock:?} {again:?}");
}

fn assert_sound(lock: &Lock) {
    let holders: Vec<Holder<&Owner>> = lock.holders().collect();
    let sum: u64 = holders.iter().map(|holder| u64::from(holder.mode.weight.number())).sum();
    for (number, holder) in holders.iter().enumerate() {
        let Mode { slots, weight } = holder.mode;
        assert!(
            slots == Slots::SHARED || sum <= u64::from(slots.number()),
            "the holders do not fit: {lock:?}"
        );
        assert!(Mode::new(slots, weight).is_some(), "{lock:?}");
        assert!(holder.holds > 0 && !holder.owner.to_bytes().is_empty(), "{lock:?}");
        let twin = |other: &Holder<&Owner>| other.owner == holder.owner || other.token == holder.token;
        assert!(!holders.iter().take(number).any(twin), "an owner or a token twice: {lock:?}");
    }
}

/// How many kinds of arguments there are.
const READS: usize = 11;

/// Reads an input as arguments. The first byte is a count n, modulo 32. Each of the next n bytes selects a kind of
/// argument to read. The rest are the arguments, separated by line feeds.
pub fn arguments(input: &[u8]) {
    let Some((count, rest)) = input.split_first() else { return };
    let Some((reads, given)) = rest.split_at_checked(usize::from(count % 32)) else { return };
    let given: Vec<&[u8]> = given.split(|byte| *byte == b'\n').collect();
    let mut arguments = Arguments::new(given.iter().copied());
    let mut ahead = given.iter();
    for read in reads {
        let text = ahead.next();
        let number = text.and_then(|text| as_written(text));
        // An accepted number is the number in the text, and is within the range. A refused number is out of range.
        match usize::from(*read) % READS {
            0 => match arguments.owner() {
                Ok(owner) => assert_eq!(Some(&*owner.to_bytes()), text.copied()),
                Err(_) => assert!(text.is_none_or(|text| text.is_empty() || text.len() > 1_024)),
            },
            1 => match arguments.option() {
                Some(name) => {
                    let text = text.expect("an argument");
                    for word in [b"px".as_slice(), b"all", b"keep", b"holds", b"shared", b"waiters"] {
                        assert_eq!(name == OptionName::of(word), text.eq_ignore_ascii_case(word));
                    }
                }
                None => assert!(text.is_none()),
            },
            2 => check(arguments.holds(1), number, |holds| holds.into(), 1..=u32::MAX.into()),
            3 => check(arguments.holds(0), number, |holds| holds.into(), 0..=u32::MAX.into()),
            4 => check(arguments.token(), number, |token| token.get().cast_signed(), 1..=(1 << 53) - 1),
            5 => check(arguments.slots(), number, |slots| slots.number().into(), 1..=1_000_000),
            6 => check(arguments.count(1), number, |count| count as i64, 1..=i64::MAX),
            7 => check(
                arguments.lease(1_000),
                number,
                |lease| lease.as_millis().cast_signed() / 1_000,
                1..=LONGEST / 1_000,
            ),
            8 => check(
                arguments.wait_limit(),
                number,
                |limit| limit.map_or(0, |limit| limit.as_millis().cast_signed()),
                0..=LONGEST,
            ),
            9 => check(arguments.weight(), number, |weight| weight.number().into(), 1..=1_000_000),
            _ => check(arguments.keep(), number, |keep| keep.as_millis().cast_signed(), 1..=60_000),
        }
    }
}

const LONGEST: i64 = 31_536_000_000_000;

/// The number, if it is written in its shortest form.
fn as_written(text: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

fn check<T>(
    read: Result<T, ParseError>,
    number: Option<i64>,
    of: impl FnOnce(T) -> i64,
    range: RangeInclusive<i64>,
) {
    match read {
        Ok(read) => assert_eq!(Some(of(read)), number.filter(|number| range.contains(number))),
        Err(_) => assert!(number.is_none_or(|number| !range.contains(&number)), "{number:?} is refused"),
    }
}
