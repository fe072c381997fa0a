//! The client against real servers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking, in their shared functions too"
)]

mod acquire_and_release;
mod cluster;
mod default_lease;
mod dropped_at_each_poll;
mod dropped_futures;
mod extreme_durations;
mod guarded;
mod lost_replies;
mod modes;
mod redlock;
mod replicas;
mod requests_during_outages;
mod resource_usage;
mod server_failures;
mod waiting;

use lockward_client::{Client, Error, Guard, Settings};
use lockward_tests::Server;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(600);

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// A client of one server, with the default settings.
async fn client(server: &Server) -> Client {
    client_at(server.port()).await
}

/// A client of the server or proxy at a port, with the default settings.
async fn client_at(port: u16) -> Client {
    Client::connect(&url(port)).await.expect("a client")
}

fn client_with(url: &str, settings: Settings) -> Client {
    Client::new(url.parse().expect("an address"), settings).expect("a client")
}

/// A client that keeps trying for half a minute while no server answers.
fn patient(url: &str) -> Client {
    let settings = Settings::default().patience(Duration::from_secs(30));
    client_with(url, settings.response_limit(Duration::from_secs(1)))
}

/// A client that soon gives up when no server answers.
fn hasty(port: u16) -> Client {
    let settings = Settings::default().patience(Duration::from_secs(1));
    client_with(&url(port), settings.response_limit(Duration::from_millis(300)))
}

/// The output of `future`, which must come within the time limit of tests.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(lockward_tests::DEADLINE, future).await.expect("it ends in time")
}

/// The guard that a task acquires.
async fn granted(task: JoinHandle<Result<Guard, Error>>) -> Guard {
    soon(task).await.expect("no panic").expect("a guard")
}

/// How often the server has run a command.
fn calls(observer: &mut lockward_tests::Client, command: &str) -> u64 {
    command_stat(observer, command, "calls")
}

/// A field of INFO commandstats, such as `calls` or `failed_calls`.
fn command_stat(observer: &mut lockward_tests::Client, command: &str, field: &str) -> u64 {
    let stats = observer.call("INFO commandstats").text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let mut fields = line.into_iter().flat_map(|line| line.split(','));
    let count = fields.find_map(|entry| entry.strip_prefix(field)?.strip_prefix('='));
    count.map_or(0, |count| count.parse().expect("a count"))
}
