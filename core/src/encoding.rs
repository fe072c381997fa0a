//! The encoding of changes and of stored locks, for RDB files, DUMP, replicas and the AOF.
//!
//! A payload is the version byte and then records. Numbers are unsigned LEB128 varints. Times are milliseconds.
//!
//! ```text
//! payload  = version (record+ | dropped put*)
//! record   = put | released | over | count | all-over
//! put      = (0x01 | 0x06 weight) token holds slots lease-left wall-deadline held-for owner
//! owner    = length bytes | 0x00 uuid suffix
//! released = 0x02 token
//! over     = 0x03 token
//! count    = 0x04 token holds
//! dropped  = 0x05
//! all-over = 0x07
//! ```
//!
//! A weight of 1 is not written.
//!
//! A payload that begins with *dropped* has no changes. Its *put* records are all holders of the dropped lock. If there
//! are none, the dropped lock is gone.
//!
//! An owner that is a UUID, or a UUID, a colon and a number, is written as the 16 bytes of the UUID and a suffix. If
//! there is no number, the suffix is 0. If there is a number, the suffix is the number plus one.
//!
//! A deadline is written twice: as the remaining time of the lease, and as a wall time. A replica counts the remaining
//! time from the instant at which it receives the payload. If a server reads the payload from its file or from the
//! RESTORE of a client, the lease ends at the earlier of two instants: when the remaining time has passed, or when this
//! server's clock shows the wall time. So no payload contains an instant of a monotonic clock.
//!
//! A stored lock is a payload that has only puts. A payload is decoded completely before any of its records is applied.

use crate::change::{Change, End};
use crate::holder::{Holder, Mode, Slots, Weight};
use crate::lock::Lock;
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Now, Span, WallTime};
use std::collections::HashSet;

/// The version that this module writes, and the only version that it reads.
pub const VERSION: u8 = 1;

const PUT: u8 = 1;
const RELEASED: u8 = 2;
const OVER: u8 = 3;
const COUNT: u8 = 4;
const DROPPED: u8 = 5;
const WEIGHTED_PUT: u8 = 6;
const ALL_OVER: u8 = 7;

/// A put has a tag, seven numbers and an owner, each of at least one byte.
const SHORTEST_PUT: usize = 9;

/// This length of an owner means that a UUID and a suffix follow.
const UUID: u8 = 0;

/// Where a payload comes from. The origin decides how much is left of the leases in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The primary, in the replication stream, in a full resync or in a RESTORE: the remaining time of a lease counts
    /// from now.
    Live,
    /// A file of this server, or the RESTORE of a client: the lease is shorter by the time since the payload was
    /// written, measured by the wall clock.
    Loaded,
}

/// What a payload says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The changes of a lock, in order.
    Changes(Vec<Change>),
    /// The dropped lock of a missing key; `None` when the dropped lock is gone.
    DroppedLock(Option<Lock>),
}

/// The bytes are not a payload of this encoding, or are a payload of a later version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Appends `change` to `payload`, which is empty or already has changes.
pub fn append(payload: &mut Vec<u8>, change: &Change, now: Now) {
    if payload.is_empty() {
        payload.push(VERSION);
    }
    match change {
        Change::Put(holder) => append_put(payload, holder.as_ref(), now),
        Change::Count(token, holds) => {
            append_tenure(payload, COUNT, *token);
            append_number(payload, u64::from(*holds));
        }
        Change::End(token, End::Released) => append_tenure(payload, RELEASED, *token),
        Change::End(token, End::LeaseOver) => append_tenure(payload, OVER, *token),
        Change::AllOver => payload.push(ALL_OVER),
    }
}

/// Appends the whole of `lock`: the changes that turn a free lock into this lock.
pub fn append_lock(payload: &mut Vec<u8>, lock: &Lock, now: Now) {
    if payload.is_empty() {
        payload.push(VERSION);
    }
    for holder in lock.holders() {
        append_put(payload, holder, now);
    }
}

/// Writes a dropped lock to `payload`, which is empty. `None` means that the dropped lock is gone.
pub fn append_dropped_lock(payload: &mut Vec<u8>, lock: Option<&Lock>, now: Now) {
    payload.extend([VERSION, DROPPED]);
    if let Some(lock) = lock {
        append_lock(payload, lock, now);
    }
}

fn append_put(payload: &mut Vec<u8>, holder: Holder<&Owner>, now: Now) {
    let left = holder.lease_left(now.mono);
    let Mode { slots, weight } = holder.mode;
    if weight == Weight::ONE {
        payload.push(PUT);
    } else {
        payload.push(WEIGHTED_PUT);
        append_number(payload, u64::from(weight.number()));
    }
    append_number(payload, holder.token.get());
    append_number(payload, u64::from(holder.holds));
    append_number(payload, u64::from(slots.number()));
    append_number(payload, left.as_millis());
    append_number(payload, u64::try_from(now.wall.after(left).as_millis()).unwrap_or(0));
    append_number(payload, now.mono.since(holder.since).as_millis());
    append_owner(payload, holder.owner);
}

fn append_owner(payload: &mut Vec<u8>, owner: &Owner) {
    if let Some((uuid, suffix)) = owner.as_uuid() {
        payload.push(UUID);
        payload.extend_from_slice(&uuid);
        append_number(payload, suffix);
    } else {
        let bytes = owner.to_bytes();
        append_number(payload, u64::try_from(bytes.len()).unwrap_or(0));
        payload.extend_from_slice(&bytes);
    }
}

fn append_tenure(payload: &mut Vec<u8>, tag: u8, token: FencingToken) {
    payload.push(tag);
    append_number(payload, token.get());
}

fn append_number(payload: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            payload.push(low);
            return;
        }
        payload.push(low | 0x80);
    }
}

/// Decodes a payload from a primary or the AOF. If one record is malformed, the whole payload is refused.
///
/// # Errors
/// [`Malformed`] when the bytes are not exactly one payload of this version.
pub fn decode_message(payload: &[u8], origin: Origin, now: Now) -> Result<Message, Malformed> {
    match payload {
        [VERSION, DROPPED] => Ok(Message::DroppedLock(None)),
        [VERSION, DROPPED, puts @ ..] => {
            let reader = Reader { rest: puts, origin, now };
            Ok(Message::DroppedLock(Some(decode_puts(reader)?)))
        }
        _ => decode(payload, origin, now).map(Message::Changes),
    }
}

/// Decodes a payload of changes. If one record is malformed, the whole payload is refused.
///
/// # Errors
/// [`Malformed`] when the bytes are not exactly one payload of this version.
pub fn decode(payload: &[u8], origin: Origin, now: Now) -> Result<Vec<Change>, Malformed> {
    let mut reader = Reader::new(payload, origin, now)?;
    let mut changes = Vec::new();
    while !reader.rest.is_empty() {
        changes.push(match reader.byte()? {
            tag @ (PUT | WEIGHTED_PUT) => Change::Put(reader.put(tag)?.0),
            RELEASED => Change::End(reader.token()?, End::Released),
            COUNT => Change::Count(reader.token()?, reader.holds()?),
            OVER => Change::End(reader.token()?, End::LeaseOver),
            ALL_OVER => Change::AllOver,
            _ => return Err(Malformed),
        });
    }
    if changes.is_empty() { Err(Malformed) } else { Ok(changes) }
}

/// Decodes a stored lock. The key of the lock expires at the latest end of a lease in the payload, by the wall clock of
/// the server that wrote the payload.
///
/// # Errors
/// [`Malformed`] when the bytes are not a payload of this version, or when no lock can have these holders: the holders
/// do not fit beside each other, or two of them have the same owner or the same token.
pub fn decode_lock(payload: &[u8], origin: Origin, now: Now) -> Result<Lock, Malformed> {
    decode_puts(Reader::new(payload, origin, now)?)
}

fn decode_puts(mut reader: Reader<'_>) -> Result<Lock, Malformed> {
    let (first, mut expires_at) = reader.tagged_put()?;
    if reader.rest.is_empty() {
        return Ok(Lock::held_by_one(first, expires_at));
    }
    // The list gets all its memory now. Otherwise a hostile payload could make the list double its memory again and
    // again, until the list takes much more memory than the payload.
    let mut holders = Vec::with_capacity((reader.rest.len() / SHORTEST_PUT).saturating_add(1));
    holders.push(first);
    while !reader.rest.is_empty() {
        let (holder, deadline) = reader.tagged_put()?;
        expires_at = expires_at.max(deadline);
        holders.push(holder);
    }
    holders.shrink_to_fit();
    let is_distinct = |distinct: usize| if distinct == holders.len() { Ok(()) } else { Err(Malformed) };
    is_distinct(holders.iter().map(|holder| &holder.owner).collect::<HashSet<_>>().len())?;
    is_distinct(holders.iter().map(|holder| holder.token).collect::<HashSet<_>>().len())?;
    Lock::held_by(holders, expires_at).ok_or(Malformed)
}

struct Reader<'a> {
    rest: &'a [u8],
    origin: Origin,
    now: Now,
}

impl<'a> Reader<'a> {
    fn new(payload: &'a [u8], origin: Origin, now: Now) -> Result<Self, Malformed> {
        let mut reader = Self { rest: payload, origin, now };
        if reader.byte()? == VERSION { Ok(reader) } else { Err(Malformed) }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.bytes(1)?.first().copied().ok_or(Malformed)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let (mut number, mut rest) = (0_u64, self.rest.iter());
        for shift in (0..u64::BITS).step_by(7) {
            let byte = rest.next().ok_or(Malformed)?;
            let low = u64::from(byte & 0x7f);
            number |= low.wrapping_shl(shift);
            if byte & 0x80 == 0 {
                self.rest = rest.as_slice();
                // The number has more than 64 bits, or is written in more bytes than necessary.
                let wrong = (shift == 63 && low > 1) || (shift > 0 && low == 0);
                return if wrong { Err(Malformed) } else { Ok(number) };
            }
        }
        Err(Malformed)
    }

    fn holds(&mut self) -> Result<u32, Malformed> {
        self.number_u32().and_then(|holds| if holds == 0 { Err(Malformed) } else { Ok(holds) })
    }

    fn number_u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed)
    }

    fn span(&mut self) -> Result<Span, Malformed> {
        Span::from_millis(self.number()?).ok_or(Malformed)
    }

    fn token(&mut self) -> Result<FencingToken, Malformed> {
        FencingToken::new(self.number()?).ok_or(Malformed)
    }

    /// A wall time. Any number of milliseconds that fits into an `i64` is accepted, because the writer's wall clock may
    /// show any time.
    fn wall_time(&mut self) -> Result<WallTime, Malformed> {
        let since_epoch = i64::try_from(self.number()?).map_err(|_| Malformed)?;
        Ok(WallTime::from_millis(since_epoch))
    }

    /// The holder of a put, and its deadline by the wall clock of the writer.
    fn put(&mut self, tag: u8) -> Result<(Holder, WallTime), Malformed> {
        let weight = match tag {
            PUT => Weight::ONE,
            WEIGHTED_PUT => {
                let weight = Weight::new(self.number_u32()?).filter(|weight| *weight != Weight::ONE);
                weight.ok_or(Malformed)?
            }
            _ => return Err(Malformed),
        };
        let token = self.token()?;
        let holds = self.holds()?;
        let slots = Slots::new(self.number_u32()?).ok_or(Malformed)?;
        let mode = Mode::new(slots, weight).ok_or(Malformed)?;
        let left = self.span()?;
        let wall_deadline = self.wall_time()?;
        let held_for = self.span()?;
        let owner = self.owner()?;
        let left_now = match self.origin {
            Origin::Live => left,
            Origin::Loaded => left.min(self.now.wall.until(wall_deadline)),
        };
        // The tenure has lasted for `held_for` and for the time since the payload was written.
        let passed =
            Span::from_millis(left.as_millis().saturating_sub(left_now.as_millis())).unwrap_or_default();
        let deadline = self.now.mono.after(left_now);
        let since = self.now.mono.before(held_for).before(passed);
        Ok((Holder { owner, holds, mode, token, deadline, since }, wall_deadline))
    }

    fn owner(&mut self) -> Result<Owner, Malformed> {
        let owner = match usize::try_from(self.number()?).map_err(|_| Malformed)? {
            0 => {
                let (uuid, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
                self.rest = rest;
                Owner::from_uuid(*uuid, self.number()?)
            }
            len => Owner::new(self.bytes(len)?),
        };
        owner.ok_or(Malformed)
    }

    fn tagged_put(&mut self) -> Result<(Holder, WallTime), Malformed> {
        let tag = self.byte()?;
        self.put(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Instant;

    fn now(mono_ms: i64, wall_ms: i64) -> Now {
        Now { mono: Instant::from_micros(mono_ms * 1_000), wall: WallTime::from_millis(wall_ms) }
    }

    fn holder(owner: &[u8], token: u64, slots: u32, deadline_ms: i64) -> Holder {
        Holder {
            owner: Owner::new(owner).unwrap(),
            holds: 3,
            mode: Mode::new(Slots::new(slots).unwrap(), Weight::ONE).unwrap(),
            token: FencingToken::new(token).unwrap(),
            deadline: Instant::from_micros(deadline_ms * 1_000),
            since: Instant::from_micros(0),
        }
    }

    fn weighted(owner: &[u8], token: u64, slots: u32, weight: u32) -> Holder {
        let mode = Mode { slots: Slots::new(slots).unwrap(), weight: Weight::new(weight).unwrap() };
        Holder { mode, deadline: Instant::from_micros(0), ..holder(owner, token, slots, 1) }
    }

    fn payload(changes: &[Change], now: Now) -> Vec<u8> {
        let mut payload = Vec::new();
        changes.iter().for_each(|change| append(&mut payload, change, now));
        payload
    }

    #[test]
    fn a_put_of_the_usual_owner_takes_at_most_46_bytes() {
        let owner = b"0f8fad5b-d9cb-469f-a165-70867728950e:42";
        let put = Change::Put(holder(owner, 1_795_000_000_000_000, 1, 30_000));
        assert!(payload(&[put], now(0, 1_795_000_000_000)).len() <= 46);
    }

    #[test]
    fn an_owner_is_written_as_a_uuid_or_as_its_bytes() {
        let at = now(0, 0);
        let put = |owner: &[u8]| [&[VERSION, PUT, 1, 1, 1, 1, 1, 1][..], owner].concat();
        let uuid: [u8; 16] = std::array::from_fn(|i| i as u8 * 0x11);
        let text = b"00112233-4455-6677-8899-aabbccddeeff";
        for (written, owner) in [
            ([&[UUID][..], &uuid, &[0]].concat(), text.to_vec()),
            ([&[UUID][..], &uuid, &[18]].concat(), [&text[..], b":17"].concat()),
            ([&[36][..], text].concat(), text.to_vec()),
            ([&[16][..], &uuid].concat(), uuid.to_vec()),
        ] {
            let Ok(changes) = decode(&put(&written), Origin::Live, at) else { panic!("{written:x?}") };
            let [Change::Put(holder)] = &changes[..] else { panic!("{changes:?}") };
            assert_eq!(*holder.owner.to_bytes(), *owner);
        }
        for wrong in [
            vec![],
            vec![UUID],
            [&[UUID][..], &uuid].concat(),
            [&[UUID][..], &uuid[1..], &[0]].concat(),
            // One more than the largest suffix: 2^56.
            [&[UUID][..], &uuid, &[0x80; 8], &[1]].concat(),
            [&[UUID][..], &uuid, &[0, 0]].concat(),
        ] {
            assert_eq!(decode(&put(&wrong), Origin::Live, at), Err(Malformed), "{wrong:x?}");
        }
        let longest = [&[UUID][..], &uuid, &[0xff; 7], &[0x7f]].concat();
        let Ok(changes) = decode(&put(&longest), Origin::Live, at) else { panic!() };
        assert_eq!(payload(&changes, at)[8..], longest);
    }

    #[test]
    fn a_replica_counts_the_lease_from_when_it_receives_it() {
        let payload = payload(&[Change::Put(holder(b"a", 7, 1, 500))], now(100, 9_000));
        // The replica is another machine, with a different monotonic clock and a wall clock that is an hour
        // ahead.
        let there = now(70_000, 9_000 + 3_600_000);
        let Change::Put(received) = decode(&payload, Origin::Live, there).unwrap().remove(0) else {
            panic!()
        };
        assert_eq!(received.lease_left(there.mono).as_millis(), 400);
        assert_eq!(there.mono.since(received.since).as_millis(), 100);
    }

    #[test]
    fn a_load_subtracts_the_time_that_passed_and_never_lengthens_a_lease() {
        let payload = payload(&[Change::Put(holder(b"a", 7, 1, 500))], now(100, 9_000));
        for (wall, left) in [(9_000, 400), (9_250, 150), (9_400, 0), (99_000, 0), (8_000, 400)] {
            let there = now(70_000, wall);
            let lock = decode_lock(&payload, Origin::Loaded, there).unwrap();
            assert_eq!(
                lock.holders().next().unwrap().lease_left(there.mono).as_millis(),
                left,
                "wall {wall}"
            );
            assert_eq!(lock.holders().next().unwrap().is_over(there.mono), left == 0, "wall {wall}");
        }
    }

    #[test]
    fn a_payload_cut_anywhere_or_with_a_byte_more_is_refused() {
        let at = now(0, 0);
        let changes = [
            Change::Put(holder(b"owner \0\xff", u64::MAX >> 11, Slots::MAX, 1)),
            Change::End(FencingToken::new(300).unwrap(), End::Released),
            Change::End(FencingToken::new(5).unwrap(), End::LeaseOver),
            Change::Count(FencingToken::new(5).unwrap(), u32::MAX),
            Change::AllOver,
            Change::Put(weighted(b"w", 400, 9, 4)),
            Change::Put(weighted(b"downgraded", 401, 0, 4)),
        ];
        let whole = payload(&changes, at);
        assert_eq!(decode(&whole, Origin::Live, at).unwrap(), changes);
        let ends: Vec<usize> = (1..=changes.len()).map(|n| payload(&changes[..n], at).len()).collect();
        for cut in (0..whole.len()).filter(|cut| !ends.contains(cut)) {
            assert_eq!(decode(&whole[..cut], Origin::Live, at), Err(Malformed), "cut at {cut}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(decode(&longer, Origin::Live, at), Err(Malformed));
    }

    #[test]
    fn a_dropped_lock_is_written_whole_or_as_gone() {
        let at = now(100, 9_000);
        let written = |lock: Option<&Lock>| {
            let mut payload = Vec::new();
            append_dropped_lock(&mut payload, lock, at);
            payload
        };
        let holders = vec![holder(b"a", 7, 2, 500), holder(b"b", 8, 0, 600)];
        let lock = Lock::held_by(holders.clone(), WallTime::from_millis(9_500)).unwrap();
        let there = now(70_000, 9_300);
        for (origin, left) in [(Origin::Live, 400), (Origin::Loaded, 100)] {
            let Ok(Message::DroppedLock(Some(dropped_lock))) =
                decode_message(&written(Some(&lock)), origin, there)
            else {
                panic!()
            };
            assert_eq!(dropped_lock.holders().len(), 2);
            assert_eq!(dropped_lock.holders().next().unwrap().lease_left(there.mono).as_millis(), left);
        }
        assert_eq!(decode_message(&written(None), Origin::Live, at), Ok(Message::DroppedLock(None)));
        let whole = written(Some(&lock));
        for cut in (3..whole.len()).filter(|cut| {
            *cut != written(Lock::held_by(vec![holders[0].clone()], WallTime::EPOCH).as_ref()).len()
        }) {
            assert_eq!(decode_message(&whole[..cut], Origin::Live, at), Err(Malformed), "cut at {cut}");
        }
        let put = Change::Put(holder(b"a", 7, 1, 500));
        assert_eq!(
            decode_message(&payload(std::slice::from_ref(&put), at), Origin::Live, at),
            Ok(Message::Changes(vec![put.clone()]))
        );
        let after_a_change = [&payload(&[put], at)[..], &[DROPPED]].concat();
        assert_eq!(decode_message(&after_a_change, Origin::Live, at), Err(Malformed));
        assert_eq!(decode(&written(None), Origin::Live, at), Err(Malformed));
        assert!(decode_lock(&whole, Origin::Live, at).is_err(), "a key never holds such a payload");
    }

    #[test]
    fn holders_that_no_lock_can_have_are_refused() {
        let at = now(0, 0);
        let put = |owner: &[u8], token, slots| Change::Put(holder(owner, token, slots, 1));
        let end = Change::End(FencingToken::new(1).unwrap(), End::Released);
        for (what, changes) in [
            ("two exclusive holders", vec![put(b"a", 1, 1), put(b"b", 2, 1)]),
            ("an owner twice", vec![put(b"a", 1, 0), put(b"a", 2, 0)]),
            ("a token twice", vec![put(b"a", 1, 0), put(b"b", 1, 0)]),
            ("an end", vec![put(b"a", 1, 0), end]),
            (
                "more than the limit",
                vec![Change::Put(weighted(b"a", 1, 9, 4)), Change::Put(weighted(b"b", 2, 9, 6))],
            ),
            ("nothing", vec![]),
        ] {
            assert!(decode_lock(&payload(&changes, at), Origin::Loaded, at).is_err(), "{what}");
        }
        assert!(decode_lock(&payload(&[put(b"a", 1, 2), put(b"b", 2, 0)], at), Origin::Loaded, at).is_ok());
        let full = [Change::Put(weighted(b"a", 1, 9, 4)), Change::Put(weighted(b"b", 2, 9, 5))];
        let lock = decode_lock(&payload(&full, at), Origin::Loaded, at).unwrap();
        assert_eq!(lock.load().weight, 9);
        assert!(decode_lock(&[VERSION], Origin::Loaded, at).is_err());
        let later = [VERSION + 1, PUT, 1, 1, 1, 1, 1, 1, 1, b'a'];
        assert!(decode_lock(&later, Origin::Loaded, at).is_err());
    }

    #[test]
    fn the_longest_lease_can_be_stored_again_at_any_wall_time() {
        let left = Span::MAX.as_millis();
        for wall in [0, 1_795_000_000_000, 9_000_000_000_000_000] {
            let at = now(0, wall);
            let longest = holder(b"a", 7, 1, i64::try_from(left).unwrap());
            let stored = payload(&[Change::Put(longest)], at);
            let lock = decode_lock(&stored, Origin::Loaded, at).unwrap();
            let mut again = Vec::new();
            append_lock(&mut again, &lock, at);
            assert_eq!(again, stored, "at {wall}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let at = now(0, 0);
        let ok = [VERSION, PUT, 1, 1, 1, 1, 1, 1, 1, b'a'];
        assert!(decode(&ok, Origin::Live, at).is_ok());
        for (weight, slots, valid) in
            [(2, 2, true), (0, 2, false), (1, 2, false), (3, 2, false), (2, 0, true), (1, 0, false)]
        {
            let weighted = [VERSION, WEIGHTED_PUT, weight, 1, 1, slots, 1, 1, 1, 1, b'a'];
            assert_eq!(decode(&weighted, Origin::Live, at).is_ok(), valid, "weight {weight} of {slots}");
        }
        for (field, bad) in [(2, 0), (3, 0)] {
            let mut payload = ok;
            payload[field] = bad;
            assert_eq!(decode(&payload, Origin::Live, at), Err(Malformed), "field {field}");
        }
        // A careless decoder would read each of these numbers as 1.
        assert!(decode(&[VERSION, RELEASED, 1], Origin::Live, at).is_ok());
        for number in [
            &[0x81, 0x00][..],                                                   // a needless byte
            &[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02],       // 65 bits
            &[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], // 71 bits
        ] {
            let payload = [&[VERSION, RELEASED], number].concat();
            assert_eq!(decode(&payload, Origin::Live, at), Err(Malformed), "{number:x?}");
        }
    }
}
