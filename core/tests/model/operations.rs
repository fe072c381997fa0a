//! The random operations.

use crate::reference::Left;
use crate::{KEYS, LIMITS, OPERATIONS, OWNERS};
use proptest::prelude::*;
use proptest::sample::Index;

/// A lock and an owner. The number of the owner is taken modulo the number of owners of the run.
pub type At = (usize, usize);

#[derive(Clone, Debug)]
pub enum Op {
    /// If the lock is busy and `wait` is set, the owner joins the queue. The inner value of `wait` is the wait limit in
    /// milliseconds. If `holds` and `keep` are set too, and the wait ends without a grant, the owner's place is kept
    /// for `keep` milliseconds.
    Acquire {
        at: At,
        mode: Asked,
        lease: i64,
        holds: Option<u32>,
        wait: Option<Option<i64>>,
        keep: Option<i64>,
    },
    /// An owner with a kept place sends its next request.
    ComeBack {
        which: Index,
        mode: Asked,
        lease: i64,
        limit: Option<i64>,
        keep: Option<i64>,
    },
    /// `count` owners, beginning with the owner in `at`, acquire one lock, each with a longer lease than the previous
    /// owner.
    Crowd {
        at: At,
        count: usize,
        mode: Asked,
        lease: i64,
    },
    Release {
        at: At,
        left: Left,
        token: NamedToken,
    },
    Renew {
        at: At,
        lease: i64,
        token: NamedToken,
        holds: Option<u32>,
        mode: Option<Asked>,
    },
    /// This many microseconds pass.
    Advance(i64),
    /// The wall clock is moved by this many microseconds.
    MoveWallClock(i64),
    /// One of the waiting clients disconnects.
    Leave(Index),
    /// CLIENT UNBLOCK ends the wait of one of the waiting clients.
    Unblock(Index),
    /// An earlier grant is passed on, because its client left before the reply.
    PassOn(Index),
    /// The quarantine begins again. If `was_replica` is set, the server was a replica before, so all waits have ended.
    Promote {
        was_replica: bool,
    },
    /// The quarantine is set to this many milliseconds.
    SetQuarantine(i64),
    /// The server evicts the key or expires it early, and its replicas drop the key too.
    DropEarly(usize),
    /// The key is deleted.
    Break(usize),
    /// All keys are deleted.
    Flush,
    /// The databases of the first two keys are exchanged.
    Swap,
}

/// The mode that a request names.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// The mode that the owner usually asks for, with or without its weight.
    Usual { names_weight: bool },
    /// The index of one of the run's limits, and a weight. A weight above the limit is reduced to the limit.
    Other { limit: usize, weight: Option<u32> },
}

/// The token that a request names.
#[derive(Clone, Debug)]
pub enum NamedToken {
    None,
    /// The token of the owner's tenure.
    Own,
    /// The token of an earlier grant.
    Earlier(Index),
    /// The largest token so far plus this number.
    Above(u64),
    /// The wall clock plus a day and this many microseconds.
    DayAhead(i64),
}

fn asked() -> impl Strategy<Value = Asked> {
    let weight = prop_oneof![2 => Just(None), 1 => (1..9_u32).prop_map(Some)];
    prop_oneof![
        6 => prop::bool::weighted(0.7).prop_map(|names_weight| Asked::Usual { names_weight }),
        2 => (0..LIMITS, weight).prop_map(|(limit, weight)| Asked::Other { limit, weight }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS;
    let at = || (0..KEYS, 0..OWNERS);
    let lease = || 1..150_i64;
    let holds = prop_oneof![3 => Just(None), 4 => Just(Some(1)), 2 => (2..4_u32).prop_map(Some)];
    let limit = || prop_oneof![Just(None), (1..200_i64).prop_map(Some)];
    let keep = || prop_oneof![1 => Just(None), 2 => (1..400_i64).prop_map(Some)];
    let wait = prop_oneof![1 => Just(None), 3 => limit().prop_map(Some)];
    let left =
        prop_oneof![4 => Just(Left::OneLess), 4 => (0..4_u32).prop_map(Left::Exactly), 1 => Just(Left::None)];
    let named = || {
        prop_oneof![
            6 => Just(NamedToken::None),
            3 => Just(NamedToken::Own),
            4 => any::<Index>().prop_map(NamedToken::Earlier),
            2 => (1..3_u64).prop_map(NamedToken::Above),
            1 => (-1..2_i64).prop_map(NamedToken::DayAhead),
        ]
    };
    let restored_holds =
        prop::option::of(prop_oneof![4 => 1..4_u32, 1 => Just(u32::MAX), 1 => Just(u32::MAX - 1)]);
    prop_oneof![
        20 => (at(), asked(), lease(), holds, wait, keep())
            .prop_map(|(at, mode, lease, holds, wait, keep)| Op::Acquire { at, mode, lease, holds, wait, keep }),
        4 => (any::<Index>(), asked(), lease(), limit(), keep())
            .prop_map(|(which, mode, lease, limit, keep)| Op::ComeBack { which, mode, lease, limit, keep }),
        2 => (at(), 1..OWNERS, asked(), lease())
            .prop_map(|(at, count, mode, lease)| Op::Crowd { at, count, mode, lease }),
        10 => (at(), left, named()).prop_map(|(at, left, token)| Op::Release { at, left, token }),
        8 => (at(), lease(), named(), restored_holds, prop::option::of(asked()))
            .prop_map(|(at, lease, token, holds, mode)| Op::Renew { at, lease, token, holds, mode }),
        6 => (1..60_i64).prop_map(|ms| Op::Advance(ms * 1_000)),
        3 => (0..60_000_i64).prop_map(Op::Advance),
        2 => (-2_000_000..2_000_000_i64).prop_map(Op::MoveWallClock),
        4 => any::<Index>().prop_map(Op::Leave),
        2 => any::<Index>().prop_map(Op::Unblock),
        4 => any::<Index>().prop_map(Op::PassOn),
        1 => any::<bool>().prop_map(|was_replica| Op::Promote { was_replica }),
        2 => prop_oneof![Just(0), 1..200_i64].prop_map(Op::SetQuarantine),
        3 => key.clone().prop_map(Op::DropEarly),
        1 => key.prop_map(Op::Break),
        1 => Just(Op::Flush),
        1 => Just(Op::Swap),
    ]
}

/// The settings at the start of a run.
#[derive(Clone, Debug)]
pub struct Setting {
    pub wall: i64,
    pub quarantine: i64,
    pub max_waiters: (usize, usize),
    /// How many owners there are, and the mode that each of them usually asks for.
    pub usual: Vec<Asked>,
    /// Whether limits are large, leases long and owners many.
    pub is_crowded: bool,
}

pub fn setting() -> impl Strategy<Value = Setting> {
    let wall = prop_oneof![Just(0), Just(1_795_000_000_000_000)];
    let quarantine = prop_oneof![Just(0), 1..300_i64];
    let max_waiters = prop_oneof![Just((100, 100)), (1..5_usize, 1..8_usize)];
    let mode = || (0..LIMITS, prop::option::of(1..9_u32));
    let mode = move || mode().prop_map(|(limit, weight)| Asked::Other { limit, weight });
    let exclusive = Asked::Other { limit: 0, weight: None };
    let usual = prop_oneof![
        1 => Just((vec![exclusive; 4], false)),
        4 => prop::collection::vec(mode(), 2..7).prop_map(|usual| (usual, false)),
        1 => prop::collection::vec(mode(), OWNERS).prop_map(|usual| (usual, true)),
    ];
    (wall, quarantine, max_waiters, usual).prop_map(|(wall, quarantine, max_waiters, (usual, is_crowded))| {
        Setting { wall, quarantine, max_waiters, usual, is_crowded }
    })
}

/// Every run plays all operations of its list. After a failure, proptest leaves operations out, to find the operations
/// that cause the failure.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kept = prop::collection::vec(prop::bool::weighted(1.0), OPERATIONS);
    (kept, prop::collection::vec(op(), OPERATIONS)).prop_map(|(kept, ops)| {
        let kept = ops.into_iter().zip(kept).filter(|(_, kept)| *kept);
        kept.map(|(op, _)| op).collect()
    })
}
