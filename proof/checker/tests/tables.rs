//! Tests of each check with small histories.
//!
//! A line is `start..end owner operation -> outcome`, with times in milliseconds. The end `-` means that the call was
//! still open at the end of the run. A wait has its limit, and may have the time when it was first seen in the queue
//! (`seen`) and a later time when it was still in the queue (`still`). There is one lock. By default, leases are 100 ms
//! long and tenures are exclusive.

use lockward_checker::bounds::Bounds;
use lockward_checker::checker::{
    check, measure_activity, the_guard_is_right, the_guard_is_right_between_faults,
};
use lockward_checker::history::{
    Call, Data, Fault, History, HoldsReleased, Line, Mode, Nanos, Operation, Outcome, Wait,
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
    // A server may grant at any time until the client reads the reply. From the start of a release on, the tenure may
    // be over.
    clean("0..1 A acquires -> token 5 holds 1\n 20..110 B acquires wait 200 -> token 6 holds 1");
    clean(
        "0..1 A acquires -> token 5 holds 1\n 10..40 A releases -> left 0\n 20..30 B acquires -> token 6 holds 1",
    );
    clean(
        "0..1 A acquires -> token 5 holds 1\n 10..11 A releases -> ?\n 20..30 B acquires -> token 6 holds 1",
    );
}

#[test]
fn a_lease_lasts_as_long_as_the_calls_that_certainly_set_it() {
    let kept = "0..1 A acquires -> token 5 holds 1
                50..51 A renews lease 200 -> token 5
                150..151 B acquires -> token 6 holds 1";
    violation(kept, Check::Overlap, &[0, 1, 2]);
    clean(&kept.replace("lease 200", "lease 20"));
    // A renewal without a reply may have shortened the lease. A renewal with a different token cannot have shortened
    // the lease.
    let short = "0..1 A acquires -> token 5 holds 1
                 5..9 A renews lease 10 -> ?
                 40..41 B acquires -> token 6 holds 1";
    clean(short);
    violation(&short.replace("lease 10", "lease 10 token 4"), Check::Overlap, &[0, 2]);
}

#[test]
fn readers_and_a_writer_overlap() {
    let readers = "0..1 A acquires shared -> token 5 holds 1
                   2..3 B acquires shared -> token 6 holds 1";
    clean(readers);
    violation(&format!("{readers}\n 20..30 C acquires -> token 7 holds 1"), Check::Overlap, &[1, 2]);
    violation(&readers.replacen("shared", "", 1), Check::Overlap, &[0, 1]);
    // From the start of their releases on, the tenures of A and B may be over.
    clean(&format!(
        "{readers}\n 10..40 A releases -> left 0\n 10..40 B releases -> left 0\n 20..30 C acquires -> token 7 holds 1"
    ));
}

#[test]
fn weights_exceed_the_limit_of_a_holder() {
    let full = "0..1 A acquires slots 5 weight 2 -> token 5 holds 1
                2..3 B acquires slots 9 weight 2 -> token 6 holds 1
                4..5 C acquires shared -> token 7 holds 1";
    clean(full);
    let above = format!("{full}\n 6..7 D acquires shared -> token 8 holds 1");
    violation(&above, Check::Overlap, &[0, 1, 2, 3]);
    // The exceeded limit may be the limit of any of the tenures.
    clean(&above.replace("slots 5", "slots 6"));
    violation(&above.replace("slots 5", "slots 9").replace("slots 9", "slots 4"), Check::Overlap, &[0, 1, 2]);
    clean(&above.replace("slots 5", "shared"));
    violation(
        &above.replace("6..7 D acquires shared", "6..7 D acquires slots 3"),
        Check::Overlap,
        &[0, 1, 3],
    );
    // A re-entry adds no weight.
    clean(&format!("{full}\n 6..7 A acquires slots 5 weight 2 -> token 5 holds 2"));
}

#[test]
fn a_downgrade_lets_others_in() {
    let downgrade = "0..1 A acquires -> token 5 holds 1
                     10..11 A renews shared -> token 5
                     12..13 B acquires shared -> token 6 holds 1";
    clean(downgrade);
    violation(&downgrade.replace("renews shared", "renews"), Check::Overlap, &[0, 1, 2]);
    violation(&downgrade.replace("12..13", "5..9"), Check::Overlap, &[0, 1, 2]);
    violation(&downgrade.replace("B acquires shared", "B acquires"), Check::Overlap, &[0, 1, 2]);
    // A downgrade without a reply may have had an effect. A refused downgrade has no effect.
    clean(&downgrade.replace("renews shared -> token 5", "renews shared -> ?"));
    violation(
        &downgrade.replace("renews shared -> token 5", "renews shared -> LIMIT"),
        Check::Overlap,
        &[0, 2],
    );
    // A renewal restores a tenure with the weight that it names, or with weight 1.
    let restored = "0..1 A acquires slots 4 weight 3 -> token 5 holds 1
                    2..3 A renews token 5 slots 4 weight 3 -> token 5
                    4..5 B acquires slots 4 weight 2 -> token 6 holds 1";
    violation(restored, Check::Overlap, &[0, 1, 2]);
    clean(&restored.replace("slots 4 weight 3 -> token 5\n", "slots 4 -> token 5\n"));
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
    // Of two tenures that are held together, the older tenure may have later replies.
    clean(
        "0..1 A acquires shared -> token 5 holds 1
         2..3 B acquires shared -> token 6 holds 1
         4..5 A acquires shared -> token 5 holds 2
         6..7 A renews -> token 5",
    );
    violation(
        "0..1 A acquires shared -> token 5 holds 1\n 2..3 B acquires shared -> token 4 holds 1",
        Check::Tokens,
        &[0, 1],
    );
    // Concurrent calls have no order.
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
    // A repeated request with HOLDS adds no hold. An acquisition without a reply may have added a hold.
    clean("0..1 A acquires HOLDS 1 -> token 5 holds 1\n 2..3 A acquires HOLDS 1 -> token 5 holds 1");
    let lost = "0..1 A acquires -> token 5 holds 1
                2..3 A acquires -> ?
                4..5 A acquires -> token 5 holds 2";
    clean(lost);
    clean(&lost.replace("holds 2", "holds 3"));
    violation(&lost.replace("holds 2", "holds 4"), Check::Counts, &[0, 2]);
    // A request with HOLDS leads to the named count, and never to a larger count.
    let named = "0..1 A acquires HOLDS 1 -> ?
                 2..3 A acquires HOLDS 1 -> token 5 holds 1
                 4..5 A releases -> left 0";
    clean(named);
    violation(&named.replace("left 0", "left 1"), Check::Counts, &[1, 2]);
    violation("0..1 A acquires -> token 5 holds 1\n 2..3 A releases -> left 1", Check::Counts, &[0, 1]);
    violation("0..1 A releases -> left 0", Check::Counts, &[0]);
    clean("0..1 A acquires -> ?\n 2..3 A releases -> left 0");
    // The lease may have ended before the release, so 0 holds are possible.
    clean(
        "0..1 A acquires -> token 5 holds 1\n 2..3 A acquires -> token 5 holds 2\n 200..201 A releases HOLDS 0 -> left 0",
    );
    // A renewal restores a forgotten tenure with the holds that it names, or with one hold.
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
    // B was not seen in the queue before C arrived, so either may have been first.
    clean(&passed.replace(" seen 12", ""));
    clean(&passed.replace("seen 12", "seen 25"));
    // C may continue the place of an earlier wait without a reply.
    clean(&format!("{passed}\n 5..15 C acquires wait 90 -> ?"));
}

#[test]
fn a_reader_passes_a_writer() {
    let passed = "0..1 A acquires shared lease 300 -> token 5 holds 1
                  10..163 B acquires wait 90 seen 12 -> token 7 holds 1
                  20..51 C acquires shared wait 90 -> token 6 holds 1
                  150..151 A releases -> left 0
                  150..151 C releases -> left 0";
    violation(passed, Check::Queue, &[1, 2]);
    // If other owners pass a writer until the writer gives up, the writer has starved. This is a violation too.
    let starved = passed.replace(
        "10..163 B acquires wait 90 seen 12 -> token 7 holds 1",
        "10..101 B acquires wait 90 seen 12 -> null",
    );
    violation(&starved, Check::Queue, &[1, 2]);
    clean(&starved.replace("20..51 C", "20..99 C"));
    clean(&starved.replace("20..51 C", "11..51 C"));
    // A re-entry may pass a waiter.
    clean(
        "0..1 A acquires shared lease 300 -> token 5 holds 1
         10..101 B acquires wait 90 seen 12 -> null
         20..51 A acquires shared -> token 5 holds 2",
    );
}

#[test]
fn a_kept_place_is_passed() {
    let slices = "0..1 A acquires lease 400 -> token 5 holds 1
                  10..61 B acquires wait 50 keep 300 HOLDS 1 seen 12 -> null
                  62..203 B acquires wait 90 keep 300 HOLDS 1 seen 64 -> token 7 holds 1
                  20..181 C acquires wait 300 seen 22 -> token 6 holds 1
                  180..181 A releases -> left 0
                  199..200 C releases -> left 0";
    violation(slices, Check::Queue, &[1, 2, 3]);
    // C may pass B's place if the place was not kept, not kept for long enough, or withdrawn, or if B came back after
    // more than 100 ms.
    clean(&slices.replace("B acquires wait 50 keep 300", "B acquires wait 50"));
    clean(&slices.replacen("keep 300", "keep 5", 1));
    clean(&slices.replace("62..203", "155..203").replace("seen 64", "seen 160"));
    clean(&format!("{slices}\n 30..31 B releases HOLDS 0 -> left 0"));
    clean(&format!("{slices}\n 61..62 fault"));
    violation(&format!("{slices}\n 1..2 fault"), Check::Queue, &[1, 2, 3]);
    // If C was seen in the queue after B came back, C must not be granted the lock first.
    let absent = slices
        .replace("62..203", "155..203")
        .replace("seen 64", "seen 160")
        .replace("seen 22", "seen 22 still 170");
    violation(&absent, Check::Queue, &[1, 2, 3]);
    clean(&absent.replace("still 170", "still 159"));
    // B also keeps its place after its connection was closed, if B certainly did not hold the lock between its two
    // calls. If C was seen in the queue after B came back, C must not be granted the lock first.
    let closed =
        slices.replace("10..61 B", "10..30 B").replace("-> null", "-> ?").replace("62..203", "31..203");
    clean(&closed.replace("seen 64", "seen 33"));
    violation(
        &closed.replace("seen 64", "seen 33").replace("seen 22", "seen 22 still 40"),
        Check::Queue,
        &[1, 2, 3],
    );
    // No later owner may pass a slice that ends without a grant.
    let starved = "0..1 A acquires shared lease 400 -> token 5 holds 1
                   10..61 B acquires wait 50 keep 300 HOLDS 1 seen 12 -> null
                   62..153 B acquires wait 90 keep 300 HOLDS 1 seen 64 -> null
                   20..91 C acquires shared wait 300 seen 22 -> token 6 holds 1";
    violation(starved, Check::Queue, &[1, 2, 3]);
    // C comes back to its kept place, so it arrived with its first wait.
    clean(
        "0..1 A acquires -> token 5 holds 1
         5..16 C acquires wait 10 keep 300 HOLDS 1 -> null
         10..63 B acquires wait 90 seen 12 -> token 7 holds 1
         20..51 C acquires wait 90 HOLDS 1 -> token 6 holds 1
         50..51 A releases -> left 0
         60..61 C releases -> left 0",
    );
}

#[test]
fn a_freed_lock_is_late() {
    let late = "0..1 A acquires -> token 5 holds 1
                5..90 B acquires wait 200 -> token 6 holds 1
                20..21 A releases -> left 0";
    violation(late, Check::Promptness, &[0, 1, 2]);
    clean(&late.replace("5..90", "5..70"));
    // Two histories without a violation. In the first, C's call has no reply, and C may have held the lock before B. In
    // the second, the server was paused.
    clean(&format!("{late}\n 6..7 C acquires -> ?"));
    clean(&format!("{late}\n 30..60 fault"));
    // C's kept place may have held B back. Without KEEP, C has no kept place, so B's late reply is a violation.
    clean(&format!("{late}\n 2..8 C acquires wait 5 keep 300 HOLDS 1 -> null"));
    violation(&format!("{late}\n 2..8 C acquires wait 5 HOLDS 1 -> null"), Check::Promptness, &[0, 1, 2]);
    let reader = "0..1 A acquires -> token 5 holds 1
                  5..90 B acquires shared wait 200 -> token 7 holds 1
                  6..22 C acquires shared wait 200 -> token 6 holds 1
                  20..21 A releases -> left 0";
    violation(reader, Check::Promptness, &[0, 1, 2, 3]);
    clean(&reader.replace("C acquires shared", "C acquires lease 60"));
    // The writer D was before B in the queue, so D may have held B back.
    clean(&format!("{reader}\n 4..60 D acquires wait 55 -> null"));
    let writer = "0..1 A acquires shared lease 40 -> token 5 holds 1
                  2..3 B acquires shared lease 30 -> token 6 holds 1
                  5..110 C acquires wait 200 -> token 7 holds 1";
    violation(writer, Check::Promptness, &[0, 2]);
    clean(&writer.replace("lease 40", "lease 70"));
    let lease = "0..1 A acquires lease 30 -> token 5 holds 1\n 5..90 B acquires wait 200 -> token 6 holds 1";
    violation(lease, Check::Promptness, &[0, 1]);
}

#[test]
fn a_call_has_no_reply_in_time() {
    violation("0..- A acquires wait 10 -> ?", Check::Answers, &[0]);
    violation("0..150 A acquires wait 10 -> null", Check::Answers, &[0]);
    clean("0..100 A acquires wait 10 -> null");
    clean("0..150 A acquires wait 10 -> null\n 20..30 fault");
}

#[test]
fn a_holder_cannot_renew() {
    let refused = "0..1 A acquires -> token 5 holds 1\n 2..3 A renews token 5 -> NOTHELD";
    violation(refused, Check::Renewals, &[0, 1]);
    clean(&refused.replace("NOTHELD", "token 5"));
    clean(&refused.replace("NOTHELD", "READONLY"));
    clean(&refused.replace("renews token 5", "renews token 4"));
    // The lease may have ended, or a release may have ended the tenure.
    clean(&refused.replace("2..3", "2..99"));
    clean(&format!("{refused}\n 1..9 A releases -> left 0"));
}

#[test]
fn the_guard_runs_a_stale_write() {
    let stale = "0..1 A acquires -> token 5 holds 1
                 150..151 B acquires -> token 6 holds 1
                 160..161 A guards 5 -> written";
    violation(stale, Check::Guard, &[0, 1, 2]);
    clean(&stale.replace("written", "FENCED"));
    clean(&stale.replace("guards", "pushes"));
    clean(&stale.replace("160..161", "60..61"));
    // A write is stale if the lease is over, or if the tenure was released.
    let over = "0..1 A acquires -> token 5 holds 1\n 104..105 A guards 5 -> written";
    violation(over, Check::Guard, &[0, 1]);
    clean(&over.replace("104..105", "102..105"));
    let released = "0..1 A acquires -> token 5 holds 1
                    2..3 A releases -> left 0
                    6..7 A guards 5 -> written";
    violation(released, Check::Guard, &[0, 1, 2]);
    clean(&released.replace("2..3", "2..5"));
    clean(&released.replace("releases -> left 0", "renews lease 10 -> ?"));
}

#[test]
fn the_guard_refuses_a_holder() {
    let fenced = "0..1 A acquires -> token 5 holds 1\n 2..3 A guards 5 -> FENCED";
    violation(fenced, Check::Guard, &[0, 1]);
    clean(&fenced.replace("FENCED", "written"));
    clean(&fenced.replace("FENCED", "READONLY"));
    clean(&fenced.replace("2..3", "2..99"));
    clean(&fenced.replace("guards 5", "guards 4"));
    // After a fault, the server may have forgotten the tenure.
    let history = parse(&format!("{fenced}\n 1..2 fault"));
    assert_eq!(the_guard_is_right_between_faults(&history, &Bounds::default()), []);
    assert_eq!(the_guard_is_right(&history, &Bounds::default()).len(), 1);
    let history = parse(&format!("{fenced}\n 4..5 fault"));
    assert_eq!(the_guard_is_right_between_faults(&history, &Bounds::default()).len(), 1);
}

#[test]
fn the_tokens_of_guarded_data_fall() {
    let fallen = "0..1 data guarded 5 5 7 6 8";
    violation(fallen, Check::Guard, &[0]);
    clean(&fallen.replace("7 6", "6 7"));
    clean(&fallen.replace("guarded", "plain"));
}

#[test]
fn stale_writes_are_counted() {
    let history = parse(
        "0..1 A acquires -> token 5 holds 1
         2..3 A pushes 5 -> written
         150..151 B acquires -> token 6 holds 1
         151..152 A pushes 5 -> written
         152..153 A pushes 5 -> written
         153..154 A pushes 5 -> ?
         155..156 A guards 5 -> FENCED
         157..158 B guards 6 -> written",
    );
    let activity = measure_activity(&history, &Bounds::default());
    assert_eq!(["stale plain writes", "stale guarded writes"].map(|what| activity[what]), [1, 0]);
}

#[test]
fn the_times_of_a_report_are_milliseconds_from_its_first_line() {
    let history = parse(
        "5000..5001 A acquires lease 90 -> token 5 holds 1
         5002..5004 B acquires lease 9 wait 300 seen 5003 -> token 6 holds 1
         4000..4001 fault
         4999..5002 fault",
    );
    let violations = check(&history, &Bounds::default());
    let overlap = violations.iter().find(|violation| violation.check == Check::Overlap).expect("a violation");
    assert_eq!(
        overlap.report(&history),
        "\
Overlap: A held k with token 5 for at least 84.000 ms more when B had read its grant with token 6
       0.000 ms to      1.000 ms  LOCK.ACQUIRE k A PX 90 -> token 5, holds 1  [line 1]
       2.000 ms to      4.000 ms  LOCK.ACQUIRE k B PX 9 BLOCK 300 (in the queue at 3.000 ms) -> token 6, holds 1  [line 2]
      -1.000 ms to      2.000 ms  fault: pause  [line 4]"
    );
}

/// Asserts that the history has no violation.
fn clean(table: &str) {
    let history = parse(table);
    let violations = check(&history, &Bounds::default());
    assert!(violations.is_empty(), "{table}\n{violations:#?}");
}

/// Asserts that the history has a violation of this check, shown by these lines.
fn violation(table: &str, by: Check, lines: &[usize]) {
    let history = parse(table);
    let mut violations = check(&history, &Bounds::default());
    violations.retain(|violation| violation.check == by);
    let mut shown: Vec<_> = violations.iter().map(|violation| violation.lines.clone()).collect();
    shown.iter_mut().for_each(|lines| lines.sort_unstable());
    assert!(shown.iter().any(|shown| shown == lines), "{table}\n{violations:#?}");
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
    let (owner, key) = (asked[1].to_owned(), "k".to_owned());
    match asked[1..] {
        ["fault"] => {
            let end = end.expect("an end");
            Line::Fault(Fault { name: "pause".to_owned(), client: None, start, end })
        }
        ["data", kind, ref tokens @ ..] => {
            let tokens = tokens.iter().map(|token| number(token)).collect();
            Line::Data(Data { key, guarded: kind == "guarded", tokens, start, end: end.expect("an end") })
        }
        _ => {
            let [enqueued, still_waiting] = ["seen", "still"].map(|word| Some(option(&asked, word)? * MS));
            Line::Call(Call {
                enqueued,
                still_waiting,
                end,
                outcome: outcome(&came),
                ..Call::sent(0, 0, &key, &owner, operation(&asked), start)
            })
        }
    }
}

/// The number after a word.
fn option(asked: &[&str], word: &str) -> Option<u64> {
    let place = asked.iter().position(|&other| other == word)?;
    Some(number(asked[place + 1]))
}

fn operation(asked: &[&str]) -> Operation {
    let after = |word| option(asked, word);
    let (lease, token) = (after("lease").unwrap_or(100) * MS, after("token"));
    let holds = after("HOLDS").map(|holds| holds.try_into().expect("a count"));
    let weight = after("weight").unwrap_or(1).try_into().expect("a weight");
    let slots = after("slots").map(|slots| Mode::of_slots(slots.try_into().expect("slots"), weight));
    let mode = slots.or(asked.contains(&"shared").then_some(Mode::SHARED));
    match asked[2] {
        "acquires" => {
            let wait = after("wait").map_or(Wait::No, |limit| Wait::Limit(limit * MS));
            let keep = after("keep").map(|keep| keep * MS);
            Operation::Acquire { lease, wait, keep, holds, mode: mode.unwrap_or_default() }
        }
        "renews" => Operation::Renew { lease, token, holds, mode },
        "releases" => {
            let released = holds.map_or(HoldsReleased::One, HoldsReleased::Leaving);
            Operation::Release { released, token }
        }
        "guards" => Operation::Write { token: number(asked[3]), guarded: true },
        "pushes" => Operation::Write { token: number(asked[3]), guarded: false },
        other => panic!("{other}: unknown operation"),
    }
}

fn outcome(came: &[&str]) -> Outcome {
    match *came {
        ["?"] => Outcome::Unknown,
        ["written"] => Outcome::Written,
        ["null"] => Outcome::NotAcquired,
        ["token", token] => Outcome::Renewed { token: number(token) },
        ["token", token, "holds", holds] => {
            Outcome::Granted { token: number(token), holds: holds.parse().expect("a count") }
        }
        ["left", holds] => Outcome::Left { holds: holds.parse().expect("a count") },
        ref other => Outcome::Error(other.join(" ")),
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}
