//! Sentinels.

use crate::client::Client;
use crate::reply::Reply;
use crate::server::{Server, Setup};
use crate::wait::{eventually, within};
use std::time::Duration;

/// The name of the primary in the Sentinels.
const NAME: &str = "locks";

/// How long a test waits for a failover. This time is long, because Sentinels wait for at least ten seconds
/// before they turn the former primary into a replica.
const PATIENCE: Duration = Duration::from_secs(90);

/// Three Sentinels that monitor a primary, and promote a replica when the primary has been down for half a second.
#[derive(Debug)]
pub struct Sentinels {
    all: [Server; 3],
}

impl Sentinels {
    /// Starts the Sentinels, and waits until the Sentinels know each other and all `replicas` of the primary.
    #[track_caller]
    pub fn watch(primary: &Server, replicas: usize) -> Self {
        Self::watch_with(primary, replicas, |port| {
            vec![
                format!("sentinel monitor {NAME} 127.0.0.1 {port} 2"),
                format!("sentinel down-after-milliseconds {NAME} 500"),
                format!("sentinel failover-timeout {NAME} 3000"),
                format!("sentinel parallel-syncs {NAME} 1"),
            ]
        })
    }

    /// Starts the Sentinels, as [`Sentinels::watch`] does, but with different lines in sentinel.conf. `lines` gets the
    /// port of the primary and returns the lines. The lines must name the primary `locks`.
    #[track_caller]
    pub fn watch_with(primary: &Server, replicas: usize, lines: impl Fn(u16) -> Vec<String>) -> Self {
        let lines = lines(primary.port());
        let start = || lines.iter().fold(Setup::sentinel(), |setup, line| setup.config(line)).start();
        let all = [start(), start(), start()];
        let sentinels = Self { all };
        for sentinel in &sentinels.all {
            let mut client = sentinel.client();
            eventually("the Sentinel knows all", || {
                let primary = client.call(["SENTINEL", "MASTER", NAME]);
                let number = |name: &str| primary.field(name).text();
                number("num-slaves") == replicas.to_string()
                    && number("num-other-sentinels") == "2"
                    && number("flags") == "master"
            });
        }
        sentinels
    }

    /// The URL for clients, with the addresses of the Sentinels and the name of the primary.
    pub fn url(&self) -> String {
        let addresses = self.all.each_ref().map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
        format!("redis+sentinel://{}/{NAME}", addresses.join(","))
    }

    /// The three Sentinels.
    pub const fn all(&self) -> &[Server] {
        &self.all
    }

    /// Makes the Sentinels promote a replica although the primary works.
    #[track_caller]
    pub fn fail_over(&self) {
        let [first, ..] = &self.all;
        assert_eq!(first.client().call(["SENTINEL", "FAILOVER", NAME]), Reply::ok());
    }

    /// The port of the primary that at least two Sentinels name.
    ///
    /// # Panics
    /// When a Sentinel does not answer.
    #[track_caller]
    pub fn primary(&self) -> Option<u16> {
        let ports = self.all.each_ref().map(|sentinel| {
            let address = sentinel.client().call(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
            address.items().get(1).and_then(|port| port.text().parse().ok())
        });
        let most = |port: &Option<u16>| ports.iter().filter(|other| *other == port).count() >= 2;
        ports.iter().find(|port| most(port)).copied().flatten()
    }

    /// Waits until the Sentinels name another server as the primary, and that server reports the role of a primary.
    /// Returns the port of the new primary.
    #[track_caller]
    pub fn see_failover_from(&self, port: u16) -> u16 {
        within(PATIENCE, "the Sentinels have promoted another server", || {
            let now = self.primary().filter(|now| *now != port)?;
            replication(now)?.contains("role:master").then_some(now)
        })
    }

    /// Waits until all other servers replicate from the primary. Returns the primary's port. On a slow machine the
    /// Sentinels may believe that a running primary is dead, and promote another server. The function calls `promoted`
    /// for each new primary.
    #[track_caller]
    pub fn see_all_follow(&self, servers: &[Server], mut promoted: impl FnMut(u16)) -> u16 {
        let mut latest = 0;
        within(PATIENCE, "all follow the primary that the Sentinels name", || {
            let primary = self.primary()?;
            if primary != latest {
                promoted(primary);
                latest = primary;
            }
            let of_it = format!("master_port:{primary}\r");
            let follows = |server: &Server| {
                // The Sentinels close the connections of a server that becomes a replica. So each check uses a new
                // connection.
                let info = replication(server.port()).unwrap_or_default();
                info.contains(&of_it) && info.contains("master_link_status:up")
            };
            let mut others = servers.iter().filter(|server| server.port() != primary);
            others.all(follows).then_some(primary)
        })
    }
}

fn replication(port: u16) -> Option<String> {
    Some(Client::connect(port).ok()?.try_call("INFO replication").ok()?.text())
}
