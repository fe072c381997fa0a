//! Tests that each operation is sent as the right command.

use lockward_checker::history::{HoldsReleased, Mode, Nanos, Operation, Wait};

const MS: Nanos = 1_000_000;

#[test]
fn every_operation_has_its_command() {
    let acquire =
        |wait, holds| Operation::Acquire { lease: 90 * MS, wait, keep: None, holds, mode: Mode::EXCLUSIVE };
    let acquire_in = |mode| Operation::Acquire {
        lease: 90 * MS,
        wait: Wait::Limit(20 * MS),
        keep: Some(500 * MS),
        holds: Some(1),
        mode,
    };
    let release = |released, token| Operation::Release { released, token };
    let renew = |token, holds, mode| Operation::Renew { lease: 90 * MS, token, holds, mode };
    for (operation, command) in [
        (acquire(Wait::No, None), "LOCK.ACQUIRE k A PX 90"),
        (acquire(Wait::Limit(20 * MS), Some(2)), "LOCK.ACQUIRE k A PX 90 BLOCK 20 HOLDS 2"),
        // A limit below a millisecond is rounded up.
        (acquire(Wait::Limit(1), None), "LOCK.ACQUIRE k A PX 90 BLOCK 1"),
        (acquire(Wait::Unlimited, None), "LOCK.ACQUIRE k A PX 90 BLOCK 0"),
        (release(HoldsReleased::One, None), "LOCK.RELEASE k A"),
        (release(HoldsReleased::Leaving(0), Some(7)), "LOCK.RELEASE k A HOLDS 0 TOKEN 7"),
        (release(HoldsReleased::All, None), "LOCK.RELEASE k A ALL"),
        (acquire_in(Mode::SHARED), "LOCK.ACQUIRE k A PX 90 BLOCK 20 KEEP 500 HOLDS 1 SHARED"),
        (acquire_in(Mode::of_slots(4, 1)), "LOCK.ACQUIRE k A PX 90 BLOCK 20 KEEP 500 HOLDS 1 SLOTS 4"),
        (
            acquire_in(Mode::of_slots(4, 3)),
            "LOCK.ACQUIRE k A PX 90 BLOCK 20 KEEP 500 HOLDS 1 SLOTS 4 WEIGHT 3",
        ),
        (renew(None, None, None), "LOCK.RENEW k A PX 90"),
        (renew(Some(7), Some(2), None), "LOCK.RENEW k A PX 90 TOKEN 7 HOLDS 2"),
        (renew(None, None, Some(Mode::SHARED)), "LOCK.RENEW k A PX 90 SHARED"),
        (renew(Some(7), Some(2), Some(Mode::EXCLUSIVE)), "LOCK.RENEW k A PX 90 TOKEN 7 HOLDS 2 SLOTS 1"),
        (Operation::Write { token: 7, guarded: true }, "LOCK.GUARD k 7 RPUSH {k}guarded 7"),
        (Operation::Write { token: 7, guarded: false }, "RPUSH {k}plain 7"),
    ] {
        assert_eq!(operation.command("k", "A"), command);
    }
}
