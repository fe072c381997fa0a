//! Encoded requests, and the names that all benchmarks use.

use lockward_tests::{Client, Random, Reply, encode};
use std::ops::Range;

/// A lease that outlives most measurements, in milliseconds.
pub const LEASE: &str = "60000";
/// A lease that outlives every measurement, in milliseconds.
pub const LONG_LEASE: &str = "36000000";

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

/// Sends requests and waits for their replies. Panics if a reply is an error.
pub fn exchange(client: &mut Client, requests: &[Vec<u8>]) -> Vec<Reply> {
    client.send_bytes(&requests.concat());
    let replies = requests.iter().map(|_| client.reply());
    replies.inspect(|reply| assert!(!matches!(reply, Reply::Error(_)), "{reply:?}")).collect()
}

/// Sends the request for each number, a thousand at a time, and waits for the replies.
pub fn fill(client: &mut Client, mut numbers: Range<usize>, request: impl Fn(usize) -> Vec<u8>) {
    while !numbers.is_empty() {
        exchange(client, &numbers.by_ref().take(1_000).map(&request).collect::<Vec<_>>());
    }
}

pub fn load(client: &mut Client, script: &str) -> String {
    client.call(["SCRIPT", "LOAD", script]).text()
}

pub fn used_memory(client: &mut Client) -> f64 {
    client.stat("memory", "used_memory") as f64
}
