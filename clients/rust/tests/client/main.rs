//! The client against real servers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking, in their shared functions too"
)]

mod address;
mod dropped_at_each_poll;
mod dropped_futures;
mod extreme_durations;
mod faults;
mod hostile_servers;
mod interface;
mod redlock;
mod resource_usage;

use lockward_client::{Client, Error, Guard, Settings};
use lockward_tests::Server;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A time that is longer than a test.
const LONG: Duration = Duration::from_secs(600);

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// A client of one server, with the default settings.
async fn client(server: &Server) -> Client {
    Client::connect(&url(server.port())).await.expect("a client")
}

fn client_with(url: &str, settings: Settings) -> Client {
    Client::new(url.parse().expect("an address"), settings).expect("a client")
}

/// The output of `future`, which must complete within the time limit of tests.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(lockward_tests::DEADLINE, future).await.expect("it ends in time")
}

/// The guard that a task acquires within the time limit of tests.
async fn granted(task: JoinHandle<Result<Guard, Error>>) -> Guard {
    soon(task).await.expect("no panic").expect("a guard")
}

/// How often the server has run a command.
fn calls(observer: &mut lockward_tests::Client, command: &str) -> u64 {
    let stats = observer.call("INFO commandstats").text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let count = line.and_then(|line| line.split(',').next());
    count.map_or(0, |count| count.parse().expect("a count"))
}
