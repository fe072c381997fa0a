//! Tests of each check with small histories.
//!
//! A line is `start..end owner operation -> outcome`, with times in milliseconds. The end `-` means that there was no reply. A wait has its
//! limit and the time at which it was seen in the queue. There is one lock. Leases are 100 ms by default.

use lockward_checker::bounds::{Activity, Bounds};
use lockward_checker::checker::check;
use lockward_checker::history::{
    Call, Fault, History, HoldsReleased, Line, Nanos, Operation, Outcome, Wait, Write, WriteOutcome,
};
use lockward_checker::violation::Check;

const MS: Nanos = 1_000_000;

#[test]
fn two_tenures_overlap() {
    violation(
        "0..1 A acquires -> token 5 holds 1\n 20..30 B acquires -> token 6 holds 1",
        Check::Overlap,
        &[0, 1],
    );
    // Until its reply is read, a grant may be any time; from the start of a release, the tenure may be over.
    clean("0..1 A acquires -> token 5 holds 1\n 20..110 B acquires wait 200 -> token 6 holds 1");
    clean(
        "0..1 A acquires -> token 5 holds 1\n 10..40 A releases -> left 0\n 20..30 B acquires -> token 6 holds 1",
    );
    clean(
        "0..1 A acquires -> token 5 holds 1\n 10..11 A releases -> ?\n 20..30 B acquires -> token 6 holds 1",
    );
}

#[test]
fn a_lease_reaches_as_far_as_what_surely_set_it() {
    let kept = "0..1 A acquires -> token 5 holds 1
                50..51 A renews lease 200 -> token 5
                150..151 B acquires -> token 6 holds 1";
    violation(kept, Check::Overlap, &[0, 1, 2]);
    clean(&kept.replace("lease 200", "lease 20"));
    // A renewal without an answer can have cut the lease short; one that names another token cannot.
    let short = "0..1 A acquires -> token 5 holds 1
                 5..9 A renews lease 10 -> ?
                 40..41 B acquires -> token 6 holds 1";
    clean(short);
    violation(&short.replace("lease 10", "lease 10 token 4"), Check::Overlap, &[0, 2]);
}

#[test]
fn tokens_fall_repeat_or_are_shared() {
    let fallen = "0..1 A acquires -> token 5 holds 1
                  2..3 A releases -> left 0
                  4..5 B acquires -> token 4 holds 1";
    violation(fallen, Check::Tokens, &[0, 2]);
    clean(&fallen.replace("token 4", "token 6"));
    violation(&fallen.replace("token 4", "token 5"), Check::Tokens, &[0, 2]);
    violation(&fallen.replace("B", "A").replace("token 4", "token 5"), Check::Tokens, &[0, 1, 2]);
    // Concurrent replies have no order.
    clean("0..300 A acquires wait 300 -> token 5 holds 1\n 150..200 B acquires wait 9 -> token 4 holds 1");
    violation(
        "0..1 A acquires -> token 5 holds 1\n 2..3 A acquires -> token 6 holds 2",
        Check::Tokens,
        &[0, 1],
    );
}

#[test]
fn hold_counts_slip() {
    let slip = "0..1 A acquires -> token 5 holds 1\n 2..3 A acquires -> token 5 holds 3";
    violation(slip, Check::Counts, &[0, 1]);
    clean(&slip.replace("holds 3", "holds 2"));
    // A repeat is not counted; an acquisition without an answer may be.
    clean("0..1 A acquires HOLDS 1 -> token 5 holds 1\n 2..3 A acquires HOLDS 1 -> token 5 holds 1");
    let lost = "0..1 A acquires -> token 5 holds 1
                2..3 A acquires -> ?
                4..5 A acquires -> token 5 holds 2";
    clean(lost);
    clean(&lost.replace("holds 2", "holds 3"));
    violation(&lost.replace("holds 2", "holds 4"), Check::Counts, &[0, 2]);
    // One that named HOLDS leads to that count and no further.
    let named = "0..1 A acquires HOLDS 1 -> ?
                 2..3 A acquires HOLDS 1 -> token 5 holds 1
                 4..5 A releases -> left 0";
    clean(named);
    violation(&named.replace("left 0", "left 1"), Check::Counts, &[1, 2]);
    violation("0..1 A acquires -> token 5 holds 1\n 2..3 A releases -> left 1", Check::Counts, &[0, 1]);
    violation("0..1 A releases -> left 0", Check::Counts, &[0]);
    clean("0..1 A acquires -> ?\n 2..3 A releases -> left 0");
    // A tenure that the server forgot comes back with the holds that the renewal names, or one.
    let restored = "0..1 A acquires -> token 5 holds 1
                    2..3 A acquires -> token 5 holds 2
                    4..5 A renews token 5 -> token 5
                    6..7 A acquires -> token 5 holds 2";
    clean(restored);
    violation(&restored.replace("renews token 5", "renews"), Check::Counts, &[1, 3]);
    violation(&restored.replace("renews token 5", "renews token 5 HOLDS 2"), Check::Counts, &[2, 3]);
}

#[test]
fn a_waiter_is_passed() {
    let passed = "0..1 A acquires -> token 5 holds 1
                  10..63 B acquires wait 90 seen 12 -> token 7 holds 1
                  20..51 C acquires wait 90 -> token 6 holds 1
                  50..51 A releases -> left 0
                  60..61 C releases -> left 0";
    violation(passed, Check::Queue, &[1, 2]);
    // Nobody saw it in the queue, or not before the other came: either may have been first.
    clean(&passed.replace(" seen 12", ""));
    clean(&passed.replace("seen 12", "seen 25"));
    // A repeated wait takes the position of the earlier one.
    clean(&format!("{passed}\n 5..15 C acquires wait 90 -> ?"));
}

#[test]
fn a_freed_lock_is_late() {
    let late = "0..1 A acquires -> token 5 holds 1
                5..90 B acquires wait 200 -> token 6 holds 1
                20..21 A releases -> left 0";
    violation(late, Check::Promptness, &[0, 1, 2]);
    clean(&late.replace("5..90", "5..70"));
    // An owner without a reply may have held the lock in between, or the server was paused.
    clean(&format!("{late}\n 6..7 C acquires -> ?"));
    clean(&format!("{late}\n 30..60 fault"));
    let lease = "0..1 A acquires lease 30 -> token 5 holds 1\n 5..90 B acquires wait 200 -> token 6 holds 1";
    violation(lease, Check::Promptness, &[0, 1]);
}

#[test]
fn a_call_is_not_answered() {
    violation("0..- A acquires wait 10 -> ?", Check::Answers, &[0]);
    violation("0..150 A acquires wait 10 -> null", Check::Answers, &[0]);
    clean("0..100 A acquires wait 10 -> null");
    clean("0..150 A acquires wait 10 -> null\n 20..30 fault");
}

#[test]
fn the_store_takes_a_stale_write() {
    let stale = "0..1 A writes 6 -> accepted\n 2..3 B writes 5 -> accepted";
    violation(stale, Check::Store, &[0, 1]);
    clean(&stale.replace("5 -> accepted", "5 -> refused"));
    clean(&stale.replace("2..3", "1..3"));
}

#[test]
fn a_report_is_told_in_milliseconds_from_its_first_line() {
    let history = parse(
        "5000..5001 A acquires lease 90 -> token 5 holds 1
         5002..5004 B acquires lease 9 wait 300 seen 5003 -> token 6 holds 1
         4998..5003 C releases -> left 0
         4000..4001 fault
         5001..5002 fault
         4990..4999 A writes 4 -> accepted",
    );
    let violations = check(&history, &bounds());
    let overlap = violations.iter().find(|violation| violation.check == Check::Overlap).expect("a violation");
    assert_eq!(
        overlap.report(&history),
        "\
Overlap: A held k with token 5 for at least 84.000 ms more when B had read its grant with token 6
       0.000 to      1.000 ms  LOCK.ACQUIRE k A PX 90 -> token 5, holds 1  [line 1]
       2.000 to      4.000 ms  LOCK.ACQUIRE k B PX 9 BLOCK 300 (in the queue at 3.000) -> token 6, holds 1  [line 2]
  Meanwhile:
       1.000 to      2.000 ms  fault: pause  [line 5]
      -2.000 to      3.000 ms  LOCK.RELEASE k C -> 0 left  [line 3]"
    );
    assert_eq!(overlap.detected_at(&history), 5004 * MS);
}

#[test]
fn a_report_leaves_out_all_but_the_last_calls_meanwhile() {
    let others: String = (10..30).map(|at| format!("\n {at}..{at} C renews -> token 9")).collect();
    let history =
        parse(&format!("0..1 A acquires -> token 5 holds 1\n 40..41 B acquires -> token 4 holds 1{others}"));
    let violations = check(&history, &bounds());
    let shown =
        violations.iter().find(|violation| violation.lines == [0, 1]).expect("a violation").report(&history);
    assert!(shown.contains("\n    14 calls on the same lock with a reply, then\n      24.000 to"), "{shown}");
    assert_eq!(shown.lines().count(), 1 + 2 + 2 + 6, "{shown}");
}

/// The history raises no violation.
fn clean(table: &str) {
    let history = parse(table);
    let violations = check(&history, &bounds());
    assert!(violations.is_empty(), "{table}\n{violations:#?}");
}

/// The history raises this violation, over these lines.
fn violation(table: &str, by: Check, lines: &[usize]) {
    let history = parse(table);
    let mut violations = check(&history, &bounds());
    violations.retain(|violation| violation.check == by);
    let mut shown: Vec<_> = violations.iter().map(|violation| violation.lines.clone()).collect();
    shown.iter_mut().for_each(|lines| lines.sort_unstable());
    assert!(shown.iter().any(|shown| shown == lines), "{table}\n{violations:#?}");
}

fn bounds() -> Bounds {
    Bounds { minimum: Activity::default(), ..Bounds::default() }
}

fn parse(table: &str) -> History {
    History { lines: table.lines().map(line).collect() }
}

fn line(text: &str) -> Line {
    let (asked, came) = text.split_once("->").unwrap_or((text, ""));
    let asked: Vec<_> = asked.split_whitespace().collect();
    let came: Vec<_> = came.split_whitespace().collect();
    let (start, end) = asked[0].split_once("..").expect("start..end");
    let (start, end) = (number(start) * MS, (end != "-").then(|| number(end) * MS));
    if asked[1] == "fault" {
        let end = end.expect("an end");
        return Line::Fault(Fault { name: "pause".to_owned(), client: None, start, end });
    }
    let (owner, key) = (asked[1].to_owned(), "k".to_owned());
    let after = |word: &str| {
        let place = asked.iter().position(|&other| other == word)?;
        Some(number(asked[place + 1]))
    };
    let lease = after("lease").unwrap_or(100) * MS;
    let holds = after("HOLDS").map(|holds| holds.try_into().expect("a count"));
    let operation = match asked[2] {
        "acquires" => {
            let wait = after("wait").map_or(Wait::No, |limit| Wait::Limit(limit * MS));
            Operation::Acquire { lease, wait, holds }
        }
        "renews" => Operation::Renew { lease, token: after("token"), holds },
        "releases" => Operation::Release {
            released: holds.map_or(HoldsReleased::One, HoldsReleased::Leaving),
            token: after("token"),
        },
        "writes" => {
            let outcome = if came == ["accepted"] { WriteOutcome::Accepted } else { WriteOutcome::Refused };
            let (token, end) = (number(asked[3]), end.expect("an end"));
            return Line::Write(Write { client: 0, key, owner, token, start, end, outcome });
        }
        other => panic!("{other}: unknown operation"),
    };
    let outcome = match came[..] {
        ["?"] => Outcome::Unknown,
        ["null"] => Outcome::NotAcquired,
        ["token", token] => Outcome::Renewed { token: number(token) },
        ["token", token, "holds", holds] => {
            Outcome::Granted { token: number(token), holds: holds.parse().expect("a count") }
        }
        ["left", holds] => Outcome::Left { holds: holds.parse().expect("a count") },
        ref other => Outcome::Error(other.join(" ")),
    };
    let enqueued = after("seen").map(|seen| seen * MS);
    Line::Call(Call { client: 0, node: 0, key, owner, operation, start, enqueued, end, outcome })
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}
