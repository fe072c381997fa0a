//! The wire between a primary and a replica, and the two ways in which it can lose what is sent.

use lockward_tests::{Link, Server, eventually};
use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Set where this program runs in a network of its own.
const OWN_NETWORK: &str = "LOCKWARD_OWN_NETWORK";

/// The table of our rules in the packet filter.
const TABLE: &str = "lockward";

/// How a wire loses what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The replica follows a link of ours, which swallows it.
    Link,
    /// The packet filter of the kernel drops it. This program runs in a network of its own then.
    Firewall,
}

/// The wire over which a replica follows its primary.
#[derive(Debug)]
pub enum Wire {
    /// Over a link of ours.
    Link(Link),
    /// Straight: the ports of the primary and of this side of the replica's connection.
    Straight(u16, u16),
}

impl Wire {
    /// Lets `replica` follow `primary`, and waits until the primary sends it at once what it writes.
    #[must_use]
    pub fn between(primary: &Server, replica: &Server, how: Break) -> Self {
        let wire = match how {
            Break::Link => {
                let link = Link::to(primary);
                replica.follow_through(&link, primary);
                Self::Link(link)
            }
            Break::Firewall => {
                replica.follow(primary);
                filter(&["delete", "table", "inet", TABLE]);
                let list = replica.client().call("CLIENT LIST TYPE master").text();
                let port = list.split(" laddr=").nth(1).and_then(|rest| rest.split([':', ' ']).nth(1));
                let port =
                    port.and_then(|port| port.parse().ok()).expect("the port of the replica's connection");
                Self::Straight(primary.port(), port)
            }
        };
        let mut client = primary.client();
        eventually("every replica is online", || {
            let info = client.call("INFO replication").text();
            info.lines().filter(|line| line.starts_with("slave")).all(|line| line.contains("state=online"))
        });
        wire
    }

    /// From now on all that is sent is lost, and neither side is told.
    pub fn lose(&self) {
        match *self {
            Self::Link(ref link) => link.swallow(),
            Self::Straight(primary, replica) => {
                let (primary, replica) = (primary.to_string(), replica.to_string());
                let added = filter(&["add", "table", "inet", TABLE])
                    && filter(&[
                        "add",
                        "chain",
                        "inet",
                        TABLE,
                        "cut",
                        "{ type filter hook input priority 0 ; }",
                    ])
                    && [[&primary, &replica], [&replica, &primary]].into_iter().all(|[from, to]| {
                        filter(&[
                            "add", "rule", "inet", TABLE, "cut", "tcp", "sport", from, "tcp", "dport", to,
                            "drop",
                        ])
                    });
                assert!(added, "the packet filter takes no rule");
            }
        }
    }
}

/// Whether the packet filter has done it.
fn filter(arguments: &[&str]) -> bool {
    Command::new("nft").args(arguments).output().is_ok_and(|done| done.status.success())
}

/// Goes on in a network of our own, which vanishes with the last process in it.
///
/// # Errors
/// When this program may not make one, or there is no packet filter: nothing was run then.
pub fn enter_own_network() -> Result<(), ExitCode> {
    if env::var_os(OWN_NETWORK).is_some() {
        return Ok(());
    }
    let tried = Command::new("unshare").args(["--net", "nft", "add", "table", "inet", TABLE]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        eprintln!("SKIPPED: this needs unshare, ip and nft, and the right to make a network namespace");
        return Err(ExitCode::from(77));
    }
    let program = env::current_exe().expect("this program");
    let script = "ip link set lo up && exec \"$0\" \"$@\"";
    let error = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(OWN_NETWORK, "1")
        .exec();
    panic!("unshare does not run: {error}");
}
