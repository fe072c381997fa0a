//! Passes the fuzzer's bytes as a payload. The checks are in `core/tests/corpus/mod.rs`. `cargo test` runs the
//! checks on the corpus.

#![no_main]

#[path = "../../../core/tests/corpus/mod.rs"]
mod corpus;

libfuzzer_sys::fuzz_target!(|input: &[u8]| corpus::encoding(input));
