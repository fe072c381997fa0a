//! Tests of one lock: queries, changes, and the forms in which it is stored.

use super::*;
use crate::change::End;
use crate::holder::{Mode, Slots, Weight};
use crate::units::Span;

const NOW: Now = Now { mono: Instant::from_micros(0), wall: WallTime::from_micros(0) };

fn mode(slots: u32) -> Mode {
    Mode { slots: Slots::new(slots).unwrap(), weight: Weight::ONE }
}

fn holder(owner: &str, slots: u32, token: u64) -> Holder {
    Holder {
        owner: Owner::new(owner.as_bytes()).unwrap(),
        holds: 1,
        mode: mode(slots),
        token: FencingToken::new(token).unwrap(),
        deadline: Instant::from_micros(1_000),
        since: Instant::from_micros(0),
    }
}

fn lock(slots: &[u32]) -> Lock {
    let mut lock = Lock::new();
    for (i, slots) in slots.iter().enumerate() {
        lock.apply(Change::Put(holder(&format!("o{i}"), *slots, i as u64 + 1)), NOW);
    }
    lock
}

#[test]
fn holders_are_listed_in_the_order_of_their_grants() {
    let mut lock = lock(&[0, 0, 0]);
    lock.apply(Change::End(FencingToken::new(2).unwrap(), End::Released), NOW);
    let tokens: Vec<u64> = lock.holders().map(|holder| holder.token.get()).collect();
    assert_eq!(tokens, [1, 3]);
    lock.apply(Change::End(FencingToken::new(9).unwrap(), End::Released), NOW);
    lock.apply(Change::End(FencingToken::new(1).unwrap(), End::Released), NOW);
    lock.apply(Change::End(FencingToken::new(3).unwrap(), End::LeaseOver), NOW);
    assert!(lock.is_free());
    assert_eq!((lock.heap_size(), lock), (0, Lock::new()));
}

#[test]
fn a_lock_knows_its_first_and_its_last_deadline_and_its_ttl() {
    assert_eq!((Lock::held_by(vec![], WallTime::EPOCH), Lock::new().time_to_expire()), (None, None));
    let until = |owner: &str, token, deadline| Holder {
        deadline: Instant::from_micros(deadline),
        ..holder(owner, 0, token)
    };
    let expires_at = WallTime::from_micros(7_000);
    let mut lock = Lock::held_by(vec![until("a", 1, 500), until("b", 2, 900)], expires_at).unwrap();
    assert_eq!(lock.first_deadline(), Some(Instant::from_micros(500)));
    assert_eq!(lock.last_deadline(), Some(Instant::from_micros(900)));
    assert_eq!(lock.time_to_expire(), Some(expires_at));
    assert_eq!(lock.owners_mut(None).count(), 2);
    assert_eq!(lock.owners_mut(FencingToken::new(1)).count(), 1);
}

#[test]
fn a_change_without_a_list_has_the_same_result_as_with_it() {
    let at = Now { mono: Instant::from_micros(50), wall: WallTime::from_micros(1_795_000_000_000_050) };
    let (usual, _) = usual_holder(30_000_000);
    let month = Holder { deadline: Instant::from_micros(30 * 24 * 3_600 * 1_000_000), ..usual.clone() };
    let locks = [lock(&[]), lock(&[1]), lock(&[0]), lock(&[0, 0]), Lock::held_by_one(usual.clone(), at.wall)];
    let ends =
        [End::Released, End::LeaseOver].map(|end| [1, 2, 9, usual.token.get()].map(|token| (token, end)));
    let ends = ends.into_iter().flatten();
    let changes = ends.map(|(token, end)| Change::End(FencingToken::new(token).unwrap(), end)).chain([
        Change::Put(holder("o0", 1, 1)),
        Change::Put(holder("o0", 0, 9)),
        Change::Put(holder("new", 0, 9)),
        Change::Put(usual),
        Change::Put(month),
        Change::Count(FencingToken::new(1).unwrap(), 700),
        Change::AllOver,
    ]);
    for change in changes {
        for held in &locks {
            let (mut directly, mut as_list) = (held.clone(), held.clone());
            directly.apply(change.clone(), at);
            as_list.with_list(|list| list.apply(change.clone(), at));
            assert_eq!(directly, as_list, "{change:?} of {held:?}");
        }
    }
}

/// The same lock with its holders in trees, even if there are few holders.
fn as_trees(lock: &Lock) -> Lock {
    let holders = HolderList::of_trees(lock.holders().map(Holder::cloned).collect());
    Lock(Repr::list(holders, lock.expires_at()))
}

/// Checks that the lock gives the same answers to all queries when its holders are in trees.
fn assert_trees_answer_the_same(lock: &Lock, what: &str) {
    let trees = &as_trees(lock);
    assert!(lock.holders().eq(trees.holders()) && lock.holders().rev().eq(trees.holders().rev()), "{what}");
    assert_eq!((lock.holders().len(), lock.load()), (trees.holders().len(), trees.load()), "{what}");
    assert_eq!(lock.first_deadline(), trees.first_deadline(), "{what}");
    assert_eq!(lock.last_to_end(), trees.last_to_end(), "{what}");
    for at in [0, 10, 25, 99].map(Instant::from_micros) {
        let sorted = |mut tokens: Vec<FencingToken>| {
            tokens.sort();
            tokens
        };
        assert_eq!(sorted(lock.expired(at, 99)), sorted(trees.expired(at, 99)), "{what}");
        assert_eq!(lock.expired(at, 2).len(), trees.expired(at, 2).len(), "{what}");
        assert_eq!(lock.any_expired(at), trees.any_expired(at), "{what}");
        assert_eq!(lock.present(at, 99), trees.present(at, 99), "{what}");
        assert_eq!(lock.present(at, 2), trees.present(at, 2), "{what}");
    }
    let none = (holder("stranger", 0, 999), None);
    let known = lock.holders().map(Holder::cloned).map(|known| (known.clone(), Some(known)));
    for (Holder { owner, token, .. }, known) in known.chain([none]) {
        let known = known.as_ref().map(Holder::as_ref);
        assert_eq!((lock.holder(&owner), trees.holder(&owner)), (known, known), "{what}");
        assert_eq!((lock.of_token(token), trees.of_token(token)), (known, known), "{what}");
        assert_eq!(lock.load_without(Some(token)), trees.load_without(Some(token)), "{what}");
    }
}

#[test]
fn a_list_and_trees_give_the_same_answers() {
    let put = |number: u64, token, (slots, weight), deadline| {
        let mode = Mode { slots: Slots::new(slots).unwrap(), weight: Weight::new(weight).unwrap() };
        let deadline = Instant::from_micros(deadline);
        Change::Put(Holder { mode, deadline, ..holder(&format!("owner {number}"), 0, token) })
    };
    let (token, modes) = (|token| FencingToken::new(token).unwrap(), [(0, 1), (40, 3), (50, 1), (40, 2)]);
    let puts = (1..=12_u64).map(|number| {
        let deadline = i64::try_from(number * 7 % 29).unwrap();
        put(number, 3 * number % 37, modes[usize::try_from(number % 4).unwrap()], deadline)
    });
    let changes = puts.chain([
        put(4, 12, (40, 9), 90),
        put(5, 38, (37, 7), 1),
        Change::Count(token(38), 9),
        Change::Count(token(777), 9),
        Change::End(token(777), End::Released),
        Change::End(token(38), End::Released),
        Change::End(token(12), End::Released),
    ]);
    let mut lock = Lock::new();
    for change in changes {
        let mut trees = as_trees(&lock);
        lock.apply(change.clone(), NOW);
        trees.apply(change.clone(), NOW);
        assert_eq!(lock, trees, "{change:?}");
        assert_trees_answer_the_same(&lock, &format!("{change:?}"));
    }
    assert_eq!(lock.holders().len(), 10);
    let expected = lock.holders().filter(|holder| holder.token > token(9)).count();
    assert!(expected > 0 && lock.owners_mut(Some(token(9))).count() == expected);
    assert_eq!(as_trees(&lock).owners_mut(Some(token(9))).count(), expected);
}

#[test]
fn a_put_ends_the_tenures_that_do_not_fit_beside_it() {
    for (held, put, left) in [
        (&[1][..], ("new", 1, 9), &[9][..]),
        (&[1], ("new", 1, 1), &[1]),
        (&[0, 0], ("new", 2, 9), &[2, 9]),
        (&[0, 0], ("new", 0, 1), &[1, 2]),
        (&[0, 0, 0], ("o1", 1, 2), &[2]),
        (&[0, 0, 0], ("o1", 0, 3), &[1, 3]),
        (&[0, 0, 0], ("new", 0, 9), &[1, 2, 3, 9]),
    ] {
        let mut lock = lock(held);
        let (owner, slots, token) = put;
        lock.apply(Change::Put(holder(owner, slots, token)), NOW);
        let tokens: Vec<u64> = lock.holders().map(|holder| holder.token.get()).collect();
        assert_eq!(tokens, left, "{put:?} beside {held:?}");
        assert!(Lock::held_by(lock.holders().map(Holder::cloned).collect(), WallTime::EPOCH).is_some());
    }
}

#[test]
fn the_heap_holds_the_list_of_several_holders_and_long_owners() {
    let long = "x".repeat(200);
    let mut lock = Lock::held_by(vec![holder("A", 0, 1)], WallTime::EPOCH).unwrap();
    assert_eq!(lock.heap_size(), 0);
    lock.apply(Change::Put(holder(&long, 0, 2)), NOW);
    assert!(lock.heap_size() >= size_of::<List>() + 2 * size_of::<Holder>() + 200);
    lock.apply(Change::End(FencingToken::new(1).unwrap(), End::Released), NOW);
    assert_eq!(lock.heap_size(), 200, "one holder has no list");
}

#[test]
fn a_ttl_is_computed_when_the_last_deadline_changes_or_on_request() {
    let mut lock = Lock::new();
    lock.recompute_expiry(NOW);
    assert_eq!(lock.expires_at(), WallTime::EPOCH, "a free lock has no TTL");
    lock.apply(Change::Put(holder("A", 1, 1)), NOW);
    assert_eq!(lock.expires_at(), WallTime::from_micros(1_000));
    let later = Now { mono: Instant::from_micros(400), wall: WallTime::from_micros(90_000) };
    lock.apply(Change::Count(FencingToken::new(1).unwrap(), 2), later);
    assert_eq!(lock.expires_at(), WallTime::from_micros(1_000), "a count does not change it");
    lock.recompute_expiry(later);
    assert_eq!(lock.expires_at(), WallTime::from_micros(90_600));
}

/// A holder whose lease lasts `micros`, with present-day times, and the TTL of its key.
fn usual_holder(micros: i64) -> (Holder, WallTime) {
    let granted = 1_795_000_000_000_000;
    let owner = Owner::new(b"0f8fad5b-d9cb-469f-a165-70867728950e:17").unwrap();
    let (since, deadline) = (Instant::from_micros(70), Instant::from_micros(70 + micros));
    let holder = Holder { owner, since, deadline, ..holder("A", 1, granted as u64) };
    (holder, WallTime::from_micros(granted + micros))
}

fn is_compact(lock: &Lock) -> bool {
    matches!(lock.0, Repr::One(_))
}

#[test]
fn a_holder_is_read_back_unchanged_whether_it_fits_or_not() {
    let month = 30 * 24 * 3_600 * 1_000_000;
    let later = |span: i64, mut by: (Holder, WallTime)| {
        by.1 = WallTime::from_micros(by.1.as_micros() + span);
        by
    };
    let with = |change: &dyn Fn(&mut Holder)| {
        let mut by = usual_holder(30_000_000);
        change(&mut by.0);
        by
    };
    for (what, fits, (holder, expires_at)) in [
        ("a lease that is over at once", true, usual_holder(0)),
        ("the usual lease", true, usual_holder(30_000_000)),
        ("a week", true, usual_holder(month / 4)),
        ("the longest lease that fits", true, usual_holder((1 << 40) - 1)),
        ("a lease longer by a microsecond", false, usual_holder(1 << 40)),
        ("a month", false, usual_holder(month)),
        ("a deadline before the grant", true, usual_holder(-1)),
        ("a clock that was set ahead", true, later((1 << 22) - 1, usual_holder(5_000))),
        ("a clock that was set ahead too far", false, later(1 << 22, usual_holder(5_000))),
        ("a clock that was set back", true, later(-(1 << 22), usual_holder(5_000))),
        ("a clock that was set back too far", false, later(-(1 << 22) - 1, usual_holder(5_000))),
        ("a small token", false, with(&|holder| holder.token = FencingToken::new(1).unwrap())),
        ("the largest token", false, with(&|holder| holder.token = FencingToken::MAX)),
        ("many holds", true, with(&|holder| holder.holds = 511)),
        ("more holds", false, with(&|holder| holder.holds = 512)),
        ("the largest count of holds", false, with(&|holder| holder.holds = u32::MAX)),
        ("shared", true, with(&|holder| holder.mode = mode(0))),
        ("many slots", true, with(&|holder| holder.mode = mode(127))),
        ("more slots", false, with(&|holder| holder.mode = mode(128))),
        ("the largest number of slots", false, with(&|holder| holder.mode = mode(Slots::MAX))),
        ("a weight of 1 of many", true, with(&|holder| holder.mode = mode(5))),
        (
            "a weight of 2",
            false,
            with(&|holder| holder.mode = Mode { weight: Weight::new(2).unwrap(), ..mode(5) }),
        ),
        ("the earliest instant", false, with(&|holder| holder.since = Instant::from_micros(i64::MIN))),
        ("the latest instant", false, with(&|holder| holder.deadline = Instant::from_micros(i64::MAX))),
    ] {
        let lock = Lock::held_by(vec![holder.clone()], expires_at).unwrap();
        assert_eq!(is_compact(&lock), fits, "{what}");
        assert!(lock.holders().eq([holder.as_ref()]), "{what}: {lock:?}");
        assert_eq!(lock.expires_at(), expires_at, "{what}");
        assert_eq!((lock.heap_size() == 0, lock.is_free()), (fits, false), "{what}");
    }
    let (longest, _) = usual_holder(Span::MAX.as_millis().cast_signed() * 1_000);
    let since = longest.deadline;
    let lock = Lock::held_by(vec![Holder { since, ..longest }], WallTime::from_micros(1_795_000_000_000_000));
    assert!(is_compact(&lock.unwrap()), "the latest deadline of any lease fits");
}

#[test]
fn a_lock_is_compact_again_when_its_holder_fits_again() {
    let (holder, expires_at) = usual_holder(30_000_000);
    let token = holder.token;
    let mut lock = Lock::held_by(vec![holder.clone()], expires_at).unwrap();
    let packed = lock.clone();
    lock.apply(Change::Count(token, 512), NOW);
    assert!(!is_compact(&lock) && lock != packed);
    lock.apply(Change::Count(token, 1), NOW);
    assert_eq!(lock, packed);
    let at = Now { mono: holder.since, wall: WallTime::from_micros(1_795_000_000_000_000) };
    let other = Holder { token: FencingToken::new(1).unwrap(), mode: mode(0), ..holder.clone() };
    let other = Holder { owner: Owner::new(b"B").unwrap(), ..other };
    lock.apply(Change::Put(Holder { mode: mode(0), ..holder.clone() }), at);
    lock.apply(Change::Put(other.clone()), at);
    assert!(!is_compact(&lock));
    lock.apply(Change::End(other.token, End::Released), at);
    lock.apply(Change::Put(holder), at);
    assert_eq!(lock, packed);
    lock.apply(Change::End(token, End::Released), at);
    assert!(lock.is_free() && lock.heap_size() == 0);
}

#[test]
fn the_heap_size_counts_the_long_owners_of_all_holders() {
    let size = |count: usize, len: usize| {
        let holders = (1..=count).map(|number| {
            let name = format!("{number:0len$}");
            holder(&name, 0, u64::try_from(number).unwrap())
        });
        Lock::held_by(holders.collect(), WallTime::EPOCH).unwrap().heap_size()
    };
    for count in [2, 63, 64, 65, 130] {
        let owners = size(count, 300) - size(count, 3);
        assert!((300 * count..350 * count).contains(&owners), "{owners} bytes for {count} owners");
    }
}

#[test]
fn equal_locks_have_the_same_hash_and_others_have_another() {
    let hash = |lock: &Lock| {
        let mut hasher = std::hash::DefaultHasher::new();
        lock.hash(&mut hasher);
        hasher.finish()
    };
    let (one, two) = (lock(&[0]), lock(&[0, 0]));
    let mut again = two.clone();
    again.apply(Change::End(FencingToken::new(2).unwrap(), End::Released), NOW);
    assert_eq!((&again, hash(&again)), (&one, hash(&one)));
    assert_ne!(hash(&one), hash(&two));
    assert_ne!(hash(&one), hash(&Lock::new()));
}

#[test]
fn a_lock_takes_48_bytes() {
    assert_eq!(size_of::<Lock>(), 48);
}
