//! An encoded payload is decoded unchanged. Any other payload is refused, or is decoded to a sound lock. The inputs are
//! random changes, random bytes and damaged payloads.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

mod varint;

use lockward_core::encoding::{self, Malformed, Origin};
use lockward_core::{
    Change, End, FencingToken, Holder, Instant, Load, Lock, Mode, Now, Owner, Slots, Span, WallTime, Weight,
};
use proptest::collection::SizeRange;
use proptest::prelude::*;
use std::collections::HashSet;
use varint::varint;

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

fn mode_of(slots: u32, weight: u32) -> Mode {
    Mode::new(Slots::new(slots).unwrap(), Weight::new(weight).unwrap()).unwrap()
}

/// Any mode: exclusive, shared, slots, and slots with a weight.
fn mode() -> impl Strategy<Value = Mode> {
    let weighted = (2..=Slots::MAX, any::<prop::sample::Index>())
        .prop_map(|(slots, weight)| (slots, u32::try_from(weight.index(slots as usize)).unwrap() + 1));
    let slots = (2..=Slots::MAX).prop_map(|slots| (slots, 1));
    prop_oneof![Just((0, 1)), Just((1, 1)), slots, weighted]
        .prop_map(|(slots, weight)| mode_of(slots, weight))
}

/// A tenure at the instant `mono`. The times of the tenure differ from `mono` by multiples of `unit`
/// microseconds.
fn holder(mono: i64, unit: i64) -> impl Strategy<Value = Holder> {
    let span = move || (0..LONG).prop_map(move |millis| millis * 1_000 / unit * unit);
    let part = if unit == 1 { 0..1_000_i64 } else { 0..1 };
    (owner(), 1..=u32::MAX, mode(), token(), span(), span(), part).prop_map(
        move |(owner, holds, mode, token, left, held_for, part)| Holder {
            owner,
            holds,
            mode,
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
        1 => Just(Change::AllOver),
    ]
}

/// A time, and changes at that time.
fn changes(unit: i64) -> impl Strategy<Value = (Now, Vec<Change>)> {
    clocks()
        .prop_flat_map(move |clocks| (Just(at(clocks)), prop::collection::vec(change(clocks.0, unit), 1..6)))
}

/// `holders` without repeated owners and tokens, and with larger limits if the holders do not fit beside each other.
fn fitted(mut holders: Vec<Holder>) -> Vec<Holder> {
    let (mut owners, mut tokens) = (HashSet::new(), HashSet::new());
    holders.retain(|holder| owners.insert(holder.owner.clone()) && tokens.insert(holder.token));
    let load: Load = holders.iter().map(|holder| holder.mode).collect();
    let sum = u32::try_from(load.weight).unwrap();
    for holder in &mut holders {
        if (1..sum).contains(&holder.mode.slots.number()) {
            // If the sum exceeds the largest limit, only a holder without a limit fits.
            let (slots, weight) = if sum > Slots::MAX { (0, 1) } else { (sum, holder.mode.weight.number()) };
            holder.mode = mode_of(slots, weight);
        }
    }
    holders
}

/// A time, and this many holders at that time that fit beside each other.
fn holders_of(count: impl Into<SizeRange> + Clone) -> impl Strategy<Value = (Now, Vec<Holder>)> {
    let several = clocks().prop_flat_map(move |clocks| {
        (Just(at(clocks)), prop::collection::vec(holder(clocks.0, 1_000), count.clone()))
    });
    several.prop_map(|(now, holders)| (now, fitted(holders)))
}

/// A few holders, or so many that the lock indexes them in trees.
fn holders() -> impl Strategy<Value = (Now, Vec<Holder>)> {
    prop_oneof![6 => holders_of(1..6), 1 => holders_of(15..40)]
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

/// Checks that the lock is not free, and that its holders fit together and have different owners and tokens.
fn assert_sound(lock: &Lock) -> Result<(), TestCaseError> {
    let holders: Vec<Holder<&Owner>> = lock.holders().collect();
    prop_assert!(!holders.is_empty());
    let sum: u64 = holders.iter().map(|holder| u64::from(holder.mode.weight.number())).sum();
    for (number, holder) in holders.iter().enumerate() {
        let Mode { slots, weight } = holder.mode;
        prop_assert!(slots == Slots::SHARED || sum <= u64::from(slots.number()), "{:?}", lock);
        prop_assert!(Mode::new(slots, weight).is_some() && slots.number() <= Slots::MAX, "{:?}", lock);
        prop_assert!(holder.holds > 0, "{:?}", lock);
        let others = &holders[..number];
        prop_assert!(others.iter().all(|other| other.owner != holder.owner), "an owner twice: {:?}", lock);
        prop_assert!(others.iter().all(|other| other.token != holder.token), "a token twice: {:?}", lock);
    }
    Ok(())
}

/// Decodes `payload` as changes that a primary sent, as changes that a file contains, and as a stored lock.
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
    // A server must be able to save and load again each lock that it has loaded. Otherwise the server could
    // not restart from its own file.
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
        // Another process, with another monotonic clock, loads the lock. Meanwhile the wall clock went forward or back.
        let wall = WallTime::from_micros(now.wall.as_micros() + passed * 1_000);
        let there = Now { mono: Instant::from_micros(mono), wall };
        let loaded = encoding::decode_lock(&store(&lock, now), Origin::Loaded, there).unwrap();
        for (stored, loaded) in lock.holders().zip(loaded.holders()) {
            let was = stored.lease_left(now.mono).as_millis();
            let left = loaded.lease_left(there.mono).as_millis();
            // The times may differ by a millisecond, because the wall deadline is written in milliseconds.
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
        // Decodes the same bytes after a valid version, and after a valid version and the tag of a put.
        read(&[&[encoding::VERSION], &bytes[..]].concat(), now)?;
        read(&[&[encoding::VERSION, 1], &bytes[..]].concat(), now)?;
    }

    #[test]
    fn records_of_any_numbers_are_refused_or_make_a_sound_lock(
        records in prop::collection::vec((prop::array::uniform6(number()), prop::option::of(number())), 1..4),
        mono in any::<i64>(),
        wall in any::<i64>(),
    ) {
        let mut payload = vec![encoding::VERSION];
        for (owner, (numbers, weight)) in (b'a'..).zip(records) {
            payload.push(if weight.is_some() { 6 } else { 1 });
            weight.into_iter().chain(numbers).for_each(|number| varint(&mut payload, number));
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

/// How many holders a large lock has in these tests.
const MANY: usize = 5_000;
const LIMIT: u32 = 3 * MANY as u32;

/// Many holders that fit beside each other exactly: the sum of their weights is the limit.
fn many() -> Vec<Holder> {
    let holder = |number: usize| Holder {
        owner: Owner::new(format!("owner {number}").as_bytes()).unwrap(),
        holds: 1,
        mode: mode_of(LIMIT, 3),
        token: FencingToken::new(number as u64 + 1).unwrap(),
        deadline: Instant::from_micros(1_000_000),
        since: Instant::from_micros(0),
    };
    (0..MANY).map(holder).collect()
}

/// The payload of these holders, even if no lock can have them.
fn payload_of(holders: &[Holder]) -> Vec<u8> {
    let puts: Vec<Change> = holders.iter().cloned().map(Change::Put).collect();
    encode(&puts, at((0, 0)))
}

#[test]
fn many_holders_are_loaded_only_if_all_of_them_fit() {
    let load = |change: &dyn Fn(&mut Vec<Holder>)| {
        let mut holders = many();
        change(&mut holders);
        let payload = payload_of(&holders);
        let lock = encoding::decode_lock(&payload, Origin::Loaded, at((0, 0)));
        // A replica that receives the holders as changes applies them one by one. So the tenure of a holder that does
        // not fit beside a later holder ends.
        let mut replica = Lock::new();
        for change in encoding::decode(&payload, Origin::Live, at((0, 0))).unwrap() {
            replica.apply(change, at((0, 0)));
        }
        assert_sound(&replica).unwrap();
        lock.map(|lock| {
            assert_sound(&lock).unwrap();
            assert_eq!(lock, replica);
            lock.holders().len()
        })
    };
    assert_eq!(load(&|_| {}), Ok(MANY));
    assert_eq!(load(&|holders| holders[7].mode = mode_of(0, 1)), Ok(MANY), "room is left");
    type Damage = fn(&mut Vec<Holder>);
    let changes: [(&str, Damage); 7] = [
        ("a sum over the limit", |holders| holders[9].mode = mode_of(LIMIT, 4)),
        ("a smaller limit of one holder", |holders| holders[9].mode = mode_of(LIMIT - 1, 3)),
        ("a weight of the whole limit", |holders| holders[9].mode = mode_of(LIMIT, LIMIT)),
        ("one exclusive holder", |holders| holders[MANY - 1].mode = mode_of(1, 1)),
        ("an owner twice", |holders| holders[MANY - 1].owner = holders[0].owner.clone()),
        ("a token twice", |holders| holders[MANY - 1].token = holders[0].token),
        ("a holder twice", |holders| holders[MANY - 1] = holders[0].clone()),
    ];
    for (what, change) in changes {
        assert_eq!(load(&change), Err(Malformed), "{what}");
    }
}

#[test]
fn a_stored_lock_has_only_holders_even_if_they_are_many() {
    let whole = payload_of(&many());
    let now = at((0, 0));
    assert!(encoding::decode_lock(&whole, Origin::Loaded, now).is_ok());
    for (what, record) in [
        ("all over", &[7][..]),
        ("an end", &[2, 1]),
        ("a lease that is over", &[3, 1]),
        ("a count", &[4, 1, 2]),
        ("a dropped lock", &[5]),
        ("an unknown record", &[8]),
    ] {
        let after = [&whole[..], record].concat();
        let first = [&whole[..1], record, &whole[1..]].concat();
        for payload in [after, first] {
            assert_eq!(encoding::decode_lock(&payload, Origin::Loaded, now), Err(Malformed), "{what}");
            let dropped = [&payload[..1], &[5], &payload[1..]].concat();
            assert_eq!(encoding::decode_message(&dropped, Origin::Live, now), Err(Malformed), "{what}");
        }
    }
    // In a payload of changes, the record *all-over* ends only the tenures whose records come before *all-over*.
    let changes = [&whole[..], &[7], &whole[1..]].concat();
    let mut lock = Lock::new();
    for change in encoding::decode(&changes, Origin::Live, now).unwrap() {
        lock.apply(change, now);
    }
    assert_eq!(lock.holders().len(), MANY);
    lock.apply(Change::AllOver, now);
    assert!(lock.is_free());
}

/// A holder must have only one encoding. With two encodings, two servers could encode equal locks as different bytes.
#[test]
fn a_weight_is_written_only_if_it_is_not_1_and_read_only_if_it_fits_the_limit() {
    let now = at((0, 0));
    let mut holder = many().remove(0);
    holder.mode = mode_of(4, 1);
    let light = payload_of(&[holder.clone()]);
    holder.mode = mode_of(4, 4);
    let heavy = payload_of(&[holder]);
    assert_eq!((light[1], &heavy[1..3], &light[2..]), (1, &[6, 4][..], &heavy[3..]));
    for (weight, is_read) in
        [(0, false), (1, false), (2, true), (3, true), (4, true), (5, false), (0x7f, false)]
    {
        let mut payload = heavy.clone();
        payload[2] = weight;
        assert_eq!(encoding::decode_lock(&payload, Origin::Loaded, now).is_ok(), is_read, "weight {weight}");
        assert_eq!(encoding::decode(&payload, Origin::Live, now).is_ok(), is_read, "weight {weight}");
    }
}

/// Numbers for a record: small numbers, the largest valid numbers, and random numbers.
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
