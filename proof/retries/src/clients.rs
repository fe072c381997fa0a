//! The clients with their default settings. drivers/ has a program for each client, and `scripts/test-retries` builds
//! these programs.

use std::time::Duration;

/// A Redis client.
#[derive(Debug)]
pub(crate) struct Client {
    /// The name of the client.
    pub(crate) name: &'static str,
    /// The driver's path from the root of the repository, and its arguments.
    pub(crate) program: &'static [&'static str],
    /// How long the client waits for a reply; `None` for no limit.
    pub(crate) patience: Option<Duration>,
    /// Whether the client itself repeats a command after a lost connection.
    pub(crate) sends_again: bool,
}

const NODE: &str = "target/retries/node/driver.js";
const JAVA: &str = "target/retries/java/driver.jar";

pub(crate) const CLIENTS: [Client; 7] = [
    Client {
        name: "redis-py",
        program: &["target/retries/python/bin/python", "proof/retries/drivers/python/driver.py"],
        patience: Some(Duration::from_secs(5)),
        sends_again: true,
    },
    Client {
        name: "Lettuce",
        program: &["java", "-jar", JAVA, "Lettuce"],
        patience: Some(Duration::from_secs(60)),
        sends_again: true,
    },
    Client {
        name: "Jedis",
        program: &["java", "-jar", JAVA, "Jedis"],
        patience: Some(Duration::from_secs(2)),
        sends_again: false,
    },
    Client {
        name: "go-redis",
        program: &["target/retries/go"],
        patience: Some(Duration::from_secs(3)),
        sends_again: true,
    },
    Client { name: "ioredis", program: &["node", NODE, "ioredis"], patience: None, sends_again: true },
    Client { name: "node-redis", program: &["node", NODE, "node-redis"], patience: None, sends_again: false },
    Client {
        name: "redis-rs",
        program: &["target/release/retries-redis-rs"],
        patience: Some(Duration::from_millis(500)),
        sends_again: false,
    },
];
