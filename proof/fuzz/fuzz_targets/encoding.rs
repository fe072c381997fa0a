//! Any bytes where a payload is expected. What is judged is in `core/tests/corpus/mod.rs`, as CI judges the corpus by it.

#![no_main]

#[path = "../../../core/tests/corpus/mod.rs"]
mod corpus;

libfuzzer_sys::fuzz_target!(|input: &[u8]| corpus::encoding(input));
