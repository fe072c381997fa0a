//! Encoded requests, and the names that all benchmarks use.

use lockward_tests::{Random, encode};

/// A lease that outlives most measurements, in milliseconds.
pub const LEASE: &str = "60000";
/// A lease that outlives every measurement, in milliseconds.
pub const LONG_LEASE: &str = "36000000";

/// A command and its arguments, encoded.
pub fn request(arguments: &[&str]) -> Vec<u8> {
    encode(arguments)
}

/// The owner name that a connection uses: 38 bytes, in the form `UUID:thread`.
pub fn owner(connection: usize) -> String {
    format!("{:08x}-0b5e-4c3a-9d57-{:012x}:7", connection * 0x9e37_79b1 % 0xffff_ffff, connection)
}

/// Pseudo-random numbers, the same in every run.
pub fn numbers() -> Random {
    Random::from_seed(0)
}
