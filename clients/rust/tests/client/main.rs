//! The client against real servers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code fails by panicking, in what tests share too"
)]

mod basics;
mod bounds;
mod cluster;
mod endings;
mod extremes;
mod faults;
mod leases;
mod leavers;
mod lost_replies;
mod redlock;
mod renewal;
mod replicas;
mod returning;
mod waiting;

use lockward_client::{Address, Client, Settings};
use lockward_tests::Server;
use std::time::Duration;

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(600);

/// A client of one server.
async fn client(server: &Server) -> Client {
    Client::connect(&format!("redis://127.0.0.1:{}", server.port())).await.expect("a client")
}

/// A client of what a URL names, that bears an outage of half a minute.
fn patient(url: &str) -> Client {
    let settings =
        Settings::default().patience(Duration::from_secs(30)).response_limit(Duration::from_secs(1));
    Client::new(url.parse().expect("an address"), settings).expect("a client")
}

/// A client of whatever listens on a port, that is quick to see that nobody answers.
fn hasty(port: u16) -> Client {
    let address: Address = format!("redis://127.0.0.1:{port}").parse().expect("an address");
    let settings =
        Settings::default().response_limit(Duration::from_millis(300)).patience(Duration::from_secs(1));
    Client::new(address, settings).expect("a client")
}

/// What `future` ends with, within the time that a test waits for anything.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(lockward_tests::DEADLINE, future).await.expect("it ends in time")
}
