//! The random operations.

use crate::reference::Left;
use crate::{KEYS, OPERATIONS, OWNERS};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
pub enum Op {
    /// With `wait`, it joins the queue when the lock is busy, with this wait limit in milliseconds if it has one.
    Acquire {
        key: usize,
        owner: usize,
        lease: i64,
        holds: Option<u32>,
        wait: Option<Option<i64>>,
    },
    Release {
        key: usize,
        owner: usize,
        left: Left,
        token: NamedToken,
    },
    Renew {
        key: usize,
        owner: usize,
        lease: i64,
        token: NamedToken,
        holds: Option<u32>,
    },
    /// Time passes, in microseconds.
    Advance(i64),
    /// The wall clock is set by so many microseconds.
    MoveWallClock(i64),
    /// One of the waiting clients leaves.
    Leave(Index),
    /// The client of an earlier grant had left before the reply.
    PassOn(Index),
    /// The quarantine begins again.
    Promote,
    /// The quarantine is set to this many milliseconds.
    SetQuarantine(i64),
    /// The server evicts or expires the key early, here and on its replicas.
    DropEarly(usize),
    /// The key is deleted.
    Break(usize),
    /// All keys are deleted.
    Flush,
    /// The databases of the two keys are exchanged.
    Swap,
}

/// The token that a request names.
#[derive(Clone, Debug)]
pub enum NamedToken {
    None,
    /// The token of the owner's tenure.
    Own,
    /// The token of an earlier grant.
    Earlier(Index),
    /// The largest token so far plus this.
    Above(u64),
    /// A day after the wall clock, plus so many microseconds.
    DayAhead(i64),
}

fn op() -> impl Strategy<Value = Op> {
    let (key, owner) = (0..KEYS, 0..OWNERS);
    let at = (key.clone(), owner);
    let lease = 1..150_i64;
    let holds = prop_oneof![Just(None), (1..4_u32).prop_map(Some)];
    let limit = prop_oneof![Just(None), (1..200_i64).prop_map(Some)];
    let wait = prop_oneof![1 => Just(None), 3 => limit.prop_map(Some)];
    let left =
        prop_oneof![4 => Just(Left::OneLess), 4 => (0..4_u32).prop_map(Left::Exactly), 1 => Just(Left::None)];
    let named = prop_oneof![
        6 => Just(NamedToken::None),
        3 => Just(NamedToken::Own),
        4 => any::<Index>().prop_map(NamedToken::Earlier),
        2 => (1..3_u64).prop_map(NamedToken::Above),
        1 => (-1..2_i64).prop_map(NamedToken::DayAhead),
    ];
    let restored_holds =
        prop::option::of(prop_oneof![4 => 1..4_u32, 1 => Just(u32::MAX), 1 => Just(u32::MAX - 1)]);
    prop_oneof![
        20 => (at.clone(), lease.clone(), holds, wait)
            .prop_map(|((key, owner), lease, holds, wait)| Op::Acquire { key, owner, lease, holds, wait }),
        10 => (at.clone(), left, named.clone())
            .prop_map(|((key, owner), left, token)| Op::Release { key, owner, left, token }),
        8 => (at, lease, named, restored_holds)
            .prop_map(|((key, owner), lease, token, holds)| Op::Renew { key, owner, lease, token, holds }),
        6 => (1..60_i64).prop_map(|ms| Op::Advance(ms * 1_000)),
        3 => (0..60_000_i64).prop_map(Op::Advance),
        2 => (-2_000_000..2_000_000_i64).prop_map(Op::MoveWallClock),
        4 => any::<Index>().prop_map(Op::Leave),
        4 => any::<Index>().prop_map(Op::PassOn),
        1 => Just(Op::Promote),
        2 => prop_oneof![Just(0), 1..200_i64].prop_map(Op::SetQuarantine),
        3 => key.clone().prop_map(Op::DropEarly),
        1 => key.prop_map(Op::Break),
        1 => Just(Op::Flush),
        1 => Just(Op::Swap),
    ]
}

/// The start of a run.
#[derive(Clone, Debug)]
pub struct Setting {
    pub wall: i64,
    pub quarantine: i64,
    pub limits: (usize, usize),
    /// The limit that each owner names, always the same: so no owner asks for a smaller limit than it has.
    pub slots: [u32; OWNERS],
}

pub fn setting() -> impl Strategy<Value = Setting> {
    let wall = prop_oneof![Just(0), Just(1_795_000_000_000_000)];
    let quarantine = prop_oneof![Just(0), 1..300_i64];
    let limits = prop_oneof![Just((100, 100)), (1..4_usize, 1..6_usize)];
    let slots = prop_oneof![Just([1; OWNERS]), prop::array::uniform4(0..4_u32)];
    (wall, quarantine, limits, slots).prop_map(|(wall, quarantine, limits, slots)| Setting {
        wall,
        quarantine,
        limits,
        slots,
    })
}

/// Every run has all operations. Only a run that fails is reduced to those that make it fail.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kept = prop::collection::vec(prop::bool::weighted(1.0), OPERATIONS);
    (kept, prop::collection::vec(op(), OPERATIONS)).prop_map(|(kept, ops)| {
        let kept = ops.into_iter().zip(kept).filter(|(_, kept)| *kept);
        kept.map(|(op, _)| op).collect()
    })
}
