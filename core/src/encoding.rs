//! How changes travel and rest: one versioned encoding for RDB files, DUMP, replicas and the AOF.
//!
//! A payload is the version byte and then records. Numbers are unsigned LEB128 varints, times are milliseconds.
//!
//! ```text
//! payload  = version (record+ | kept put*)
//! record   = put | released | over | count
//! put      = 0x01 token holds slots lease-left wall-deadline held-for owner
//! owner    = length bytes | 0x00 uuid behind
//! released = 0x02 token
//! over     = 0x03 token
//! count    = 0x04 token holds
//! kept     = 0x05
//! ```
//!
//! What begins with *kept* is no change: it tells the whole of the shadow that stands for a lock whose key is missing, or
//! with nothing behind it, that there is none any more.
//!
//! An owner that is a UUID, or a UUID, a colon and a number, is told as its 16 bytes and what is behind it: 0 for nothing,
//! else one more than the number.
//!
//! A deadline is told twice: as what is left of the lease, which a replica counts from when it hears it, and as a wall
//! time, by which a load knows how much of that has gone by meanwhile. A load never gives more than was left. So no
//! monotonic instant ever leaves the process it belongs to.
//!
//! A stored lock is a payload of puts alone. A payload is decoded whole before any of it is applied.

use crate::change::{Change, End};
use crate::holder::{Holder, Slots};
use crate::lock::Lock;
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Now, Span, WallTime};
use std::collections::HashSet;

/// The version that is written, and the only one that is read so far.
pub const VERSION: u8 = 1;

const PUT: u8 = 1;
const RELEASED: u8 = 2;
const OVER: u8 = 3;
const COUNT: u8 = 4;
const KEPT: u8 = 5;

/// Where the length of an owner is expected: it is told as a UUID and what is behind it.
const UUID: u8 = 0;

/// How a payload has come to us: decides from when its leases count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From our primary, as it happens or in a full resync: the whole of what is left counts from now.
    Live,
    /// From our own file or a RESTORE: the time since it was written has gone by on the wall clock.
    Loaded,
}

/// What a payload tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What has happened to a lock, in order.
    Changes(Vec<Change>),
    /// The shadow that stands for a lock whose key is missing; `None` when there is none any more.
    DroppedLock(Option<Lock>),
}

/// A payload that is not one of ours, or is of a later version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Writes `change` to the end of `payload`, which is empty or has changes in it.
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
    }
}

/// Writes the whole of `lock` as the changes that make it from nothing.
pub fn append_lock(payload: &mut Vec<u8>, lock: &Lock, now: Now) {
    if payload.is_empty() {
        payload.push(VERSION);
    }
    for holder in lock.holders() {
        append_put(payload, holder, now);
    }
}

/// Writes the shadow of a lock, or that it has none, to `payload`, which is empty.
pub fn append_dropped_lock(payload: &mut Vec<u8>, dropped_lock: Option<&Lock>, now: Now) {
    payload.extend([VERSION, KEPT]);
    if let Some(lock) = dropped_lock {
        append_lock(payload, lock, now);
    }
}

fn append_put(payload: &mut Vec<u8>, holder: Holder<&Owner>, now: Now) {
    let left = holder.lease_left(now.mono);
    payload.push(PUT);
    append_number(payload, holder.token.get());
    append_number(payload, u64::from(holder.holds));
    append_number(payload, u64::from(holder.slots.number()));
    append_number(payload, left.as_millis());
    append_number(payload, u64::try_from(now.wall.after(left).as_millis()).unwrap_or(0));
    append_number(payload, now.mono.since(holder.since).as_millis());
    append_owner(payload, holder.owner);
}

fn append_owner(payload: &mut Vec<u8>, owner: &Owner) {
    if let Some((uuid, behind)) = owner.as_uuid() {
        payload.push(UUID);
        payload.extend_from_slice(&uuid);
        append_number(payload, behind);
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

/// Reads what a primary or the AOF tells, all or nothing.
///
/// # Errors
/// [`Malformed`] when it is not exactly one payload of this version.
pub fn decode_message(payload: &[u8], heard: Origin, now: Now) -> Result<Message, Malformed> {
    match payload {
        [VERSION, KEPT] => Ok(Message::DroppedLock(None)),
        [VERSION, KEPT, puts @ ..] => {
            Ok(Message::DroppedLock(Some(decode_puts(Reader { rest: puts }, heard, now)?)))
        }
        _ => decode(payload, heard, now).map(Message::Changes),
    }
}

/// Reads a payload of changes, all or nothing.
///
/// # Errors
/// [`Malformed`] when it is not exactly one payload of this version.
pub fn decode(payload: &[u8], heard: Origin, now: Now) -> Result<Vec<Change>, Malformed> {
    let mut reader = Reader::new(payload)?;
    let mut changes = Vec::new();
    while !reader.rest.is_empty() {
        changes.push(match reader.byte()? {
            PUT => Change::Put(reader.put()?.holder(heard, now)?),
            RELEASED => Change::End(reader.token()?, End::Released),
            COUNT => Change::Count(reader.token()?, reader.holds()?),
            OVER => Change::End(reader.token()?, End::LeaseOver),
            _ => return Err(Malformed),
        });
    }
    if changes.is_empty() { Err(Malformed) } else { Ok(changes) }
}

/// Reads a stored lock. Its TTL is the one that was stored beside it, by the wall clock of the writer.
///
/// # Errors
/// [`Malformed`] when it is not a payload of this version, or not one that a lock in the keyspace can have: holders
/// that do not fit beside each other, an owner or a token twice.
pub fn decode_lock(payload: &[u8], heard: Origin, now: Now) -> Result<Lock, Malformed> {
    decode_puts(Reader::new(payload)?, heard, now)
}

fn decode_puts(mut reader: Reader<'_>, heard: Origin, now: Now) -> Result<Lock, Malformed> {
    let put = reader.tagged_put()?;
    let (first, mut expires_at) = (put.holder(heard, now)?, put.wall_deadline);
    if reader.rest.is_empty() {
        return Ok(Lock::held_by_one(first, expires_at));
    }
    // Counted first: a list that grows takes much more memory than a hostile payload is long.
    let count = reader.count_puts()?.saturating_add(1);
    let mut holders = Vec::with_capacity(count);
    holders.push(first);
    while !reader.rest.is_empty() {
        let put = reader.tagged_put()?;
        expires_at = expires_at.max(put.wall_deadline);
        holders.push(put.holder(heard, now)?);
    }
    let is_distinct = |distinct: usize| if distinct == count { Ok(()) } else { Err(Malformed) };
    is_distinct(holders.iter().map(|holder| &holder.owner).collect::<HashSet<_>>().len())?;
    is_distinct(holders.iter().map(|holder| holder.token).collect::<HashSet<_>>().len())?;
    Lock::held_by(holders, expires_at).ok_or(Malformed)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Self { rest: payload };
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
                // Bits shifted out, or a number written longer than it needs to be.
                let wrong = (shift == 63 && low > 1) || (shift > 0 && low == 0);
                return if wrong { Err(Malformed) } else { Ok(number) };
            }
        }
        Err(Malformed)
    }

    fn holds(&mut self) -> Result<u32, Malformed> {
        self.small().and_then(|holds| if holds == 0 { Err(Malformed) } else { Ok(holds) })
    }

    fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed)
    }

    fn span(&mut self) -> Result<Span, Malformed> {
        Span::from_millis(self.number()?).ok_or(Malformed)
    }

    fn token(&mut self) -> Result<FencingToken, Malformed> {
        FencingToken::new(self.number()?).ok_or(Malformed)
    }

    /// Any number: what is left of a lease, added to any clock, can be told and read again.
    fn wall_time(&mut self) -> Result<WallTime, Malformed> {
        let since_epoch = i64::try_from(self.number()?).map_err(|_| Malformed)?;
        Ok(WallTime::from_millis(since_epoch))
    }

    fn put(&mut self) -> Result<Put<'a>, Malformed> {
        let token = self.token()?;
        let holds = self.holds()?;
        let slots = Slots::new(self.small()?).ok_or(Malformed)?;
        let left = self.span()?;
        let wall_deadline = self.wall_time()?;
        let held_for = self.span()?;
        let owner = self.owner()?;
        Ok(Put { token, holds, slots, left, wall_deadline, held_for, owner })
    }

    fn owner(&mut self) -> Result<EncodedOwner<'a>, Malformed> {
        match usize::try_from(self.number()?) {
            Ok(0) => {
                let (uuid, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
                self.rest = rest;
                Ok(EncodedOwner::Uuid(uuid, self.number()?))
            }
            Ok(len) => Ok(EncodedOwner::Bytes(self.bytes(len)?)),
            Err(_) => Err(Malformed),
        }
    }

    fn tagged_put(&mut self) -> Result<Put<'a>, Malformed> {
        if self.byte()? == PUT { self.put() } else { Err(Malformed) }
    }

    /// How many puts there are, which is all there may be.
    fn count_puts(&self) -> Result<usize, Malformed> {
        let mut ahead = Self { rest: self.rest };
        let mut count = 0_usize;
        while !ahead.rest.is_empty() {
            ahead.tagged_put()?;
            count = count.saturating_add(1);
        }
        Ok(count)
    }
}

/// A put as it was written.
struct Put<'a> {
    token: FencingToken,
    holds: u32,
    slots: Slots,
    left: Span,
    /// By the wall clock of the writer.
    wall_deadline: WallTime,
    held_for: Span,
    owner: EncodedOwner<'a>,
}

/// An owner as it was written.
enum EncodedOwner<'a> {
    Bytes(&'a [u8]),
    Uuid(&'a [u8; 16], u64),
}

impl Put<'_> {
    /// The holder that it puts.
    fn holder(&self, heard: Origin, now: Now) -> Result<Holder, Malformed> {
        let &Self { token, holds, slots, left, .. } = self;
        let owner = match self.owner {
            EncodedOwner::Bytes(bytes) => Owner::new(bytes),
            EncodedOwner::Uuid(uuid, behind) => Owner::from_uuid(*uuid, behind),
        };
        let owner = owner.ok_or(Malformed)?;
        let left_now = match heard {
            Origin::Live => left,
            Origin::Loaded => left.min(now.wall.until(self.wall_deadline)),
        };
        // The part of the lease that went by on the way belongs to the time it has been held.
        let gone =
            Span::from_millis(left.as_millis().saturating_sub(left_now.as_millis())).unwrap_or_default();
        let deadline = now.mono.after(left_now);
        let since = now.mono.before(self.held_for).before(gone);
        Ok(Holder { owner, holds, slots, token, deadline, since })
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
            slots: Slots::new(slots).unwrap(),
            token: FencingToken::new(token).unwrap(),
            deadline: Instant::from_micros(deadline_ms * 1_000),
            since: Instant::from_micros(0),
        }
    }

    fn payload(changes: &[Change], now: Now) -> Vec<u8> {
        let mut payload = Vec::new();
        changes.iter().for_each(|change| append(&mut payload, change, now));
        payload
    }

    #[test]
    fn a_put_of_the_usual_owner_stays_small() {
        let owner = b"0f8fad5b-d9cb-469f-a165-70867728950e:42";
        let put = Change::Put(holder(owner, 1_795_000_000_000_000, 1, 30_000));
        assert!(payload(&[put], now(0, 1_795_000_000_000)).len() <= 46);
    }

    #[test]
    fn an_owner_is_told_as_a_uuid_or_as_its_bytes() {
        let at = now(0, 0);
        let put = |owner: &[u8]| [&[VERSION, PUT, 1, 1, 1, 1, 1, 1][..], owner].concat();
        let uuid: [u8; 16] = std::array::from_fn(|i| i as u8 * 0x11);
        let text = b"00112233-4455-6677-8899-aabbccddeeff";
        for (told, owner) in [
            ([&[UUID][..], &uuid, &[0]].concat(), text.to_vec()),
            ([&[UUID][..], &uuid, &[18]].concat(), [&text[..], b":17"].concat()),
            ([&[36][..], text].concat(), text.to_vec()),
            ([&[16][..], &uuid].concat(), uuid.to_vec()),
        ] {
            let Ok(heard) = decode(&put(&told), Origin::Live, at) else { panic!("{told:x?}") };
            let [Change::Put(heard)] = &heard[..] else { panic!("{heard:?}") };
            assert_eq!(*heard.owner.to_bytes(), *owner);
        }
        for wrong in [
            vec![],
            vec![UUID],
            [&[UUID][..], &uuid].concat(),
            [&[UUID][..], &uuid[1..], &[0]].concat(),
            // One more than the largest number that an owner is told with: 2^56.
            [&[UUID][..], &uuid, &[0x80; 8], &[1]].concat(),
            [&[UUID][..], &uuid, &[0, 0]].concat(),
        ] {
            assert_eq!(decode(&put(&wrong), Origin::Live, at), Err(Malformed), "{wrong:x?}");
        }
        let longest = [&[UUID][..], &uuid, &[0xff; 7], &[0x7f]].concat();
        let Ok(heard) = decode(&put(&longest), Origin::Live, at) else { panic!() };
        assert_eq!(payload(&heard, at)[8..], longest, "what was heard is told on as it came");
    }

    #[test]
    fn a_replica_counts_the_lease_from_when_it_hears_of_it() {
        let payload = payload(&[Change::Put(holder(b"a", 7, 1, 500))], now(100, 9_000));
        // Heard on another machine: another monotonic clock, and a wall clock that is an hour off.
        let there = now(70_000, 9_000 + 3_600_000);
        let Change::Put(heard) = decode(&payload, Origin::Live, there).unwrap().remove(0) else { panic!() };
        assert_eq!(heard.lease_left(there.mono).as_millis(), 400);
        assert_eq!(there.mono.since(heard.since).as_millis(), 100);
    }

    #[test]
    fn a_load_counts_the_time_since_and_never_gives_more_than_was_left() {
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
    fn every_cut_and_every_longer_payload_is_refused() {
        let at = now(0, 0);
        let changes = [
            Change::Put(holder(b"owner \0\xff", u64::MAX >> 11, Slots::MAX, 1)),
            Change::End(FencingToken::new(300).unwrap(), End::Released),
            Change::End(FencingToken::new(5).unwrap(), End::LeaseOver),
            Change::Count(FencingToken::new(5).unwrap(), u32::MAX),
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
    fn a_shadow_is_told_whole_or_that_there_is_none() {
        let at = now(100, 9_000);
        let told = |dropped_lock: Option<&Lock>| {
            let mut payload = Vec::new();
            append_dropped_lock(&mut payload, dropped_lock, at);
            payload
        };
        let holders = vec![holder(b"a", 7, 2, 500), holder(b"b", 8, 0, 600)];
        let lock = Lock::held_by(holders.clone(), WallTime::from_millis(9_500)).unwrap();
        let there = now(70_000, 9_300);
        for (heard, left) in [(Origin::Live, 400), (Origin::Loaded, 100)] {
            let Ok(Message::DroppedLock(Some(dropped_lock))) =
                decode_message(&told(Some(&lock)), heard, there)
            else {
                panic!()
            };
            assert_eq!(dropped_lock.holders().len(), 2);
            assert_eq!(dropped_lock.holders().next().unwrap().lease_left(there.mono).as_millis(), left);
        }
        assert_eq!(decode_message(&told(None), Origin::Live, at), Ok(Message::DroppedLock(None)));
        let whole = told(Some(&lock));
        for cut in (3..whole.len()).filter(|cut| {
            *cut != told(Lock::held_by(vec![holders[0].clone()], WallTime::EPOCH).as_ref()).len()
        }) {
            assert_eq!(decode_message(&whole[..cut], Origin::Live, at), Err(Malformed), "cut at {cut}");
        }
        let put = Change::Put(holder(b"a", 7, 1, 500));
        assert_eq!(
            decode_message(&payload(std::slice::from_ref(&put), at), Origin::Live, at),
            Ok(Message::Changes(vec![put.clone()]))
        );
        let behind_a_change = [&payload(&[put], at)[..], &[KEPT]].concat();
        assert_eq!(decode_message(&behind_a_change, Origin::Live, at), Err(Malformed));
        assert_eq!(decode(&told(None), Origin::Live, at), Err(Malformed));
        assert!(decode_lock(&whole, Origin::Live, at).is_err(), "no file has it in a key");
    }

    #[test]
    fn what_no_lock_can_be_is_refused() {
        let at = now(0, 0);
        let put = |owner: &[u8], token, slots| Change::Put(holder(owner, token, slots, 1));
        let end = Change::End(FencingToken::new(1).unwrap(), End::Released);
        for (what, changes) in [
            ("two exclusive holders", vec![put(b"a", 1, 1), put(b"b", 2, 1)]),
            ("an owner twice", vec![put(b"a", 1, 0), put(b"a", 2, 0)]),
            ("a token twice", vec![put(b"a", 1, 0), put(b"b", 1, 0)]),
            ("an end", vec![put(b"a", 1, 0), end]),
            ("nothing", vec![]),
        ] {
            assert!(decode_lock(&payload(&changes, at), Origin::Loaded, at).is_err(), "{what}");
        }
        assert!(decode_lock(&payload(&[put(b"a", 1, 2), put(b"b", 2, 0)], at), Origin::Loaded, at).is_ok());
        assert!(decode_lock(&[VERSION], Origin::Loaded, at).is_err());
        let later = [VERSION + 1, PUT, 1, 1, 1, 1, 1, 1, 1, b'a'];
        assert!(decode_lock(&later, Origin::Loaded, at).is_err());
    }

    #[test]
    fn the_longest_lease_can_be_stored_again_by_any_clock() {
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
        for (field, bad) in [(2, 0), (3, 0)] {
            let mut payload = ok;
            payload[field] = bad;
            assert_eq!(decode(&payload, Origin::Live, at), Err(Malformed), "field {field}");
        }
        // Each would be 1, if it were read without care.
        assert!(decode(&[VERSION, RELEASED, 1], Origin::Live, at).is_ok());
        for number in [
            &[0x81, 0x00][..],                                             // longer than it needs to be
            &[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02], // 65 bits
            &[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], // 71 bits
        ] {
            let payload = [&[VERSION, RELEASED], number].concat();
            assert_eq!(decode(&payload, Origin::Live, at), Err(Malformed), "{number:x?}");
        }
    }
}
