//! Encoded requests, and the names that all benchmarks use.

use lockward_tests::encode;

/// A lease that outlives every measurement, in milliseconds.
pub const LEASE: &str = "60000";

/// A command and its arguments, encoded.
pub fn request(arguments: &[&str]) -> Vec<u8> {
    encode(arguments)
}

/// The owner of a client's connection: like a UUID and a thread, 38 bytes.
pub fn owner(connection: usize) -> String {
    format!("{:08x}-0b5e-4c3a-9d57-{:012x}:7", connection * 0x9e37_79b1 % 0xffff_ffff, connection)
}

/// Pseudo-random numbers, the same in every run (SplitMix64).
#[derive(Debug, Default)]
pub struct Numbers(u64);

impl Numbers {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
