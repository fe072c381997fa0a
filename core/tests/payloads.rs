//! What is sent and what is stored comes back as it was, and what is neither is refused: random changes, random bytes,
//! and payloads that were damaged on the way.

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

/// Both clocks of a server of our times, in microseconds.
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

/// A tenure as it stands at `mono`; its times are whole multiples of `unit` microseconds from then.
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

/// A time, and changes then.
fn changes(unit: i64) -> impl Strategy<Value = (Now, Vec<Change>)> {
    clocks()
        .prop_flat_map(move |clocks| (Just(at(clocks)), prop::collection::vec(change(clocks.0, unit), 1..6)))
}

/// A time, and holders then that may stand beside each other.
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

/// A lock as the keyspace can have it.
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

/// Reads `payload` in every way there is.
fn read(payload: &[u8], now: Now) -> Result<(), TestCaseError> {
    for heard in [Origin::Live, Origin::Loaded] {
        let mut lock = Lock::new();
        for change in encoding::decode(payload, heard, now).unwrap_or_default() {
            lock.apply(change, now);
            let owners: HashSet<&Owner> = lock.holders().map(|holder| holder.owner).collect();
            prop_assert_eq!(owners.len(), lock.holders().len());
        }
    }
    let Ok(lock) = encoding::decode_lock(payload, Origin::Loaded, now) else { return Ok(()) };
    assert_sound(&lock)?;
    // What came in can be saved, and what was saved can be loaded: else the server could not start again.
    prop_assert!(encoding::decode_lock(&store(&lock, now), Origin::Loaded, now).is_ok(), "{:?}", lock);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_come_back_as_they_were((now, changes) in changes(1_000)) {
        prop_assert_eq!(encoding::decode(&encode(&changes, now), Origin::Live, now), Ok(changes));
    }

    #[test]
    fn times_between_milliseconds_come_back_within_one_and_never_shorten_a_lease((now, changes) in changes(1)) {
        let payload = encode(&changes, now);
        let heard = encoding::decode(&payload, Origin::Live, now).unwrap();
        prop_assert_eq!(heard.len(), changes.len());
        let milli = Span::from_millis(1).unwrap();
        for (sent, heard) in changes.iter().zip(&heard) {
            let (Change::Put(sent), Change::Put(heard)) = (sent, heard) else {
                prop_assert_eq!(sent, heard);
                continue;
            };
            prop_assert!(sent.deadline <= heard.deadline && heard.deadline < sent.deadline.after(milli));
            prop_assert!(sent.since <= heard.since && heard.since < sent.since.after(milli));
            let (deadline, since) = (sent.deadline, sent.since);
            prop_assert_eq!(sent, &Holder { deadline, since, ..heard.clone() });
        }
        prop_assert_eq!(encode(&heard, now), payload, "what was heard is told on unchanged");
    }

    #[test]
    fn a_stored_lock_comes_back_as_it_was((now, holders) in holders()) {
        let ttl = holders.iter().map(|holder| now.wall.after(holder.lease_left(now.mono))).max().unwrap();
        let lock = Lock::held_by(holders, ttl).unwrap();
        let back = encoding::decode_lock(&store(&lock, now), Origin::Loaded, now).unwrap();
        prop_assert!(back.holders().eq(lock.holders()), "{:?} {:?}", back, lock);
        prop_assert_eq!(back.expires_at().as_millis(), ttl.as_millis());
        assert_sound(&back)?;
    }

    #[test]
    fn a_load_takes_off_what_went_by_and_never_adds(
        (now, holders) in holders(),
        mono in 0..LONG,
        gone in -LONG..LONG,
    ) {
        let lock = Lock::held_by(holders, now.wall).unwrap();
        // Another process: another monotonic clock, and a wall clock that went on, or back.
        let wall = WallTime::from_micros(now.wall.as_micros() + gone * 1_000);
        let there = Now { mono: Instant::from_micros(mono), wall };
        let back = encoding::decode_lock(&store(&lock, now), Origin::Loaded, there).unwrap();
        for (stored, loaded) in lock.holders().zip(back.holders()) {
            let was = stored.lease_left(now.mono).as_millis();
            let left = loaded.lease_left(there.mono).as_millis();
            // To the millisecond: the wall time of the deadline is written in whole ones.
            let expected = was.saturating_sub(u64::try_from(gone).unwrap_or(0));
            prop_assert!(left <= expected && expected - left <= 1, "{} of {} left after {}", left, was, gone);
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
        // Past the version, and past the tag of a put as well.
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
        for (place, byte, kind) in damage {
            let place = place.index(payload.len());
            match kind {
                0 => payload[place] = byte,
                1 => payload.insert(place, byte),
                _ => drop(payload.split_off(place.max(1))),
            }
        }
        read(&payload, at((mono, wall)))?;
        read(&payload, now)?;
    }

    #[test]
    fn whatever_the_clocks_say_nothing_breaks(
        (_, changes) in changes(1),
        sender in any::<(i64, i64)>(),
        receiver in any::<(i64, i64)>(),
    ) {
        let payload = encode(&changes, at(sender));
        read(&payload, at(receiver))?;
    }
}

/// Numbers as they may stand in a record: small, and at the edges of what is in range.
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
