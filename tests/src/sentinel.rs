//! Sentinels.

use crate::client::Client;
use crate::reply::Reply;
use crate::server::{Server, Setup};
use crate::wait::{eventually, within};
use std::time::Duration;

/// By what name they know the primary.
const NAME: &str = "locks";

/// They wait ten seconds before they believe that a server which was the primary is none, and longer where the
/// machine is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// Three Sentinels that watch a primary, and promote one of its replicas when it is gone for half a second.
#[derive(Debug)]
pub struct Sentinels {
    all: [Server; 3],
}

impl Sentinels {
    /// Starts them, and waits until they know each other and all `replicas` of the primary.
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

    /// The same with the lines of sentinel.conf that `lines` gives for the primary's port. They name it `locks`.
    #[track_caller]
    pub fn watch_with(primary: &Server, replicas: usize, lines: impl Fn(u16) -> Vec<String>) -> Self {
        let lines = lines(primary.port());
        let start = || lines.iter().fold(Setup::sentinel(), |setup, line| setup.config(line)).start();
        let all = [start(), start(), start()];
        let sentinels = Self { all };
        for sentinel in &sentinels.all {
            let mut client = sentinel.client();
            eventually("the Sentinel knows all", || {
                let told = client.call(["SENTINEL", "MASTER", NAME]);
                let number = |name: &str| told.field(name).text();
                number("num-slaves") == replicas.to_string()
                    && number("num-other-sentinels") == "2"
                    && number("flags") == "master"
            });
        }
        sentinels
    }

    /// How clients are told of them: their addresses, and by what name they know the primary.
    pub fn url(&self) -> String {
        let addresses = self.all.each_ref().map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
        format!("redis+sentinel://{}/{NAME}", addresses.join(","))
    }

    /// Lets them promote a replica though the primary is well.
    #[track_caller]
    pub fn fail_over(&self) {
        let [first, ..] = &self.all;
        assert_eq!(first.client().call(["SENTINEL", "FAILOVER", NAME]), Reply::ok());
    }

    /// The port of the primary, as most of them tell.
    ///
    /// # Panics
    /// When one of them does not answer.
    #[track_caller]
    pub fn primary(&self) -> Option<u16> {
        let told = self.all.each_ref().map(|sentinel| {
            let address = sentinel.client().call(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
            address.items().get(1).and_then(|port| port.text().parse().ok())
        });
        let most = |port: &Option<u16>| told.iter().filter(|other| *other == port).count() >= 2;
        told.iter().find(|port| most(port)).copied().flatten()
    }

    /// Waits until they have made another server the primary, and that knows it; its port.
    #[track_caller]
    pub fn see_failover_from(&self, port: u16) -> u16 {
        within(PATIENCE, "the Sentinels have promoted another server", || {
            let now = self.primary().filter(|now| *now != port)?;
            replication(now)?.contains("role:master").then_some(now)
        })
    }

    /// Waits until all other servers follow the primary; its port. Where the machine is slow, the Sentinels may take
    /// a server for gone that is not, and promote once more: each new primary is told to `promoted`.
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
                // The Sentinels close a server's connections when they make it a replica.
                let told = replication(server.port()).unwrap_or_default();
                told.contains(&of_it) && told.contains("master_link_status:up")
            };
            let mut others = servers.iter().filter(|server| server.port() != primary);
            others.all(follows).then_some(primary)
        })
    }
}

fn replication(port: u16) -> Option<String> {
    Some(Client::connect(port).ok()?.try_call("INFO replication").ok()?.text())
}
