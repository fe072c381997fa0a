//! Checks the inputs that the fuzz targets have kept: see `proof/fuzz/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod corpus;

use std::fs;
use std::path::Path;

/// Checks every seed and every kept input of a target.
fn check_all(target: &str, check: fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proof/fuzz");
    let mut checked = 0;
    for kept in ["seeds", "corpus"] {
        for file in fs::read_dir(fuzz.join(kept).join(target)).expect("inputs") {
            check(&fs::read(file.expect("a file").path()).expect("an input"));
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} inputs for {target}");
}

#[test]
fn every_kept_payload_is_refused_or_makes_a_sound_lock() {
    check_all("encoding", corpus::encoding);
}

#[test]
fn every_kept_row_of_arguments_is_read_as_it_was_written() {
    check_all("arguments", corpus::arguments);
}
