//! Payloads are decoded to what was encoded, and all others are refused: random changes, random bytes, and damaged payloads.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

use lockward_core::encoding::{self, Origin};
use lockward_core::{Change, End, FencingToken, Holder, Instant, Lock, Now, Owner, Slots, Span, WallTime};
use proptest::prelude::*;
use std::collections::HashSet;

/// Ten years, in milliseconds.
const LONG: i64 = 10 * 365 * 24 * 3_600 * 1_000;

/// Both clocks of a present-day server, in microseconds.
fn clocks() -> impl Strategy<Value = (i64, i64)> {
    (0..LONG * 1_000, 1_700_000_000_000_000..2_700_000_000_000_000_i64)
}

fn at((mono, wall): (i64, i64)) -> Now {
    Now { mono: Instant::from_micros(mono), wall: WallTime::from_micros(wall) }
}

fn owner() -> impl Strategy<Value = Owner> {
    let bytes = any::<u8>();
    let bytes = prop_oneof![
        8 => prop::collection::vec(bytes, 1..60),
        8 => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(:[0-9]{1,18})?".prop_map(String::into_bytes),
        1 => prop::collection::vec(bytes, 1..=Owner::MAX_LEN),
    ];
    bytes.prop_map(|bytes| Owner::new(&bytes).unwrap())
}

fn token() -> impl Strategy<Value = FencingToken> {
    (1..=FencingToken::MAX.get()).prop_map(|number| FencingToken::new(number).unwrap())
}

/// A tenure at the instant `mono`. Its times differ from `mono` by multiples of `unit` microseconds.
fn holder(mono: i64, unit: i64) -> impl Strategy<Value = Holder> {
    let slots = prop_oneof![Just(0), Just(1), 2..=Slots::MAX];
    let span = move || (0..LONG).prop_map(move |millis| millis * 1_000 / unit * unit);
    let part = if unit == 1 { 0..1_000_i64 } else { 0..1 };
    (owner(), 1..=u32::MAX, slots, token(), span(), span(), part).prop_map(
        move |(owner, holds, slots, token, left, held_for, part)| Holder {
            owner,
            holds,
            slots: Slots::new(slots).unwrap(),
            token,
            deadline: Instant::from_micros(mono + left + part),
            since: Instant::from_micros(mono - held_for - part),
        },
    )
}

fn change(mono: i64, unit: i64) -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => holder(mono, unit).prop_map(Change::Put),
        1 => (token(), 1..=u32::MAX).prop_map(|(token, holds)| Change::Count(token, holds)),
        1 => token().prop_map(|token| Change::End(token, End::Released)),
        1 => token().prop_map(|token| Change::End(token, End::LeaseOver)),
    ]
}

/// A time, and changes at that time.
fn changes(unit: i64) -> impl Strategy<Value = (Now, Vec<Change>)> {
    clocks()
        .prop_flat_map(move |clocks| (Just(at(clocks)), prop::collection::vec(change(clocks.0, unit), 1..6)))
}

/// A time, and holders at that time that fit beside each other.
fn holders() -> impl Strategy<Value = (Now, Vec<Holder>)> {
    let several = clocks()
        .prop_flat_map(|clocks| (Just(at(clocks)), prop::collection::vec(holder(clocks.0, 1_000), 1..6)));
    several.prop_map(|(now, mut holders)| {
        let (mut owners, mut tokens) = (HashSet::new(), HashSet::new());
        holders.retain(|holder| owners.insert(holder.owner.clone()) && tokens.insert(holder.token));
        let count = u32::try_from(holders.len()).unwrap();
        for holder in &mut holders {
            if (1..count).contains(&holder.slots.number()) {
                holder.slots = Slots::new(count).unwrap();
            }
        }
        (now, holders)
    })
}

fn encode(changes: &[Change], now: Now) -> Vec<u8> {
    let mut payload = Vec::new();
    changes.iter().for_each(|change| encoding::append(&mut payload, change, now));
    payload
}

fn store(lock: &Lock, now: Now) -> Vec<u8> {
    let mut payload = Vec::new();
    encoding::append_lock(&mut payload, lock, now);
    payload
}

/// Checks that the keyspace can have such a lock.
fn assert_sound(lock: &Lock) -> Result<(), TestCaseError> {
    let holders: Vec<Holder<&Owner>> = lock.holders().collect();
    prop_assert!(!holders.is_empty());
    for (number, holder) in holders.iter().enumerate() {
        let allowed = holder.slots.number();
        prop_assert!(allowed == 0 || holders.len() <= allowed as usize, "{:?}", lock);
        prop_assert!(holder.holds > 0 && allowed <= Slots::MAX, "{:?}", lock);
        let others = &holders[..number];
        prop_assert!(others.iter().all(|other| other.owner != holder.owner), "an owner twice: {:?}", lock);
        prop_assert!(others.iter().all(|other| other.token != holder.token), "a token twice: {:?}", lock);
    }
    Ok(())
}

/// Decodes `payload` in every way.
fn read(payload: &[u8], now: Now) -> Result<(), TestCaseError> {
    for origin in [Origin::Live, Origin::Loaded] {
        let mut lock = Lock::new();
        for change in encoding::decode(payload, origin, now).unwrap_or_default() {
            lock.apply(change, now);
            let owners: HashSet<&Owner> = lock.holders().map(|holder| holder.owner).collect();
            prop_assert_eq!(owners.len(), lock.holders().len());
        }
    }
    let Ok(lock) = encoding::decode_lock(payload, Origin::Loaded, now) else { return Ok(()) };
    assert_sound(&lock)?;
    // A lock that was loaded can be saved and loaded again. Otherwise the server could not restart.
    prop_assert!(encoding::decode_lock(&store(&lock, now), Origin::Loaded, now).is_ok(), "{:?}", lock);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_are_decoded_as_they_were_encoded((now, changes) in changes(1_000)) {
        prop_assert_eq!(encoding::decode(&encode(&changes, now), Origin::Live, now), Ok(changes));
    }

    #[test]
    fn times_are_rounded_by_less_than_a_millisecond_and_never_shorten_a_lease((now, changes) in changes(1)) {
        let payload = encode(&changes, now);
        let received = encoding::decode(&payload, Origin::Live, now).unwrap();
        prop_assert_eq!(received.len(), changes.len());
        let milli = Span::from_millis(1).unwrap();
        for (sent, received) in changes.iter().zip(&received) {
            let (Change::Put(sent), Change::Put(received)) = (sent, received) else {
                prop_assert_eq!(sent, received);
                continue;
            };
            prop_assert!(sent.deadline <= received.deadline && received.deadline < sent.deadline.after(milli));
            prop_assert!(sent.since <= received.since && received.since < sent.since.after(milli));
            let (deadline, since) = (sent.deadline, sent.since);
            prop_assert_eq!(sent, &Holder { deadline, since, ..received.clone() });
        }
        prop_assert_eq!(encode(&received, now), payload, "received changes are encoded as before");
    }

    #[test]
    fn a_stored_lock_is_loaded_unchanged((now, holders) in holders()) {
        let ttl = holders.iter().map(|holder| now.wall.after(holder.lease_left(now.mono))).max().unwrap();
        let lock = Lock::held_by(holders, ttl).unwrap();
        let loaded = encoding::decode_lock(&store(&lock, now), Origin::Loaded, now).unwrap();
        prop_assert!(loaded.holders().eq(lock.holders()), "{:?} {:?}", loaded, lock);
        prop_assert_eq!(loaded.expires_at().as_millis(), ttl.as_millis());
        assert_sound(&loaded)?;
    }

    #[test]
    fn a_load_subtracts_the_time_that_passed_and_never_adds_any(
        (now, holders) in holders(),
        mono in 0..LONG,
        passed in -LONG..LONG,
    ) {
        let lock = Lock::held_by(holders, now.wall).unwrap();
        // Another process: another monotonic clock, and a wall clock that went forward or back.
        let wall = WallTime::from_micros(now.wall.as_micros() + passed * 1_000);
        let there = Now { mono: Instant::from_micros(mono), wall };
        let loaded = encoding::decode_lock(&store(&lock, now), Origin::Loaded, there).unwrap();
        for (stored, loaded) in lock.holders().zip(loaded.holders()) {
            let was = stored.lease_left(now.mono).as_millis();
            let left = loaded.lease_left(there.mono).as_millis();
            // To the millisecond, as the wall deadline is written in milliseconds.
            let expected = was.saturating_sub(u64::try_from(passed).unwrap_or(0));
            prop_assert!(left <= expected && expected - left <= 1, "{} of {} left after {}", left, was, passed);
            let held_for = |holder: Holder<&Owner>, at: Instant| at.since(holder.since).as_millis();
            prop_assert_eq!(held_for(loaded, there.mono), held_for(stored, now.mono) + was - left);
        }
    }

    #[test]
    fn random_bytes_are_refused_or_make_a_sound_lock(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        mono in any::<i64>(),
        wall in any::<i64>(),
    ) {
        let now = at((mono, wall));
        read(&bytes, now)?;
        // With a valid version, and with the tag of a put as well.
        read(&[&[encoding::VERSION], &bytes[..]].concat(), now)?;
        read(&[&[encoding::VERSION, 1], &bytes[..]].concat(), now)?;
    }

    #[test]
    fn records_of_any_numbers_are_refused_or_make_a_sound_lock(
        records in prop::collection::vec(prop::array::uniform6(number()), 1..4),
        mono in any::<i64>(),
        wall in any::<i64>(),
    ) {
        let mut payload = vec![encoding::VERSION];
        for (owner, numbers) in (b'a'..).zip(records) {
            payload.push(1);
            numbers.into_iter().for_each(|number| varint(&mut payload, number));
            payload.extend([1, owner]);
        }
        read(&payload, at((mono, wall)))?;
    }

    #[test]
    fn a_damaged_payload_is_refused_or_makes_a_sound_lock(
        (now, holders) in holders(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..4),
        mono in any::<i64>(),
        wall in any::<i64>(),
    ) {
        let mut payload = store(&Lock::held_by(holders, now.wall).unwrap(), now);
        for (index, byte, kind) in damage {
            let at = index.index(payload.len());
            match kind {
                0 => payload[at] = byte,
                1 => payload.insert(at, byte),
                _ => drop(payload.split_off(at.max(1))),
            }
        }
        read(&payload, at((mono, wall)))?;
        read(&payload, now)?;
    }

    #[test]
    fn a_payload_is_decoded_without_a_panic_whatever_the_clocks_show(
        (_, changes) in changes(1),
        sender in any::<(i64, i64)>(),
        receiver in any::<(i64, i64)>(),
    ) {
        let payload = encode(&changes, at(sender));
        read(&payload, at(receiver))?;
    }
}

/// Numbers for a record: small ones, the largest valid ones, and random ones.
fn number() -> impl Strategy<Value = u64> {
    let edges =
        [0, u64::from(Slots::MAX), u64::from(u32::MAX), FencingToken::MAX.get(), Span::MAX.as_millis()];
    prop_oneof![
        20 => 0..4_u64,
        2 => prop::sample::select(edges.to_vec()),
        1 => prop::sample::select(edges.to_vec()).prop_map(|edge| edge + 1),
        1 => any::<u64>(),
    ]
}

fn varint(payload: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        payload.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    payload.push(number as u8);
}
