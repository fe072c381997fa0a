//! The clients with their default settings. drivers/ has a program for each client, and `scripts/test-retries` builds
//! these programs.

use std::time::Duration;

/// A Redis client.
#[derive(Debug)]
pub(crate) struct Client {
    /// The name of the client.
    pub(crate) name: &'static str,
    /// The driver and its first arguments. Paths begin at the root of the repository.
    pub(crate) program: &'static str,
    /// How long the client waits for a reply; `None` for no limit.
    pub(crate) patience: Option<Duration>,
    /// Whether the client itself repeats a command after a lost connection.
    pub(crate) sends_again: bool,
}

pub(crate) const CLIENTS: [Client; 7] = [
    client(
        "redis-py",
        "target/retries/python/bin/python proof/retries/drivers/python/driver.py",
        5_000,
        true,
    ),
    client("Lettuce", "java @target/retries/java/arguments Lettuce", 60_000, true),
    client("Jedis", "java @target/retries/java/arguments Jedis", 2_000, false),
    client("go-redis", "target/retries/go", 3_000, true),
    client("ioredis", "node target/retries/node/driver.js ioredis", 0, true),
    client("node-redis", "node target/retries/node/driver.js node-redis", 0, false),
    client("redis-rs", "target/release/retries-redis-rs", 500, false),
];

/// A client that waits this number of milliseconds for a reply; 0 is no limit.
const fn client(name: &'static str, program: &'static str, patience: u64, sends_again: bool) -> Client {
    let patience = if patience == 0 { None } else { Some(Duration::from_millis(patience)) };
    Client { name, program, patience, sends_again }
}
