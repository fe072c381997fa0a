//! Passes any bytes as a payload. The checks are in `core/tests/corpus/mod.rs`. CI runs them on the corpus too.

#![no_main]

#[path = "../../../core/tests/corpus/mod.rs"]
mod corpus;

libfuzzer_sys::fuzz_target!(|input: &[u8]| corpus::encoding(input));
