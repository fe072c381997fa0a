//! What the fuzz targets have found worth keeping, judged once more: see `proof/fuzz/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod corpus;

use std::fs;
use std::path::Path;

/// Judges every seed and every kept input of a target.
fn judge_all(target: &str, judge: fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proof/fuzz");
    let mut judged = 0;
    for kept in ["seeds", "corpus"] {
        for file in fs::read_dir(fuzz.join(kept).join(target)).expect("inputs") {
            judge(&fs::read(file.expect("a file").path()).expect("an input"));
            judged += 1;
        }
    }
    assert!(judged > 10, "{judged} inputs for {target}");
}

#[test]
fn every_kept_payload_is_refused_or_makes_a_sound_lock() {
    judge_all("encoding", corpus::encoding);
}

#[test]
fn every_kept_row_of_arguments_is_read_as_it_was_written() {
    judge_all("arguments", corpus::arguments);
}
